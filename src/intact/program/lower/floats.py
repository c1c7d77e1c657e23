"""Float nodes as the layers that files have for them, one operation a node."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import input_value
from intact.program.float_operations import (
    BatchNormalization,
    Flatten,
    FloatFunction,
    FloatHardSigmoid,
    FloatOperation,
    FloatPad,
    FloatReduce,
    FloatReduction,
    FloatUnary,
    Identity,
    LayerNormalization,
    PadMode,
    PixelShuffle,
)
from intact.program.lower import moves
from intact.program.lower.attributes import axis_of, constant_input
from intact.program.lower.builder import Builder
from intact.program.lower.windows import axes_of
from intact.program.operations import Function, Operation, Unary
from intact.program.program import Tensor

Translate = Callable[[Builder, tuple[ir.Node, ...]], None]

_FUNCTIONS = {
    "Ceil": FloatUnary.CEIL,
    "Cos": FloatUnary.COS,
    "Floor": FloatUnary.FLOOR,
    "Mish": FloatUnary.MISH,
    "Sin": FloatUnary.SIN,
}
_REDUCTIONS = {
    "ReduceL1": FloatReduction.L1,
    "ReduceL2": FloatReduction.L2,
    "ReduceProd": FloatReduction.PRODUCT,
}
_POWERS: dict[float, Operation] = {
    2.0: FloatFunction(FloatUnary.SQUARE),
    0.5: Function(Unary.SQRT),
}


def _emit(builder: Builder, node: ir.Node, operation: Operation, *inputs: Tensor | None) -> None:
    """Add the step of a node with one output.

    Raises:
        Unsupported: It has more outputs.
    """
    if len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("it has more than one output")
    value = node.outputs[0]
    result = builder.result(value)
    builder.emit((node,), operation, inputs, (result,))
    builder.hand_out(value, result)


def _of_one(operation: FloatOperation) -> Translate:
    """Lower a node with one operand and no options."""

    def translate(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
        _emit(builder, chain[0], operation, builder.read(chain[0], 0))

    return translate


def _power(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Pow, where it is a square or a root."""
    exponent = constant_input(chain[0], 1)
    found = None
    if exponent is not None and exponent.size == 1:
        found = _POWERS.get(float(exponent.item()))
    if found is None:
        raise Unsupported("it is neither a square nor a root")
    _emit(builder, chain[0], found, builder.read(chain[0], 0))


def _hard_sigmoid(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower HardSigmoid."""
    attributes = chain[0].attributes
    slope, offset = attributes.get_float("alpha", 0.2), attributes.get_float("beta", 0.5)
    _emit(builder, chain[0], FloatHardSigmoid(slope, offset), builder.read(chain[0], 0))


def _reduction(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower ReduceProd, ReduceL1 and ReduceL2."""
    node = chain[0]
    data = builder.read(node, 0)
    axes = axes_of(node, len(data.shape))
    keeps = node.attributes.get_int("keepdims", 1) == 1
    _emit(builder, node, FloatReduce(_REDUCTIONS[node.op_type], axes, keeps), data)


def _pad(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Pad."""
    node = chain[0]
    data = builder.read(node, 0)
    mode = node.attributes.get_string("mode", "constant") or "constant"
    if mode not in list(PadMode):
        raise Unsupported(f"its mode is {mode}")
    pads = moves.pads_of(node, len(data.shape))
    filled = constant_input(node, 2)
    value = node.attributes.get_float("value", 0.0) if filled is None else float(filled.item())
    _emit(builder, node, FloatPad(pads, PadMode(mode), value), data)


def _flatten(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Flatten behind the batch."""
    data = builder.read(chain[0], 0)
    rank = len(data.shape)
    if axis_of(chain[0], rank, 1) != 1:
        raise Unsupported("it does not flatten all behind the batch")
    _emit(builder, chain[0], Flatten(), data)


def _resize(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Resize, also by factors that are those of its lengths up to rounding."""
    moves.resize(builder, chain, approximate=True)


def _depth_to_space(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower DepthToSpace of either mode."""
    node = chain[0]
    if (node.attributes.get_string("mode", "DCR") or "DCR") == "DCR":
        moves.depth_to_space(builder, chain)
        return
    block = node.attributes.get_int("blocksize", 1) or 1
    _emit(builder, node, PixelShuffle(block), builder.read(node, 0))


def _batch_normalization(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower a BatchNormalization that was not folded into a product."""
    inputs = [builder.read(chain[0], slot) for slot in range(5)]
    epsilon = chain[0].attributes.get_float("epsilon", 1e-5)
    _emit(builder, chain[0], BatchNormalization(epsilon), *inputs)


def _layer_normalization(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Lower LayerNormalization."""
    node = chain[0]
    data, scale = builder.read(node, 0), builder.read(node, 1)
    bias = None if input_value(node, 2) is None else builder.read(node, 2)
    axis = axis_of(node, len(data.shape), -1)
    operation = LayerNormalization(axis, node.attributes.get_float("epsilon", 1e-5))
    _emit(builder, node, operation, data, scale, bias)


TABLE: dict[str, Translate] = {
    **{name: _of_one(FloatFunction(kind)) for name, kind in _FUNCTIONS.items()},
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "BatchNormalization": _batch_normalization,
    "DepthToSpace": _depth_to_space,
    "Flatten": _flatten,
    "HardSigmoid": _hard_sigmoid,
    "Identity": _of_one(Identity()),
    "LayerNormalization": _layer_normalization,
    "Pad": _pad,
    "Pow": _power,
    "Resize": _resize,
}
"""By operator type, where it differs from how integers are lowered."""

ANY_RANK = {
    *_FUNCTIONS,
    "BatchNormalization",
    "HardSigmoid",
    "Identity",
    "LayerNormalization",
    "Pow",
}
"""Operators that can be lowered where the rank of what they read or write is not known."""
