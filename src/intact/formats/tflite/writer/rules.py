"""Checks which steps TFLite's integer kernels take: scales, zero points and ranges.

The rules are those that LiteRT's reference and XNNPACK kernels check, or silently rely on
(measured; see the tests that load such files).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from intact.errors import Unsupported
from intact.formats.tflite.writer.floats import has_no_operator
from intact.ops import functions
from intact.program import Encoding, Step, Tensor
from intact.program.operations import (
    MOVING,
    RESIDUAL_SLOT,
    ArgReduce,
    BatchMatMul,
    Binary,
    Convolution,
    Dequantize,
    DynamicFullyConnected,
    Elementwise,
    FloatNodes,
    FullyConnected,
    Function,
    Lookup,
    Operation,
    Pad,
    Pool,
    PoolKind,
    PRelu,
    Quantize,
    Reduce,
    Reduction,
    Requantize,
    Resize,
    ResizeMode,
    Softmax,
    TransposedConvolution,
)


def _about_scales(step: Step) -> Iterator[str]:
    """Yield what kernels cannot compute with the scales of a step whose tensors are int8."""
    yield from _about_widths(step)
    yield from _about_multiplier(step)
    yield from _about_fixed_scale(step)
    if wants_same_scale(step.operation):
        yield from _about_same_scale(step)


def _about_widths(step: Step) -> Iterator[str]:
    """Yield operands of other widths than the output's, which only QUANTIZE takes."""
    has_narrow = isinstance(step.operation, (*WEIGHTED, PRelu))
    operands = step.inputs[:1] if has_narrow else step.inputs
    widths = {t.dtype for t in (*operands, *step.outputs) if t is not None and t.encoding}
    if len(widths) > 1 and not isinstance(step.operation, Requantize):
        yield "codes of 8 and of 16 bits among its inputs and outputs"
    slope = step.inputs[1] if isinstance(step.operation, PRelu) else None
    if slope is not None and slope.dtype.itemsize > 1:
        yield f"{slope.name!r} has slopes of 16 bits, the kernel reads 8"


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
        case Pool(kind=PoolKind.MAX) | Resize(mode=ResizeMode.NEAREST):
            return True
        case Reduce(kind=Reduction.MAX | Reduction.MIN):
            return True
        case _:
            return isinstance(operation, MOVING)


def _about_multiplier(step: Step) -> Iterator[str]:
    """Yield scales so far apart that a kernel fails to start, or ends the whole process."""
    scales = [
        float(np.max(tensor.encoding.scale))
        for tensor in step.inputs
        if tensor is not None and tensor.encoding is not None
    ]
    output = step.outputs[0].encoding
    if not scales or output is None:
        return
    factor = _multiplier(step.operation, scales, float(np.max(output.scale)))
    # Not ``>=``, so that a quotient that is NaN is refused too.
    if not factor < 1:
        yield (
            f"the scales of its inputs and output lie too far apart (by {factor:.3g} times): did "
            "calibration see nothing but 0 there?"
        )


def _multiplier(operation: Operation, inputs: list[float], output: float) -> float:
    """Return the factor that a kernel checks to be below 1; 0 where it checks nothing.

    All limits were found by bisection with LiteRT 2.3.0. ADD, SQUARED_DIFFERENCE and SOFTMAX
    abort the process, HARD_SWISH fails to load, XNNPACK loads no weighted operator whose
    accumulators grow 256 times or more.
    """
    match operation:
        case Elementwise(kind=Binary.ADD):
            return max(inputs) / output / 2**19
        case Elementwise(kind=Binary.SQUARED_DIFFERENCE):
            return max(inputs) ** 2 / output / 2**12
        case Softmax():
            return 2**-26 / inputs[0]
        case Function(kind=functions.hard_swish):
            return inputs[0] / output / 128
        case Convolution() | TransposedConvolution() | FullyConnected():
            return float(np.prod(inputs[:2])) / output / 256
        case _:
            return 0.0


