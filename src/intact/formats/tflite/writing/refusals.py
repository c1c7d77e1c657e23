"""What TFLite's integer kernels want of scales, zero points and ranges, and which steps lack it.

The rules are those that LiteRT's reference and XNNPACK kernels check, or silently rely on
(measured; see the tests that load such files).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from intact.program import Encoding, Step, Tensor
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Concat,
    Convolution,
    DepthToSpace,
    Dequantize,
    Elementwise,
    Expand,
    FloatNodes,
    FullyConnected,
    Function,
    Gather,
    Operation,
    Pad,
    Pool,
    PoolKind,
    Quantize,
    Reduce,
    Reduction,
    Reshape,
    Resize,
    Slice,
    Softmax,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
    TransposedConvolution,
    Unary,
)

WEIGHTED = (Convolution, TransposedConvolution, FullyConnected)
"""Operations whose second input is a constant weight, and whose third a bias."""

MOVING = (
    Concat,
    DepthToSpace,
    Expand,
    Gather,
    Pad,
    Reshape,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
)
"""Operations that move codes and nothing else."""

_INT8 = (-128, 127)
_WEIGHTS = (-127, 127)
_BIAS_TOLERANCE = 1e-6
_MOST_AXES = 6
_FEWER_AXES: Mapping[type[Any], int] = {Pad: 5, BatchMatMul: 5}
"""Axes that LiteRT's kernels take (measured), where they are fewer than for others."""


def refusals_of(step: Step) -> Iterator[str]:
    """Yield why TFLite cannot hold a step; nothing where it can."""
    if isinstance(step.operation, FloatNodes):
        kinds = sorted({node.op_type for node in step.operation.nodes})
        yield f"TFLite has no float operator for {', '.join(kinds)}"
        return
    for tensor in dict.fromkeys((*step.activations, *step.outputs)):
        yield from _about_shape(tensor, step.operation)
        yield from _about_activation(tensor)
    if isinstance(step.operation, Quantize | Dequantize):
        return
    if len({tensor.encoding is None for tensor in (*step.activations, *step.outputs)}) > 1:
        yield "floats and codes among its inputs and outputs"
        return
    if step.outputs[0].encoding is None:
        return
    if isinstance(step.operation, WEIGHTED):
        yield from _about_weights(step)
    else:
        for tensor in step.inputs:
            if tensor is not None and tensor.is_constant:
                yield from _about_constant(tensor)
    yield from _about_multiplier(step)
    yield from _about_fixed_scale(step)
    if wants_same_scale(step.operation):
        yield from _about_same_scale(step)


def wants_same_scale(operation: Operation) -> bool:
    """Whether kernels take the output's codes for those of the inputs, without rescaling."""
    match operation:
        case Pool() | Resize():
            return True
        case Reduce(kind=Reduction.MAX | Reduction.MIN):
            return True
        case Elementwise(kind=Binary.MINIMUM | Binary.MAXIMUM):
            return True
        case _:
            return isinstance(operation, MOVING)


def moves_codes(operation: Operation) -> bool:
    """Whether the codes of the result are codes of the data: rescaling may then go first."""
    match operation:
        case Pool(kind=PoolKind.MAX) | Reduce(kind=Reduction.MAX | Reduction.MIN):
            return True
        case _:
            return isinstance(operation, MOVING)


def open_axes(tensor: Tensor) -> str:
    """Return a shape with its open axes, to be shown."""
    return ", ".join("?" if length is None else str(length) for length in tensor.shape)


def _about_shape(tensor: Tensor, operation: Operation) -> Iterator[str]:
    if tensor.shape.count(None) > 1:
        yield f"{tensor.name!r} [{open_axes(tensor)}] has more than one open axis"
    most = _FEWER_AXES.get(type(operation), _MOST_AXES)
    if len(tensor.shape) > most:
        yield f"{tensor.name!r} has {len(tensor.shape)} axes, the kernels take {most}"


def _about_activation(tensor: Tensor) -> Iterator[str]:
    encoding = tensor.encoding
    if encoding is None:
        return
    if encoding.axis is not None:
        yield f"{tensor.name!r} has scales by channel, activations have one"
    codes = (encoding.quant_min, encoding.quant_max)
    if codes != _INT8:
        yield f"{tensor.name!r} has codes {_span(codes)}, TFLite's are {_span(_INT8)}"


def _about_constant(tensor: Tensor) -> Iterator[str]:
    """Of a constant operand the codes themselves count: nothing is saturated to its range."""
    if tensor.encoding is None:
        yield f"constant {tensor.name!r} is in float"
    elif tensor.encoding.dtype != np.int8:
        yield f"constant {tensor.name!r} is {tensor.encoding.dtype}, not int8"
    elif tensor.encoding.axis is not None:
        yield f"constant {tensor.name!r} has scales by channel, operands have one"


