"""Rules on the scales around an operator: what its kernel prescribes, shares or cannot reach.

The rules are those that LiteRT's reference and XNNPACK kernels check, or silently rely on
(measured with LiteRT 2.3.0).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from intact.program import Step, Tensor
from intact.program.operations import (
    MOVING,
    Binary,
    Convolution,
    Elementwise,
    FullyConnected,
    Function,
    Operation,
    Pool,
    PoolKind,
    Reduce,
    Reduction,
    Resize,
    ResizeMode,
    Softmax,
    TransposedConvolution,
    Unary,
)


def scale_refusals(step: Step) -> Iterator[str]:
    """Yield what a kernel could not do with the scales of a step whose tensors are int8."""
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
        case Pool(kind=PoolKind.MAX) | Resize(mode=ResizeMode.NEAREST):
            return True
        case Reduce(kind=Reduction.MAX | Reduction.MIN):
            return True
        case _:
            return isinstance(operation, MOVING)


def _about_multiplier(step: Step) -> Iterator[str]:
    """Yield scales so far apart that a kernel refuses to start, or ends the whole process."""
    scales = [
        float(np.max(tensor.encoding.scale))
        for tensor in step.inputs
        if tensor is not None and tensor.encoding is not None
    ]
    output = step.outputs[0].encoding
    if not scales or output is None:
        return
    factor = _multiplier(step.operation, scales, float(np.max(output.scale)))
    if not factor < 1:
        yield (
            f"the scales of its inputs and output lie too far apart (by {factor:.3g} times): did "
            "calibration see nothing but 0 there?"
        )


def _multiplier(operation: Operation, inputs: list[float], output: float) -> float:
    """Return what a kernel checks to be below 1; 0 where it checks nothing.

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
        case Function(kind=Unary.HARD_SWISH):
            return inputs[0] / output / 128
        case Convolution() | TransposedConvolution() | FullyConnected():
            return float(np.prod(inputs[:2])) / output / 256
        case _:
            return 0.0


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
