"""Makes the kernels of pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from numba import njit

from intact.engines.integer.kernel import (
    KERNELS,
    Kernel,
    Overflows,
    kernel_of,
    operation_of,
    per_tensor,
)
from intact.engines.integer.pointwise.conversions import dequantizer, recoder
from intact.engines.integer.reductions import ends_mean, float_mean
from intact.numerics.fixed_point_kernel import ROUNDING_CODES, round_float
from intact.numerics.loop_cache import CACHED
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.reals import to_codes
from intact.program.arithmetic.requantize import (
    Requantizer,
    code_bounds,
    real_multiplier,
    real_type,
)
from intact.program.operations import Bounds, Pool, PoolKind
from intact.targets import (
    Arithmetic,
    FixedPoint,
    FloatEnds,
    FloatInTurn,
    FloatOnce,
    Functions,
    Shift,
    ZeroPointOrder,
)

Slices: TypeAlias = tuple[slice, ...]


def output_lengths(shape: tuple[int, ...], operation: Pool) -> tuple[int, ...]:
    """Return the output's spatial lengths for data ``[N, *S, C]``."""
    return tuple(
        max((length + sum(pads) - size) // stride + 1, 0)
        for length, pads, size, stride in zip(
            shape[1:-1], operation.pads, operation.kernel, operation.strides, strict=True
        )
    )


def is_global(shape: tuple[int, ...], operation: Pool) -> bool:
    """Tell whether the only window is the whole input, without pads."""
    return operation.kernel == shape[1:-1] and not any(map(any, operation.pads))


def reduce_windows(array: Array, operation: Pool, combine: np.ufunc) -> Array:
    """Reduce each window ``[N, *S, C]`` with a function of two arrays, one axis after the other.

    Args:
        array: Integers; the result has their dtype.
        operation: Which windows.
        combine: ``np.add`` or ``np.maximum``. A window without elements has 0 or the lowest
            number.
    """
    start = 0 if combine is np.add else np.iinfo(array.dtype).min
    # Axis by axis: k + k steps for a window of k * k; sums and maxima of integers do not depend on
    # the order.
    for axis, length in enumerate(output_lengths(array.shape, operation), 1):
        shape = (*array.shape[:axis], length, *array.shape[axis + 1 :])
        result = np.full(shape, start, array.dtype)
        for outputs, inputs in _axis_taps(array.shape[axis], length, operation, axis - 1):
            ahead = (slice(None),) * axis
            target = result[(*ahead, outputs)]
            combine(target, array[(*ahead, inputs)], out=target)
        array = result
    return array


def each_tap(shape: tuple[int, ...], operation: Pool) -> Iterator[tuple[Slices, Slices]]:
    """Yield for each element of the window, row by row, the outputs that have it and where it is.

    The slices are for arrays ``[N, *S, C]``.
    """
    lengths = output_lengths(shape, operation)
    axes = [
        list(_axis_taps(shape[axis], length, operation, axis - 1))
        for axis, length in enumerate(lengths, 1)
    ]
    for taps in itertools.product(*axes):
        outputs, inputs = zip(*taps, strict=True)
        yield (slice(None), *outputs), (slice(None), *inputs)


def window_counts(
    shape: tuple[int, ...], operation: Pool, *, with_pads: bool
) -> npt.NDArray[np.int64]:
    """Return how many elements each window has, ``[*S of the output]``, pads included or not."""
    lengths = output_lengths(shape, operation)
    counts = np.ones(lengths, np.int64)
    for axis, length in enumerate(lengths):
        along = np.zeros(length, np.int64)
        if with_pads:
            along += operation.kernel[axis]
        else:
            for outputs, _ in _axis_taps(shape[axis + 1], length, operation, axis):
                along[outputs] += 1
        counts *= along.reshape([-1 if at == axis else 1 for at in range(len(lengths))])
    return counts


def divisors(shape: tuple[int, ...], operation: Pool) -> npt.NDArray[np.int64]:
    """Return the divisor of each window's sum for its mean; at least one."""
    return np.maximum(window_counts(shape, operation, with_pads=operation.count_pads), 1)


def _axis_taps(
    length: int, outputs: int, operation: Pool, axis: int
) -> Iterator[tuple[slice, slice]]:
    """Yield for each tap along a spatial axis the outputs that have it, and the inputs it reads."""
    stride, (before, _) = operation.strides[axis], operation.pads[axis]
    for tap in range(operation.kernel[axis]):
        first = max(-((tap - before) // stride), 0)  # of the outputs whose tap is not in front
        last = min((length - 1 + before - tap) // stride, outputs - 1)
        if first > last:
            continue
        start = first * stride + tap - before
        yield slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


_STEPS_OF_8_BITS = 255

Average = Callable[[Array], Array]


@KERNELS.register(Pool)
def _pool(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Pool)
    source, target = per_tensor(step, step.inputs[0]), per_tensor(step, step.outputs[0])
    if operation.kind is PoolKind.MAX:
        recode = recoder(step.arithmetic, source, target, operation.bounds)
        return kernel_of(step, lambda codes: recode(reduce_windows(codes, operation, np.maximum)))
    return kernel_of(step, _average(operation, step.arithmetic, source, target))


def _average(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    match arithmetic.requantize:
        case FloatEnds():
            average = _average_by_ends
        case FloatOnce():
            composed = _is_composed(arithmetic, source, target)
            average = _average_as_convolution if composed else _float_average
        case FixedPoint() | Shift() if source.same_as(target):
            average = _integer_average
        case _:
            average = _average_by_count
    return average(operation, arithmetic, source, target)


def _average_by_ends(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    """Divide sums of codes as OpenVINO does: see `ends_mean`."""
    zero_point = source.zero_point.item()

    def average(codes: Array) -> Array:
        sums, counts, elements = _sums(operation, codes)
        steps = sums - elements[..., None] * zero_point
        count = counts[..., None]
        return ends_mean(arithmetic, source, target, steps, count, operation.bounds)

    return average


def _float_average(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    """Add dequantized elements tap by tap, row by row, divide, quantize (ONNX Runtime).

    Float sums depend on their order. A window that is the whole input may be left to the kernel of
    GlobalAveragePool, which sums integers, see ``FloatOnce.integer_whole_windows``.
    Measured with onnxruntime 1.31.1: no code differs.
    """
    kind, way = real_type(arithmetic), arithmetic.requantize
    whole_in_integers = isinstance(way, FloatOnce) and way.integer_whole_windows
    dequantize = dequantizer(source, kind)

    def average(codes: Array) -> Array:
        if whole_in_integers and is_global(codes.shape, operation):
            return global_average(codes)
        reals = dequantize(codes)
        lengths = output_lengths(codes.shape, operation)
        sums = np.zeros((codes.shape[0], *lengths, codes.shape[-1]), kind)
        for outputs, inputs in each_tap(codes.shape, operation):
            sums[outputs] += reals[inputs]
        sums /= divisors(codes.shape, operation)[..., None].astype(kind)
        return to_codes(sums, arithmetic, target, operation.bounds)

    def global_average(codes: Array) -> Array:
        spatial = tuple(range(1, codes.ndim - 1))
        sums = codes.sum(axis=spatial, keepdims=True, dtype=np.int64)
        count = math.prod(operation.kernel)
        after = msgspec.structs.replace(arithmetic, zero_point=ZeroPointOrder.AFTER_ROUNDING)
        mean = float_mean(after, source, target, count, operation.bounds)
        return mean(sums - count * source.zero_point.item())

    return average


def _is_composed(arithmetic: Arithmetic, source: Encoding, target: Encoding) -> bool:
    spans = {each.quant_max - each.quant_min for each in (source, target)}
    return arithmetic.functions is Functions.COMPOSED and spans == {_STEPS_OF_8_BITS}


def _average_as_convolution(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    """Multiply sums as a convolution whose weights are 1, in steps of ``1 / count``, does."""
    count = math.prod(operation.kernel)
    after = msgspec.structs.replace(arithmetic, zero_point=ZeroPointOrder.AFTER_ROUNDING)
    step = np.float32(1 / count)
    multiplier = real_multiplier(after, [source.scale, step], target)
    requantize = Requantizer(after, multiplier, target, operation.bounds)

    def average(codes: Array) -> Array:
        sums, _, elements = _sums(operation, codes)
        return requantize(sums.astype(np.int64) - elements[..., None] * source.zero_point.item())

    return average


def _integer_average(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    """Add codes, divide, round once.

    With the zero point before rounding it is left inside the sums (TFLite's AVERAGE_POOL_2D); the
    order shows in ties that are rounded away from zero.
    """
    zero_point = source.zero_point.item()
    before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    limits = code_bounds(arithmetic, target, operation.bounds)
    rounding = ROUNDING_CODES[arithmetic.rounding]

    def average(codes: Array) -> Array:
        sums, counts, elements = _sums(operation, codes)
        # Pads that count hold the zero point.
        offsets = (counts - elements if before else -elements) * zero_point
        results = np.empty(sums.shape, target.dtype)
        shape = (sums.shape[0], counts.size, sums.shape[-1])
        _divide(
            sums.reshape(shape),
            counts.reshape(-1),
            offsets.reshape(-1),
            rounding,
            0 if before else zero_point,
            limits,
            results.reshape(shape),
        )
        return results

    return average


def _average_by_count(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    """Multiply sums by ``s_in / (s_out * count)``, with one multiplier for each count there is."""
    zero_point = source.zero_point.item()
    requantized = _by_count(arithmetic, source, target, operation.bounds)

    def average(codes: Array) -> Array:
        sums, counts, elements = _sums(operation, codes)
        steps = sums - elements[..., None] * zero_point
        results = np.empty(sums.shape, target.dtype)
        everywhere = np.broadcast_to(counts[..., None], sums.shape)
        # Windows at the edges have fewer elements where pads do not count: three counts an axis at
        # most.
        for count in np.unique(counts):
            here = everywhere == count
            results[here] = requantized(int(count))(steps[here])
        return results

    return average


def _by_count(
    arithmetic: Arithmetic, source: Encoding, target: Encoding, bounds: Bounds
) -> Callable[[int], Average]:
    """Make the function from a number of elements to the requantizer of their sums."""
    if isinstance(arithmetic.requantize, FloatInTurn):
        return lambda count: float_mean(arithmetic, source, target, count, bounds)
    ratio = real_multiplier(arithmetic, [source.scale], target)
    return lambda count: Requantizer(arithmetic, ratio / count, target, bounds)


def _sums(operation: Pool, codes: Array) -> tuple[Array, Array, Array]:
    """Return sums of windows, what each is divided by, and how many elements but pads it has."""
    largest = math.prod(operation.kernel) * (1 << 8 * codes.dtype.itemsize)
    # The narrowest type that no sum leaves: memory is what a pool waits for.
    fitting = [kind for kind in (np.int16, np.int32, np.int64) if largest < np.iinfo(kind).max]
    sums = reduce_windows(codes.astype(fitting[0]), operation, np.add)
    elements = window_counts(codes.shape, operation, with_pads=False)
    return sums, divisors(codes.shape, operation), elements


@njit(cache=CACHED, nogil=True)
def _divide(
    sums: Any, counts: Any, offsets: Any, rounding: int, zero: int, limits: Any, codes: Any
) -> None:
    """Fill ``codes`` with ``(sum + offset) / count + zero``, rounded and clamped.

    A quotient in float64 is a tie only if the exact one is: sums are far below 2**51.

    Args:
        sums: Integers ``[N, windows, C]``.
        counts: Positive integers ``[windows]``.
        offsets: Integers ``[windows]``.
        rounding: A mode of ``ROUNDING_CODES``.
        zero: Added after rounding.
        limits: Smallest and largest code.
        codes: ``[N, windows, C]``, written.
    """
    low, high = limits
    for sample in range(sums.shape[0]):
        for window in range(sums.shape[1]):
            offset, count = offsets[window], np.float64(counts[window])
            for channel in range(sums.shape[2]):
                mean = np.float64(sums[sample, window, channel] + offset) / count
                code = np.int64(round_float(mean, rounding)) + zero
                codes[sample, window, channel] = min(max(code, low), high)
