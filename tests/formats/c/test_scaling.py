"""Scales become the same integers here and in the integer engine."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import Rounding
from intact.formats.c import scaling
from intact.formats.c.refusal import Refusal
from intact.program.operations import Bounds
from intact.run.integer import requantize as engine
from intact.targets import Arithmetic, Requantize, ScalePrecision
from tests.program.one_step import int8

KINDS = [Requantize.FIXED_POINT_DOUBLE, Requantize.FIXED_POINT_SINGLE, Requantize.SHIFT]

arithmetics = st.builds(
    Arithmetic,
    requantize=st.sampled_from(KINDS),
    rounding=st.sampled_from(list(Rounding)),
    multiplier_precision=st.sampled_from(list(ScalePrecision)),
    multiplier_bits=st.none() | st.integers(4, 20),
)
scales = st.floats(2.0**-20, 2.0**10, width=32)


@given(arithmetics, st.lists(scales, min_size=1, max_size=2), scales)
def test_multipliers(arithmetic: Arithmetic, factors: list[float], scale: float) -> None:
    output = int8(scale)
    given_scales = [np.array([factor, factor / 3], np.float32) for factor in factors]
    found = scaling.real_multiplier(arithmetic, given_scales, output)
    wanted = engine.real_multiplier(arithmetic, given_scales, output)
    assert found.dtype == wanted.dtype
    assert np.array_equal(found, wanted)


@given(
    arithmetics,
    scales,
    st.integers(-128, 127),
    st.tuples(st.floats(-1e9, 1e9) | st.just(-math.inf), st.floats(-1e9, 1e9) | st.just(math.inf)),
)
def test_bounds(
    arithmetic: Arithmetic, scale: float, zero_point: int, ends: tuple[float, float]
) -> None:
    output, bounds = int8(scale, zero_point), Bounds(min(ends), max(ends))
    found = scaling.code_bounds(arithmetic, output, bounds)
    assert found == engine.code_bounds(arithmetic, output, bounds)


def test_what_leaves_32_bits_on_the_left_is_nothing() -> None:
    arithmetic = Arithmetic(requantize=Requantize.FIXED_POINT_DOUBLE)
    multiplier, shift = scaling.fixed_point(arithmetic, np.array([2.0**31, 2.0**30, 2.0**-40]))
    assert multiplier.tolist() == [0, 2**30, 0]
    assert shift.tolist() == [0, 31, 0]
    single = msgspec.structs.replace(arithmetic, requantize=Requantize.FIXED_POINT_SINGLE)
    multiplier, shift = scaling.fixed_point(single, 2.0**30)
    assert (multiplier.item(), shift.item()) == (2**31 - 1, 30)


def test_what_is_no_number_is_refused() -> None:
    arithmetic = Arithmetic(requantize=Requantize.FIXED_POINT_DOUBLE)
    with pytest.raises(Refusal, match="not finite"):
        scaling.fixed_point(arithmetic, math.inf)
    with pytest.raises(Refusal, match="power of two"):
        scaling.right_shift(0.3)
