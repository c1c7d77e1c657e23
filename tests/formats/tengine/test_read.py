"""Tengine's tables, as its tool prints them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import DataError, IntactError
from intact.formats.tengine.tables import parse_table


def test_the_float32_of_the_decimals_is_the_scale() -> None:
    scale = 0.0123456789
    found = parse_table(b"conv1_out %f %d\n" % (scale, 0), "t")["conv1_out"]
    assert found.scale == np.float32("0.012346")
    assert (found.kind, int(found.zero_point), found.scale.shape) == ("int8", 0, ())


def test_one_zero_point_makes_all_activations_uint8() -> None:
    found = parse_table(b"a 0.100000 0\nb 0.200000 131\n", "t")
    assert [(found[n].kind, int(found[n].zero_point)) for n in "ab"] == [
        ("uint8", 0),
        ("uint8", 131),
    ]


def test_names_may_hold_spaces_slashes_and_digits() -> None:
    names = ["a b", "block/1/out", "12", "ünïcode 0.5", "x 1"]
    text = "".join(f"{name} 0.250000 0\n" for name in names)
    assert list(parse_table(text.encode(), "t").scales) == names


def test_a_line_without_zero_point_has_the_scales_of_channels() -> None:
    text = b"conv 1 w 0.00123456 0.25000000 0.50000000 \ninput 0.100000 0\n"
    found = parse_table(text, "t")
    assert found["conv 1 w"].scale.tolist() == [np.float32("0.00123456"), 0.25, 0.5]
    assert found["conv 1 w"].kind == "int8"
    assert found["input"].scale.shape == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe\x00", "t: not a text file"),
        (b"", "t: contains no scales"),
        (b"\n\n", "t: contains no scales"),
        (b"a 0.1 0\nnothing here\n", "t: line 2: neither"),
        (b"0.5\n", "t: line 1: neither"),
        (b"a 0.000000 0\n", "t: line 1: 'a': the scale 0.0"),
        (b"a -0.500000 0\n", "t: line 1: 'a': the scale -0.5"),
        (b"a nan 0\n", "t: line 1: 'a': the scale nan"),
        (b"w 0.10000000 inf \n", "t: line 1: 'w': the scale inf"),
        (b"a 0.1 300\n", "line 1: 'a': the zero point 300 is outside 0..255"),
        (b"a 0.1 -3\n", "line 1: 'a': the zero point -3 is outside 0..255"),
        (b"a 0.1 99999999999\n", "neither"),
        (b"a 0.1 0\na 0.2 0\n", "t: line 2: a second, different scale for 'a'"),
    ],
)
def test_a_wrong_line_is_named(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        parse_table(data, "t")
    assert "\n" not in str(raised.value)


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(), st.text("ab01.- \n\t", max_size=60).map(str.encode)))
def test_any_bytes_give_a_table_or_an_error_of_ours(data: bytes) -> None:
    try:
        message = "" if parse_table(data, "t").scales else "an empty table\n"
    except IntactError as error:
        message = str(error)
    assert "\n" not in message