def _about_weights(step: Step) -> Iterator[str]:
    data, weight, bias = (*step.inputs, None)[:3]
    if data is None or weight is None or weight.data is None or weight.encoding is None:
        yield "the weight is no constant of codes"
        return
    if np.any(weight.encoding.zero_point):
        yield f"weight {weight.name!r} has a zero point that is not 0"
    if weight.encoding.axis not in (None, 0):
        yield f"weight {weight.name!r} has scales along axis {weight.encoding.axis}, not by output"
    if weight.data.size:
        found = (int(weight.data.min()), int(weight.data.max()))
        if found[0] < _WEIGHTS[0] or found[1] > _WEIGHTS[1]:
            yield f"weight {weight.name!r} has codes {_span(found)} beyond {_span(_WEIGHTS)}"
    if bias is not None and data.encoding is not None:
        yield from _about_bias(bias, data.encoding, weight.encoding)


def _about_bias(bias: Tensor, data: Encoding, weight: Encoding) -> Iterator[str]:
    if bias.data is None or bias.encoding is None:
        yield f"bias {bias.name!r} is no constant of codes"
        return
    wanted = np.float32(data.scale) * weight.scale
    found = bias.encoding.scale
    if found.size not in (1, wanted.size) or np.any(
        np.abs(found.reshape(-1) - wanted.reshape(-1)) > _BIAS_TOLERANCE * wanted.reshape(-1)
    ):
        yield f"bias {bias.name!r} has not the scale of data times weight"
    if np.any(bias.encoding.zero_point):
        yield f"bias {bias.name!r} has a zero point that is not 0"


def _about_multiplier(step: Step) -> Iterator[str]:
    """Yield scales so far apart that a kernel refuses to start, or ends the whole process."""
    factor = _multiplier(step)
    if factor is not None and not factor < 1:
        yield (
            f"the scales of its inputs and output lie too far apart (by {factor:.3g} times): was it "
            "calibrated on data that leaves it at 0?"
        )


def _multiplier(step: Step) -> float | None:
    """Return what a kernel checks to be below 1, where it does.

    All limits were found by bisection with LiteRT 2.3.0. ADD, SQUARED_DIFFERENCE and SOFTMAX
    abort the process, HARD_SWISH fails to load, XNNPACK loads no weighted operator whose
    accumulators grow 256 times or more.
    """
    scales = [
        float(np.max(tensor.encoding.scale))
        for tensor in (*step.inputs, step.outputs[0])
        if tensor is not None and tensor.encoding is not None
    ]
    first, last = scales[0], scales[-1]
    match step.operation:
        case Elementwise(kind=Binary.ADD):
            return max(scales[:-1]) / last / 2**19
        case Elementwise(kind=Binary.SQUARED_DIFFERENCE):
            return max(scales[:-1]) ** 2 / last / 2**12
        case Softmax():
            return 2**-26 / first
        case Function(kind=Unary.HARD_SWISH):
            return first / last / 128
        case Convolution() | TransposedConvolution() | FullyConnected():
            return first * scales[1] / last / 256
        case _:
            return None


def _fixed_scale(operation: Operation) -> tuple[float, int] | None:
    """Return scale and zero point that a kernel's output must have."""
    match operation:
        case Softmax(log=False) | Function(kind=Unary.SIGMOID):
            return 1 / 256, -128
        case Softmax(log=True):
            return 16 / 256, 127
        case Function(kind=Unary.TANH):
            return 1 / 128, 0
        case _:
            return None


def _about_fixed_scale(step: Step) -> Iterator[str]:
    fixed, encoding = _fixed_scale(step.operation), step.outputs[0].encoding
    if fixed is None or encoding is None:
        return
    found = (float(encoding.scale.reshape(-1)[0]), int(encoding.zero_point.reshape(-1)[0]))
    if found != fixed:
        yield (
            f"{step.outputs[0].name!r} has scale {found[0]:.9g} and zero point {found[1]}, "
            f"the kernel's are {fixed[0]:.9g} and {fixed[1]}"
        )


def _about_same_scale(step: Step) -> Iterator[str]:
    ends = [tensor for tensor in (*step.inputs, *step.outputs) if tensor is not None]
    first = step.outputs[0]
    if moves_codes(step.operation) and all(_same(first, each) for each in step.outputs):
        return  # the writer rescales the inputs first
    others = [tensor.name for tensor in ends if not _same(first, tensor)]
    if others:
        yield f"{', '.join(map(repr, others))} and {first.name!r} differ in scale or zero point"


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.encoding is None or tensor.encoding.same_as(other.encoding)


def _span(codes: tuple[int, int]) -> str:
    return f"{codes[0]}..{codes[1]}"
