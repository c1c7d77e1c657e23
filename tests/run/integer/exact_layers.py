"""Convolutions and products in plain integers, slowly: what the kernels are held against."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.program import Array, Encoding
from intact.program.operations import Convolution, TransposedConvolution
from intact.targets import Arithmetic
from intact.targets.arithmetic import Overflow, Requantize

Integers = npt.NDArray[np.int64]

ACCUMULATORS = Encoding(np.ones((), np.float32), np.zeros((), np.int64), -(2**31), 2**31 - 1)
"""An output whose codes are the accumulators themselves, where all scales are 1."""


def plain(
    overflow: Overflow = Overflow.EXACT, bits: int = 32, pair_bits: int | None = None
) -> Arithmetic:
    """Return an arithmetic that hands accumulators out as they are."""
    return Arithmetic(
        requantize=Requantize.FLOAT64,
        rounding=Rounding.HALF_EVEN,
        accumulator_overflow=overflow,
        accumulator_bits=bits,
        pair_bits=pair_bits,
    )


def pair_sums(data: Integers, weights: Integers, bits: int | None) -> int:
    """Return a sum of products ``[..., C]`` whose neighbours in C saturate in pairs."""
    products = data * weights
    if bits is None:
        return int(products.sum())
    if products.shape[-1] % 2:
        products = np.concatenate([products, np.zeros_like(products[..., :1])], axis=-1)
    pairs = products[..., 0::2] + products[..., 1::2]
    limit = 1 << (bits - 1)
    return int(np.clip(pairs, -limit, limit - 1).sum())


def convolve(
    operation: Convolution,
    data: Integers,
    weights: Integers,
    pad: int = 0,
    pair_bits: int | None = None,
) -> Integers:
    """Return sums of data ``[N, *S, C]`` and weights ``[O, *K, C / groups]``."""
    axes = weights.ndim - 2
    lengths = data.shape[1:-1]
    kernel = weights.shape[1:-1]
    filled = np.pad(data, ((0, 0), *operation.pads, (0, 0)), constant_values=pad)
    outputs = [
        max((filled.shape[1 + a] - (kernel[a] - 1) * operation.dilations[a] - 1)
            // operation.strides[a] + 1, 0)
        for a in range(axes)
    ]  # fmt: skip
    assert len(lengths) == axes
    inputs, per_group = weights.shape[-1], len(weights) // operation.groups
    result = np.zeros((len(data), *outputs, len(weights)), np.int64)
    for image, channel in np.ndindex(len(data), len(weights)):
        first = channel // per_group * inputs
        for position in np.ndindex(*outputs):
            window = tuple(
                slice(p * s, p * s + (k - 1) * d + 1, d)
                for p, s, k, d in zip(
                    position, operation.strides, kernel, operation.dilations, strict=True
                )
            )
            part = filled[(image, *window, slice(first, first + inputs))]
            result[(image, *position, channel)] = pair_sums(part, weights[channel], pair_bits)
    return result


def convolve_transposed(
    operation: TransposedConvolution, data: Integers, weights: Integers
) -> Integers:
    """Return the transposed convolution of real values (zero points taken off)."""
    axes = weights.ndim - 2
    lengths, kernel = data.shape[1:-1], weights.shape[1:-1]
    inputs, per_group = weights.shape[-1], len(weights) // operation.groups
    full = [
        (lengths[a] - 1) * operation.strides[a] + (kernel[a] - 1) * operation.dilations[a] + 1
        + operation.output_padding[a]
        for a in range(axes)
    ]  # fmt: skip
    result = np.zeros((len(data), *full, len(weights)), np.int64)
    for image, channel in np.ndindex(len(data), len(weights)):
        first = channel // per_group * inputs
        for position in itertools.product(*map(range, lengths)):
            for tap in itertools.product(*map(range, kernel)):
                place = tuple(
                    p * s + t * d
                    for p, s, t, d in zip(
                        position, operation.strides, tap, operation.dilations, strict=True
                    )
                )
                part = data[(image, *position, slice(first, first + inputs))]
                result[(image, *place, channel)] += int((part * weights[(channel, *tap)]).sum())
    cut = tuple(
        slice(begin, max(length - end, begin))
        for (begin, end), length in zip(operation.pads, full, strict=True)
    )
    return result[(slice(None), *cut)]


def wrap(sums: Integers, bits: int) -> Array:
    """Return sums modulo the range of a signed register."""
    half = 1 << (bits - 1)
    return np.asarray((sums + half) % (2 * half) - half)
