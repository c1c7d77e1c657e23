"""Ranges of integers, the types that hold them, and names."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import Unsupported
from intact.program.forms import broadcast
from intact.program.realize.builder import IntegerBuilder, width
from intact.program.realize.graph import Op, Value

INT32_MAX = 2**31 - 1


def value(low: int, high: int, dtype: str = "int32") -> Value:
    return Value("x", np.dtype(dtype), (None, 3), low, high)


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (0, INT32_MAX, "int32"),
        (-(2**31), 0, "int32"),
        (0, INT32_MAX + 1, "int64"),
        (-(2**31) - 1, 0, "int64"),
        (-(2**63), 2**63 - 1, "int64"),
    ],
)
def test_width(low: int, high: int, kind: str) -> None:
    assert width(low, high) == np.dtype(kind)


def test_a_range_beyond_64_bits_is_refused() -> None:
    with pytest.raises(Unsupported, match="64 bits"):
        width(0, 2**63)
    with pytest.raises(Unsupported, match="64 bits"):
        IntegerBuilder().mul(value(-(2**40), 2**40, "int64"), 1 << 30)


def test_a_sum_takes_the_type_that_holds_operands_and_result() -> None:
    builder = IntegerBuilder()
    found = builder.add(value(-5, INT32_MAX - 1), 1)
    assert (str(found.dtype), found.low, found.high) == ("int32", -4, INT32_MAX)
    found = builder.add(value(-5, INT32_MAX), 1)
    assert (str(found.dtype), found.low, found.high) == ("int64", -4, INT32_MAX + 1)
    assert [node.op for node in builder.nodes] == [Op.ADD, Op.CAST, Op.ADD]


def test_a_difference_and_a_product_follow_signs() -> None:
    builder = IntegerBuilder()
    found = builder.sub(value(-3, 10), value(-7, 2))
    assert (found.low, found.high) == (-5, 17)
    found = builder.mul(value(-3, 10), np.array([-4, 2]))
    assert (found.low, found.high) == (-40, 20)
    found = builder.floor_div(value(-7, 9), np.array([2, 4]))
    assert (found.low, found.high) == (-4, 4)


def test_what_changes_nothing_is_not_drawn() -> None:
    builder, x = IntegerBuilder(), value(-3, 10)
    assert builder.add(x, 0) is x
    assert builder.mul(x, 1) is x
    assert builder.floor_div(x, 1) is x
    assert builder.clip(x, -3, 10) is x
    assert builder.cast(x, np.int32) is x
    assert builder.nodes == []
    assert builder.add(x, np.zeros((3, 1))).shape == (3, 3)  # it broadcasts


@pytest.mark.parametrize(
    ("limits", "bounds"), [((-1, 4), (-1, 4)), ((12, 20), (12, 12)), ((-9, -5), (-5, -5))]
)
def test_clip(limits: tuple[int, int], bounds: tuple[int, int]) -> None:
    found = IntegerBuilder().clip(value(-3, 10), *limits)
    assert (found.low, found.high) == bounds


def test_limits_of_a_clip_fit_its_type() -> None:
    builder = IntegerBuilder()
    builder.clip(value(-3, 10), 0, 2**40)
    assert builder.nodes[-1].options == {"low": 0, "high": INT32_MAX}


def test_is_negative_says_what_is_known() -> None:
    builder = IntegerBuilder()
    ranges = [(0, 5), (-5, -1), (-5, 5)]
    found = [builder.is_negative(value(*ends)) for ends in ranges]
    assert [(each.low, each.high) for each in found] == [(0, 0), (1, 1), (0, 1)]


def test_names_are_unique() -> None:
    builder = IntegerBuilder()
    assert [builder.names.fresh("a"), builder.names.fresh("a"), builder.names.fresh("a_2")] == [
        "a",
        "a_2",
        "a_2_2",
    ]


def test_broadcast() -> None:
    assert broadcast((None, 3, 1), (4,)) == (None, 3, 4)
    assert broadcast((1, 3), (None, 1)) == (None, 3)
    assert broadcast((), (None,)) == (None,)
