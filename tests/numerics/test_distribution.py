from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import CalibrationError
from intact.numerics.distribution import Bins, Distribution
from tests.numerics.arrays import float32, float32_of

VALUES = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 1.001, -1.001]),
    min_size=1,
    max_size=60,
)
RESOLUTION = 2.0**-7


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_bins_ascend_hold_everything_and_end_at_the_extremes(values: list[float]) -> None:
    array = float32_of(values)
    distribution = Distribution.from_values(array)
    low, high = distribution.low, distribution.high
    assert distribution.total == len(values)
    assert (low <= high).all()
    assert (low[1:] >= high[:-1]).all()
    assert (distribution.count > 0).all()
    assert distribution.minimum == array.min()
    assert distribution.maximum == array.max()
    assert distribution.zeros == np.sum(array == 0)
    assert distribution.mass_between(-np.inf, np.inf) == len(values)
    folded = distribution.absolute()
    assert folded.total == len(values)
    assert (folded.low >= 0).all()
    assert (folded.low[1:] >= folded.high[:-1]).all()
    assert folded.high.max() == np.abs(array).max() or folded.high.max() <= 2.0**-133


@given(VALUES, st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_quantiles_are_right_to_the_width_of_a_bin(values: list[float], fraction: float) -> None:
    array = np.sort(float32_of(values)).astype(np.float64)
    rank = max(int(np.ceil(fraction * len(values))), 1) - 1
    found = Distribution.from_values(array.astype(np.float32)).quantile(fraction)
    assert abs(found - array[rank]) <= abs(array[rank]) * RESOLUTION + 2.0**-126
    assert array[0] - 2.0**-133 <= found <= array[-1] + 2.0**-133


def test_extreme_quantiles_are_exact() -> None:
    array = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    distribution = Distribution.from_values(array)
    assert distribution.quantile(0.0) == array.min()
    assert distribution.quantile(1.0) == array.max()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, np.nan])
def test_quantiles_outside_are_refused(fraction: float) -> None:
    with pytest.raises(CalibrationError, match="quantile"):
        Distribution.from_values(float32(1.0, 2.0)).quantile(fraction)


def test_mass_between_spreads_evenly_and_counts_points_at_the_ends() -> None:
    bins = Bins(np.array([-1.0, 0.0, 1.0]), np.array([-0.5, 0.0, 3.0]), np.array([4, 5, 8]))
    assert bins.mass_between(-0.75, 0.0) == 2 + 5
    assert bins.mass_between(0.0, 2.0) == 5 + 4
    assert bins.mass_between(0.1, 0.9) == 0
    assert bins.mass_between(2.0, 1.5) == 0


def test_folding_joins_what_overlaps() -> None:
    bins = Bins(
        np.array([-4.0, -2.0, 0.0, 1.0, 2.0]), np.array([-2.5, -1.0, 0.0, 2.0, 2.25]),
        np.array([1, 2, 3, 4, 5]),
    )  # fmt: skip
    folded = bins.absolute()
    assert folded.low.tolist() == [0.0, 1.0, 2.0, 2.5]
    assert folded.high.tolist() == [0.0, 2.0, 2.25, 4.0]
    assert folded.count.tolist() == [3, 6, 5, 1]


def test_linear_bins_by_hand() -> None:
    bins = Bins(
        np.array([-1.0, 0.0, 1.0, 3.0, 5.0]), np.array([-0.5, 0.0, 2.0, 3.0, 7.0]),
        np.array([9, 2, 4, 7, 8]),
    )  # fmt: skip
    assert bins.linear_bins(4, 4.0).tolist() == [2, 4, 0, 7]
    assert bins.linear_bins(3, 3.0).tolist() == [2, 4, 7]  # the point at the threshold: last bin
    assert bins.linear_bins(4, 6.0).tolist() == [2 + 2, 2, 7, 4]


@given(VALUES, st.integers(1, 50), st.floats(2.0**-20, 2.0**20))
@settings(max_examples=200, deadline=None)
def test_linear_bins_keep_their_error_bound(
    values: list[float], number: int, threshold: float
) -> None:
    folded = Distribution.from_values(float32_of(values)).absolute()
    mass = folded.linear_bins(number, threshold)
    edges = np.linspace(0.0, threshold, number + 1)
    magnitudes = np.abs(float32_of(values)).astype(np.float64)
    exact, _ = np.histogram(magnitudes, edges)

    def cut(edge: float) -> int:
        touching = (folded.low <= edge) & (edge <= folded.high)
        return int(folded.count[touching].sum())

    bound = [cut(a) + cut(b) for a, b in pairwise(edges)]
    assert (np.abs(mass - exact) <= np.array(bound) + 1e-6).all()


def test_moments_average_over_the_samples() -> None:
    values = np.array([[1.0, -2.0], [3.0, 0.0], [np.nan, np.inf]], dtype=np.float32)
    distribution = Distribution.from_values(values)
    assert distribution.samples == 2  # a sample without finite values is no sample
    assert (distribution.mean_minimum, distribution.mean_maximum) == (-1.0, 2.0)
    assert (distribution.mean, distribution.mean_square) == (0.5, 3.5)
    assert (distribution.total, distribution.zeros) == (4, 1)


def test_one_value_is_one_point() -> None:
    distribution = Distribution.from_values(float32(1.7, 1.7, 1.7))
    value = float(np.float32(1.7))
    assert distribution.low.tolist() == distribution.high.tolist() == [value]
    assert distribution.quantile(0.5) == value


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf, -np.inf]])
def test_nothing_finite_is_refused(values: list[float]) -> None:
    with pytest.raises(CalibrationError, match="no finite value"):
        Distribution.from_values(float32_of(values))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(CalibrationError, match="float64"):
        Distribution.from_values(np.zeros(3))  # type: ignore[arg-type]
