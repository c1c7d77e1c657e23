"""Sums with float biases and residuals, against float32 arithmetic written out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.engines.integer.products.epilogue import RealRequantizer
from intact.errors import ConfigError
from intact.program.operations import Bounds
from intact.targets import (
    Arithmetic,
    FloatEnds,
    FloatOnce,
    FoldedEnds,
    ZeroPointOrder,
)
from tests.program.one_step import int8, uint8, with_options

SCALES = Arithmetic(requantize=FloatOnce())
ENDS = Arithmetic(requantize=FloatEnds(), zero_point=ZeroPointOrder.BEFORE_ROUNDING)
FOLDED = Arithmetic(
    requantize=FloatEnds(folded_factor=True), zero_point=ZeroPointOrder.BEFORE_ROUNDING
)
BARE = Arithmetic(
    requantize=FloatEnds(folded_ends=FoldedEnds.PER_CHANNEL),
    zero_point=ZeroPointOrder.BEFORE_ROUNDING,
)

one = np.float32


def scale(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def reals(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@given(
    st.integers(-(2**23), 2**23),
    st.floats(2.0**-13, 2.0**-7, width=32),
    st.floats(-20, 20, width=32),
    st.floats(2.0**-7, 1, width=32),
    st.integers(-128, 127),
    st.booleans(),
)
def test_every_way_gives_the_nearest_code_or_its_neighbour(
    total: int, by: float, bias: float, step: float, added: int, has_residual: bool
) -> None:
    residual = int8(0.11) if has_residual else None
    exact = Fraction(total) * Fraction(one(by).item()) + Fraction(one(bias).item())
    if residual is not None:
        exact += Fraction(residual.scale.item()) * added
    wanted = min(max(round(exact / Fraction(one(step).item())) + 3, -128), 127)
    for arithmetic in (SCALES, ENDS, FOLDED, BARE):
        make = RealRequantizer(
            arithmetic, scale(by), int8(step, 3), Bounds(), bias=reals(bias), residual=residual
        )
        beside = () if residual is None else (np.array([[added]], np.int8),)
        found = make(np.array([[total]], np.float64), *beside)
        assert abs(int(found.item()) - wanted) <= 1


def test_the_bias_is_added_before_the_sum_is_rounded() -> None:
    make = RealRequantizer(SCALES, scale(0.5, 0.25), int8(1.0), Bounds(), bias=reals(0.25, 0.25))
    assert make(np.array([[1, 1], [3, 5], [-1, -3]])).tolist() == [[1, 0], [2, 2], [0, 0]]


def test_constants_are_added_to_the_sums_exactly() -> None:
    constant = np.array([2**24 + 1], np.int64)
    make = RealRequantizer(SCALES, scale(1.0), int8(1.0), Bounds(), constant=constant)
    assert make(np.array([[-(2**24)], [-(2**24) - 3]], np.float64)).tolist() == [[1], [-2]]


def test_residuals_count_in_real_numbers_from_their_zero_point() -> None:
    for arithmetic in (SCALES, ENDS):
        make = RealRequantizer(
            arithmetic, scale(0.5), uint8(0.5, 10), Bounds(0), residual=uint8(0.25, 100)
        )
        sums, beside = np.array([[4], [-40]]), np.array([[104], [100]], np.uint8)
        assert make(sums, beside).tolist() == [[16], [10]]


@pytest.mark.parametrize(
    ("total", "by", "bias", "added", "apart", "in_place"),
    [
        (9076, 0.00039853484, 0.15342776, -31, 2, 3),
        (-7615, 0.00041397478, 0.64408195, 36, 8, 9),
    ],
)
def test_a_residual_that_is_kept_is_added_as_sums_are(
    total: int, by: float, bias: float, added: int, apart: int, in_place: int
) -> None:
    """The lowest code comes after rounding; measured with OpenVINO's kernels for AMX."""
    for kept, expected in ((True, apart), (False, in_place)):
        make = RealRequantizer(
            ENDS,
            scale(by),
            int8(0.16401851),
            Bounds(),
            bias=reals(bias),
            residual=int8(0.10840264),
            keeps_residual=kept,
        )
        assert make(np.array([[total]]), np.array([[added]], np.int8)).item() == expected


def test_bounds_are_those_of_the_sum_of_both() -> None:
    make = RealRequantizer(ENDS, scale(1.0), uint8(0.125), Bounds(0, 6), residual=uint8(1.0))
    sums = np.array([[5], [-3], [1]])
    assert make(sums, np.array([[4], [1], [1]], np.uint8)).tolist() == [[48], [0], [16]]


