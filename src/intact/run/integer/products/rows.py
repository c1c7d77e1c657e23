"""Layers whose rows lie in memory already: fully connected ones and convolutions of one tap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.program import Array, Step
from intact.program.operations import Bounds
from intact.run.integer.kernel import Kernel, Overflows
from intact.run.integer.products.gemm import ExactProduct
from intact.run.integer.products.layer import ROWS_IN_CACHE, Layer
from intact.run.integer.products.pairs import PairSaturation
from intact.run.integer.products.patches import signed


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
