"""Makes the integer engine's kernels of `Convolution` and `TransposedConvolution`.

A kernel takes codes ``[N, *S, C]`` and returns the requantized codes of the output. It is made in
three parts:

1. The exact sums of products of codes, held in floats (`ExactProduct`): by a matrix product whose
   rows are windows of the data, by a loop for depthwise convolutions, or, transposed, by a matrix
   product whose results are added where they overlap.
2. Where the target saturates pairs of products in 16 bits (``vpmaddubsw``), a correction of the
   sums (``pairs``, see `PairSaturation`).
3. The ``epilogue``: bias, residual, requantization, bounds of the fused activation.

`convolution` and `transposed_convolution` are the functions that the engine calls. All work is done
in parts that stay in the cache (``at_once``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from intact.engines.integer.kernel import KERNELS, Kernel, Overflows
from intact.engines.integer.products.gemm import ExactProduct, grouped
from intact.engines.integer.products.layer import ROWS_IN_CACHE, Layer, PairSaturation
from intact.engines.integer.products.windows import (
    Floats,
    Triple,
    Windows,
    padded,
    phases_of,
    signed,
    spatial_lengths,
    window_view,
)
from intact.errors import DataError
from intact.numerics.loop_cache import CACHED
from intact.program import Array, Step
from intact.program.operations import Bounds, Convolution, TransposedConvolution


@njit(cache=CACHED, nogil=True)
def depthwise(
    data: Floats,
    weights: Floats,
    outputs: Triple,
    kernel: Triple,
    strides: Triple,
    dilations: Triple,
    products: Floats,
) -> None:
    """Write the exact sums of a depthwise convolution, in floats of the layer's `exact_type`.

    A whole line of the output is computed at once, tap by tap: that is one run of memory, however
    few channels there are.

    Args:
        data: ``[phases, N, D, H, L]``, padded; see `phases_of`.
        weights: ``[multiplier, taps, out W * C]``, each tap repeated for every window of a line.
        outputs: Windows by axis.
        kernel: Taps by axis.
        strides: Steps between windows.
        dilations: Steps between taps.
        products: Written, ``[N * out D * out H, out W * C, multiplier]``.
    """
    run = weights.shape[2]
    channels = run // outputs[2]
    sums = np.empty(run, data.dtype)
    for row in range(products.shape[0]):
        out_h = row % outputs[1]
        out_d = row // outputs[1] % outputs[0]
        image = row // (outputs[1] * outputs[0])
        for copy in range(weights.shape[0]):
            sums[:] = 0
            for line in range(kernel[0] * kernel[1]):
                d = out_d * strides[0] + line // kernel[1] * dilations[0]
                h = out_h * strides[1] + line % kernel[1] * dilations[1]
                for start in range(0, kernel[2], 3):
                    # Three taps at once: sums are loaded and stored a third as often. Taps that
                    # the kernel lacks repeat the first one, and are not added.
                    taps = min(kernel[2] - start, 3)
                    at = start * dilations[2]
                    begin = at // strides[2] * channels
                    first = data[at % strides[2], image, d, h, begin : begin + run]
                    at = (start + taps // 2) * dilations[2]
                    begin = at // strides[2] * channels
                    second = data[at % strides[2], image, d, h, begin : begin + run]
                    at = (start + taps - 1) * dilations[2]
                    begin = at // strides[2] * channels
                    third = data[at % strides[2], image, d, h, begin : begin + run]
                    tap = line * kernel[2] + start
                    by_first = weights[copy, tap]
                    by_second = weights[copy, tap + taps // 2]
                    by_third = weights[copy, tap + taps - 1]
                    if taps == 3:
                        for c in range(run):
                            sums[c] += (
                                first[c] * by_first[c]
                                + second[c] * by_second[c]
                                + third[c] * by_third[c]
                            )
                    elif taps == 2:
                        for c in range(run):
                            sums[c] += first[c] * by_first[c] + third[c] * by_third[c]
                    else:
                        for c in range(run):
                            sums[c] += first[c] * by_first[c]
            target = products[row]
            for c in range(run):
                target[c, copy] = sums[c]


@njit(cache=CACHED, nogil=True)
def scatter(
    products: Floats,
    sizes: Triple,
    outputs: Triple,
    kernel: Triple,
    strides: Triple,
    dilations: Triple,
    begins: Triple,
    sums: Floats,
) -> None:
    """Add what each input element of a transposed convolution gives to the outputs it reaches.

    Args:
        products: ``[groups, N * D * H * W, taps * out / groups]``.
        sizes: D, H and W.
        outputs: The lengths of the result.
        kernel: Taps by axis.
        strides: Steps between the results of neighbouring elements.
        dilations: Steps between taps.
        begins: What is cut off before the first element of the result.
        sums: ``[N, *outputs, out]``, added to.
    """
    groups = products.shape[0]
    channels = sums.shape[4] // groups
    for row in range(products.shape[1]):
        w = row % sizes[2]
        h = row // sizes[2] % sizes[1]
        d = row // (sizes[2] * sizes[1]) % sizes[0]
        image = row // (sizes[2] * sizes[1] * sizes[0])
        for tap in range(kernel[0] * kernel[1] * kernel[2]):
            tap_w = tap % kernel[2]
            tap_h = tap // kernel[2] % kernel[1]
            tap_d = tap // (kernel[2] * kernel[1])
            out_d = d * strides[0] + tap_d * dilations[0] - begins[0]
            out_h = h * strides[1] + tap_h * dilations[1] - begins[1]
            out_w = w * strides[2] + tap_w * dilations[2] - begins[2]
            # Pads of a transposed convolution cut: what lies there is computed for nobody.
            if 0 <= out_d < outputs[0] and 0 <= out_h < outputs[1] and 0 <= out_w < outputs[2]:
                for group in range(groups):
                    target = sums[image, out_d, out_h, out_w]
                    source = products[group, row]
                    for c in range(channels):
                        target[group * channels + c] += source[tap * channels + c]


def multiply_rows(
    layer: Layer, bounds: Bounds, overflows: Overflows, pairs: PairSaturation | None
) -> Kernel:
    """Return the kernel of a layer that multiplies the last axis of its data.

    Args:
        layer: Its weights are ``[O, (1,)* K]``.
        bounds: The ends of the fused activation.
        overflows: Where sums that leave the accumulator are counted.
        pairs: How pairs saturate, if they can.
    """
    channels = len(layer.weights)
    product = ExactProduct(layer.weights.reshape(channels, -1).T[None], layer.largest_code)
    epilogue = layer.epilogue(bounds, overflows)
    counted = overflows.counter(layer.step) if pairs is not None else None
    step, largest = layer.step, layer.largest_sum
    at_once = max(ROWS_IN_CACHE // max(product.length + channels, 1), 1)

    def run(data: Array, residual: Array | None = None) -> Array:
        if data.shape[-1] != product.length:
            raise DataError(
                f"step {step.name!r} takes {product.length} channels, not {data.shape[-1]}",
                remedy="feed data of the model's shape",
            )
        codes = signed(data).reshape(-1, product.length)
        beside = None if residual is None else residual.reshape(len(codes), channels)
        results = output_array(step, (len(codes), channels))
        for start in range(0, len(codes), at_once):
            rows = codes[start : start + at_once].astype(product.dtype)[None]
            products = product(rows)
            if pairs is not None and counted is not None:
                products = pairs.apply(rows, products, counted)
            part = None if beside is None else beside[start : start + at_once]
            results[start : start + at_once] = epilogue(products[0], largest, part)
        return results.reshape(*data.shape[:-1], channels)

    return on_data(step, run)


def output_array(step: Step, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return an array for a step's only output."""
    encoding = step.outputs[0].encoding
    return np.empty(shape, np.float32 if encoding is None else encoding.dtype)


