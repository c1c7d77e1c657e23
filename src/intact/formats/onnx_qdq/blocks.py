"""Writes weights in blocks for ONNX Runtime: MatMulNBits, GatherBlockQuantized.

The first two are operators of ONNX Runtime (domain ``com.microsoft``). Their codes have no sign:
without zero points they are counted from the middle of their width. A row of N has its blocks one
after the other, each padded to its full size, two or more codes a byte, the low bits first. Scales
have the type of the activations; those of half precision stand behind a Cast, which the runtime
computes once, when it loads the model.

``accuracy_level`` is always written: what a runtime takes for the default is not the same for all
versions and builders, and from 4 on activations are quantized too.

Where a file shall have standard operators, a DequantizeLinear with ``block_size`` reads the rows
of N, and a Transpose stands before a MatMul: ONNX Runtime fuses one along the first axis to
MatMulNBits with a level of 4, unasked, and computes this one in float. For others it has the shape
of the weight, as NVIDIA's Model Optimizer writes it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ExportError
from intact.formats.base.storage import OTHER_SCALES, stored_twice
from intact.graph import constant_array, input_value
from intact.graph.edit import Editor
from intact.graph.tied_tables import is_looked_up, tied_tables
from intact.numerics.blocks import block_rows
from intact.numerics.packing import pack_bits, unpack_bits
from intact.ops.operators import (
    Add,
    Cast,
    DequantizeLinear,
    Gemm,
    Named,
    Reshape,
    Transpose,
    is_a,
    type_of,
)
from intact.plan import Codes, Note, QuantizedGraph, QuantPoint, TensorEnd
from intact.plan.dynamic import is_dynamic
from intact.targets import BlockForm, Blocks, ScaleType

MICROSOFT = "com.microsoft"
IN_FLOAT = 0
"""The level of accuracy at which MatMulNBits computes with floats throughout."""
OF_INTEGERS = 4
"""The level at which it quantizes its input while running."""
_BYTE, _NIBBLE = 8, 4
_LARGE = 1 << 24
"""Bytes of a float constant beyond which its codes are computed when they are written."""


class StoredBlocks(msgspec.Struct, frozen=True):
    """A weight in blocks, as a written model has it.

    Attributes:
        codes: Name of the constant that holds the codes.
        scales: Name of the one that holds the scales.
        zero_points: Name of the one that holds zero points; "" where there are none.
        bits: Width of a stored code.
        size: Numbers in a block.
        rows: Rows of numbers that are summed, or looked up.
        length: Numbers in a row.
        middle: What was added to the plan's codes.
        is_packed: Whether bytes hold the codes of a row; else the constant has a code for each
            number.
        is_turned: Whether rows of the file are columns of the plan's constant.
    """

    codes: str
    scales: str
    zero_points: str
    bits: int
    size: int
    rows: int
    length: int
    middle: int
    is_packed: bool
    is_turned: bool

    @property
    def blocks(self) -> int:
        """Blocks in a row."""
        return -(-self.length // self.size)

    def codes_of(self, stored: npt.NDArray[Any]) -> Codes:
        """Return the plan's codes from what the file has."""
        codes: Codes
        if not self.is_packed:
            codes = stored.astype(np.int32)
        else:
            packed: npt.NDArray[Any] = stored.reshape(self.rows, -1)
            # Rows that are padded to whole blocks have whole bytes a block; ragged tables end in
            # the middle of one.
            if packed.shape[1] == self.blocks * self.size * self.bits // _BYTE:
                packed = packed.reshape(self.rows, self.blocks, -1)
            codes = unpack_bits(packed, self.bits, packed.shape[-1] * _BYTE // self.bits)
            codes = codes.reshape(self.rows, -1)[:, : self.length].astype(np.int32)
        codes -= self.middle
        return codes.T if self.is_turned else codes


class BlockWriter:
    """Writes the weights in blocks of a plan into an edited model.

    Args:
        editor: The model.
        plan: Its plan.

    Attributes:
        stored: What was written, by the end of the plan.
    """

    def __init__(self, editor: Editor, plan: QuantizedGraph) -> None:
        if plan.target.blocks is None:
            raise ExportError(f"target {plan.target.name} has no weights in blocks")
        self._editor, self._plan, self._blocks = editor, plan, plan.target.blocks
        self._tied = {
            str(layer.inputs[1].name): str(lookup.inputs[0].name)
            for lookup, layer, is_turned in tied_tables(plan.graph)
            if is_turned and layer.inputs[1] is not None and lookup.inputs[0] is not None
        }
        self._made: dict[str, list[tuple[_Rows, StoredBlocks]]] = {}
        self._views: dict[tuple[str, tuple[int, ...]], ir.Value] = {}
        self._floats: dict[str, ir.Value] = {}
        self.stored: dict[TensorEnd, StoredBlocks] = {}

    def write(self, point: QuantPoint, readers: list[tuple[ir.Node, int]]) -> None:
        """Let nodes read a constant in blocks."""
        for node, slot in readers:
            rows = _Rows.of(point, self._blocks)
            is_table = is_looked_up(node, slot)
            found = self._constants(rows, is_table=is_table)
            twin = self._editor.nodes_by_name[str(node.name)]
            if not found.is_packed:
                self._dequantize(twin, slot, rows, found)
            elif is_table:
                self._look_up(twin, found)
            else:
                self._multiply(twin, found)
            self.stored[TensorEnd.input(str(node.name), slot)] = found

    def notes(self) -> list[Note]:
        """Say which tables are in the file twice, and why."""
        found = []
        for lookup, layer, _ in tied_tables(self._plan.graph):
            table = self.stored.get(TensorEnd.input(str(lookup.name), 0))
            weight = self.stored.get(TensorEnd.input(str(layer.name), 1))
            if table is None or weight is None or table.codes == weight.codes:
                continue
            is_ragged = table.length % table.size != 0
            why = "without the padding of its last block" if is_ragged else OTHER_SCALES
            found.append(stored_twice(lookup, layer, why))
        return found

    def _constants(self, rows: _Rows, *, is_table: bool) -> StoredBlocks:
        """Store codes, scales and zero points; equal ones once."""
        own = self._tied.get(rows.name, rows.name)
        # A ragged table has no padding behind its last block and a weight has: their bytes differ,
        # though the codes are equal.
        for other, found in self._made.get(own, ()):
            if other.same(rows) and (not rows.is_ragged or is_table == other.is_table):
                return msgspec.structs.replace(found, is_turned=rows.is_turned)
        rows = msgspec.structs.replace(rows, is_table=is_table)
        name, editor = rows.name, self._editor
        is_packed = self._blocks.form is BlockForm.FUSED
        codes = editor.initializer(f"{name}_quantized", rows.codes(is_packed=is_packed))
        scales = editor.initializer(
            f"{name}_scales", rows.stored(rows.scales, self._blocks, is_packed=is_packed)
        )
        zero_points = ""
        if rows.zero_points is not None:
            zeros = rows.stored_zero_points(self._blocks, is_packed=is_packed)
            zero_points = str(editor.initializer(f"{name}_zero_points", zeros).name)
        stored = StoredBlocks(
            codes=str(codes.name),
            scales=str(scales.name),
            zero_points=zero_points,
            bits=rows.bits,
            size=rows.size,
            rows=rows.scales.shape[0],
            length=rows.length,
            middle=rows.middle if is_packed else 0,
            is_packed=is_packed,
            is_turned=rows.is_turned,
        )
        self._made.setdefault(own, []).append((rows, stored))
        return stored

    def _multiply(self, node: ir.Node, stored: StoredBlocks) -> None:
        """Make a MatMulNBits of a MatMul or Gemm."""
        bytes_of_block = stored.size * stored.bits // _BYTE
        codes = self._view(stored.codes, (stored.rows, stored.blocks, bytes_of_block))
        bias, added = self._bias(node, stored.rows), None
        if bias is None and input_value(node, 2) is not None:
            added = node.inputs[2]
        inputs = [node.inputs[0], codes, self._scales(stored), self._zeros(stored), None, bias]
        attributes = {
            "K": stored.length,
            "N": stored.rows,
            "bits": stored.bits,
            "block_size": stored.size,
            "accuracy_level": OF_INTEGERS if self._is_dynamic(node) else IN_FLOAT,
        }
        # The operator takes a bias of one number a column only; what broadcasts otherwise, or is
        # computed, is added behind it.
        if added is None:
            self._become(node, "MatMulNBits", inputs, attributes)
            return
        product = self._editor.node(
            "MatMulNBits", inputs[:4], f"{node.name}_product", attributes, domain=MICROSOFT
        )
        self._import()
        for name in list(node.attributes):
            node.attributes.pop(name)
        node.op_type = Add.name
        node.resize_inputs(2)
        node.replace_input_with(0, product)
        node.replace_input_with(1, added)

    def _is_dynamic(self, node: ir.Node) -> bool:
        return is_dynamic(self._plan, self._plan.graph.node(str(node.name)), 0)

    def _bias(self, node: ir.Node, count: int) -> ir.Value | None:
        """Return a bias of one number a column; None where there is none, or of another shape."""
        value = input_value(node, 2)
        array = constant_array(value)
        if value is None or array is None:
            return None
        if array.shape == (count,):
            return value
        if array.size not in (1, count) or array.shape[-1:] not in ((count,), (1,), ()):
            return None
        # Gemm broadcasts its bias, MatMulNBits does not.
        columns = np.ascontiguousarray(np.broadcast_to(array.reshape(-1), count))
        return self._editor.initializer(f"{value.name}_columns", columns)

    def _look_up(self, node: ir.Node, stored: StoredBlocks) -> None:
        """Make a GatherBlockQuantized of a Gather."""
        width = -(-stored.length * stored.bits // _BYTE)
        codes = self._view(stored.codes, (stored.rows, width))
        inputs = [codes, node.inputs[1], self._scales(stored), self._zeros(stored)]
        attributes = {
            "gather_axis": 0,
            "quantize_axis": 1,
            "block_size": stored.size,
            "bits": stored.bits,
        }
        self._become(node, "GatherBlockQuantized", inputs, attributes)

    def _dequantize(self, node: ir.Node, slot: int, rows: _Rows, stored: StoredBlocks) -> None:
        """Let a node read floats that a DequantizeLinear makes of the codes."""
        if stored.codes not in self._floats:
            codes = self._editor.value(stored.codes)
            inputs = [codes, self._scales(stored), self._zeros(stored)]
            self._floats[stored.codes] = self._editor.node(
                DequantizeLinear,
                inputs if stored.zero_points else inputs[:2],
                f"{rows.name}_dequantized",
                {"axis": rows.axis, "block_size": stored.size},
                shape=codes.shape,
            )
        # In place nothing is turned. Gemm turns its factor itself; a MatMul needs a Transpose,
        # which also keeps the runtime from fusing the two.
        floats = self._floats[stored.codes]
        if stored.is_turned and is_a(node, Gemm):
            node.attributes["transB"] = ir.AttrInt64("transB", 1 - Gemm.of(node).transB)
        elif stored.is_turned:
            shape = (stored.length, stored.rows)
            name = f"{rows.name}_turned"
            floats = self._editor.node(Transpose, [floats], name, {"perm": [1, 0]}, shape=shape)
        node.replace_input_with(slot, floats)

    def _become(
        self,
        node: ir.Node,
        operator: Named,
        inputs: list[ir.Value | None],
        attributes: dict[str, int],
    ) -> None:
        """Turn a node into another operator, which keeps its name and its output."""
        # Absent inputs at the end are left out, as ONNX writes them; those between have an empty
        # name.
        op_type = type_of(operator)
        while inputs[-1] is None:
            inputs.pop()
        # Attributes of the float operator mean nothing to the new one, which the runtime refuses
        # with them.
        for name in list(node.attributes):
            node.attributes.pop(name)
        node.op_type, node.domain = op_type, MICROSOFT
        node.resize_inputs(len(inputs))
        for slot, value in enumerate(inputs):
            node.replace_input_with(slot, value)
        for name, number in attributes.items():
            node.attributes[name] = ir.AttrInt64(name, number)
        self._import()

    def _import(self) -> None:
        self._editor.model.graph.opset_imports.setdefault(MICROSOFT, 1)

    def _view(self, name: str, shape: tuple[int, ...]) -> ir.Value:
        """Return a constant in a shape, by a Reshape where it is stored in another."""
        value = self._editor.value(name)
        if value.shape is not None and value.shape.numpy() == shape:
            return value
        if (name, shape) not in self._views:
            lengths = self._editor.integers(*shape, name=f"{name}_lengths")
            kind = value.dtype or ir.DataType.UINT8
            self._views[name, shape] = self._editor.node(
                Reshape, [value, lengths], f"{name}_view", None, kind, shape
            )
        return self._views[name, shape]

    def _scales(self, stored: StoredBlocks) -> ir.Value:
        return self._floats_of(stored.scales)

    def _zeros(self, stored: StoredBlocks) -> ir.Value | None:
        return self._floats_of(stored.zero_points) if stored.zero_points else None

    def _floats_of(self, name: str) -> ir.Value:
        """Return a constant, behind a Cast where it has half precision."""
        value = self._editor.value(name)
        if value.dtype is not ir.DataType.FLOAT16:
            return value
        # The empty shape is none of a view, so that casts and views share one table.
        key = (name, ())
        if key not in self._views:
            options = {"to": int(ir.DataType.FLOAT)}
            self._views[key] = self._editor.node(
                Cast, [value], f"{name}_float", options, shape=value.shape
            )
        return self._views[key]


class _Rows(msgspec.Struct, frozen=True, eq=False):
    """A constant as rows of what is summed.

    Attributes:
        point: Where it is quantized.
        name: Its name.
        scales: One for each block, ``[rows, blocks]``.
        zero_points: One for each block; None where codes are symmetric.
        bits: Width of a stored code.
        size: Numbers in a block.
        length: Numbers in a row.
        middle: What is added to symmetric codes, so that they have no sign.
        axis: Along which blocks lie.
        is_turned: Whether its rows are the columns of the constant.
        is_table: Whether it is stored for a table.
    """

    point: QuantPoint
    name: str
    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.int64] | None
    bits: int
    size: int
    length: int
    middle: int
    axis: int
    is_turned: bool
    is_table: bool = False

    @staticmethod
    def of(point: QuantPoint, blocks: Blocks) -> _Rows:
        """Return the rows of a quantized constant."""
        grid, params, tensor = point.config.grid, point.config.params, point.value.const_value
        if params is None or grid.block is None or tensor is None:
            raise ExportError(f"{point.end} has no scales in blocks")
        is_turned = grid.axis == 0 and blocks.form is not BlockForm.IN_PLACE
        scales, zeros = (each.T if is_turned else each for each in params)
        bits = blocks.stored_bits(point.config.bits)
        return _Rows(
            point,
            str(point.value.name),
            np.ascontiguousarray(scales),
            None if grid.symmetric else np.ascontiguousarray(zeros),
            bits,
            grid.block,
            int(tensor.shape.numpy()[grid.axis or 0]),
            1 << bits - 1 if grid.symmetric else 0,
            1 if is_turned else grid.axis or 0,
            is_turned,
        )

    @property
    def is_ragged(self) -> bool:
        """Whether the last block of a row is shorter than the others."""
        return self.length % self.size != 0

    def same(self, other: _Rows) -> bool:
        """Tell whether another constant, which holds equal floats, has equal codes and scales."""
        if (self.bits, self.size, self.middle) != (other.bits, other.size, other.middle):
            return False
        pairs = ((self.scales, other.scales), (self.zero_points, other.zero_points))
        if not all(_are_equal(one, another) for one, another in pairs):
            return False
        if self.point.baked is None and other.point.baked is None:
            # Equal floats on equal scales give equal codes: only what was read has codes of its own
            # to compare.
            return self.point.config.bits == other.point.config.bits
        return np.array_equal(self._codes(), other._codes())

    def codes(self, *, is_packed: bool) -> ir.TensorProtocol:
        """Return the codes as the file has them; large ones are computed when it is written."""
        count = self.scales.shape[0]
        kind = ir.DataType.UINT8 if is_packed else self._kind
        shape: tuple[int, ...] = (count, self.length)
        if self.axis == 0:
            shape = (self.length, self.scales.shape[1])
        if is_packed and self.is_table and self.is_ragged:
            shape = (count, -(-self.length * self.bits // _BYTE))
        elif is_packed and self.is_table:
            shape = (count, self.length * self.bits // _BYTE)
        elif is_packed:
            shape = (count, self.scales.shape[1], self.size * self.bits // _BYTE)

        def compute() -> ir.TensorProtocol:
            codes = self._codes()
            if not is_packed:
                return ir.Tensor(np.ascontiguousarray(codes).astype(kind.numpy()))
            codes = codes.astype(np.int32) + self.middle
            # Each block of a product is padded to its full size, that at the end of a table's row
            # is not.
            if not self.is_table:
                codes = block_rows(codes, 1, self.size)
            return ir.Tensor(pack_bits(codes, self.bits).reshape(shape))

        floats = self.point.value.const_value
        if floats is None or floats.nbytes <= _LARGE:
            return compute()
        return ir.LazyTensor(compute, kind, ir.Shape(shape))

    @staticmethod
    def stored(
        floats: npt.NDArray[np.float32], blocks: Blocks, *, is_packed: bool
    ) -> npt.NDArray[np.floating[Any]]:
        """Return scales in the type of the file: half precision where that is exact."""
        # A scale that half precision rounds would stand for other numbers than those of the plan.
        half = floats.astype(np.float16)
        is_half = blocks.scale_type is ScaleType.FLOAT16 and is_packed
        return half if is_half and np.array_equal(half.astype(np.float32), floats) else floats

    def stored_zero_points(self, blocks: Blocks, *, is_packed: bool) -> npt.NDArray[Any]:
        """Return zero points as the file has them."""
        zeros = np.zeros(0, np.int64) if self.zero_points is None else self.zero_points
        if zeros.dtype.kind == "f":
            return self.stored(zeros.astype(np.float32), blocks, is_packed=is_packed)
        return pack_bits(zeros, self.bits) if is_packed else zeros.astype(self._kind.numpy())

    @property
    def _kind(self) -> ir.DataType:
        signed = self.point.config.quant_min < 0
        kinds = (ir.DataType.INT4, ir.DataType.INT8) if signed else _UNSIGNED
        return kinds[self.bits > _NIBBLE]

    def _codes(self) -> npt.NDArray[np.integer[Any]]:
        codes = self.point.constant_codes()
        return codes.T if self.is_turned else codes


_UNSIGNED = (ir.DataType.UINT4, ir.DataType.UINT8)


def _are_equal(one: npt.NDArray[Any] | None, other: npt.NDArray[Any] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
