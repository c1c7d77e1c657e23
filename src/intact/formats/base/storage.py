"""Decides which constants a file holds as codes, and how float nodes read these.

Language models often compute their logits with the table of their embeddings (tied weights). A plan
has two constants of it where the product reads it transposed: where that takes more than the plan
asks for, it is said.

In ONNX a Cast and a Mul stand before a recurrent operator, and no DequantizeLinear: ONNX Runtime
computes those once, when it loads the model, and packs the floats as those of a float model. A
DequantizeLinear it would compute in every run (measured for 128 cells and one step: 76 instead of
42 us). Tables are looked up in codes, and only the rows found become floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ExportError
from intact.formats.base.format import Format
from intact.graph import weight_slot
from intact.graph.edit import Editor
from intact.graph.files.tensors import computed
from intact.graph.tied_tables import is_same, tied_tables
from intact.ops.operators import Cast, Gather, Mul, Reshape, Sub
from intact.plan import Note, NoteKind, QuantizedGraph, QuantPoint, quantization_points
from intact.plan.stored_weights import is_stored
from intact.plan.widths import scheme_at
from intact.targets import DType

LOOKED_UP_IN_FLOAT = "in float"
OTHER_SCALES = "with other scales or widths"
_OTHER_ORDER = "with its axes in the other order"


def storage_notes(plan: QuantizedGraph, formats: Mapping[str, Format]) -> tuple[Note, ...]:
    """Say which widths a file does not become smaller by, and which tables are in it twice.

    Once for each of them. The target's own widths surprise nobody. A format without a program
    stores no codes.

    Args:
        plan: What is written.
        formats: In which formats, by name.
    """
    found: dict[tuple[str, int, int], dict[str, str]] = {}
    for point in quantization_points(plan):
        bits = point.config.bits
        # Wider codes are those of biases, whose width nobody chooses.
        if not point.is_constant or bits > DType.INT16.bits:
            continue
        scheme = scheme_at(plan, point.end, point.config)
        # What the target itself asks for is no surprise; a search or a user chose the others.
        if scheme is None or scheme.bits == bits:
            continue
        for name, each in formats.items():
            blocks = None if point.config.grid.block is None else plan.target.blocks
            expressible = each.writer.expressible
            stored = blocks.stored_bits(bits) if blocks else expressible.stored(bits)
            if each.runtime is not None and stored > bits:
                constants = found.setdefault((name, bits, stored), {})
                # By tensor, because one that several nodes read is stored and counted once.
                constants.setdefault(str(point.value.name), point.end.node)
    widths = tuple(
        Note(
            NoteKind.EXPORT,
            next(iter(constants.values())),
            f"{bits}-bit codes take {stored} bits each in a file of format {name} "
            f"({len(constants)} constant(s)): it is no smaller than {_like(stored)}",
        )
        for (name, bits, stored), constants in found.items()
    )
    return (*widths, *_tables_stored_twice(plan, formats))


def _tables_stored_twice(plan: QuantizedGraph, formats: Mapping[str, Format]) -> Iterator[Note]:
    """Yield a note for each table of which a file has the integers of a layer besides."""
    shared = [each.writer.shares_turned for each in formats.values()]
    told = [each for each in shared if each is not None]
    # Comparing tables reads them from disk, so it is done only where a format has an answer.
    pairs = list(tied_tables(plan.graph)) if told else []
    if not pairs:
        return
    points = {
        (str(node.name), slot): point
        for point in quantization_points(plan)
        if point.is_constant
        for node, slot in point.readers
    }
    for lookup, layer, is_turned in pairs:
        own = points.get((str(layer.name), weight_slot(layer) or 0))
        table = points.get((str(lookup.name), 0))
        if own is None:
            continue  # computed in float
        why = LOOKED_UP_IN_FLOAT if table is None else OTHER_SCALES
        if table is not None and _have_equal_codes(table, own, is_turned=is_turned):
            in_rows = own.config.grid.block is not None  # of either, by all that hold blocks
            why = _OTHER_ORDER if is_turned and not in_rows and not all(told) else ""
        if why:
            yield stored_twice(lookup, layer, why)


def _have_equal_codes(table: QuantPoint, weight: QuantPoint, *, is_turned: bool) -> bool:
    # Asked first: codes of a large table are computed only when they may be equal.
    if table.config.bits != weight.config.bits:
        return False
    one, other = table.constant_codes(), weight.constant_codes()
    return is_same(one, other.T if is_turned else other)


def stored_twice(lookup: ir.Node, layer: ir.Node, why: str) -> Note:
    """Say of a table that a layer's integers of it are stored besides.

    Args:
        lookup: What looks it up.
        layer: What multiplies with it.
        why: Completes what is said of the lookup.
    """
    table = lookup.inputs[0]
    message = (
        f"table {str(None if table is None else table.name)!r} is stored twice: node "
        f"{str(lookup.name)!r} looks it up {why}, {str(layer.name)!r} multiplies with its integers"
    )
    return Note(NoteKind.EXPORT, str(layer.name), message)


def _like(stored: int) -> str:
    return "in float32" if stored == DType.INT32.bits else f"with {stored} bits"


class GatheredCodes(msgspec.Struct, frozen=True):
    """Where codes of a table are looked up.

    Attributes:
        codes: The codes that were found.
        indices: The indices.
        axis: Along which the table is indexed.
    """

    codes: str
    indices: str
    axis: int


def stored_readers(
    plan: QuantizedGraph, point: QuantPoint
) -> tuple[list[tuple[ir.Node, int]], list[tuple[ir.Node, int]]]:
    """Part the readers of a constant: float nodes that have it as integers, and all others."""
    parted: tuple[list[tuple[ir.Node, int]], list[tuple[ir.Node, int]]] = [], []
    for node, slot in point.readers:
        parted[0 if is_stored(plan.input_config(node, slot)) else 1].append((node, slot))
    return parted


class StoredWeights:
    """Adds what makes floats of the codes of one constant.

    Args:
        editor: The model that is edited.
        point: The quantized constant.
        codes: The initializer that holds its integers.
        is_apart: Put a Reshape that changes nothing behind the Cast of a whole constant. A runtime
            with integer kernels for what it sees as a compressed weight, and none for these nodes,
            takes it for no such weight then, and computes floats when it loads the model.
    """

    def __init__(
        self, editor: Editor, point: QuantPoint, codes: ir.Value, *, is_apart: bool = False
    ) -> None:
        if point.config.params is None:
            raise ExportError(f"{point.end} has no scale")
        self._editor = editor
        self._name = str(point.value.name)
        self._params = point.config.params
        self._axis = point.config.granularity.axis
        self._codes = codes
        self._is_apart = is_apart
        self._floats: ir.Value | None = None

    def read(self, node: str, slot: int) -> None:
        """Let a node read the whole constant as floats."""
        if self._floats is None:
            shape = self._codes.shape if self._is_apart else None
            self._floats = self._in_floats(self._codes, self._parameters(), self._name, shape)
        self._editor.redirect(self._editor.value(self._name), self._floats, [(node, slot)])

    def look_up(self, name: str) -> GatheredCodes:
        """Let a Gather look rows up in codes, which become floats behind it.

        The scales are those of the rows, if there is more than one.
        """
        node, parameters = self._editor.nodes_by_name[name], self._parameters()
        indices, axis = node.inputs[1], Gather.of(node).axis % self._rank
        if indices is None:
            raise ExportError(f"{name} has no indices")
        # Codes are looked up, not floats: a table of floats would be made whole when the model is
        # loaded.
        codes = self._gather(self._codes, indices, axis, f"{name}_codes")
        if self._axis is not None:
            parameters = {
                part: self._gather(value, indices, 0, f"{name}_{part}")
                for part, value in parameters.items()
            }
        self._editor.put_in_place(node, self._in_floats(codes, parameters, name))
        return GatheredCodes(str(codes.name), str(indices.name), axis)

    def _parameters(self) -> dict[str, ir.Value]:
        """Store scale and, where it is not 0, zero point as floats.

        One for each channel has as many further axes as lie behind the channels, so that they
        broadcast: against the constant, and looked up against what is looked up in it.
        """
        numbers = {"scale": self._params.scale}
        # A Sub of 0 would be one pass more over every row.
        if np.any(self._params.zero_point):
            numbers["zero_point"] = self._params.zero_point.astype(np.float32)
        shape = () if self._axis is None else (-1, *(1,) * (self._rank - 1 - self._axis))
        return {
            part: self._editor.initializer(
                f"{self._name}_{part}", np.asarray(array, np.float32).reshape(shape)
            )
            for part, array in numbers.items()
        }

    def _gather(self, data: ir.Value, indices: ir.Value, axis: int, name: str) -> ir.Value:
        kind = data.dtype or ir.DataType.FLOAT
        return self._editor.node(Gather, [data, indices], name, {"axis": axis}, kind)

    def _in_floats(
        self,
        codes: ir.Value,
        parameters: dict[str, ir.Value],
        name: str,
        reshaped: ir.Shape | None = None,
    ) -> ir.Value:
        """Compute ``(codes - zero point) * scale``, as DequantizeLinear does."""
        attributes = {"to": int(ir.DataType.FLOAT)}
        value = self._editor.node(Cast, [codes], f"{name}_cast", attributes, shape=codes.shape)
        if reshaped is not None:
            lengths = np.asarray(reshaped.numpy(), np.int64)
            lengths_of = self._editor.initializer(f"{name}_lengths", lengths)
            value = self._editor.node(Reshape, [value, lengths_of], f"{name}_apart")
        if "zero_point" in parameters:
            inputs = [value, parameters["zero_point"]]
            value = self._editor.node(Sub, inputs, f"{name}_centered", shape=codes.shape)
        inputs = [value, parameters["scale"]]
        return self._editor.node(Mul, inputs, f"{name}_floats", shape=codes.shape)

    @property
    def _rank(self) -> int:
        return 0 if self._codes.shape is None else len(self._codes.shape)


def stored_codes(
    point: QuantPoint, kind: npt.DTypeLike, data_type: ir.DataType
) -> ir.TensorProtocol:
    """Return the integers of a constant, of NumPy's type and of ONNX's."""

    def codes() -> ir.TensorProtocol:
        return ir.Tensor(point.constant_codes().astype(kind))

    return computed(point.value.const_value, codes, data_type)


def stored_on_grid(point: QuantPoint) -> ir.TensorProtocol:
    """Return the floats that the integers of a constant stand for.

    Dividing them by the scale and rounding gives the integers back, as float32 rounds by much
    less than half a step.
    """

    def floats() -> ir.TensorProtocol:
        return ir.Tensor(np.asarray(point.config.dequantize(point.constant_codes()), np.float32))

    return computed(point.value.const_value, floats, ir.DataType.FLOAT)
