"""Streaming moments, against numpy on whole arrays and exact fractions."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.numerics.error_sums import Moments


def streamed(values: npt.ArrayLike, cuts: list[int]) -> Moments:
    moments = Moments()
    for piece in np.split(np.asarray(values), sorted(cuts)):
        moments.add(piece)
    return moments


def figures(moments: Moments) -> list[float]:
    return [moments.mean, moments.std, moments.minimum, moments.maximum]


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 200), max_size=5))
@settings(max_examples=50, deadline=None)
def test_numpy(seed: int, cuts: list[int]) -> None:
    draw = np.random.default_rng(seed)
    values = (draw.normal(draw.normal() * 1e3, 10.0 ** draw.integers(-3, 4), 200)).astype("f4")
    wide = values.astype(np.float64)
    expected = [wide.mean(), wide.std(), wide.min(), wide.max()]
    np.testing.assert_allclose(figures(streamed(values, cuts)), expected, rtol=1e-12, atol=1e-15)
    assert streamed(values, cuts).count == 200


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30), st.integers(0, 30))
@settings(max_examples=50, deadline=None)
def test_exact_fractions(numbers: list[int], cut: int) -> None:
    """A mean a million times the deviation costs no digits."""
    values = [2**30 + number for number in numbers]
    moments = streamed(np.array(values, np.float64), [min(cut, len(values))])
    mean = Fraction(sum(values), len(values))
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert moments.mean == pytest.approx(float(mean), rel=1e-15)
    assert moments.std == pytest.approx(math.sqrt(variance), rel=1e-12, abs=1e-12)
    assert (moments.minimum, moments.maximum) == (min(values), max(values))


@pytest.mark.parametrize("value", [0.0, 0.1, -1e-45, 3.4028235e38, 1e300])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_constants_deviate_by_exactly_nothing(value: float, count: int) -> None:
    moments = streamed(np.full(count, value), [3])
    assert figures(moments) == [value, 0.0, value, value]


def test_nothing() -> None:
    for moments in (Moments(), streamed(np.zeros((0, 3)), [0])):
        assert moments.count == 0
        assert all(map(math.isnan, figures(moments)))
    assert figures(streamed([[1.0, 3.0]], [0, 1])) == [2.0, 1.0, 1.0, 3.0]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_no_numbers(odd: float, at: int) -> None:
    values = np.arange(5.0)
    values[at] = odd
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [values.mean(), values.std(), values.min(), values.max()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(figures(streamed(values, [1, 3])), expected)


def test_types() -> None:
    assert figures(streamed(np.array([-128, 127], np.int8), [1])) == [-0.5, 127.5, -128, 127]
    assert figures(streamed(np.array([True, False]), [])) == [0.5, 0.5, 0.0, 1.0]
