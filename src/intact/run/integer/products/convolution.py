"""Convolutions: as matrix products of windows, or looped where a product would be too thin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from intact.program import Array, Step
from intact.program.operations import Convolution
from intact.run.integer.kernel import Kernel, Overflows
from intact.run.integer.products.gemm import ExactProduct, grouped
from intact.run.integer.products.layer import ROWS_IN_CACHE, Layer
from intact.run.integer.products.loops import depthwise
from intact.run.integer.products.pairs import PairSaturation
from intact.run.integer.products.patches import padded, phases_of, signed, window_view
from intact.run.integer.products.rows import multiply_rows, on_data, output_array
from intact.run.integer.products.windows import Triple, Windows, spatial_lengths


def convolution(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `Convolution`."""
    operation = cast(Convolution, step.operation)
    layer = Layer.of(step)
    windows = Windows.of(operation, layer.weights.shape[1:-1])
    matrices = grouped(layer.raw_weights, operation.groups)
    pairs = layer.pairs(matrices, _pair_run(layer, operation.groups))
    if windows.is_pointwise and operation.groups == 1:
        return multiply_rows(layer, operation.bounds, overflows, pairs)
    thin = operation.groups > 1 and layer.weights.shape[-1] == 1 and pairs is None
    if thin and layer.exact_type != np.int64:
        return _depthwise(layer, operation, windows, overflows)
    return _windowed(layer, operation, windows, pairs, overflows)


def _pair_run(layer: Layer, groups: int) -> int:
    """Return how many neighbours in a window pairs are made of: channels of a tap, or all.

    See ``Arithmetic.pair_block``. Measured with openvino 2026.4.1 on AVX2, 29 shapes.
    """
    outputs, inputs = len(layer.weights) // groups, int(layer.weights.shape[-1])
    block = layer.step.arithmetic.pair_block
    if block is None or groups == 1 or inputs == outputs == 1:
        return inputs
    whole = inputs % block == 0 and outputs % block == 0
    return inputs if whole else int(layer.weights[0].size)


def _windowed(
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
    counted = overflows.of(layer.step) if pairs is not None else None
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


def _depthwise(
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
