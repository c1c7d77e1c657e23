"""Scales from outside move between kinds of integers without losing a bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.config import Grid, PerChannel, PerTensor, Rounding, make_policy
from intact.errors import ConfigError, DataError
from intact.plan.given_scales import GivenScale, ScaleTable


def grid(
    quant_min: int,
    quant_max: int,
    bits: int = 8,
    *,
    symmetric: bool = False,
    axis: int | None = None,
    power_of_two: bool = False,
) -> Grid:
    granularity = PerTensor() if axis is None else PerChannel(axis)
    return Grid(
        policy=make_policy(granularity, symmetric=symmetric, power_of_two=power_of_two),
        granularity=granularity,
        rounding=Rounding.HALF_EVEN,
        bits=bits,
        quant_min=quant_min,
        quant_max=quant_max,
    )


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 16), st.booleans(), st.booleans(), st.floats(1e-30, 1e30))
def test_the_same_integers_stand_for_the_same_numbers_on_every_grid(
    data: st.DataObject, bits: int, signed: bool, onto_signed: bool, scale: float
) -> None:
    half = 1 << (bits - 1)
    low = -half if signed else 0
    zero = data.draw(st.integers(low, low + 2 * half - 1))
    source = GivenScale.of(scale, zero, bits=bits, signed=signed)
    lowest = -half if onto_signed else 0
    goal = grid(lowest, lowest + 2 * half - 1, bits)
    params = source.on_grid(goal, ())
    assert params.scale == np.float32(scale)
    codes = np.array([low, zero, low + 2 * half - 1])
    meant = ((codes - zero) * np.float32(scale)).astype(np.float32)
    np.testing.assert_array_equal(goal.dequantize(codes - low + lowest, params), meant)


@pytest.mark.parametrize(
    ("signed", "zero", "goal", "expected"),
    [
        (True, 0, grid(0, 255), 128),
        (True, 0, grid(-127, 127, symmetric=True), 0),
        (True, 0, grid(-128, 127), 0),
        (False, 128, grid(-128, 127, symmetric=True), 0),
        (False, 3, grid(-128, 127), -125),
        (False, 0, grid(0, 255, symmetric=True), 0),
    ],
)
def test_a_zero_point_moves_with_the_lowest_integer(
    signed: bool, zero: int, goal: Grid, expected: int
) -> None:
    assert GivenScale.of(0.1, zero, signed=signed).on_grid(goal, ()).zero_point == expected


@pytest.mark.parametrize(
    ("scale", "goal", "message"),
    [
        (GivenScale.of(0.1, bits=4), grid(0, 255), "is for 4 bits, the plan has 8; .*bits"),
        (GivenScale.of(0.1, 3), grid(-127, 127, symmetric=True), "zero point 3 of int8"),
        (GivenScale.of(0.1), grid(0, 255, symmetric=True), "symmetric scheme"),
        (GivenScale.of([0.1, 0.2]), grid(0, 255), "2 scales, the plan has one"),
        (GivenScale.of(0.1), grid(-8, 8, symmetric=True, power_of_two=True), "power of two"),
        (GivenScale.of([0.1, 0.2]), grid(-127, 127, axis=0), "plan has 3 along axis 0"),
        (GivenScale.of([0.1] * 3, axis=1), grid(-127, 127, axis=0), "3 scales along axis 1"),
        (GivenScale.of(0.1, -128), grid(-127, 127), "offset -128 is outside -127..127"),
    ],
)
def test_what_a_grid_does_not_have_is_refused(scale: GivenScale, goal: Grid, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scale.on_grid(goal, (3, 3))


def test_one_scale_holds_for_every_channel_and_channels_may_be_counted_from_the_end() -> None:
    goal = grid(-127, 127, symmetric=True, axis=1)
    assert GivenScale.of(0.1).on_grid(goal, (2, 3)).scale.tolist() == [np.float32(0.1)] * 3
    channels = GivenScale.of([1, 2, 3], axis=-1).on_grid(goal, (2, 3))
    assert channels.scale.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("scale", "zero", "message"),
    [
        (0.0, 0, "scale 0.0 is not a positive finite"),
        (-1.0, 0, "scale -1.0"),
        (float("nan"), 0, "scale nan"),
        (1e300, 0, "scale inf"),
        (1e-60, 0, "scale 0.0"),
        ([1.0, 0.0], 0, "scale 0.0"),
        (1.0, 128, r"zero point 128 is outside -128..127"),
        (1.0, 10**30, "does not fit 64 bits"),
        ([1.0, 2.0], [0], r"shape \[2\] with zero points of shape \[1\]"),
        ([], [], "of each"),
    ],
)
def test_an_impossible_scale_is_refused(scale: float, zero: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        GivenScale.of(scale, zero)


def table(**scales: float) -> ScaleTable:
    return ScaleTable.of("t", [("line", name, GivenScale.of(s)) for name, s in scales.items()])


def test_the_hash_is_that_of_the_numbers_and_not_of_the_file() -> None:
    assert table(a=1.0, b=2.0).hash() == table(b=2.0, a=1.0).hash()
    assert table(a=1.0).hash() != table(a=1.0000001).hash()
    assert table(a=1.0).hash() != table(b=1.0).hash()


def test_a_name_may_be_repeated_only_with_the_same_numbers() -> None:
    entries = [("line 1", "a", GivenScale.of(1.0)), ("line 2", "a", GivenScale.of(1.0))]
    assert len(ScaleTable.of("t", entries).scales) == 1
    entries.append(("line 3", "a", GivenScale.of(1.0, 1)))
    with pytest.raises(DataError, match="t: line 3: a second, different scale for 'a'"):
        ScaleTable.of("t", entries)
    with pytest.raises(DataError, match="different scale for 'a'"):
        table(a=1.0).joined(table(a=2.0))
    assert set(table(a=1.0).joined(table(b=2.0)).scales) == {"a", "b"}


def test_a_table_for_another_model_is_refused_with_the_nearest_name() -> None:
    table(conv1_out=1.0).refuse_unknown(["conv1_out", "conv2_out"])
    with pytest.raises(DataError, match=r"1 of its 2 names .* first 'conv2_oot'; did you mean"):
        table(conv1_out=1.0, conv2_oot=1.0).refuse_unknown(["conv1_out", "conv2_out"])


@pytest.mark.parametrize("axis", [2, 3, -3])
def test_a_channel_axis_that_the_tensor_does_not_have_is_refused(axis: int) -> None:
    goal = grid(-127, 127, symmetric=True, axis=1)
    with pytest.raises(ConfigError, match=f"3 scales along axis {axis}, the plan has 3 along"):
        GivenScale.of([1, 2, 3], axis=axis).on_grid(goal, (2, 3))


def test_joined_tables_are_named_without_their_folders() -> None:
    tables = [
        ScaleTable.of(f"here and there/{name}", [("line", name, GivenScale.of(1.0))])
        for name in ("a.scale", "b.txt", "c.txt")
    ]
    joined = tables[0].joined(tables[1]).joined(tables[2])
    assert tables[0].name == "a.scale"
    assert joined.name == "a.scale and b.txt and c.txt"
    assert joined.source.count("here and there/") == 3
