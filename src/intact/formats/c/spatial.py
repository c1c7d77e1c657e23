"""Writes pools, reductions and resizing as calls of C kernels.

Each writer fills a struct of parameters (lengths, strides, a fixed-point multiplier) and adds one
call, such as ``average_pool_even(&params, input, output)``. What the kernel cannot compute is
refused with a remedy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.c.layer import WRITERS, Layer, encoding_of, image_of, plane_of
from intact.formats.c.moves import Grid, contiguous, grid
from intact.formats.c.products import output_scale
from intact.formats.c.requantization import (
    DIVISIONS,
    Requantization,
    fixed_point,
    right_shift,
    zero_point,
)
from intact.program import Encoding
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import Pool, PoolKind, Reduce, Reduction, Resize, ResizeMode
from intact.targets import ZeroPointOrder

_MOST_SUMMED = 2**23
"""Elements whose sum, zero point taken off, stays in 32 bits."""


@WRITERS.register(Pool)
def write_pool(layer: Layer) -> None:
    """Write an average or a maximum of windows."""
    operation = layer.step.operation
    if not isinstance(operation, Pool):
        raise Unsupported("it is no pool", "")
    layer.requantization()  # unsupported where arithmetic is in floats
    source, output = encoding_of(layer.input()), encoding_of(layer.output)
    if not source.same_as(output):
        raise Unsupported("its result has another scale than its input", "tie the two")
    batches, input_height, input_width, channels = image_of(layer.shape(layer.input()))
    _, output_height, output_width, _ = image_of(layer.shape(layer.output))
    kernel_height, kernel_width = plane_of(operation.kernel, 1)
    stride_height, stride_width = plane_of(operation.strides, 1)
    pad_top, pad_left = plane_of([before for before, _ in operation.pads], 0)
    low, high = code_bounds(layer.step.arithmetic, output, operation.bounds)
    # C leaves the overflow of a signed sum undefined; compilers drop what follows.
    if kernel_height * kernel_width > _MOST_SUMMED:
        raise Unsupported("its window is too large for sums of 32 bits", "reduce in two steps")
    params = layer.params(
        "pool",
        {
            "batches": batches,
            "input_height": input_height,
            "input_width": input_width,
            "channels": channels,
            "output_height": output_height,
            "output_width": output_width,
            "kernel_height": kernel_height,
            "kernel_width": kernel_width,
            "stride_height": stride_height,
            "stride_width": stride_width,
            "pad_top": pad_top,
            "pad_left": pad_left,
            **_mean_of_window(layer, operation, output),
            "activation_min": low,
            "activation_max": high,
        },
    )
    pointers = layer.pointer(layer.input()), layer.pointer(layer.output)
    if operation.kind is PoolKind.MAX:
        layer.call("max_pool", params, *pointers)
    else:
        kind = DIVISIONS[layer.step.arithmetic.rounding]
        layer.call("average_pool", params, *pointers, kind=kind)


def _mean_of_window(layer: Layer, operation: Pool, encoding: Encoding) -> dict[str, int]:
    """Return the fields of an average: whether the zero point is added before or after rounding.

    The two differ in ties only. A maximum has no such fields.
    """
    if operation.kind is PoolKind.MAX:
        return {}
    zero = zero_point(encoding)
    before = layer.step.arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    return {
        "count_pads": int(operation.count_pads),
        "pad_value": zero if before else 0,
        "input_offset": 0 if before else -zero,
        "output_offset": 0 if before else zero,
    }


@WRITERS.register(Reduce)
def write_reduce(layer: Layer) -> None:
    """Write a mean, sum, maximum or minimum over axes."""
    operation = layer.step.operation
    if not isinstance(operation, Reduce):
        raise Unsupported("it is no reduction", "")
    source, output = encoding_of(layer.input()), encoding_of(layer.output)
    kept, reduced = _grids(layer.shape(layer.input()), operation.axes)
    count = reduced.rows * reduced.length
    fields: dict[str, int | Sequence[int]] = {
        "results": kept.rows * kept.length,
        "kept_axes": len(kept.lengths) + 1,
        "kept_lengths": (*kept.lengths, kept.length),
        "kept_strides": (*kept.strides[0], kept.steps[0]),
        "rows": reduced.rows,
        "axes": len(reduced.lengths),
        "lengths": reduced.lengths,
        "strides": reduced.strides[0],
        "length": reduced.length,
        "step": reduced.steps[0],
    }
    pointers = layer.pointer(layer.input()), layer.pointer(layer.output)
    if operation.kind in (Reduction.MAX, Reduction.MIN):
        if not source.same_as(output):
            raise Unsupported("its result has another scale than its input", "tie the two")
        name = "reduce_max" if operation.kind is Reduction.MAX else "reduce_min"
        layer.call(name, layer.params("reduce", fields), *pointers)
        return
    if not 0 < count <= _MOST_SUMMED:
        raise Unsupported(f"it sums {count} elements", "reduce some of the axes at a time")
    scales, name, kind = _sum_or_mean(layer, operation.kind, count)
    fields |= {
        "input_offset": -zero_point(source),
        **scales,
        "output_offset": zero_point(output),
        "activation_min": output.quant_min,
        "activation_max": output.quant_max,
    }
    layer.call(name, layer.params("reduce", fields), *pointers, kind=kind)


def _grids(lengths: Sequence[int], axes: Sequence[int]) -> tuple[Grid, Grid]:
    """Return the cells that are kept and the elements that are reduced, with their strides."""
    strides = contiguous(lengths)
    kept = [axis for axis in range(len(lengths)) if axis not in axes]

    def part(chosen: Sequence[int]) -> Grid:
        return grid([lengths[a] for a in chosen], [[strides[a] for a in chosen]])

    return part(kept), part(axes)


def _sum_or_mean(
    layer: Layer, reduction: Reduction, count: int
) -> tuple[dict[str, int], str, Requantization]:
    """Return the fields that scale a sum, and the kernel."""
    kind, arithmetic = layer.requantization(), layer.step.arithmetic
    source, output = encoding_of(layer.input()), encoding_of(layer.output)
    ratio = real_multiplier(arithmetic, [source.scale], output)
    if reduction is Reduction.SUM:
        return output_scale(layer, kind, ratio), "reduce_sum", kind
    if kind.shifts:
        return _divided(layer, int(right_shift(ratio).item()), count)
    multiplier, shift = (int(part.item()) for part in fixed_point(arithmetic, ratio))
    # The divisor goes into the multiplier, with as many of its bits as there is room for (TFLite).
    kept = min(count.bit_length() - 1, 32, 31 + shift)
    shift -= kept
    if kind.name == "single" and shift < -31:
        raise Unsupported("its multiplier is too small", "reduce some of the axes at a time")
    fields = {"output_multiplier": (multiplier << kept) // count, "output_shift": shift}
    return fields, "reduce_sum", kind


def _divided(layer: Layer, shift: int, count: int) -> tuple[dict[str, int], str, Requantization]:
    """Return the fields of a mean whose scales are powers of two: one division, or one shift."""
    # Division by a power of two is a shift, with the same rounding.
    if count & (count - 1) == 0:
        shift += count.bit_length() - 1
        return {"output_shift": shift}, "reduce_sum", layer.requantization()
    factor, divisor = 1 << max(-shift, 0), count << max(shift, 0)
    # The kernel compares twice the rest with the divisor, in 32 bits.
    if count * 255 * factor >= 2**31 or divisor >= 2**30:
        raise Unsupported("its mean does not fit 32 bits", "give input and result nearer scales")
    kind = DIVISIONS[layer.step.arithmetic.rounding]
    return {"factor": factor, "divisor": divisor}, "reduce_mean", kind


_BITS = 10
"""Fractional bits of an interpolation weight, in TFLite's integer kernel."""


