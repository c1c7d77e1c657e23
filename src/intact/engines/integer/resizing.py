"""Makes the kernels of Resize.

One axis is resized after the other, because the weight of an element is the product of its weights
along the axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.engines.integer.kernel import (
    KERNELS,
    Kernel,
    Overflows,
    encoding_of,
    kernel_of,
    operation_of,
)
from intact.engines.integer.pointwise.conversions import recoder
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.reals import to_codes, to_reals
from intact.program.arithmetic.requantize import Requantizer, real_type
from intact.program.operations import Resize, ResizeMode
from intact.targets import Arithmetic, Float, Product, Shift

Positions: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Array]
"""For each output element: the two elements that it lies between, and how far from the first."""

Corner: TypeAlias = tuple[npt.NDArray[np.int64], Array]
"""Elements along an axis, and their weights."""

_COARSE_BITS = 10
"""Bits of a weight in TFLite's integer kernels, which also sample in integers."""
_FINE_BITS = 11
"""Bits of a weight in XNNPACK's, which samples in float32."""


@KERNELS.register(Resize)
def _resize(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Resize)
    target = step.outputs[0].encoding
    source = step.inputs[0].encoding if step.inputs[0] is not None else None
    recode = recoder(step.arithmetic, source, target)
    if operation.mode is ResizeMode.NEAREST:
        return kernel_of(step, lambda array: recode(_nearest(operation, array)))
    encoding = encoding_of(step, step.inputs[0])
    # 1  Floats: reals are interpolated, and rounded to codes once.
    if isinstance(step.arithmetic.requantize, Float):
        output = encoding_of(step, step.outputs[0])
        return kernel_of(step, _linear_floats(operation, step.arithmetic, encoding, output))
    # 2  Integers: codes are interpolated at the input's scale, and requantized afterwards: two
    # roundings, as the kernels have them.
    linear = _linear_codes(operation, step.arithmetic, encoding)
    return kernel_of(step, lambda array: recode(linear(array)))


def _nearest(operation: Resize, array: Array) -> Array:
    for axis, size in enumerate(operation.sizes, 1):
        array = array.take(_nearest_indices(operation, array.shape[axis], size), axis=axis)
    return array


def _nearest_indices(operation: Resize, length: int, size: int) -> npt.NDArray[np.int64]:
    """Return which input element each output element takes, computed in float32 as TFLite does."""
    outputs = np.arange(size, dtype=np.float32)
    if operation.half_pixel:
        outputs += np.float32(0.5)
    scaled = outputs * _step(operation, length, size)
    if operation.align_corners:
        scaled = scaled + np.float32(0.5)
    indices: npt.NDArray[np.int64] = np.clip(np.floor(scaled), 0, length - 1).astype(np.int64)
    return indices


def _step(operation: Resize, length: int, size: int) -> np.float32:
    """Return how far apart neighbours of the output lie in the input."""
    if operation.align_corners and size > 1:
        return np.float32(length - 1) / np.float32(size - 1)
    return np.float32(length) / np.float32(size)


def _linear_codes(
    operation: Resize, arithmetic: Arithmetic, encoding: Encoding
) -> Callable[[Array], Array]:
    """Make the function that interpolates codes with integer weights and rounds once at the end.

    Zero points need no attention: the weights of an element add up to one.
    """
    fine = arithmetic.product is Product.SINGLE
    bits = _FINE_BITS if fine else _COARSE_BITS
    sample = _fine_positions if fine else _coarse_positions
    rounding = Rounding.HALF_UP if fine else Rounding.HALF_AWAY_FROM_ZERO
    if isinstance(arithmetic.requantize, Shift):
        rounding = arithmetic.rounding
    shift = bits * len(operation.sizes)
    # int32 where code and weights fit: half the memory traffic of int64.
    fits = shift + 8 * encoding.dtype.itemsize < 32
    once = Arithmetic(requantize=Shift(), rounding=rounding)
    back = Requantizer(once, 2.0**-shift, replace(encoding, zero_point=np.zeros((), np.int64)))

    def resize(codes: Array) -> Array:
        sums = codes.astype(np.int32 if fits else np.int64)
        for axis, size in enumerate(operation.sizes, 1):
            first, second, weights = sample(operation, codes.shape[axis], size)
            sums = _blend(sums, (first, second, weights.astype(sums.dtype)), axis, 1 << bits)
        return back(sums)

    return resize


