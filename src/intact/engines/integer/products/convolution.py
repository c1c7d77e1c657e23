"""Convolutions: as matrix products of windows, or looped where a product would be too thin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from intact.engines.integer.kernel import KERNELS, Kernel, Overflows
from intact.engines.integer.products.gemm import ExactProduct, grouped
from intact.engines.integer.products.layer import ROWS_IN_CACHE, Layer
from intact.engines.integer.products.loops import depthwise, scatter
from intact.engines.integer.products.pairs import PairSaturation
from intact.engines.integer.products.windows import (
    Triple,
    Windows,
    padded,
    phases_of,
    signed,
    spatial_lengths,
    window_view,
)
from intact.errors import DataError
from intact.program import Array, Step
from intact.program.operations import Bounds, Convolution, TransposedConvolution


def multiply_rows(
    layer: Layer, bounds: Bounds, overflows: Overflows, pairs: PairSaturation | None
) -> Kernel:
    """Return the kernel of a layer that multiplies the last axis of its data.

    Args:
        layer: Its weights are ``[O, (1,)* K]``.
        bounds: Of the fused activation.
        overflows: Where sums that leave the accumulator are counted.
        pairs: How pairs saturate, if they can.
    """
    channels = len(layer.weights)
    product = ExactProduct(layer.weights.reshape(channels, -1).T[None], layer.largest_code)
    epilogue = layer.epilogue(bounds, overflows)
    counted = overflows.of(layer.step) if pairs is not None else None
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
    """Return the kernel of a function of the first input, constant or not, and a residual."""
    data = step.inputs[0]
    constant = data.data if data is not None else None

    def kernel(*activations: Array) -> tuple[Array, ...]:
        return (run(*activations) if constant is None else run(constant, *activations),)

    return kernel


@KERNELS.register(Convolution)
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


@KERNELS.register(TransposedConvolution)
def transposed_convolution(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `TransposedConvolution`.

    An output has fewer taps near an edge, so the zero point is taken off before the product.
    """
    operation = cast(TransposedConvolution, step.operation)
    layer = Layer.of(step)
    windows = Windows.of(operation, layer.weights.shape[1:-1])
    groups, channels = operation.groups, len(layer.weights)
    product = ExactProduct(_by_channel(layer.weights, groups), layer.largest_value)
    pairs = layer.pairs(
        _by_channel(layer.raw_weights, groups), layer.weights.shape[-1], centred=False
    )
    counted = overflows.of(step) if pairs is not None else None
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
