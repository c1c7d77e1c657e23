"""Decodes the bytes of a ``.tflite`` file into tensors and operators, and checks every reference.

A flatbuffer is made of tables whose fields are numbered slots: ``root.tables(2, ...)`` is the list
``Model.subgraphs``. Slots are those of ``schema.fbs``; a comment names the field where it is read.
`Wire` is the file, `Table` one table of it. `open_tflite`, below them, reads a model.

A file is hostile input: every position is checked, and what is decoded is charged against the size
of the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import ModelError
from intact.formats.base.foreign import MOST_ELEMENTS, BinaryFile
from intact.formats.tflite.reader.file import (
    FileTensor,
    Level,
    Operator,
    Quantization,
    Signature,
    Sparsity,
    Subgraph,
    TfliteFile,
)
from intact.formats.tflite.reader.schema import (
    IDENTIFIER,
    OPERATORS,
    OPTIONS,
    TEXT,
    VERSION,
    Element,
    OptionField,
)
from intact.formats.tflite.reader.turns import called_graphs, with_turns
from intact.formats.tflite.reader.variables import has_variables, without_variables
from intact.graph.files.regular import read_file

_TABLE = 32
"""Bytes that a table counts for, which bounds the work of those that share all their fields."""


class Wire(BinaryFile):
    """A flatbuffer, and how much of it may still be decoded."""

    def number(self, position: int, form: str) -> Any:
        """Return a scalar of a ``struct`` format."""
        if not 0 <= position <= len(self.data) - struct.calcsize(form):
            raise self.damaged(f"position {position} lies outside it")
        return struct.unpack_from(form, self.data, position)[0]

    def root(self, identifier: bytes) -> Table:
        """Return the root table of a file with an identifier."""
        if bytes(self.data[4:8]) != identifier:
            raise self.damaged(f"it has no identifier {identifier.decode()} at byte 4")
        # Offsets of a flatbuffer are unsigned and lead forward, so that no table can hold itself.
        return Table(self, self.number(0, "<I"))


class Table:
    """One table; fields are named by their slots, absent ones have defaults.

    Raises:
        ModelError: It or its list of fields lies outside the file.
    """

    def __init__(self, wire: Wire, position: int) -> None:
        self._wire = wire
        self._position = position
        # By the table, because thousands may share one place of the file.
        wire.charge(_TABLE)
        self._fields = position - wire.number(position, "<i")
        self._fields_size = wire.number(self._fields, "<H")
        self._size = wire.number(self._fields + 2, "<H")
        size = len(wire.data)
        # Both sizes stand in the first four bytes of the list of fields.
        if self._fields_size < 4 or self._fields + self._fields_size > size:
            raise wire.damaged(f"the fields of the table at {position} lie outside it")
        if self._size < 4 or position + self._size > size:
            raise wire.damaged(f"the table at {position} ends outside it")

    def number(self, slot: int, form: str, default: float = 0) -> Any:
        """Return a scalar field of a ``struct`` format."""
        at = self._field(slot, struct.calcsize(form))
        return default if at is None else self._wire.number(at, form)

    def integer(self, slot: int, form: str, default: int = 0) -> int:
        """Return an integer field."""
        return int(self.number(slot, form, default))

    def text(self, slot: int) -> str:
        """Return a string; bytes that are not UTF-8 are replaced."""
        data = self._vector(slot, 1)
        if data is None:
            return ""
        self._wire.charge(len(data))
        return bytes(data).decode("utf-8", "replace")

    def bytes(self, slot: int) -> memoryview | None:
        """Return a vector of bytes, not copied and not counted; None where it is absent."""
        return self._vector(slot, 1)

    def array(self, slot: int, dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Return a vector of numbers as a read-only array; None where it is absent."""
        kind = np.dtype(dtype).newbyteorder("<")
        data = self._vector(slot, kind.itemsize)
        if data is None:
            return None
        self._wire.charge(len(data))
        return np.frombuffer(data, kind)

    def table(self, slot: int) -> Table | None:
        """Return a table that a field leads to; None where it is absent."""
        at = self._field(slot, 4)
        return None if at is None else Table(self._wire, at + self._wire.number(at, "<I"))

    def tables(self, slot: int, most: int) -> list[Table]:
        """Return a vector of tables.

        Raises:
            ModelError: It has more than ``most``.
        """
        data = self._vector(slot, 4)
        if data is None:
            return []
        offsets = np.frombuffer(data, "<u4")
        # Before the first table is made: a list costs its author four bytes an entry.
        if offsets.size > most:
            raise self._wire.damaged(f"a list of it has {offsets.size} entries, more than {most}")
        start = self._target(slot) + 4
        # Each offset counts from where it stands itself.
        positions = start + 4 * np.arange(offsets.size) + offsets.astype(np.int64)
        return [Table(self._wire, int(position)) for position in positions]

    def has(self, slot: int) -> bool:
        """Tell whether a field is present."""
        return self._field(slot, 1) is not None

    def _field(self, slot: int, size: int) -> int | None:
        at = 4 + 2 * slot
        # Writers of an older schema know fewer fields.
        if at + 2 > self._fields_size:
            return None
        offset = self._wire.number(self._fields + at, "<H")
        # An offset of 0 says that the field has its default.
        if offset == 0:
            return None
        if offset + size > self._size:
            raise self._wire.damaged(f"field {slot} of the table at {self._position} ends outside")
        return self._position + int(offset)

    def _target(self, slot: int) -> int:
        at = self._field(slot, 4)
        return 0 if at is None else at + int(self._wire.number(at, "<I"))

    def _vector(self, slot: int, width: int) -> memoryview | None:
        at = self._target(slot)
        if at == 0:
            return None
        length = int(self._wire.number(at, "<I"))
        if at + 4 + length * width > len(self._wire.data):
            raise self._wire.damaged(f"a list of {length} entries at {at} ends outside it")
        return self._wire.data[at + 4 : at + 4 + length * width]


