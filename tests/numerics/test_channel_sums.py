"""Sums of errors by channel: any axis and size, in pieces, joined, against plain float64."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import DataError
from intact.numerics.error_sums import ChannelErrorSums, Moments

SHAPES = [
    ((2, 3, 200, 100), 1),  # rows beyond a block
    ((3, 40, 9, 9), 1),
    ((5, 320, 2, 2), 1),
    ((6, 10), -1),
    ((2, 196, 192), -1),
    ((40_000,), None),
    ((), None),
    ((4, 0), 0),
    ((1, 1, 1), 1),
]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_they_are_the_sums_of_float64(shape: tuple[int, ...], axis: int | None) -> None:
    rng = np.random.default_rng(1)
    wanted = np.asarray(rng.normal(3, 1, (2, *shape)), np.float32)
    found = wanted + np.asarray(rng.normal(0, 0.01, wanted.shape), np.float32)
    whole, parts = ChannelErrorSums(axis), ChannelErrorSums(axis)
    for pair in zip(wanted, found, strict=True):
        whole.add(*pair)
        part = ChannelErrorSums(axis)
        part.add(*pair)
        parts.join(part)
    parts.join(ChannelErrorSums(axis))
    one, other = wanted.astype(np.float64), found.astype(np.float64)
    if not one.size:
        assert np.isnan(whole.mse)
        return
    noise = np.square(one - other)
    for sums in (whole, parts):
        assert sums.mse == pytest.approx(noise.mean(), rel=1e-12)
        assert sums.noise == pytest.approx(noise.sum(), rel=1e-12)
        decibels = 10 * np.log10(np.square(one).sum() / noise.sum())
        assert sums.sqnr_db == pytest.approx(decibels, rel=1e-12)
    rest = (
        tuple(range(one.ndim))
        if axis is None
        else tuple(
            each for each in range(one.ndim) if each != (axis + 1 if axis >= 0 else one.ndim + axis)
        )
    )
    lengths = np.sqrt(np.square(one).sum(axis=rest) * np.square(other).sum(axis=rest))
    cosines = np.atleast_1d((one * other).sum(axis=rest) / lengths)
    for sums in (whole, parts):
        np.testing.assert_allclose(sums.cosines, cosines, rtol=1e-12)


def test_channels_that_differ_are_not_joined() -> None:
    one, other = ChannelErrorSums(0), ChannelErrorSums(0)
    one.add(np.ones((2, 3)), np.ones((2, 3)))
    other.add(np.ones((3, 3)), np.ones((3, 3)))
    with pytest.raises(DataError, match="cannot join 3 channels with 2"):
        one.join(other)


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = np.random.default_rng(2).normal(1e6, 1e-2, 1000)
    joined = Moments()
    for part in (values[:0], values[:1], values[1:400], values[400:]):
        moments = Moments()
        moments.add(part)
        joined.join(moments)
    assert joined.count == 1000
    assert joined.mean == pytest.approx(values.mean(), rel=1e-15)
    assert joined.std == pytest.approx(values.std(), rel=1e-7)
    assert (joined.minimum, joined.maximum) == (values.min(), values.max())
    joined.join(Moments())
    assert joined.count == 1000
