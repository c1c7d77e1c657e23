from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import ConfigError
from intact.numerics.affine import (
    QuantParams,
    fake_quantize,
    params_from_range,
    range_from_params,
)
from tests.numerics.arrays import float32

CODES = [(0, 255), (-128, 127), (-127, 127), (-8, 7), (0, 15), (-2, 1), (0, 65535), (0, 1)]
FLOAT32_MAX = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).tiny)


def in_order(ends: tuple[float, float]) -> tuple[float, float]:
    return min(ends), max(ends)


ENDS = st.floats(-FLOAT32_MAX, FLOAT32_MAX) | st.sampled_from(
    [0.0, 1e-45, -1e-45, 1e-300, 5e-324, FLOAT32_MAX, -FLOAT32_MAX, 1.0, -1.0]
)


@pytest.mark.crossed
@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("power_of_two", [False, True])
@given(ends=st.tuples(ENDS, ENDS).map(in_order))
@settings(max_examples=25, deadline=None)
def test_parameters_are_always_usable(
    codes: tuple[int, int],
    symmetric: bool,
    power_of_two: bool,
    ends: tuple[float, float],
) -> None:
    params = params_from_range(*ends, *codes, symmetric=symmetric, power_of_two=power_of_two)
    assert params.scale.dtype == np.float32
    assert params.zero_point.dtype == np.int64
    assert params.scale.shape == params.zero_point.shape == ()
    assert np.isfinite(params.scale)
    assert params.scale >= TINY
    assert codes[0] <= params.zero_point <= codes[1]
    if symmetric:
        assert params.zero_point == 0
    if power_of_two:
        assert np.frexp(params.scale)[0] == 0.5
    low, high = range_from_params(params, *codes)
    assert low <= 0 <= high


@pytest.mark.crossed
@pytest.mark.parametrize("codes", [(0, 255), (-128, 127), (0, 15), (-8, 7)])
@pytest.mark.parametrize("power_of_two", [False, True])
@given(
    ends=st.tuples(st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32)).map(in_order),
    position=st.floats(0, 1),
)
@settings(max_examples=50, deadline=None)
def test_values_in_the_range_lose_at_most_one_rounding(
    codes: tuple[int, int],
    power_of_two: bool,
    ends: tuple[float, float],
    position: float,
) -> None:
    for symmetric in (False, codes[0] < 0):
        params = params_from_range(*ends, *codes, symmetric=symmetric, power_of_two=power_of_two)
        value = float32(ends[0] + position * (ends[1] - ends[0]))
        restored = fake_quantize(value, params.scale, params.zero_point, *codes)
        # The representable range may lie half a step off, in addition to the rounding itself.
        allowed = 0.5 if symmetric else 1.0
        assert abs(float(restored[0]) - float(value[0])) <= float(params.scale) * allowed * 1.00001


@pytest.mark.parametrize(
    ("low", "high", "codes", "symmetric", "scale", "zero_point"),
    [
        (0.0, 255.0, (0, 255), False, 1.0, 0),
        (-128.0, 127.0, (-128, 127), False, 1.0, 0),
        (-1.0, 1.0, (0, 255), False, 2 / 255, 128),  # 127.5 to the even neighbour
        (2.0, 10.0, (0, 255), False, 10 / 255, 0),  # widened down to 0
        (-10.0, -2.0, (0, 255), False, 10 / 255, 255),  # widened up to 0
        (-3.0, 2.0, (-127, 127), True, 3 / 127, 0),
        (-3.0, 2.0, (-128, 127), True, 3 / 127, 0),
        (-3.0, 2.0, (0, 255), True, 2 / 255, 0),  # codes of one sign: only that side counts
        (-3.0, -1.0, (0, 255), True, 1.0, 0),
        (-3.0, 2.0, (-255, 0), True, 3 / 255, 0),
        (0.0, 0.0, (0, 255), False, 1.0, 0),
        (0.0, 0.0, (-127, 127), True, 1.0, 0),
        (0.0, 1e-45, (0, 255), False, TINY, 0),
    ],
)
def test_known_parameters(
    *,
    low: float,
    high: float,
    codes: tuple[int, int],
    symmetric: bool,
    scale: float,
    zero_point: int,
) -> None:
    params = params_from_range(low, high, *codes, symmetric=symmetric)
    assert params.scale == np.float32(scale)
    assert params.zero_point == zero_point


@given(st.floats(1e-30, 1e30))
def test_a_power_of_two_is_the_smallest_that_is_not_below(threshold: float) -> None:
    scale = float(
        params_from_range(-threshold, threshold, -1, 1, symmetric=True, power_of_two=True).scale
    )
    assert scale / 2 < threshold <= scale


@pytest.mark.parametrize("exponent", [-126, -30, -1, 0, 1, 100, 127])
def test_powers_of_two_stay_as_they_are(exponent: int) -> None:
    threshold = 2.0**exponent
    params = params_from_range(-threshold, threshold, -1, 1, symmetric=True, power_of_two=True)
    assert params.scale == threshold


def test_channels_are_computed_like_single_tensors() -> None:
    low = np.array([-1.0, 0.0, -5.0, 0.0])
    high = np.array([2.0, 3.0, -1.0, 0.0])
    together = params_from_range(low, high, 0, 255, symmetric=False)
    for channel in range(4):
        alone = params_from_range(low[channel], high[channel], 0, 255, symmetric=False)
        assert together.scale[channel] == alone.scale
        assert together.zero_point[channel] == alone.zero_point


def test_no_channels_at_all() -> None:
    params = params_from_range(np.zeros(0), np.zeros(0), 0, 255, symmetric=False)
    assert params.scale.shape == (0,)


def test_range_from_params_inverts_params_from_range() -> None:
    params = QuantParams(float32(0.5, 2.0), np.array([0, 128]))
    low, high = range_from_params(params, 0, 255)
    assert low.tolist() == [0.0, -256.0]
    assert high.tolist() == [127.5, 254.0]
    again = params_from_range(low, high, 0, 255, symmetric=False)
    assert again.scale.tolist() == params.scale.tolist()
    assert again.zero_point.tolist() == params.zero_point.tolist()


@pytest.mark.parametrize(
    ("low", "high", "codes", "message"),
    [
        (np.nan, 1.0, (0, 255), "finite"),
        (0.0, np.inf, (0, 255), "finite"),
        (-1e39, 1.0, (0, 255), "finite"),
        (1.0, -1.0, (0, 255), "above"),
        (0.0, 1.0, (3, 3), "empty"),
        (0.0, 1.0, (1, 255), "lack 0"),
        ([0.0], [1.0, 2.0], (0, 255), "equal shapes"),
    ],
)
def test_impossible_ranges_are_refused(
    low: float, high: float, codes: tuple[int, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        params_from_range(low, high, *codes, symmetric=True)
