"""Compiled sums and counts of two tensors, against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.numerics.comparison_kernel import LANES, SUMS, add_channels, count
from intact.numerics.divergence import Bins, Divergence
from intact.numerics.error_sums import ChannelErrorSums


def added(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    sums = np.zeros((first.shape[1], SUMS))
    add_channels(first, second, np.full((SUMS, LANES), np.nan), sums)
    return sums


@given(
    outer=st.integers(0, 3),
    channels=st.integers(1, 3),
    inner=st.sampled_from([0, 1, 7, LANES - 1, LANES, LANES + 1, 3 * LANES + 5]),
    seed=st.integers(0, 99),
)
def test_sums_are_those_of_exact_arithmetic(
    outer: int, channels: int, inner: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    first, second = (rng.normal(size=(outer, channels, inner)).astype(np.float32) for _ in range(2))
    found = added(first, second)
    for channel in range(channels):
        pairs = [
            (Fraction(float(a)), Fraction(float(b)))
            for a, b in zip(first[:, channel].flat, second[:, channel].flat, strict=True)
        ]
        exact = (
            sum(a * a for a, _ in pairs),
            sum(b * b for _, b in pairs),
            sum(a * b for a, b in pairs),
            sum((a - b) ** 2 for a, b in pairs),
        )
        np.testing.assert_allclose(
            found[channel], [float(each) for each in exact], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_in_its_channel(odd: float) -> None:
    first = np.ones((2, 2, 100), np.float32)
    second = first.copy()
    second[1, 1, 70] = odd
    found = added(first, second)
    assert found[0].tolist() == [200.0, 200.0, 200.0, 0.0]
    assert not np.isfinite(found[1, 1:]).any()


def test_the_largest_and_the_smallest_floats_neither_overflow_nor_vanish() -> None:
    limits = np.finfo(np.float32)
    first = np.array([limits.max, limits.smallest_subnormal], np.float32).reshape(1, 2, 1)
    found = added(first, np.zeros_like(first))
    assert found[:, 0].tolist() == [float(limits.max) ** 2, float(limits.smallest_subnormal) ** 2]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_pieces_of_any_size_are_summed_alike(axis: int | None) -> None:
    """Small ones by NumPy, large ones by compiled code; a view is not contiguous."""
    rng = np.random.default_rng(1)
    whole = rng.normal(size=(5, 40, 90)).astype(np.float32)
    first, second = whole[:, ::2], whole[:, 1::2]
    large, small = ChannelErrorSums(axis), ChannelErrorSums(axis)
    large.add(first, second)
    small.add(first.astype(np.float64), second.astype(np.float64))
    np.testing.assert_allclose(large.sums, small.sums, rtol=1e-12)
    np.testing.assert_allclose(large.channel_sqnr_db, small.channel_sqnr_db, rtol=1e-9)


def test_doubles_are_not_rounded() -> None:
    first = np.full(1 << 13, 1.0)
    sums = ChannelErrorSums()
    sums.add(first, first + 1e-12)
    assert sums.mse == pytest.approx(1e-24, rel=1e-3)


def test_values_are_counted_in_equal_bins() -> None:
    values = np.array([-9, 0, 0.5, 1, 2.99, 3, math.nan, math.inf, -math.inf, 99], np.float32)
    counts = np.zeros(3, np.int64)
    count(values, 1, 0.0, 1.0, counts)
    assert counts.tolist() == [3, 1, 3]
    some = np.zeros(3, np.int64)
    count(values, 4, 0.0, 1.0, some)  # -9, 2.99 and -inf
    assert some.tolist() == [1, 0, 1]
    count(values[:0], 1, 0.0, 1.0, some)
    assert some.sum() == 2


def test_alike_and_unlike_values() -> None:
    rng = np.random.default_rng(2)
    bins = Bins(-4.0, 4.0, 64)
    values = rng.normal(size=(40, 100)).astype(np.float32)
    same, other = Divergence(bins), Divergence(bins)
    same.add(values, values)
    other.add(values, values + 1)
    assert same.nats == 0.0
    assert other.nats == pytest.approx(0.5, rel=0.15)  # of normal ones: distance**2 / 2
    joined = Divergence(bins)
    joined.join(other)
    assert joined.nats == other.nats
