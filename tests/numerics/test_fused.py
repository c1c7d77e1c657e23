"""Multiply and add with one rounding, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intact.numerics.fused import fused_multiply_add

FLOATS = st.floats(width=32, min_value=-(2.0**40), max_value=2.0**40).filter(
    lambda number: number == 0 or abs(number) > 2.0**-40
)


def nearest(exact: Fraction) -> np.float32:
    """The float32 nearest to a fraction, ties to even."""
    guess = np.float32(float(exact))
    neighbours = [np.nextafter(guess, np.float32(-np.inf)), guess]
    neighbours.append(np.nextafter(guess, np.float32(np.inf)))
    return min(
        neighbours,
        key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.int32)) & 1),
    )


@given(FLOATS, FLOATS, FLOATS)
def test_it_rounds_the_exact_result_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert fused_multiply_add(a, b, c) == nearest(exact)


def test_sums_beside_and_on_ties() -> None:
    """The product is 2^-24, half of what two float32 beside 1 are apart, or a hair less."""
    for addend in (1.0, 1.0 + 2.0**-23, -1.0, -1.0 - 2.0**-23):
        c = np.float32(addend)
        for k in (8, 12, 15, 20):
            for sign in (1.0, -1.0):
                a, b = np.float32(1 + 2.0**-k), np.float32(sign * (1 - 2.0**-k) * 2.0**-24)
                exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
                assert fused_multiply_add(a, b, c) == nearest(exact)
    tie = fused_multiply_add(np.float32(2.0**-12), np.float32(2.0**-12), np.float32(1.0))
    assert tie == np.float32(1.0)  # even


def test_double_rounding_would_differ() -> None:
    """Just below a tie: float64 rounds the sum to the tie, and float32 that to the even one."""
    factor = np.float32(1 + 2.0**-15)
    other = np.float32((1 - 2.0**-15) * 2.0**-24)  # the product is 2^-24 - 2^-54
    assert fused_multiply_add(factor, other, np.float32(1)) == np.float32(1)
    odd = np.float32(1 + 2.0**-23)  # the tie above it goes to the even neighbour, upwards
    twice = np.float32(np.float64(factor) * np.float64(other) + np.float64(odd))
    assert twice == np.float32(1 + 2.0**-22)
    assert fused_multiply_add(factor, other, odd) == odd


def test_arrays_broadcast_and_infinities_pass() -> None:
    found = fused_multiply_add(
        np.array([[1], [2]], np.float32), np.array([3, np.inf], np.float32), 1.0
    )
    np.testing.assert_array_equal(found, np.array([[4, np.inf], [7, np.inf]], np.float32))
    assert found.dtype == np.float32


def test_subnormal_results_are_rounded_once() -> None:
    smallest = np.float32(2.0**-149)
    for factor, other in ((2.0**-100, 2.0**-50), (2.0**-75, -(2.0**-75)), (1.5, 2.0**-149)):
        a, b = np.float32(factor), np.float32(other)
        for addend in (0.0, 2.0**-149, 3 * 2.0**-149, -(2.0**-140)):
            c = np.float32(addend)
            exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
            assert abs(exact) < 2.0**-126
            assert fused_multiply_add(a, b, c) == nearest(exact)
    tiny = np.float32(2.0**-30)
    assert fused_multiply_add(tiny, smallest, smallest) == smallest
