"""One float operation after another, against the C expression written with NumPy's scalars."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.config import Rounding
from intact.errors import ConfigError
from intact.program import Encoding
from intact.program.arithmetic.in_turn import InTurn, requantizer
from intact.program.arithmetic.requantize import Requantizer
from intact.program.operations import Bounds
from intact.targets import Arithmetic, FloatInTurn, FloatOnce, ZeroPointOrder

IN_TURN = Arithmetic(requantize=FloatInTurn(), rounding=Rounding.HALF_AWAY_FROM_ZERO)


def narrow(scale: float, zero_point: int = 0, low: int = -127, high: int = 127) -> Encoding:
    return Encoding(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), low, high)


def c_code(total: int, scales: list[np.float32], output: np.float32) -> int:
    """``round((float)total * s_x * s_w / s_y)``, clamped: each result a float32."""
    value = np.float32(total)
    for scale in scales:
        value = np.float32(value * scale)
    value = np.float32(value / output)
    nearest = np.floor(np.abs(np.float64(value)) + 0.5) * np.sign(value)
    return int(min(max(nearest, -127), 127))


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8),
    st.floats(2.0**-20, 1.0, width=32),
    st.floats(2.0**-20, 1.0, width=32),
    st.floats(2.0**-20, 1.0, width=32),
)
@settings(max_examples=150, deadline=None)
def test_any_sums_and_scales(totals: list[int], s_x: float, s_w: float, s_y: float) -> None:
    x, w, y = np.float32(s_x), np.float32(s_w), np.float32(s_y)
    found = requantizer(IN_TURN, [x, w], narrow(s_y))(np.array(totals, np.int64))
    assert found.dtype == np.int8
    assert found.tolist() == [c_code(total, [x, w], y) for total in totals]


def next_to_ties(
    s_x: np.float32, s_w: np.float32, s_y: np.float32
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Sums whose exact quotient lies nearest to a tie between two codes."""
    unit = float(s_x) * float(s_w) / float(s_y)
    sums = np.array(sorted({round((code + 0.5) / unit) for code in range(-127, 127)}), np.int64)
    return sums, [c_code(int(total), [s_x, s_w], s_y) for total in sums]


def test_the_order_shows_next_to_ties() -> None:
    """The factor ``s_x * s_w / s_y`` gives other codes, so that the field is worth having."""
    by_factor = Arithmetic(requantize=FloatOnce(), rounding=Rounding.HALF_AWAY_FROM_ZERO)
    rng = np.random.default_rng(0)
    others = 0
    for _ in range(300):
        s_x, s_w, s_y = (np.float32(round(value, 6)) for value in rng.uniform(0.001, 0.05, 3))
        sums, expected = next_to_ties(s_x, s_w, s_y)
        assert requantizer(IN_TURN, [s_x, s_w], narrow(float(s_y)))(sums).tolist() == expected
        factored = requantizer(by_factor, [s_x, s_w], narrow(float(s_y)))
        assert isinstance(factored, Requantizer)
        others += int(np.sum(factored(sums) != np.array(expected)))
    assert others > 0


def test_channels_bias_bounds_and_zero_points() -> None:
    scales = np.array([0.5, 0.25, 2.0], np.float32)
    output = narrow(1.0, 3, 0, 255)
    sums = np.array([[1, 2, 3], [-5, 7, 100]], np.int32)
    run = requantizer(IN_TURN, [np.float32(1), scales], output, Bounds(0.0, 6.0), bias=[1, 1, -1])
    # (1+1)*.5 = 1; (2+1)*.25 = .75 -> 1; (3-1)*2 = 4; then clamped to 0..6, zero point 3
    assert run(sums).tolist() == [[4, 4, 7], [3, 5, 9]]
    before = Arithmetic(
        requantize=FloatInTurn(),
        rounding=Rounding.HALF_AWAY_FROM_ZERO,
        zero_point=ZeroPointOrder.BEFORE_ROUNDING,
    )
    halves = np.array([-1, 1])
    assert requantizer(IN_TURN, [np.float32(0.5)], output)(halves).tolist() == [2, 4]
    assert requantizer(before, [np.float32(0.5)], output)(halves).tolist() == [3, 4]


def test_means_divide_twice() -> None:
    mean = InTurn(IN_TURN, [np.float32(0.1)], [49, np.float32(0.013)], narrow(0.013))
    sums = np.arange(-700, 700, 7)
    expected = []
    for total in sums:
        value = np.float32(np.float32(total) * np.float32(0.1)) / np.float32(49)
        value = np.float32(value) / np.float32(0.013)
        expected.append(int(np.clip(np.floor(abs(float(value)) + 0.5) * np.sign(value), -127, 127)))
    assert mean(sums).tolist() == expected
    assert mean(np.zeros((2, 0), np.int32)).shape == (2, 0)


def test_misfits() -> None:
    with pytest.raises(ConfigError, match="channels"):
        InTurn(IN_TURN, [np.ones((2, 2))], [], narrow(1.0))
    with pytest.raises(ConfigError, match="not finite"):
        InTurn(IN_TURN, [np.float64(1e300)], [], narrow(1.0))
