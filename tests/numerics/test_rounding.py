from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import ConfigError
from intact.numerics.levels import Rounding
from intact.numerics.rounding import round_to_integer
from tests.numerics.arrays import float32

HALF = Fraction(1, 2)


def reference(value: float, mode: Rounding) -> int:
    """Round by exact rational arithmetic, written from the definitions of the modes."""
    exact = Fraction(value)
    below = math.floor(exact)
    if mode is Rounding.UP:
        return math.ceil(exact)
    if exact - below != HALF:
        return below if exact - below < HALF else below + 1
    on_tie = {
        Rounding.HALF_EVEN: below + below % 2,
        Rounding.NEAREST: below + below % 2,
        Rounding.HALF_UP: below + 1,
        Rounding.HALF_DOWN: below,
        Rounding.HALF_TOWARD_ZERO: below if exact > 0 else below + 1,
        Rounding.HALF_AWAY_FROM_ZERO: below + 1 if exact > 0 else below,
    }
    return on_tie[mode]


TIES = st.integers(-(2**22), 2**22).map(lambda k: k + 0.5)
NEAR_TIES_32 = TIES.flatmap(
    lambda x: st.sampled_from(
        [
            float(np.nextafter(np.float32(x), np.float32(np.inf))),
            float(np.nextafter(np.float32(x), np.float32(-np.inf))),
        ]
    )
)
AWKWARD = [
    0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -0.49999997, 0.49999999999999994,
    2.0**23 - 0.5, 0.5 - 2.0**23, 2.0**23, 2.0**24 + 1, 2.0**52 - 0.5, 2.0**52 + 1, 1e-45, -1e-45,
    5e-324, 3.4e38, -3.4e38, 8388609.0, 4194304.5,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", list(Rounding))
def test_awkward_values_are_rounded_exactly(mode: Rounding, dtype: type[np.floating]) -> None:
    values = np.array(AWKWARD, dtype=dtype)
    rounded = round_to_integer(values, mode)
    assert rounded.dtype == dtype
    assert [int(x) for x in rounded] == [reference(float(x), mode) for x in values]


@pytest.mark.parametrize("mode", list(Rounding))
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False) | TIES | NEAR_TIES_32,
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_float32_agrees_with_rational_arithmetic(mode: Rounding, values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    rounded = round_to_integer(array, mode)
    assert [int(x) for x in rounded] == [reference(float(x), mode) for x in array]


@pytest.mark.parametrize("mode", list(Rounding))
@given(
    values=st.lists(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.integers(-(2**51), 2**51).map(lambda k: k + 0.5)
        | TIES.map(lambda x: float(np.nextafter(x, 0.0))),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_float64_agrees_with_rational_arithmetic(mode: Rounding, values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    rounded = round_to_integer(array, mode)
    assert [int(x) for x in rounded] == [reference(float(x), mode) for x in array]


@pytest.mark.parametrize("mode", list(Rounding))
@pytest.mark.filterwarnings("error")
def test_infinities_and_nan_pass_through_without_warning(mode: Rounding) -> None:
    rounded = round_to_integer(float32(np.inf, -np.inf, np.nan), mode)
    assert rounded[0] == np.inf
    assert rounded[1] == -np.inf
    assert np.isnan(rounded[2])


@pytest.mark.parametrize("mode", list(Rounding))
def test_shapes_are_kept_and_the_input_is_not_written(mode: Rounding) -> None:
    for shape in [(), (0,), (1,), (2, 3), (2, 0, 3)]:
        values = np.full(shape, 0.5, dtype=np.float32)
        values.flags.writeable = False
        assert round_to_integer(values, mode).shape == shape


def test_the_documented_table_of_ties() -> None:
    ties = np.array([0.5, 1.5, -0.5, -1.5])
    table = {mode: [int(x) for x in round_to_integer(ties, mode)] for mode in Rounding}
    assert table == {
        Rounding.HALF_EVEN: [0, 2, 0, -2],
        Rounding.NEAREST: [0, 2, 0, -2],
        Rounding.HALF_UP: [1, 2, 0, -1],
        Rounding.HALF_DOWN: [0, 1, -1, -2],
        Rounding.HALF_TOWARD_ZERO: [0, 1, 0, -1],
        Rounding.HALF_AWAY_FROM_ZERO: [1, 2, -1, -2],
        Rounding.UP: [1, 2, 0, -1],
    }


def test_integers_are_refused() -> None:
    with pytest.raises(ConfigError, match="int64"):
        round_to_integer(np.array([1, 2]), Rounding.HALF_UP)


def test_modes_are_found_by_their_stored_names() -> None:
    assert Rounding("half_away_from_zero") is Rounding.HALF_AWAY_FROM_ZERO
    assert len(Rounding) == 7
