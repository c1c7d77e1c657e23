"""SimQ against exact arithmetic: fractions for rounding, Python integers for wrapping."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from intact.errors import ConfigError
from intact.numerics.affine import fake_quantize
from intact.numerics.levels import Rounding
from intact.numerics.simulated_quantize import SimulatedQuantize, simulated_quantize

ROUNDINGS = tuple(Rounding)
HALF = Fraction(1, 2)


def rounded(x: Fraction, mode: Rounding) -> int:
    """Round a rational number as the mode's name says."""
    down = math.floor(x)
    if mode is Rounding.UP:
        return math.ceil(x)
    if x - down != HALF:
        return math.floor(x + HALF)
    ties: dict[Rounding, int] = {
        Rounding.HALF_EVEN: down + down % 2,
        Rounding.NEAREST: down + down % 2,
        Rounding.HALF_UP: down + 1,
        Rounding.HALF_DOWN: down,
        Rounding.HALF_AWAY_FROM_ZERO: down + 1 if x > 0 else down,
        Rounding.HALF_TOWARD_ZERO: down if x > 0 else down + 1,
    }
    return ties[mode]


def wrapped(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def f32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.asarray(values, np.float32)


def bits_of(values: npt.NDArray[np.float32]) -> list[int]:
    return list(values.view(np.int32).ravel().tolist())


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
TIES = st.integers(-600, 600).map(lambda n: n / 4)


@given(
    arrays(np.float32, st.integers(0, 40), elements=st.one_of(FINITE, TIES)),
    st.sampled_from(ROUNDINGS),
    st.integers(-6, 3),
    st.integers(-9, 9),
)
def test_powers_of_two_are_rounded_exactly(
    data: npt.NDArray[np.float32], mode: Rounding, exponent: int, zero: int
) -> None:
    scale = Fraction(2) ** exponent
    simulated = SimulatedQuantize(float(scale), -100, 90, zero, mode, out_dtype="int8")(data)
    expected = []
    for x in data.tolist():
        # Beyond 2**100 codes the quotient may not be a float32: it saturates all the same.
        code = rounded(Fraction(x) / scale, mode) + zero
        expected.append(float((min(max(code, -100), 90) - zero) * scale))
    tiny = [abs(x) < 2.0**-100 for x in data.tolist()]  # the quotient may be a denormal: no tie
    if mode is Rounding.UP and any(tiny):
        return
    assert simulated.tolist() == expected


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 4)),
        elements=st.floats(width=32, allow_nan=False),
    ),
    st.sampled_from(ROUNDINGS),
    st.booleans(),
    st.data(),
)
def test_it_is_fake_quantize_bit_for_bit(
    data: npt.NDArray[np.float32], mode: Rounding, per_channel: bool, more: st.DataObject
) -> None:
    axis = 1 if per_channel else None
    shape = (data.shape[1],) if per_channel else ()
    scale = more.draw(arrays(np.float32, shape, elements=st.floats(2**-20, 2**10, width=32)))
    zero = more.draw(arrays(np.int64, shape, elements=st.integers(-8, 7)))
    quantize = SimulatedQuantize(scale, -8, 7, zero, mode, out_dtype="int4", axis=axis)
    expected = fake_quantize(data, scale, zero, -8, 7, rounding=mode, axis=axis)
    before = data.copy()
    assert bits_of(quantize(data)) == bits_of(expected)
    assert bits_of(data) == bits_of(before)
    out = np.full_like(data, 7)
    assert quantize(data, out) is out
    assert bits_of(out) == bits_of(expected)
    assert bits_of(quantize(data, data)) == bits_of(expected)


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_ties_negatives_zeros_and_what_is_no_number(mode: Rounding) -> None:
    data = f32([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 0.49999997, 8388609.0])
    exact = [float(rounded(Fraction(x), mode)) for x in data.tolist()]
    result = SimulatedQuantize(1.0, -(2**24), 2**24 - 1, rounding=mode, out_dtype="int32")(data)
    assert result.tolist() == exact
    assert not np.signbit(result[np.asarray(exact) == 0]).any()
    special = f32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45])
    result = SimulatedQuantize(0.25, -8, 7, rounding=mode, out_dtype="int4")(special)
    tiny = 0.25 if mode is Rounding.UP else 0.0
    assert np.isnan(result[0])
    assert result[1:].tolist() == [1.75, -2.0, 1.75, -2.0, tiny]