def _about_fixed_scale(step: Step) -> Iterator[str]:
    encoding = step.outputs[0].encoding
    if encoding is None:
        return
    is_wide = (encoding.quant_min, encoding.quant_max) == _INT16
    fixed = (_wide_fixed_scale if is_wide else _fixed_scale)(step.operation)
    if fixed is None:
        return
    found = (float(encoding.scale.reshape(-1)[0]), int(encoding.zero_point.reshape(-1)[0]))
    if found != fixed:
        yield (
            f"{step.outputs[0].name!r} has scale {found[0]:.9g} and zero point {found[1]}, "
            f"the kernel's are {fixed[0]:.9g} and {fixed[1]}"
        )


def _fixed_scale(operation: Operation) -> tuple[float, int] | None:
    """Return scale and zero point that a kernel's output must have."""
    match operation:
        case Softmax(log=False) | Function(kind=functions.sigmoid):
            return 1 / 256, -128
        case Softmax(log=True):
            return 16 / 256, 127
        case Function(kind=functions.tanh):
            return 1 / 128, 0
        case _:
            return None


def _wide_fixed_scale(operation: Operation) -> tuple[float, int] | None:
    """Return scale and zero point that a kernel's int16 output must have."""
    match operation:
        case Softmax() | Function(kind=functions.sigmoid | functions.tanh):
            return 2.0**-15, 0
        case _:
            return None


def _about_same_scale(step: Step) -> Iterator[str]:
    tensors = (*step.inputs, *step.outputs)
    ends = [tensor for tensor in tensors if tensor is not None and not _is_index(tensor)]
    first = step.outputs[0]
    if moves_codes(step.operation) and all(_same(first, t) for t in ends if t in step.outputs):
        return  # the writer rescales the inputs first
    others = [tensor.name for tensor in ends if not _same(first, tensor)]
    if others:
        yield f"{', '.join(map(repr, others))} and {first.name!r} differ in scale or zero point"


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.encoding is None or tensor.encoding.same_as(other.encoding)


WEIGHTED = (Convolution, TransposedConvolution, FullyConnected)
"""Operations whose second input is a constant weight, and whose third a bias."""

_INT8 = (-128, 127)

_INT16 = (-(1 << 15), (1 << 15) - 1)

_WEIGHTS = (-127, 127)

_BIAS_TOLERANCE = 1e-6

_MOST_AXES = 6

_FEWER_AXES: Mapping[type[Any], int] = {Pad: 5, BatchMatMul: 5}
"""Axes that LiteRT's kernels take (measured), where they are fewer than for others."""


def unsupported_shapes(step: Step) -> Iterator[str]:
    """Yield the reasons of shapes alone why TFLite cannot hold a step."""
    for tensor in dict.fromkeys((*step.activations, *step.outputs)):
        yield from _about_shape(tensor, step.operation)


def unsupported_nodes(operation: Operation) -> Iterator[Unsupported]:
    """Yield why TFLite cannot hold nodes in float, each by its own name."""
    if not isinstance(operation, FloatNodes):
        return
    for node in operation.nodes:
        if has_no_operator(node):
            what = f"intact writes no operator of TFLite for {node.op_type} of floats"
            reason = f"{what}: {operation.reason}" if operation.reason else what
            yield Unsupported(reason, node=str(node.name))


def unsupported_of(step: Step) -> Iterator[str]:
    """Yield the reasons why TFLite cannot hold a step."""
    if isinstance(step.operation, FloatNodes):
        return  # of which `unsupported_nodes` tells
    yield from unsupported_shapes(step)
    for tensor in dict.fromkeys((*step.activations, *step.outputs)):
        yield from _about_activation(tensor)
    # They take any scale: the last compares codes of one, and gives none.
    if isinstance(step.operation, Quantize | Dequantize | ArgReduce):
        return
    carried = [each for each in (*step.activations, *step.outputs) if not _is_index(each)]
    if len({tensor.encoding is None for tensor in carried}) > 1:
        yield "floats and codes among its inputs and outputs"
        return
    if step.outputs[0].encoding is None:
        if isinstance(step.operation, DynamicFullyConnected | Lookup):
            return  # its weight is in codes, and the writer looks at the rest
        # A dense layer of floats may have a weight of codes: the writer puts a DEQUANTIZE there.
        is_dense = isinstance(step.operation, FullyConnected)
        operands = (*step.inputs[:1], *step.inputs[2:]) if is_dense else step.inputs
        if any(tensor is not None and tensor.encoding is not None for tensor in operands):
            yield "codes among the constants of what is computed in float"
        return
    if isinstance(step.operation, WEIGHTED):
        yield from _about_weights(step)
    else:
        for each in step.inputs:
            if each is not None and each.is_constant:
                yield from _about_constant(each)
    yield from _about_scales(step)