def test_a_folded_factor_rounds_otherwise() -> None:
    """Of many sums some lie so near to ties that the order of multiplications shows."""
    random = np.random.default_rng(0)
    sums = random.integers(-(10**5), 10**5, (200_000, 1))
    first, second = (
        RealRequantizer(each, scale(0.00123), int8(1.0731), Bounds(), bias=reals(0.377))(sums)
        for each in (ENDS, FOLDED)
    )
    differ = np.flatnonzero(first != second)
    assert 0 < len(differ) < 20
    assert np.abs(first.astype(int) - second).max() == 1


def test_sums_that_nothing_is_added_to_are_multiplied_once() -> None:
    """By the ends over each channel's scale; all channels have the first one's offset."""
    sums = np.random.default_rng(0).integers(-(10**5), 10**5, (100_000, 2))
    scales, grid = scale(0.00123, 0.0007123), uint8(1.0731, 128)
    low, high = (one(code * 1.0731) for code in (-128, 127))
    lows, highs = low / scales, high / scales
    factor = one(255) / (highs - lows)
    offset = (-lows * one(255) / (highs - lows))[0]
    wanted = np.clip(np.rint(sums.astype(np.float32) * factor + offset), 0, 255)
    found = RealRequantizer(BARE, scales, grid, Bounds())(sums)
    assert np.array_equal(found, wanted)
    zeros = RealRequantizer(BARE, scales, grid, Bounds(), bias=reals(0, 0))(sums)
    assert np.array_equal(zeros, wanted)
    assert 0 < np.count_nonzero(RealRequantizer(ENDS, scales, grid, Bounds())(sums) != wanted) < 20


def test_channels_whose_scales_are_not_folded_are_real_numbers_first() -> None:
    apart = with_options(BARE, folded_ends=FoldedEnds.PER_TENSOR)
    sums = np.random.default_rng(0).integers(-(10**5), 10**5, (100_000, 2))
    scales, grid = scale(0.00123, 0.0012705892), int8(1.0731)
    stored = one(1) / (one(255) / (one(127 * 1.0731) - one(-128 * 1.0731)))
    numbers = sums.astype(np.float32) * scales
    wanted = np.clip(np.rint(numbers * (one(1) / stored)), -128, 127)
    assert np.array_equal(RealRequantizer(apart, scales, grid, Bounds())(sums), wanted)
    assert 0 < np.count_nonzero(RealRequantizer(BARE, scales, grid, Bounds())(sums) != wanted) < 20
    alike = np.full(2, 0.00123, np.float32)
    first, second = (RealRequantizer(each, alike, grid, Bounds())(sums) for each in (apart, BARE))
    assert np.array_equal(first, second)


def test_one_factor_is_the_reciprocal_of_a_stored_scale() -> None:
    sums = np.random.default_rng(0).integers(0, 10**4, (100_000, 1))
    by, high = one(0.000274), one(255 * 0.0198)
    factor = one(255) / (high / by)
    wanted = np.rint(sums.astype(np.float32) * (one(1) / (one(1) / factor))).clip(0, 255)
    for count in (1, 3):
        make = RealRequantizer(BARE, np.full(count, by), uint8(0.0198), Bounds(0))
        assert np.array_equal(make(np.tile(sums, count)), np.tile(wanted, count))


def test_a_residuals_zero_point_is_taken_off_in_the_sums_units() -> None:
    sums = np.random.default_rng(1).integers(-(10**5), 10**5, (100_000, 1))
    beside = np.random.default_rng(2).integers(0, 256, (100_000, 1)).astype(np.uint8)
    by, unit = one(0.00123), one(0.731)
    make, other = (
        RealRequantizer(each, np.full(1, by), int8(1.0731), Bounds(), residual=uint8(0.731, 128))
        for each in (BARE, ENDS)
    )
    counted = (sums.astype(np.float32) - one(128) * unit / by) * (by / unit) + beside
    exact = counted.astype(np.float64) * 0.731 / 1.0731
    found = make(sums, beside)
    assert np.abs(np.clip(np.rint(exact), -128, 127) - found).max() <= 1
    assert 0 < np.count_nonzero(found != other(sums, beside)) < 20


def test_a_fused_bias_rounds_once() -> None:
    fused = Arithmetic(requantize=FloatOnce(fused_bias=True))
    # (2**12 + 1) * (1 + 2**-12) is 4098 and a half of the last bit of a float32 there.
    for arithmetic, code in ((fused, 1), (SCALES, 0)):
        make = RealRequantizer(
            arithmetic, scale(1 + 2.0**-12), int8(2.0**-12), Bounds(), bias=reals(-4098)
        )
        assert make(np.array([[4097]])).item() == code


def test_non_finite_scales_raise() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        RealRequantizer(SCALES, scale(1.0), int8(1.0), Bounds(), bias=reals(np.inf))