@given(
    st.lists(st.integers(-(2**24), 2**24), max_size=30),
    st.sampled_from([4, 8, 12, 16, 20, 24]),
    st.integers(-8, 8),
)
def test_sums_wrap_like_registers(sums: list[int], bits: int, exponent: int) -> None:
    scale = 2.0**exponent
    data = np.array([number * scale for number in sums], np.float32)
    quantize = SimulatedQuantize(in_scale=scale, in_dtype=f"int{bits}", out_dtype="float32")
    assert quantize(data).tolist() == [wrapped(number, bits) * scale for number in sums]


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_ends_of_a_register(bits: int) -> None:
    half = 2 ** (bits - 1)
    numbers = [half - 128, half, half + 256, -half, -half - 256, 3 * half, 2**40, -(2**60), 0]
    quantize = SimulatedQuantize(in_scale=1.0, in_dtype=f"int{bits}", out_dtype="float32")
    data = np.array(numbers, np.float32)
    assert quantize(data).tolist() == [float(wrapped(int(x), bits)) for x in data.tolist()]
    odd = f32([np.nan, np.inf, -np.inf, 1e38])
    result = quantize(odd)
    assert np.isnan(result[0])
    assert result[1:].tolist() == [np.inf, -np.inf, float(wrapped(int(odd[3]), bits))]


def test_what_the_register_holds_stays_as_it_is() -> None:
    """So that a layer that does not overflow gives what it gives without the simulation."""
    data = f32([0.3, -7.7, 100.49, 127.4, 127.6])
    result = simulated_quantize(data, 1.0, 1.0, 0, 1, "int8", "float32")
    assert bits_of(result[:4]) == bits_of(data[:4])
    assert result[4] == -128


def test_sums_wrap_before_they_are_quantized() -> None:
    scales = np.array([0.5, 0.25])
    data = f32([[64.0, 64.0], [63.5, -33.0]])  # 128, 256; 127, -132 in their channels
    result = simulated_quantize(data, scales, 4.0, -8, 7, "int8", "int4", axis=1)
    expected = [[-32.0, 0.0], [28.0, 28.0]]  # -64 and 0; 63.5 and 31, in steps of 4, up to 28
    assert result.tolist() == expected


def test_scales_with_channels_lie_along_any_axis() -> None:
    data = f32(np.arange(24).reshape(2, 3, 4))
    for axis in (0, 1, 2, -1):
        count = data.shape[axis]
        scale = f32(2.0 ** np.arange(count))
        shape = [1] * 3
        shape[axis] = count
        factor = scale.reshape(shape)
        expected = np.clip(np.rint(data / factor), -128, 127) * factor
        assert SimulatedQuantize(scale, axis=axis)(data).tolist() == expected.tolist()


def test_floats_pass() -> None:
    data = f32([0.3])
    quantize = SimulatedQuantize(out_dtype="float32")
    assert quantize.changes_nothing
    assert quantize(data) is data
    assert quantize(data, np.empty_like(data)).tolist() == data.tolist()


def test_data_of_any_shape_and_layout() -> None:
    quantize = SimulatedQuantize(0.5)
    assert quantize(f32(0.6)).shape == ()
    assert quantize(np.empty((3, 0), np.float32)).shape == (3, 0)
    data = f32(np.arange(12).reshape(3, 4) / 3)
    assert quantize(data.T).tolist() == quantize(np.ascontiguousarray(data.T)).tolist()


def test_keys_tell_what_differs() -> None:
    base = SimulatedQuantize(0.5, -8, 7, out_dtype="int4")
    others: list[dict[str, Any]] = [
        {"out_scale": 0.25},
        {"clip_min": -7},
        {"clip_max": 6},
        {"zero_point": 1},
        {"rounding": Rounding.UP},
        {"out_dtype": "float32"},
        {"in_dtype": "int16"},
        {"in_dtype": "int16", "in_scale": 0.5},
    ]
    keys = {replace(base, **other).key for other in others}
    assert len({base.key, *keys}) == 1 + len(others)
    assert replace(base, in_scale=3.0).key == base.key  # floats do not wrap


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"out_scale": 0.0}, "not positive and finite"),
        ({"out_scale": np.inf}, "not positive and finite"),
        ({"in_scale": -1.0}, "not positive and finite"),
        ({"out_scale": [0.5, 0.5]}, "2 scales"),
        ({"clip_min": 7, "clip_max": 7}, "codes 7..7"),
        ({"clip_max": 128}, "codes -128..128 in int8"),
        ({"zero_point": 200}, "is no code"),
        ({"zero_point": 0.5}, "do not fit"),
        ({"in_dtype": "uint8"}, "sums in uint8"),
        ({"in_dtype": "int64"}, "data type 'int64'"),
        ({"out_dtype": "half"}, "data type 'half'"),
    ],
)
def test_what_is_impossible_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimulatedQuantize(**wrong)


def test_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="float64"):
        SimulatedQuantize()(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 scales along axis 1 of data of shape"):
        SimulatedQuantize([1.0, 2.0], axis=1)(np.zeros((2, 3), np.float32))
    with pytest.raises(ConfigError, match="does not fit"):
        SimulatedQuantize()(np.zeros(3, np.float32), np.zeros(4, np.float32))
