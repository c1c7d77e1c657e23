"""Reads weights in blocks: MatMulNBits, GatherBlockQuantized, DequantizeLinear.

They become float products, and lookups, of constants whose numbers the codes stand for; the codes
are noted. ONNX Runtime's own quantizer, Olive, its generative builder and others write such files.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import onnx_ir as ir

from intact.config import PerRow, QuantState, TensorQuantConfig, make_policy
from intact.formats.base.read_points import GraphEdits, ReadPoint
from intact.formats.onnx_qdq.blocks import MICROSOFT, OF_INTEGERS
from intact.formats.onnx_qdq.reader.block_codes import (
    WIDTHS,
    BlockWeight,
    constant_through,
    listed,
    packed,
    plain,
)
from intact.formats.onnx_qdq.reader.parameters import (
    READ,
    integer_attribute,
    is_dequantize,
    unreadable,
)
from intact.graph import input_value
from intact.graph.passes.replace import replace_value
from intact.numerics.affine import dequantize
from intact.ops import DENSE, IN_BLOCKS
from intact.ops.operators import Add, Gather, MatMul, Named, Transpose, is_a, type_of
from intact.plan import Note, NoteKind, TensorEnd
from intact.targets import Target
from intact.targets.blockwise import able_in_blocks

PRODUCT, LOOKUP = (MICROSOFT, "MatMulNBits"), (MICROSOFT, "GatherBlockQuantized")
_BYTE = 8
_READERS = {(each, 1 if each in DENSE else 0) for each in IN_BLOCKS}
"""What reads a weight in blocks, with its slot."""
_FUSED = (
    "{count} product(s) read a DequantizeLinear with blocks along its first axis (first: {first}): "
    "ONNX Runtime makes MatMulNBits of level 4 of them, which quantizes activations, unless "
    "session.qdq_matmulnbits_accuracy_level is 1"
)


class RowParameters(msgspec.Struct, frozen=True, eq=False):
    """Activations that a product quantizes while it runs, in blocks as large as its weight's.

    Attributes:
        size: Numbers in a block.
    """

    size: int

    def config(self, state: QuantState = QuantState.DYNAMIC) -> TensorQuantConfig:
        """Return a new config that says the same."""
        grain = PerRow(self.size)
        return TensorQuantConfig(
            policy=make_policy(grain, symmetric=True),
            bits=8,
            quant_min=-127,
            quant_max=127,
            granularity=grain,
            observer=READ,
            state=QuantState.DYNAMIC if state is QuantState.ACTIVATED else state,
        )


def has_blocks(model: ir.Model) -> bool:
    """Tell whether a model has weights in blocks."""
    return any(
        (node.domain, node.op_type) in (PRODUCT, LOOKUP) or _is_block_dequantize(node)
        for node in model.graph
    )


def lift_blocks(model: ir.Model, target: Target) -> tuple[list[ReadPoint], list[Note]]:
    """Put floats in the place of weights in blocks, in place.

    Args:
        model: The model.
        target: What is to hold them.

    Returns:
        Where they were, and what is to be said of them.

    Raises:
        ModelError: A node cannot be read, or is nothing that the target holds; it is named.
    """
    lift = _Lift(model, target)
    for node in tuple(model.graph):
        if (node.domain, node.op_type) == PRODUCT:
            lift.product(node)
        elif (node.domain, node.op_type) == LOOKUP:
            lift.lookup(node)
        elif _is_block_dequantize(node):
            lift.dequantized(node)
    return lift.points, lift.notes()


def _is_block_dequantize(node: ir.Node) -> bool:
    attribute = node.attributes.get("block_size")
    if attribute is None or attribute.type is not ir.AttributeType.INT or attribute.is_ref():
        return False
    return is_dequantize(node) and attribute.as_int() != 0


class _Lift:
    """Edits one graph."""

    def __init__(self, model: ir.Model, target: Target) -> None:
        self._graph, self._target = model.graph, target
        self._edits = GraphEdits(model.graph)
        self.points: list[ReadPoint] = []
        self._fused: list[str] = []

    def notes(self) -> list[Note]:
        """Say what ONNX Runtime computes otherwise than the file says."""
        if not self._fused:
            return []
        message = _FUSED.format(count=len(self._fused), first=repr(self._fused[0]))
        return [Note(NoteKind.EXPORT, self._fused[0], message)]

    def product(self, node: ir.Node) -> None:
        """Make a MatMul of a MatMulNBits, with an Add behind it for its bias."""
        length, rows, bits, size = (
            _positive(node, name) for name in ("K", "N", "bits", "block_size")
        )
        # Codes in an order of their own would have to be sorted, and written back so.
        if constant_through(input_value(node, 4)) is not None:
            raise unreadable(node, "it orders its inputs by g_idx", "write it without")
        level = integer_attribute(node, "accuracy_level", 0)
        weight = packed(node, rows, length, bits, size, data=1).turned()
        blocks = self._target.blocks
        holds = blocks is not None and blocks.holds_between(bits)
        if weight.parameters.lies_between and not holds:
            able = able_in_blocks(self._target, between=bits)
            raise unreadable(
                node,
                f"zero points of {bits} bits are floats, which {self._target.name} does not have",
                f"give --target {able}, or quantize the float model",
            )
        constant = self._constant(node, weight, 1)
        bias = input_value(node, 5)
        result, data = node.outputs[0], node.inputs[0]
        self._become(node, MatMul, [data, constant])
        if bias is not None:
            product = ir.Node("", Add.name, [None, bias], num_outputs=1)
            product.name = self._edits.names.fresh(f"{node.name}_bias")
            self._graph.insert_after(node, product)
            replace_value(result, product.outputs[0])
            # The name goes to what other nodes read: the sum with the bias.
            result.name = self._edits.names.fresh(f"{node.name}_product")
            product.replace_input_with(0, result)
        self._note(node, 1, weight)
        # The runtime multiplies codes as integers only where zero points are codes.
        if level >= OF_INTEGERS and not weight.parameters.lies_between:
            end = TensorEnd.input(str(node.name), 0)
            self.points.append(ReadPoint(RowParameters(size), (end,)))

    def lookup(self, node: ir.Node) -> None:
        """Make a Gather of a GatherBlockQuantized."""
        size = integer_attribute(node, "block_size", 128)
        axes = tuple(integer_attribute(node, name, d) for name, d in _AXES)
        data = constant_through(input_value(node, 0))
        if data is None or data.ndim != 2 or axes not in ((0, 1), (0, -1)):
            raise unreadable(node, "it looks up other than rows of a constant matrix")
        bits = integer_attribute(node, "bits", 4)
        if data.dtype == np.uint8:
            if bits not in WIDTHS:
                raise unreadable(node, f"its codes have {bits} bits", f"use {listed(WIDTHS)}")
            length = data.shape[1] * _BYTE // bits
            weight = packed(node, data.shape[0], length, bits, size, data=0)
        else:
            weight = plain(node, data, 1, size, scales=2, zero_points=3)
        constant = self._constant(node, weight, 0)
        self._become(node, Gather, [constant, node.inputs[1]])
        self._note(node, 0, weight)

    def dequantized(self, node: ir.Node) -> None:
        """Put numbers in the place of a DequantizeLinear with blocks."""
        codes = constant_through(input_value(node, 0))
        if codes is None:
            raise unreadable(node, "what it reads in blocks is computed", "only weights may be so")
        size, axis = _positive(node, "block_size"), integer_attribute(node, "axis", 1)
        if not -codes.ndim <= axis < codes.ndim:
            raise unreadable(node, f"axis {axis} of a tensor of {codes.ndim} dimension(s)")
        weight = plain(node, codes, axis % codes.ndim, size, scales=1, zero_points=2)
        for result, is_turned in tuple(_results(node)):
            own = weight.turned() if is_turned else weight
            for use in tuple(result.uses()):
                reader, slot = use.node, use.idx
                if is_turned is None or (reader.op_type, slot) not in _READERS:
                    if is_turned is False and is_a(reader, Transpose):
                        continue
                    raise unreadable(
                        reader,
                        f"it reads the weight in blocks of {node.name!r}",
                        "blocks are read of MatMul, Gemm and Gather: quantize this one otherwise",
                    )
                if own.parameters.grain.axis == 0 and is_a(reader, MatMul) and not is_turned:
                    self._fused.append(str(reader.name))
                reader.replace_input_with(slot, self._constant(reader, own, slot))
                self._note(reader, slot, own)

    def _constant(self, node: ir.Node, weight: BlockWeight, slot: int) -> ir.Value:
        """Add the numbers that codes stand for; they are computed when they are read."""
        own, codes = weight.parameters, weight.codes
        shape = ir.Shape(codes.shape)

        def numbers() -> ir.TensorProtocol:
            params = own.scale, own.zero_point
            found = dequantize(codes, *params, axis=own.grain.axis, block=own.grain.size)
            return ir.Tensor(found)

        name = self._edits.names.fresh(f"{node.name}_weight" if slot else f"{node.name}_table")
        tensor = ir.LazyTensor(numbers, ir.DataType.FLOAT, shape, name=name)
        value = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape, const_value=tensor
        )
        self._graph.register_initializer(value)
        return value

    def _become(self, node: ir.Node, operator: Named, inputs: list[ir.Value | None]) -> None:
        op_type = type_of(operator)
        for name in list(node.attributes):
            node.attributes.pop(name)
        node.op_type, node.domain = op_type, ""
        node.resize_inputs(len(inputs))
        for slot, value in enumerate(inputs):
            node.replace_input_with(slot, value)

    def _note(self, node: ir.Node, slot: int, weight: BlockWeight) -> None:
        end = TensorEnd.input(str(node.name), slot)
        self.points.append(ReadPoint(weight.parameters, (end,), weight.codes))


_AXES = (("gather_axis", 0), ("quantize_axis", 1))


def _results(node: ir.Node) -> Iterator[tuple[ir.Value, bool | None]]:
    """Yield what a DequantizeLinear gives, and its transposes; None for other orders of axes."""
    for use in node.outputs[0].uses():
        reader = use.node
        if is_a(reader, Transpose):
            order = reader.attributes.get_ints("perm") or (1, 0)
            yield reader.outputs[0], True if list(order) == [1, 0] else None
    yield node.outputs[0], False


def _positive(node: ir.Node, name: str) -> int:
    number = integer_attribute(node, name, 0)
    if number < 1:
        raise unreadable(node, f"its {name} is {number}")
    return number
