"""Quotients of integers against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import Rounding
from intact.run.integer.division import divide_rounded


def _up_at_tie(value: Fraction, rounding: Rounding) -> bool:
    up = {
        Rounding.HALF_UP: True,
        Rounding.HALF_DOWN: False,
        Rounding.HALF_TOWARD_ZERO: value < 0,
        Rounding.HALF_AWAY_FROM_ZERO: value > 0,
    }
    return up.get(rounding, (value // 1) % 2 == 1)


def _exact(value: Fraction, rounding: Rounding) -> int:
    floor = int(value // 1)
    rest = value - floor
    if rounding is Rounding.UP:
        return floor + (rest > 0)
    if rest == Fraction(1, 2):
        return floor + _up_at_tie(value, rounding)
    return floor + (rest > Fraction(1, 2))


@pytest.mark.parametrize("rounding", list(Rounding))
def test_small_quotients(rounding: Rounding) -> None:
    sums, counts = np.meshgrid(np.arange(-40, 41), np.arange(1, 9))
    quotients = divide_rounded(sums, counts, rounding)
    pairs = zip(sums.reshape(-1).tolist(), counts.reshape(-1).tolist(), strict=True)
    wanted = [_exact(Fraction(total, count), rounding) for total, count in pairs]
    assert quotients.reshape(-1).tolist() == wanted


@given(st.integers(-(2**60), 2**60), st.integers(1, 2**32), st.sampled_from(list(Rounding)))
def test_large_quotients(total: int, count: int, rounding: Rounding) -> None:
    (quotient,) = divide_rounded(np.asarray([total]), count, rounding).tolist()
    assert quotient == _exact(Fraction(total, count), rounding)


def test_nothing_is_divided_into_nothing() -> None:
    assert divide_rounded(np.empty((0, 3), np.int32), 4, Rounding.HALF_UP).shape == (0, 3)
