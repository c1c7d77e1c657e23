"""Numbers that pass through text of six decimals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.numerics.conversion import SMALLEST, six_decimals


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (1 / 127, "0.007874"),
        (1 / 255, "0.003922"),
        (0.0000005, "0.000000"),  # the float32 is just below
        (0.00000051, "0.000001"),
        (3.0, "3.000000"),
        (12345.678, "12345.677734"),
        (1e-30, "0.000000"),
    ],
)
def test_the_number_is_the_one_that_is_read_from_the_text(scale: float, text: str) -> None:
    assert f"{float(np.float32(scale)):f}" == text
    assert six_decimals(np.float32(scale)) == np.float32(float(text))


@given(st.floats(2.0**-23, 1e4, width=32))
def test_once_stored_it_stays(scale: float) -> None:
    once = six_decimals(scale)
    assert six_decimals(once) == once
    assert abs(float(once) - scale) <= 0.5000001e-6 + scale * 2.0**-24


def test_shapes_are_kept() -> None:
    assert six_decimals(np.ones((2, 3))).shape == (2, 3)
    assert six_decimals(0.5).shape == ()
    assert f"{float(SMALLEST):f}" == "0.000001"