@WRITERS.register(Resize)
def write_resize(layer: Layer) -> None:
    """Write a Resize over one or two axes."""
    operation = layer.step.operation
    if not isinstance(operation, Resize):
        raise Unsupported("it is no Resize", "")
    source, output = layer.input(), layer.output
    if not encoding_of(source).same_as(encoding_of(output)):
        raise Unsupported("its result has another scale than its input", "tie the two")
    batches, input_height, input_width, channels = image_of(layer.shape(source))
    _, output_height, output_width, _ = image_of(layer.shape(output))
    params = layer.params(
        "resize",
        {
            "batches": batches,
            "input_height": input_height,
            "input_width": input_width,
            "channels": channels,
            "output_height": output_height,
            "output_width": output_width,
        },
    )
    nearest = operation.mode is ResizeMode.NEAREST
    sample = _nearest if nearest else _linear
    ys = sample(operation, input_height, output_height)
    xs = sample(operation, input_width, output_width)
    samples = (
        layer.array(ys, "_rows", "rows that are sampled"),
        layer.array(xs, "_columns", "columns that are sampled"),
    )
    pointers = layer.pointer(source), layer.pointer(output)
    if nearest:
        layer.call("resize_nearest", params, *samples, *pointers)
        return
    kind = layer.requantization()
    if kind.name == "single":
        raise Unsupported(
            "it interpolates with one rounding", "use a target with fixed_point_double"
        )
    layer.call("resize_linear", params, *samples, *pointers, kind=kind)


def _nearest(operation: Resize, length: int, size: int) -> npt.NDArray[np.int32]:
    """Return the input element that each output takes, ``[size]``, in float32 as TFLite does."""
    if operation.align_corners and size > 1:
        step = np.float32(length - 1) / np.float32(size - 1)
    else:
        step = np.float32(length) / np.float32(size)
    places = np.arange(size, dtype=np.float32)
    if operation.half_pixel:
        places += np.float32(0.5)
    scaled = places * step
    if operation.align_corners:
        scaled = scaled + np.float32(0.5)
    return np.asarray(np.clip(np.floor(scaled), 0, length - 1), np.int32)


def _linear(operation: Resize, length: int, size: int) -> npt.NDArray[np.int32]:
    """Return for each output two input elements and the second's weight, ``[size, 3]``.

    In integers, as TFLite does.
    """
    one = 1 << _BITS
    spans = (length - 1, size - 1) if operation.align_corners and size > 1 else (length, size)
    step = (one * spans[0] + spans[1] // 2) // max(spans[1], 1)
    places = np.arange(size, dtype=np.int64) * step
    if operation.half_pixel:
        places += step // 2 - one // 2
    first = np.clip(places >> _BITS, 0, length - 1)
    second = np.clip((places + one - 1) >> _BITS, 0, length - 1)
    return np.stack([first, second, places - (first << _BITS)], axis=1).astype(np.int32)
