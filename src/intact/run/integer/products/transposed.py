"""Transposed convolutions: a matrix product, then a sum over where its elements land."""

from __future__ import annotations

from typing import cast

import numpy as np

from intact.program import Array, Step
from intact.program.operations import TransposedConvolution
from intact.run.integer.kernel import Kernel, Overflows
from intact.run.integer.products.gemm import ExactProduct
from intact.run.integer.products.layer import ROWS_IN_CACHE, Layer
from intact.run.integer.products.loops import scatter
from intact.run.integer.products.patches import signed
from intact.run.integer.products.rows import on_data, output_array
from intact.run.integer.products.windows import Windows, spatial_lengths


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
