from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import CalibrationError
from intact.numerics.exact_sum import ExactSum

FINITE = st.floats(allow_nan=False, allow_infinity=False)
LARGEST = float(np.finfo(np.float64).max)
AWKWARD = st.sampled_from(
    [5e-324, -5e-324, 2.0**-1022, LARGEST, -LARGEST, 1.0, 2.0**53, -(2.0**-53), 0.0, -0.0]
)
NUMBERS = st.lists(FINITE | AWKWARD, max_size=60)


def rounded(total: Fraction) -> float:
    """Round a fraction to float64; Fraction's own division is correctly rounded."""
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def sum_of(numbers: list[float]) -> ExactSum:
    total = ExactSum()
    total.add(np.array(numbers))
    return total


@given(NUMBERS)
@settings(max_examples=300, deadline=None)
def test_the_value_is_the_correctly_rounded_sum(numbers: list[float]) -> None:
    expected = rounded(sum((Fraction(x) for x in numbers), Fraction(0)))
    assert sum_of(numbers).value() == expected


@given(NUMBERS, st.integers(1, 1000))
@settings(deadline=None)
def test_the_mean_is_rounded_once(numbers: list[float], count: int) -> None:
    expected = rounded(sum((Fraction(x) for x in numbers), Fraction(0)) / count)
    assert sum_of(numbers).mean(count) == expected


@given(numbers=NUMBERS, cuts=st.lists(st.integers(0, 60), max_size=5), random=st.randoms())
@settings(max_examples=200, deadline=None)
def test_any_order_and_any_split_give_identical_bits(
    numbers: list[float], cuts: list[int], random: object
) -> None:
    shuffled = list(numbers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    parts = np.split(np.array(shuffled), sorted(min(c, len(shuffled)) for c in cuts))
    merged = ExactSum()
    for part in parts:
        piece = ExactSum()
        for number in part:
            piece.add(float(number))
        merged.merge(piece)
    whole = sum_of(numbers)
    assert merged == whole
    assert merged.to_array().tobytes() == whole.to_array().tobytes()


@given(NUMBERS)
@settings(deadline=None)
def test_the_saved_form_restores_the_sum(numbers: list[float]) -> None:
    total = sum_of(numbers)
    saved = total.to_array()
    assert saved.dtype == np.int64
    restored = ExactSum.from_array(saved)
    assert restored == total
    restored.add(1.0)
    assert restored != total


def test_many_numbers_cross_the_buffer_and_chunk_sizes() -> None:
    rng = np.random.default_rng(5)
    numbers = rng.normal(size=1_200_000) * 2.0 ** rng.integers(-900, 900, size=1_200_000)
    total = sum_of(list(numbers))
    assert total.value() == math.fsum(numbers)
    assert sum_of([float(np.finfo(np.float64).max)] * 3 + [-1e308] * 4).value() < math.inf


def test_cancellation_leaves_what_is_left() -> None:
    assert sum_of([1e300, 5e-324, -1e300]).value() == 5e-324


def test_sums_out_of_range_are_infinite_and_come_back() -> None:
    total = sum_of([1.7e308, 1.7e308])
    assert total.value() == math.inf
    total.add(np.array([-1.7e308] * 3))
    assert total.value() == -1.7e308


def test_an_empty_sum_is_zero() -> None:
    total = ExactSum()
    total.add(np.zeros((0, 3)))
    assert total.value() == 0.0
    assert not total.to_array().any()


def test_an_added_array_may_be_changed_afterwards() -> None:
    total, numbers = ExactSum(), np.ones(3)
    total.add(numbers)
    numbers[:] = 100.0
    assert total.value() == 3.0


def test_a_merged_sum_keeps_its_value() -> None:
    first, second = sum_of([1.0]), sum_of([2.0])
    first.merge(second)
    first.merge(first)
    assert (first.value(), second.value()) == (6.0, 2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused_and_nothing_is_added(bad: float) -> None:
    total = sum_of([1.0])
    with pytest.raises(CalibrationError, match="not finite"):
        total.add(np.array([2.0, bad]))
    assert total.value() == 1.0


def test_what_cannot_be_read_or_divided_is_refused() -> None:
    with pytest.raises(CalibrationError, match="shape"):
        ExactSum.from_array(np.zeros(3, dtype=np.int64))
    with pytest.raises(CalibrationError, match="over 0"):
        ExactSum().mean(0)
