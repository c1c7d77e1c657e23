"""Convolutions in plain integers, slowly, and cases for them: what kernels are held against."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.program import Array, Encoding
from intact.program.operations import Convolution, TransposedConvolution
from intact.targets import Arithmetic, Exact, FloatOnce, FloatType
from intact.targets.arithmetic import Accumulator

Integers = npt.NDArray[np.int64]

EXACT = Exact()
ACCUMULATORS = Encoding(np.ones((), np.float32), np.zeros((), np.int64), -(2**31), 2**31 - 1)
"""An output whose codes are the accumulators themselves, where all scales are 1."""


def plain(accumulator: Accumulator = EXACT) -> Arithmetic:
    """Return an arithmetic that hands accumulators out as they are."""
    return Arithmetic(
        requantize=FloatOnce(precision=FloatType.FLOAT64),
        rounding=Rounding.HALF_EVEN,
        accumulator=accumulator,
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


RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def encoding(dtype: str, zero: Any = 0, axis: int | None = None) -> Encoding:
    low, high = RANGES[dtype]
    zeros = np.asarray(zero, np.int64)
    return Encoding(np.ones(zeros.shape, np.float32), zeros, low, high, axis)


def codes(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return random codes, among them many at the ends of the range."""
    low, high = RANGES[dtype]
    drawn = rng.integers(low, high + 1, shape)
    ends = rng.choice([low, high], shape)
    return np.where(rng.random(shape) < 0.3, ends, drawn).astype(dtype)


def run(
    program: Any, *arrays: Array, expect_overflows: bool = False
) -> tuple[Array, IntegerEngine]:
    engine = IntegerEngine(program)
    for array in arrays:
        array.setflags(write=False)
    feeds = dict(zip(program.inputs, arrays, strict=True))
    result = engine.run(feeds).outputs["out0"]
    assert bool(engine.overflows) == expect_overflows
    return result, engine


@st.composite
def data_kinds(draw: st.DrawFn) -> tuple[str, int]:
    dtype = draw(st.sampled_from(sorted(RANGES)))
    low, high = RANGES[dtype]
    return dtype, draw(st.sampled_from([low, high, 0, min(7, high)]))


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool = False) -> Any:
    """Return an operation with shapes of data and weight."""
    axes = draw(st.integers(1, 3))
    small = st.integers(1, 3)

    def several(strategy: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(strategy) for _ in range(axes))

    kernel, strides, dilations = several(small), several(small), several(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs = draw(st.integers(1, 3))
    outputs = draw(st.integers(1, 3))
    sizes = several(st.integers(1, 5))
    shape = (draw(st.integers(0, 3)), *sizes, groups * inputs)
    pads = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(axes))
    weight = (groups * outputs, *kernel, inputs)
    if transposed:
        extra = tuple(draw(st.integers(0, s - 1)) for s in strides)
        return TransposedConvolution(strides, pads, dilations, extra, groups), shape, weight
    return Convolution(strides, pads, dilations, groups), shape, weight
