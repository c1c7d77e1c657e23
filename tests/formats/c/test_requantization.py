"""Scales become the same integers here and in the integer engine."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from intact.config import Rounding
from intact.errors import Unsupported
from intact.formats.c import requantization as scaling
from intact.targets import Arithmetic, Requantize, ScalePrecision

KINDS = [Requantize.FIXED_POINT_DOUBLE, Requantize.FIXED_POINT_SINGLE, Requantize.SHIFT]

arithmetics = st.builds(
    Arithmetic,
    requantize=st.sampled_from(KINDS),
    rounding=st.sampled_from(list(Rounding)),
    multiplier_precision=st.sampled_from(list(ScalePrecision)),
    multiplier_bits=st.none() | st.integers(4, 20),
)
scales = st.floats(2.0**-20, 2.0**10, width=32)


def test_multipliers_shifted_beyond_32_bits_are_zero() -> None:
    arithmetic = Arithmetic(requantize=Requantize.FIXED_POINT_DOUBLE)
    multiplier, shift = scaling.fixed_point(arithmetic, np.array([2.0**31, 2.0**30, 2.0**-40]))
    assert multiplier.tolist() == [0, 2**30, 0]
    assert shift.tolist() == [0, 31, 0]
    single = msgspec.structs.replace(arithmetic, requantize=Requantize.FIXED_POINT_SINGLE)
    multiplier, shift = scaling.fixed_point(single, 2.0**30)
    assert (multiplier.item(), shift.item()) == (2**31 - 1, 30)


def test_non_finite_scales_are_unsupported() -> None:
    arithmetic = Arithmetic(requantize=Requantize.FIXED_POINT_DOUBLE)
    with pytest.raises(Unsupported, match="not finite"):
        scaling.fixed_point(arithmetic, math.inf)
    with pytest.raises(Unsupported, match="power of two"):
        scaling.right_shift(0.3)
