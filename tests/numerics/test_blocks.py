"""Blocks against exact arithmetic: each value with the scale of its block, one by one."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import PerBlock, QuantState, TensorQuantConfig, make_policy
from intact.errors import ConfigError
from intact.numerics import affine
from intact.numerics.affine import dequantize, fake_quantize, quantize
from intact.numerics.blocks import block_rows, check_blocks


@st.composite
def tensors(draw: st.DrawFn) -> tuple[np.ndarray, PerBlock, np.ndarray, np.ndarray, int, bool]:
    """Draw values with zeros, blocks of which the last may be ragged, and their parameters."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    grain = PerBlock(draw(st.integers(0, len(shape) - 1)), draw(st.integers(1, 9)))
    bits, symmetric = draw(st.sampled_from([2, 3, 4, 8])), draw(st.booleans())
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scales = random.uniform(0.01, 2, grain.scales_shape(shape)).astype(np.float32)
    if draw(st.booleans()):  # as a file holds them in half precision
        scales = scales.astype(np.float16).astype(np.float32)
    scales *= random.choice([-1, 1], scales.shape).astype(np.float32) if symmetric else 1
    zeros = random.integers(0, 1 if symmetric else 1 << bits, scales.shape)
    values = random.normal(0, 3, shape).astype(np.float32) * random.integers(0, 2, shape)
    return values.astype(np.float32), grain, scales, zeros, bits, symmetric


@given(tensors())
def test_each_value_has_the_scale_of_its_block(
    drawn: tuple[np.ndarray, PerBlock, np.ndarray, np.ndarray, int, bool],
) -> None:
    values, grain, scales, zeros, bits, symmetric = drawn
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if symmetric else (0, (1 << bits) - 1)
    codes = quantize(values, scales, zeros, low, high, axis=grain.axis, block=grain.size)
    floats = dequantize(codes, scales, zeros, axis=grain.axis, block=grain.size)
    for index, value in np.ndenumerate(values):
        block = list(index)
        block[grain.axis] //= grain.size
        scale, zero = scales[tuple(block)], int(zeros[tuple(block)])
        quotient = np.float32(value / scale)
        expected = min(max(round(Fraction(float(quotient))) + zero, low), high)
        assert codes[index] == expected
        assert floats[index] == np.float32(Fraction(expected - zero) * Fraction(float(scale)))
    same = fake_quantize(values, scales, zeros, low, high, axis=grain.axis, block=grain.size)
    np.testing.assert_array_equal(same, floats)
    config = TensorQuantConfig(
        policy=make_policy(grain, symmetric=symmetric),
        granularity=grain,
        bits=bits,
        quant_min=low,
        quant_max=high,
        scale=scales,
        offset=zeros,
        state=QuantState.ACTIVATED,
    )
    np.testing.assert_array_equal(config.quantize(values), codes)
    np.testing.assert_array_equal(config.fake_quantize(values), floats)
    least, most = config.value_range()
    assert least <= floats.min()
    assert floats.max() <= most


@given(st.integers(0, 2), st.integers(1, 9), st.tuples(*[st.integers(0, 6)] * 3))
def test_rows_are_blocks(axis: int, size: int, shape: tuple[int, int, int]) -> None:
    values = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    grain = PerBlock(axis, size)
    rows = block_rows(values, axis, size)
    assert rows.shape == (*grain.scales_shape(shape), size)
    for index in np.ndindex(shape):
        block = list(index)
        block[axis] //= size
        assert rows[(*block, index[axis] % size)] == values[index]
    assert rows.sum(dtype=np.float64) == values.sum(dtype=np.float64)  # the rest is 0


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (np.ones((2, 3), np.float32), r"pass one for each block: \(3, 3\)"),
        (np.zeros((3, 3), np.float32), "is 0 or not finite"),
        (np.full((3, 3), np.nan, np.float32), "is 0 or not finite"),
    ],
)
def test_wrong_scales_are_refused(scales: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quantize(np.ones((5, 3), np.float32), scales, 0, -8, 7, axis=0, block=2)


def test_wrong_blocks_are_refused() -> None:
    for axis, size in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ConfigError):
            check_blocks((4, 4), (2, 4), axis, size)
    for axis, size in ((-1, 2), (0, 0)):
        with pytest.raises(ConfigError):
            PerBlock(axis, size)


@pytest.mark.parametrize("axis", [0, 1])
def test_large_tensors_are_computed_a_part_at_a_time(
    axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of any size the numbers are the same, also of a turned tensor."""
    random = np.random.default_rng(4)
    values = random.normal(size=(70, 53)).astype(np.float32).T[:50]
    shape = tuple(-(-n // 16) if at == axis else n for at, n in enumerate(values.shape))
    scale = (0.1 * random.uniform(0.5, 1.5, shape)).astype(np.float32)
    zero = random.integers(0, 15, shape)
    given = values, scale, zero, 0, 15
    whole = affine.quantize(*given, axis=axis, block=16)
    floats = affine.dequantize(whole, scale, zero, axis=axis, block=16)
    monkeypatch.setattr(affine, "_AT_ONCE", 100)
    codes = affine.quantize(*given, axis=axis, block=16)
    np.testing.assert_array_equal(codes, whole)
    np.testing.assert_array_equal(
        affine.dequantize(codes, scale, zero, axis=axis, block=16), floats
    )
    np.testing.assert_array_equal(affine.fake_quantize(*given, axis=axis, block=16), floats)
    codes, scale = np.ones((2048, 2048), np.int32), np.ones((2048, 64), np.float32)
    tracemalloc.start()
    dequantize(codes, scale, 0, axis=1, block=32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * codes.nbytes  # the result, and not several times as much
