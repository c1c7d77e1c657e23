"""Lowers float nodes to the layers that files have for them, one operation a node."""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import input_value
from intact.ops import RECURRENT, functions, operators
from intact.program.float_operations import (
    BatchNormalization,
    CumulativeSum,
    Flatten,
    GroupNormalization,
    Identity,
    LayerNormalization,
    LocalResponse,
    PixelShuffle,
    Recurrent,
)
from intact.program.lower import moves, recurrent
from intact.program.lower.attributes import axis_of, constant_input
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.lowerings import FLOAT_LOWERINGS
from intact.program.lower.windows import axes_of
from intact.program.operations import Function, Operation, Pad, PadMode, Reduce, Reduction
from intact.program.program import Tensor

_REDUCTIONS = {
    "ReduceL1": Reduction.L1,
    "ReduceL2": Reduction.L2,
    "ReduceProd": Reduction.PRODUCT,
}
_POWERS: dict[float, Operation] = {
    2.0: Function(functions.square),
    0.5: Function(functions.sqrt),
}


def _emit(
    builder: ProgramBuilder, node: ir.Node, operation: Operation, *inputs: Tensor | None
) -> None:
    """Add the step of a node with one output.

    Raises:
        Unsupported: It has more outputs.
    """
    if len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("it has more than one output")
    value = node.outputs[0]
    result = builder.result(value)
    builder.emit((node,), operation, inputs, (result,))
    builder.set_result(value, result)


@FLOAT_LOWERINGS.register("Identity", any_rank=True)
def _identity(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Identity."""
    _emit(builder, chain[0], Identity(), builder.read(chain[0], 0))


@FLOAT_LOWERINGS.register("Pow", any_rank=True)
def _power(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Pow, where it is a square or a root."""
    exponent = constant_input(chain[0], 1)
    found = None
    if exponent is not None and exponent.size == 1:
        found = _POWERS.get(float(exponent.item()))
    if found is None:
        raise Unsupported("it is neither a square nor a root")
    _emit(builder, chain[0], found, builder.read(chain[0], 0))


@FLOAT_LOWERINGS.register(*_REDUCTIONS)
def _reduction(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower ReduceProd, ReduceL1 and ReduceL2."""
    node = chain[0]
    data = builder.read(node, 0)
    axes = axes_of(node, len(data.shape))
    keeps = operators.Reduce.of(node).keepdims == 1
    _emit(builder, node, Reduce(_REDUCTIONS[node.op_type], axes, keeps), data)


@FLOAT_LOWERINGS.register("Pad")
def _pad(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Pad."""
    node = chain[0]
    data = builder.read(node, 0)
    options = operators.Pad.of(node)
    if options.mode not in list(PadMode):
        raise Unsupported(f"its mode is {options.mode}")
    pads = moves.pads_of(node, len(data.shape))
    _emit(builder, node, Pad(pads, PadMode(options.mode), moves.pad_value(node)), data)


@FLOAT_LOWERINGS.register("Flatten")
def _flatten(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Flatten behind the batch."""
    data = builder.read(chain[0], 0)
    rank = len(data.shape)
    if axis_of(chain[0], rank) != 1:
        raise Unsupported("it does not flatten all behind the batch")
    _emit(builder, chain[0], Flatten(), data)


@FLOAT_LOWERINGS.register("Resize")
def _resize(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower Resize, also by factors that are those of its lengths up to rounding."""
    moves.add_resize(builder, chain, approximate=True)


@FLOAT_LOWERINGS.register("DepthToSpace")
def _depth_to_space(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower DepthToSpace of either mode."""
    node = chain[0]
    options = operators.DepthToSpace.of(node)
    # DCR is what integer kernels compute, and one step; CRD is what PyTorch's pixel_shuffle
    # exports.
    if options.mode == "DCR":
        moves.depth_to_space(builder, chain)
        return
    _emit(builder, node, PixelShuffle(options.blocksize), builder.read(node, 0))


@FLOAT_LOWERINGS.register("BatchNormalization", any_rank=True)
def _batch_normalization(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower a BatchNormalization that was not folded into a product."""
    inputs = [builder.read(chain[0], slot) for slot in range(5)]
    epsilon = operators.BatchNormalization.of(chain[0]).epsilon
    _emit(builder, chain[0], BatchNormalization(epsilon), *inputs)


@FLOAT_LOWERINGS.register("GroupNormalization", "InstanceNormalization")
def _group_normalization(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower GroupNormalization; in InstanceNormalization each channel is a group."""
    node = chain[0]
    inputs = [builder.read(node, slot) for slot in range(3)]
    count = inputs[0].shape[1] if len(inputs[0].shape) > 1 else None
    # InstanceNormalization has no such attribute.
    groups = node.attributes.get_int("num_groups", count or 0)
    if not groups:
        raise Unsupported("the number of its channels is not known")
    epsilon = operators.Stabilized.of(node).epsilon
    _emit(builder, node, GroupNormalization(groups, epsilon), *inputs)


@FLOAT_LOWERINGS.register("LRN")
def _local_response(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower LRN."""
    options = operators.LRN.of(chain[0])
    operation = LocalResponse(options.size, options.alpha, options.beta, options.bias)
    _emit(builder, chain[0], operation, builder.read(chain[0], 0))


@FLOAT_LOWERINGS.register("CumSum")
def _cumulative_sum(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower CumSum from the first place on."""
    node, axis = chain[0], constant_input(chain[0], 1)
    options = operators.CumSum.of(node)
    if axis is None or options.exclusive or options.reverse:
        raise Unsupported("it sums backwards, leaves places out, or its axis is computed")
    data = builder.read(node, 0)
    _emit(builder, node, CumulativeSum(int(axis.reshape(())) % len(data.shape)), data)


@FLOAT_LOWERINGS.register("LayerNormalization", any_rank=True)
def _layer_normalization(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower LayerNormalization."""
    node = chain[0]
    data, scale = builder.read(node, 0), builder.read(node, 1)
    bias = None if input_value(node, 2) is None else builder.read(node, 2)
    axis = axis_of(node, len(data.shape))
    operation = LayerNormalization(axis, operators.LayerNormalization.of(node).epsilon)
    _emit(builder, node, operation, data, scale, bias)


@FLOAT_LOWERINGS.register(*RECURRENT)
def _recurrent(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower GRU, LSTM and RNN that begin with states of zeros."""
    node = chain[0]
    recurrent.check_alone(node)
    inputs = [builder.read(node, slot) for slot in range(3)]
    bias = None if input_value(node, 3) is None else builder.read(node, 3)
    results = [builder.result(value) for value in node.outputs]
    direction = node.attributes.get_string("direction", "forward") or "forward"
    builder.emit(chain, Recurrent(node.op_type, direction), (*inputs, bias), results)
    for value, result in zip(node.outputs, results, strict=True):
        builder.set_result(value, result)