def _linear_floats(
    operation: Resize, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Callable[[Array], Array]:
    """Make the function that adds the corners around a sample in floats, each times its weights."""
    kind = real_type(arithmetic)

    def resize(codes: Array) -> Array:
        reals = to_reals(codes, source, kind)
        lengths = (*codes.shape[:1], *operation.sizes, *codes.shape[-1:])
        sums = np.zeros(lengths, kind)
        for corner in itertools.product(*_corners(operation, codes.shape)):
            weights, part = np.ones((), kind), reals
            for axis, (indices, along) in enumerate(corner, 1):
                part = part.take(indices, axis=axis)
                weights = weights * along.astype(kind).reshape(_along(axis, codes.ndim))
            sums += weights * part
        return to_codes(sums, arithmetic, target)

    return resize


def _corners(operation: Resize, shape: tuple[int, ...]) -> Iterator[tuple[Corner, Corner]]:
    """Yield for each spatial axis the elements before and behind every sample, with weights.

    Where both are one element, each has half the weight. Sampled as ONNX Runtime does it: 0 of
    789216 codes differ with onnxruntime 1.31.1.
    """
    for axis, size in enumerate(operation.sizes, 1):
        last = np.float32(shape[axis] - 1)
        places = np.clip(_places(operation, shape[axis], size), np.float32(0), last)
        first = places.astype(np.int64)
        second = np.minimum(first + 1, shape[axis] - 1)
        far = [np.abs(places - each.astype(np.float32)) for each in (second, first)]
        weights = [np.where(first == second, np.float32(0.5), each) for each in far]
        yield (first, weights[0]), (second, weights[1])


def _places(operation: Resize, length: int, size: int) -> npt.NDArray[np.float32]:
    """Return where output elements lie in the input, dividing by the ratio of the lengths."""
    outputs = np.arange(size, dtype=np.float32)
    if operation.align_corners:
        return outputs * np.float32(length - 1) / np.float32(max(size - 1, 1))
    # Divided by, and not multiplied by its inverse: float32 differs, and with it the neighbours.
    ratio = np.float32(size) / np.float32(length)
    if operation.half_pixel:
        return (outputs + np.float32(0.5)) / ratio - np.float32(0.5)
    return outputs / ratio


def _along(axis: int, rank: int) -> list[int]:
    return [-1 if at == axis else 1 for at in range(rank)]


def _blend(array: Array, positions: Positions, axis: int, one: int) -> Array:
    """Return ``(one - fraction) * first + fraction * second`` along an axis."""
    first, second, fractions = positions
    weights = fractions.reshape(_along(axis, array.ndim))
    blended: Array = array.take(first, axis=axis) * (array.dtype.type(one) - weights)
    blended += array.take(second, axis=axis) * weights
    return blended


def _coarse_positions(operation: Resize, length: int, size: int) -> Positions:
    """Sample in integers with 10 bits behind the point, as TFLite's integer kernel does."""
    one = 1 << _COARSE_BITS
    spans = (length - 1, size - 1) if operation.align_corners and size > 1 else (length, size)
    step = (one * spans[0] + spans[1] // 2) // max(spans[1], 1)
    places = np.arange(size, dtype=np.int64) * step
    if operation.half_pixel:
        places += step // 2 - one // 2
    # Shifts round downwards, also below 0, where half-pixel places of the first elements lie.
    first = np.clip(places >> _COARSE_BITS, 0, length - 1)
    # Rounded upwards: a place on an element has it on both sides, and needs no neighbour.
    second = np.minimum((places + one - 1) >> _COARSE_BITS, length - 1)
    return first, np.maximum(second, 0), places - (first << _COARSE_BITS)


def _float_positions(operation: Resize, length: int, size: int) -> Positions:
    """Sample in float32, no further out than the middle of the outermost elements."""
    step = _step(operation, length, size)
    places = np.arange(size, dtype=np.float32) * step
    if operation.half_pixel:
        places += np.float32(0.5) * step - np.float32(0.5)
    places = np.clip(places, np.float32(0), np.float32(length - 1))
    first = places.astype(np.int64)
    return first, np.minimum(first + 1, length - 1), places - first.astype(np.float32)


def _fine_positions(operation: Resize, length: int, size: int) -> Positions:
    """Round the weights of float32 samples to 11 bits behind the point, as XNNPACK does."""
    first, second, fractions = _float_positions(operation, length, size)
    weights = np.rint(fractions * np.float32(1 << _FINE_BITS)).astype(np.int64)
    return first, second, weights
