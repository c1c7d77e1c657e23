"""Errors by channel, from pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intact.errors import DataError
from intact.numerics.error_sums import ChannelErrorSums
from intact.numerics.metrics import cosine, mse, sqnr_db


@pytest.mark.parametrize("axis", [1, -1, None])
def test_pieces_give_what_the_whole_gives(axis: int | None) -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(7, 3, 4, 5)).astype(np.float32)
    second = (first + 0.1 * rng.normal(size=first.shape)).astype(np.float32)
    sums = ChannelErrorSums(axis)
    for start, stop in ((0, 2), (2, 6), (6, 7)):
        sums.add(first[start:stop], second[start:stop])
    assert sums.cosine == pytest.approx(cosine(first, second), abs=1e-12)
    assert sums.mse == pytest.approx(mse(first, second), rel=1e-12)
    assert sums.sqnr_db == pytest.approx(sqnr_db(first, second), abs=1e-9)
    channels = [first[None]] if axis is None else np.moveaxis(first, axis, 0)
    others = [second[None]] if axis is None else np.moveaxis(second, axis, 0)
    expected = [cosine(a, b) for a, b in zip(channels, others, strict=True)]
    np.testing.assert_allclose(sums.cosines, expected, atol=1e-12)


def test_zero_channels() -> None:
    sums = ChannelErrorSums(0)
    sums.add(np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]]), np.array([[0.0, 0], [1, 0], [1, 2]]))
    assert sums.cosines.tolist() == pytest.approx([1.0, 0.0, 1.0], abs=1e-15)
    equal = ChannelErrorSums()
    equal.add(np.ones(3), np.ones(3))
    assert (equal.cosine, equal.sqnr_db, equal.mse) == (1.0, math.inf, 0.0)
    of_zeros = ChannelErrorSums()
    of_zeros.add(np.zeros(3), np.ones(3))
    assert of_zeros.sqnr_db == -math.inf


def test_nothing_and_misfits() -> None:
    sums = ChannelErrorSums(1)
    assert math.isnan(sums.cosine)
    assert math.isnan(sums.sqnr_db)
    assert math.isnan(sums.mse)
    with pytest.raises(DataError, match="shapes"):
        sums.add(np.ones((2, 3)), np.ones((2, 4)))
    sums.add(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(DataError, match="shapes"):
        sums.add(np.ones((2, 4)), np.ones((2, 4)))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_no_numbers(odd: float, side: int) -> None:
    pair = [np.ones((2, 3)), np.ones((2, 3))]
    pair[side][0, 1] = odd
    sums = ChannelErrorSums()
    sums.add(*pair)
    assert math.isnan(sums.sqnr_db)
    assert not sums.cosine > 0.5