def on_data(step: Step, run: Callable[..., Array]) -> Kernel:
    """Return the kernel of a function of the first input and, if there is one, a residual.

    A kernel is given what is not constant. Where the first input is a constant, the function still
    gets it.
    """
    data = step.inputs[0]
    constant = data.data if data is not None else None

    def kernel(*activations: Array) -> tuple[Array, ...]:
        return (run(*activations) if constant is None else run(constant, *activations),)

    return kernel


@KERNELS.register(Convolution)
def convolution(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `Convolution`."""
    operation = cast(Convolution, step.operation)
    layer = Layer.from_step(step)
    windows = Windows.from_operation(operation, layer.weights.shape[1:-1])
    matrices = grouped(layer.raw_weights, operation.groups)
    pairs = layer.pairs(matrices, _pair_run(layer, operation.groups))
    if windows.is_pointwise and operation.groups == 1:
        return multiply_rows(layer, operation.bounds, overflows, pairs)
    # Cases: (1) pointwise with one group: rows of the data are the matrix; (2) depthwise: loops, as
    # a matrix product would have one row a channel; (3) all else: windows as rows, product by
    # product. Loops know no pairs that saturate, and hold sums in floats.
    is_depthwise = operation.groups > 1 and layer.weights.shape[-1] == 1
    if is_depthwise and pairs is None and layer.exact_type != np.int64:
        return _loop_depthwise(layer, operation, windows, overflows)
    return _multiply_windows(layer, operation, windows, pairs, overflows)


def _pair_run(layer: Layer, groups: int) -> int:
    """Return how long the runs are in which neighbours of a window are paired.

    With a window of 3x3 taps and 4 channels: 4, the channels of one tap, or 36, the whole window.

    See ``PairSaturate.block``, measured with openvino 2026.4.1 on AVX2, 29 shapes, and
    ``PairSaturate.rows``, measured with onnxruntime 1.31.1 on AVX2, 23 shapes.
    """
    outputs, inputs = len(layer.weights) // groups, int(layer.weights.shape[-1])
    pairs = layer.saturating
    if pairs is None or inputs == outputs == 1:
        return inputs
    if pairs.rows:
        return int(layer.weights[0].size)
    if pairs.block is None or groups == 1:
        return inputs
    whole = inputs % pairs.block == 0 and outputs % pairs.block == 0
    return inputs if whole else int(layer.weights[0].size)


def _multiply_windows(
    layer: Layer,
    operation: Convolution,
    windows: Windows,
    pairs: PairSaturation | None,
    overflows: Overflows,
) -> Kernel:
    """Multiply windows, as many at a time as stay in the cache."""
    groups, channels = operation.groups, len(layer.weights)
    product = ExactProduct(grouped(layer.weights, groups), layer.largest_code)
    epilogue = layer.epilogue(operation.bounds, overflows)
    counted = overflows.counter(layer.step) if pairs is not None else None
    # The function must not keep the layer alive: its weights are many times larger than the codes.
    step, zero, largest = layer.step, layer.zero, layer.largest_sum
    axes, inputs = layer.weights.ndim - 2, groups * layer.weights.shape[-1]

    def run(data: Array, residual: Array | None = None) -> Array:
        sizes = spatial_lengths(step, data.shape, axes, inputs)
        codes = signed(data).reshape(len(data), *sizes, data.shape[-1])
        outputs = windows.output_of(sizes)
        results = output_array(step, (len(data), *outputs, channels))
        beside = None if residual is None else residual.reshape(results.shape)
        for images, lines in _chunks(len(data), outputs, product.length * groups + channels):
            floats = padded(codes[images], windows, zero, product.dtype)
            view = window_view(floats, windows, outputs, groups)
            for part in lines:
                # The only copy of the windows, of as many as the cache holds: an im2col of the
                # whole layer would be k * k times the data.
                rows = np.ascontiguousarray(view[(slice(None), slice(None), *part)])
                rows = rows.reshape(groups, -1, product.length)
                products = product(rows)
                if pairs is not None and counted is not None:
                    products = pairs.apply(rows, products, counted)
                target = results[(images, *part)]
                flat = products.transpose(1, 0, 2).reshape(-1, channels)
                added = None if beside is None else beside[(images, *part)]
                target[...] = epilogue(flat, largest, added).reshape(target.shape)
        return results.reshape(len(data), *outputs[3 - axes :], channels)

    return on_data(step, run)


def _loop_depthwise(
    layer: Layer, operation: Convolution, windows: Windows, overflows: Overflows
) -> Kernel:
    """Loop over windows of single channels."""
    channels, groups = len(layer.weights), operation.groups
    taps = layer.weights.reshape(groups, channels // groups, windows.taps).transpose(1, 2, 0)
    taps = taps.astype(layer.exact_type)
    epilogue = layer.epilogue(operation.bounds, overflows)
    step, zero, largest = layer.step, layer.zero, layer.largest_sum
    axes = layer.weights.ndim - 2

    def run(data: Array, residual: Array | None = None) -> Array:
        sizes = spatial_lengths(step, data.shape, axes, groups)
        codes = signed(data).reshape(len(data), *sizes, groups)
        outputs = windows.output_of(sizes)
        positions = outputs[0] * outputs[1] * outputs[2]
        results = output_array(step, (len(data), *outputs, channels))
        beside = None if residual is None else residual.reshape(results.shape)
        at_once = max(ROWS_IN_CACHE // max(codes[:1].size + positions * channels, 1), 1)
        weights = np.tile(taps, (1, 1, outputs[2]))
        geometry = (outputs, windows.kernel, windows.strides, windows.dilations)
        for start in range(0, len(data) if positions else 0, at_once):
            part = codes[start : start + at_once]
            floats = padded(part, windows, zero, taps.dtype, windows.strides[2])
            lines = len(floats) * outputs[0] * outputs[1]
            products = np.empty((lines, outputs[2] * groups, channels // groups), taps.dtype)
            depthwise(phases_of(floats, windows.strides[2]), weights, *geometry, products)
            flat = products.reshape(-1, channels)
            target = results[start : start + at_once]
            added = None if beside is None else beside[start : start + at_once]
            target[...] = epilogue(flat, largest, added).reshape(target.shape)
        return results.reshape(len(data), *outputs[3 - axes :], channels)

    return on_data(step, run)


def _chunks(
    images: int, outputs: Triple, elements: int
) -> Iterator[tuple[slice, list[tuple[slice, slice, slice]]]]:
    """Cut a batch into images, and those into lines, so that rows of windows stay in the cache.

    Args:
        images: In the batch.
        outputs: Windows of an image by axis.
        elements: That one window is read from and writes.
    """
    whole = tuple(slice(0, length) for length in outputs)
    axis = next((a for a, length in enumerate(outputs) if length > 1), 2)
    positions = outputs[0] * outputs[1] * outputs[2]
    if positions == 0:
        return
    at_once = max(ROWS_IN_CACHE // max(positions * elements, 1), 1)
    line = positions // outputs[axis] * elements
    lines = max(ROWS_IN_CACHE // max(line, 1), 1)
    parts = []
    for start in range(0, outputs[axis], lines):
        bounds = list(whole)
        bounds[axis] = slice(start, min(start + lines, outputs[axis]))
        parts.append((bounds[0], bounds[1], bounds[2]))
    for start in range(0, images, at_once):
        yield slice(start, min(start + at_once, images)), parts


@KERNELS.register(TransposedConvolution)
def transposed_convolution(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `TransposedConvolution`.

    An output has fewer taps near an edge, so the zero point is taken off before the product.
    """
    operation = cast(TransposedConvolution, step.operation)
    layer = Layer.from_step(step)
    windows = Windows.from_operation(operation, layer.weights.shape[1:-1])
    groups, channels = operation.groups, len(layer.weights)
    product = ExactProduct(_by_channel(layer.weights, groups), layer.largest_value)
    pairs = layer.pairs(
        _by_channel(layer.raw_weights, groups), layer.weights.shape[-1], centred=False
    )
    counted = overflows.counter(step) if pairs is not None else None
    epilogue = layer.epilogue(operation.bounds, overflows, centred=False)
    zero, largest, axes = layer.zero, layer.largest_sum, layer.weights.ndim - 2

    def run(data: Array) -> Array:
        sizes = spatial_lengths(step, data.shape, axes, groups * product.length)
        codes = signed(data)
        outputs = windows.transposed_output_of(sizes)
        results = output_array(step, (len(data), *outputs, channels))
        positions = outputs[0] * outputs[1] * outputs[2]
        elements = codes[:1].size * (windows.taps * channels // max(codes.shape[-1], 1) + 1)
        at_once = max(ROWS_IN_CACHE // max(elements, 1), 1)
        for start in range(0, len(data) if positions else 0, at_once):
            part = codes[start : start + at_once]
            values = part.reshape(-1, groups, product.length).astype(product.dtype) - zero
            rows = np.ascontiguousarray(values.transpose(1, 0, 2).astype(product.dtype, copy=False))
            products = product(rows)
            if pairs is not None and counted is not None:
                products = pairs.apply(rows, products, counted)
            # float64 whatever the products are: where taps overlap, their sums may exceed what
            # float32 holds exactly.
            sums = np.zeros((len(part), *outputs, channels), np.float64)
            geometry = (windows.kernel, windows.strides, windows.dilations, windows.begins)
            scatter(products, sizes, outputs, *geometry, sums)
            target = results[start : start + at_once]
            flat = sums.reshape(-1, channels)
            target[...] = epilogue(flat, largest).reshape(target.shape)
        return results.reshape(len(data), *outputs[3 - axes :], channels)

    return on_data(step, run)


def _by_channel(weights: Array, groups: int) -> Array:
    """Return weights ``[O, *K, C / groups]`` as ``[groups, C / groups, taps * O / groups]``."""
    channels = weights.shape[-1]
    split = weights.reshape(groups, len(weights) // groups, -1, channels)
    matrices = split.transpose(0, 3, 2, 1).reshape(groups, channels, -1)
    return np.ascontiguousarray(matrices)