def _is_index(tensor: Tensor) -> bool:
    return tensor.encoding is None and tensor.dtype.kind in "iu"


def shape_text(tensor: Tensor) -> str:
    """Format a shape, with ? for its open axes."""
    return ", ".join("?" if length is None else str(length) for length in tensor.shape)


def _about_shape(tensor: Tensor, operation: Operation) -> Iterator[str]:
    if tensor.shape.count(None) > 1:
        yield f"{tensor.name!r} [{shape_text(tensor)}] has more than one open axis"
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
    if codes not in (_INT8, _INT16):
        yield f"codes {_span(codes)} of activations, TFLite's are {_span(_INT8)}"
    if codes == _INT16 and np.any(encoding.zero_point):
        yield f"{tensor.name!r} has 16 bits and a zero point that is not 0"


def _about_constant(tensor: Tensor) -> Iterator[str]:
    """Look at the type of a constant operand: its codes are never saturated to its range."""
    if tensor.encoding is None:
        yield f"constant {tensor.name!r} is in float"
    elif tensor.encoding.dtype not in (np.int8, np.int16):
        yield f"constant {tensor.name!r} is {tensor.encoding.dtype}, not int8 or int16"
    elif tensor.encoding.axis is not None:
        yield f"constant {tensor.name!r} has scales by channel, operands have one"


def _about_weights(step: Step) -> Iterator[str]:
    data, weight, bias = (*step.inputs, None)[:3]
    if step.inputs[RESIDUAL_SLOT:]:
        yield "a tensor is added to its sums before they are rounded"
    if data is None or weight is None or weight.data is None or weight.encoding is None:
        yield "the weight is no constant of codes"
        return
    if np.any(weight.encoding.zero_point):
        yield f"weight {weight.name!r} has a zero point that is not 0"
    if weight.encoding.axis not in (None, 0):
        yield f"weight {weight.name!r} has scales along axis {weight.encoding.axis}, not by output"
    if weight.data.size:
        found = (int(weight.data.min()), int(weight.data.max()))
        # The codes that are there, and not the range: LiteRT's kernels assume that -128 does not
        # occur, so that two products fit 16 bits.
        if found[0] < _WEIGHTS[0] or found[1] > _WEIGHTS[1]:
            yield f"weight {weight.name!r} has codes {_span(found)} beyond {_span(_WEIGHTS)}"
    if bias is not None and data.encoding is not None:
        yield from _about_bias(bias, data.encoding, weight.encoding)


def _about_bias(bias: Tensor, data: Encoding, weight: Encoding) -> Iterator[str]:
    if bias.data is None:
        yield f"bias {bias.name!r} is computed"
        return
    if bias.encoding is None:
        yield f"bias {bias.name!r} is in float"
        return
    wanted = np.float32(data.scale) * weight.scale
    found = bias.encoding.scale
    if found.size not in (1, wanted.size) or np.any(
        np.abs(found.reshape(-1) - wanted.reshape(-1)) > _BIAS_TOLERANCE * wanted.reshape(-1)
    ):
        yield f"bias {bias.name!r} has not the scale of data times weight"
    if np.any(bias.encoding.zero_point):
        yield f"bias {bias.name!r} has a zero point that is not 0"


def _span(codes: tuple[int, int]) -> str:
    return f"{codes[0]}..{codes[1]}"