_MOST_ENTRIES = 1 << 16
"""Tensors, operators or buffers; models have some thousand."""

_MOST_DIMENSIONS = 8

_REPEATED = 256
"""Bytes that each mention of a tensor after its first in a list counts for: four in the file, but
some nodes and configs of the plan."""

_LARGEST_FILE = 2**31 - 1

_IN_OTHER_FIELD = 127
"""Value of the one-byte field of an operator code that says only "see the four-byte field"."""


def open_tflite(source: str | Path | bytes) -> TfliteFile:
    """Read the main graph of a file.

    Raises:
        ModelError: The file cannot be read, is damaged, or is no TFLite model.
    """
    if isinstance(source, bytes):
        return _decode(Wire(source, "TFLite model"))
    path = Path(source)
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ModelError(f"{str(path)!r} has {size} bytes", remedy="2 GiB at most are read")
        data = read_file(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from error
    return _decode(Wire(data, path.name))


def _decode(wire: Wire) -> TfliteFile:
    # Slots of Model: version 0, operator_codes 1, subgraphs 2, description 3, buffers 4,
    # signature_defs 7. Of SubGraph: tensors 0, inputs 1, outputs 2, operators 3.
    root = wire.root(IDENTIFIER)
    version = root.integer(0, "<I")
    if version != VERSION:
        raise ModelError(f"{wire.source}: schema version {version}", remedy="version 3 is read")
    graphs = root.tables(2, _MOST_ENTRIES)
    if not graphs:
        raise wire.damaged("it has no graph")
    buffers = root.tables(4, _MOST_ENTRIES)
    codes = [_operator_name(table) for table in root.tables(1, _MOST_ENTRIES)]
    main = _subgraph(wire, graphs[0], buffers, codes)
    # Other subgraphs are not even decoded where nothing calls them.
    others: dict[int, Subgraph] = {}
    waiting = [main]
    while waiting:
        for op in waiting.pop().operators:
            for number in called_graphs(op):
                if not 0 < number < len(graphs):
                    which = f"subgraph {number} of {len(graphs)}"
                    raise wire.damaged(f"operator {op.index} calls {which}")
                if number not in others:
                    others[number] = _subgraph(wire, graphs[number], buffers, codes)
                    waiting.append(others[number])
    signature = _signature(wire, root, len(main.tensors))
    main = with_turns(main, others, wire)
    file = TfliteFile(
        wire.source,
        len(wire.data),
        root.text(3),
        main.tensors,
        main.operators,
        main.inputs,
        main.outputs,
        signature,
    )
    return without_variables(file, others) if has_variables(main.operators) else file


def _subgraph(wire: Wire, graph: Table, buffers: list[Table], codes: list[str]) -> Subgraph:
    tensors = tuple(
        _tensor(wire, index, table, buffers)
        for index, table in enumerate(graph.tables(0, _MOST_ENTRIES))
    )
    operators = tuple(
        _operator(wire, index, table, codes, len(tensors))
        for index, table in enumerate(graph.tables(3, _MOST_ENTRIES))
    )
    return Subgraph(
        tensors,
        operators,
        _tensor_indices(wire, graph, 1, len(tensors), "the graph's inputs"),
        _tensor_indices(wire, graph, 2, len(tensors), "the graph's outputs"),
    )


def _signature(wire: Wire, root: Table, tensors: int) -> Signature:
    """Return the names of the first signature of the main graph."""
    # Slots of SignatureDef: inputs 0, outputs 1, subgraph_index 4.
    for table in root.tables(7, _MOST_ENTRIES):
        # The number of the subgraph: only the main one is read.
        if table.integer(4, "<I") == 0:
            inputs = _signature_names(wire, table, 0, tensors)
            return Signature(inputs, _signature_names(wire, table, 1, tensors))
    return Signature()


def _signature_names(wire: Wire, signature: Table, slot: int, tensors: int) -> dict[str, int]:
    """Return the number of the tensor that each name stands for."""
    names = {}
    for table in signature.tables(slot, _MOST_ENTRIES):
        name, number = table.text(0), table.integer(1, "<I")
        if number >= tensors:
            raise wire.damaged(f"its signature calls tensor {number} of {tensors} {name!r}")
        names[name] = number
    return names


def _tensor(wire: Wire, index: int, table: Table, buffers: list[Table]) -> FileTensor:
    # Slots of Tensor: shape 0, type 1, buffer 2, name 3, quantization 4, is_variable 5, sparsity 6,
    # shape_signature 7, external_buffer 10.
    shape = _lengths(table, 0)
    signature = _lengths(table, 7) or shape
    code = table.integer(1, "<b")
    # Unknown types are no damage: newer files have some, perhaps of tensors that nothing needs.
    element = Element(code) if code in Element.__members__.values() else None
    number = table.integer(2, "<I")
    if number >= len(buffers):
        raise wire.damaged(f"tensor {index} has buffer {number} of {len(buffers)}")
    # Noted and not raised: what nothing reads may be as odd as it likes.
    odd = _oddity(table, shape, code, element)
    data = _data(wire, buffers[number])
    # A signature of another number of axes says nothing of these.
    if len(signature) != len(shape):
        signature = shape
    return FileTensor(
        index,
        table.text(3),
        shape,
        signature,
        element or Element.FLOAT32,
        _quantization(table.table(4)),
        data,
        odd,
        _sparsity(wire, table.table(6)),
    )


_DENSE = 0
_WIDTHS: Mapping[int, npt.DTypeLike] = {1: np.int32, 2: np.uint16, 3: np.uint8}
"""Types of the lists of a sparse level, by the number of their table in the union."""


def _sparsity(wire: Wire, table: Table | None) -> Sparsity | None:
    # Slots of SparsityParameters: traversal_order 0, block_map 1, dim_metadata 2. Of
    # DimensionMetadata: format 0, dense_size 1, array_segments 2 and 3, array_indices 4 and 5.
    if table is None:
        return None
    levels = []
    for level in table.tables(2, 2 * _MOST_DIMENSIONS):
        if level.integer(0, "<b") == _DENSE:
            levels.append(Level(level.integer(1, "<i")))
        else:
            levels.append(Level(0, _listed(wire, level, 2), _listed(wire, level, 4)))
    order, blocks = table.array(0, np.int32), table.array(1, np.int32)
    return Sparsity(
        () if order is None else tuple(order.tolist()),
        () if blocks is None else tuple(blocks.tolist()),
        tuple(levels),
    )


def _listed(wire: Wire, level: Table, slot: int) -> npt.NDArray[np.integer[Any]]:
    """Return the list of a union whose type is at a slot and whose table is at the next one."""
    width, table = _WIDTHS.get(level.integer(slot, "<B")), level.table(slot + 1)
    found = None if table is None or width is None else table.array(0, width)
    if found is None or not len(found):
        raise wire.damaged("a sparse tensor has no list of its places")
    return found


def _data(wire: Wire, buffer: Table) -> memoryview | None:
    """Read the data of a buffer: inside its table or, in large files, behind all tables."""
    offset, size = buffer.integer(1, "<Q"), buffer.integer(2, "<Q")
    found = buffer.bytes(0)
    # Offsets 0 and 1 say that the data stands in the table itself.
    if offset > 1:
        if offset + size > len(wire.data):
            raise wire.damaged(f"a buffer of {size} bytes at {offset} ends outside it")
        found = wire.data[offset : offset + size]
    return found if found is not None and len(found) else None


def _lengths(table: Table, slot: int) -> tuple[int, ...]:
    """Return a shape; ``()`` where the field is absent."""
    array = table.array(slot, np.int32)
    if array is None:
        return ()
    if array.size > _MOST_DIMENSIONS:
        return (0,)  # an error where it is used, as for every empty tensor
    return tuple(int(length) for length in array)


def _oddity(table: Table, shape: tuple[int, ...], code: int, element: Element | None) -> str:
    """Say why a tensor cannot be read; "" if it can."""
    if element is None:
        return f"its element type is {code}"
    if any(length <= 0 for length in shape) or math.prod(shape) > MOST_ELEMENTS:
        return f"its shape is {list(shape)}"
    if table.number(5, "<?", 0):
        return "it is a variable that keeps its value from one run to the next"
    if table.integer(10, "<I"):
        return "its data lies in another file"
    return ""


def _quantization(table: Table | None) -> Quantization | None:
    # Slots of QuantizationParameters: scale 2, zero_point 3, details_type 4,
    # quantized_dimension 6.
    if table is None:
        return None
    scale, zero_point = table.array(2, np.float32), table.array(3, np.int64)
    is_custom = table.integer(4, "<B") != 0
    if (scale is None or not scale.size) and not is_custom:
        return None
    return Quantization(
        np.zeros(0, np.float32) if scale is None else scale,
        np.zeros(0, np.int64) if zero_point is None else zero_point,
        table.integer(6, "<i"),
        is_custom,
    )


def _operator_name(table: Table) -> str:
    """Return the name of an entry of ``operator_codes``, such as ``CONV_2D``."""
    # Slots of OperatorCode: deprecated_builtin_code 0, custom_code 1, builtin_code 3.
    old, new = table.integer(0, "<b"), table.integer(3, "<i")
    # Files from before version 3a have the old field alone.
    code = new if old == _IN_OTHER_FIELD else max(old, new)
    if OPERATORS.get(code) == "CUSTOM":
        return f"CUSTOM {table.text(1)[:60]}".strip()
    return OPERATORS.get(code, f"operator code {code}")


def _operator(wire: Wire, index: int, table: Table, codes: list[str], tensors: int) -> Operator:
    # Slots of Operator: opcode_index 0, inputs 1, outputs 2, builtin_options 4.
    code = table.integer(0, "<I")
    if code >= len(codes):
        raise wire.damaged(f"operator {index} is of kind {code} of {len(codes)}")
    name = codes[code]
    fields = OPTIONS.get(name, {})
    # The union's type is not looked at: the operator's code says which table it is.
    options = table.table(4) if fields else None
    return Operator(
        index,
        name,
        _tensor_indices(wire, table, 1, tensors, f"operator {index} reads", optional=True),
        _tensor_indices(wire, table, 2, tensors, f"operator {index} writes"),
        {key: _option(options, each) for key, each in fields.items()},
    )


def _option(options: Table | None, field: OptionField) -> Any:
    if field.form == TEXT:
        return "" if options is None else options.text(field.slot)
    return (
        field.default if options is None else options.number(field.slot, field.form, field.default)
    )


def _tensor_indices(
    wire: Wire, table: Table, slot: int, tensors: int, what: str, *, optional: bool = False
) -> tuple[int, ...]:
    """Return the indices of tensors that a field lists; -1, where optional, is an absent one.

    Raises:
        ModelError: There is no such tensor, or the same ones are listed over and over.
    """
    array = table.array(slot, np.int32)
    numbers = () if array is None else tuple(int(number) for number in array)
    for number in numbers:
        if not (0 <= number < tensors or (optional and number == -1)):
            raise wire.damaged(f"{what}: tensor {number} of {tensors}")
    present = [number for number in numbers if number >= 0]
    wire.charge(_REPEATED * (len(present) - len(set(present))))
    return numbers
