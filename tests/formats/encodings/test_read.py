"""Encodings of the three forms, as AIMET writes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import DataError, IntactError
from intact.formats.encodings.read import parse_encodings
from intact.plan.given_scales import GivenScale, ScaleTable

Json = dict[str, Any]


def parsed(document: Json) -> ScaleTable:
    return parse_encodings(json.dumps(document).encode(), "t")


def form_0(*encodings: Json) -> ScaleTable:
    return parsed({"version": "0.6.1", "activation_encodings": {"a": list(encodings)}})


def form_1(**encoding: Any) -> ScaleTable:
    entry = {"name": "a", "enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, **encoding}
    return parsed({"version": "1.0.0", "activation_encodings": [entry]})


def form_2(**encoding: Any) -> ScaleTable:
    return parsed({"version": "2.0.0", "encodings": [{"name": "a", **encoding}]})


def summary(scale: GivenScale) -> tuple[Any, Any, str]:
    return scale.scale.tolist(), scale.zero_point.tolist(), scale.kind


def test_the_same_scale_reads_the_same_from_every_form() -> None:
    old = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "scale": 0.25, "offset": -41}
    found = [
        form_0(old | {"min": -10.25, "max": 53.5}),
        form_1(is_sym=False, scale=[0.25], offset=[-41.0]),
        form_2(output_dtype="uint8", y_scale=0.25, y_zero_point=41),
    ]
    assert [summary(table["a"]) for table in found] == [(0.25, 41, "uint8")] * 3


@pytest.mark.parametrize("offset", [-128, -127])
def test_symmetric_encodings_have_zero_point_0_also_strictly_symmetric_ones(offset: int) -> None:
    old = {"bitwidth": 8, "is_symmetric": "True", "scale": 0.25, "offset": offset}
    assert summary(form_0(old)["a"]) == (0.25, 0, "int8")
    new = form_1(is_sym=True, scale=[0.25], offset=[offset])
    assert summary(new["a"]) == (0.25, 0, "int8")


def test_scales_of_channels() -> None:
    old = [
        {"bitwidth": 4, "is_symmetric": "True", "scale": s, "offset": -8} for s in (0.5, 0.25, 1)
    ]
    expected = ([0.5, 0.25, 1.0], [0, 0, 0], "int4")
    assert summary(form_0(*old)["a"]) == expected
    new = form_1(enc_type="PER_CHANNEL", bw=4, is_sym=True, scale=[0.5, 0.25, 1], offset=[-8] * 3)
    assert summary(new["a"]) == expected
    newest = form_2(output_dtype="int4", y_scale=[0.5, 0.25, 1], axis=1)["a"]
    assert summary(newest) == expected
    assert newest.axis == 1


def test_a_range_alone_is_enough_in_overrides_without_version() -> None:
    encodings = {"a": [{"bitwidth": 8, "min": -1.0, "max": 4.1}]}
    found = parsed({"activation_encodings": encodings, "param_encodings": {}})["a"]
    assert summary(found) == (np.float32(5.1 / 255), 50, "uint8")
    strict = form_0({"bitwidth": 8, "min": -12.7, "max": 12.7, "is_symmetric": "True"})["a"]
    assert summary(strict) == (np.float32(12.7 / 127), 0, "int8")
    full = form_0({"bitwidth": 8, "min": -12.8, "max": 12.7, "is_symmetric": True})["a"]
    assert summary(full) == (np.float32(0.1), 0, "int8")


def test_what_is_no_scale_of_integers_is_left_out_and_counted() -> None:
    block = {"name": "w", "y_scale": [[1, 2]], "block_size": 32, "axis": 1, "output_dtype": "int4"}
    double = {"name": "v", "y_scale": {"x": [[1]], "x_scale": 1}, "output_dtype": "int4"}
    floating = {"name": "f", "y_scale": 1.0, "output_dtype": "float8e4m3fn"}
    shifted = {"name": "s", "y_scale": 1.0, "y_zero_point": -0.5, "output_dtype": "int2"}
    whole = {"name": "a", "y_scale": 1.0, "output_dtype": "int8"}
    found = parsed({"version": "2.1.0", "encodings": [block, double, floating, shifted, whole]})
    assert list(found.scales) == ["a"]
    assert found.ignored == {
        "per-block scales": 2,
        "floating-point types": 1,
        "fractional zero points": 1,
    }
    assert form_0({"bitwidth": 16, "dtype": "float"}).ignored == {"floating-point types": 1}
    assert form_1(enc_type="LPBQ", scale=[1.0], offset=[-8]).ignored == {"per-block scales": 1}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "t: contains no scales"),
        ({"version": "3.0.0"}, "t: encodings of version '3.0.0'; give encodings of"),
        ({"version": 1}, "cannot be read as encodings .*version"),
        ({"activation_encodings": 3}, "cannot be read as encodings"),
        ({"activation_encodings": {"a b": [{"scale": 1}]}}, "activation_encodings.'a b'.*bitwidth"),
        ({"activation_encodings": [{}]}, r"activation_encodings\[0\]: version 0 has encodings by"),
        ({"version": "1.0.0", "param_encodings": {"a": {}}}, "has a list of encodings"),
        ({"version": "2.0.0", "encodings": [{"name": "a"}]}, r"encodings\[0\].*output_dtype"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(document: Json, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parsed(document)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ({"bitwidth": 8, "scale": 0, "offset": 0}, "activation_encodings.'a'.: the scale 0.0"),
        ({"bitwidth": 8, "scale": 1, "offset": 3}, "zero point -3 is outside 0..255"),
        ({"bitwidth": 99, "scale": 1, "offset": 0}, "width is 99 bits"),
        ({"bitwidth": 8}, "neither scale and offset, nor a range"),
        ({"bitwidth": 8, "min": 1, "max": 2}, "neither scale and offset, nor a range"),
        ({"bitwidth": 10**9, "min": -1, "max": 2}, "neither scale and offset, nor a range"),
        ({"bitwidth": 8, "scale": "1"}, "Expected `float . null`, got `str`"),
    ],
)
def test_a_wrong_encoding_is_refused_with_its_tensor(encoding: Json, message: str) -> None:
    with pytest.raises(DataError, match=message):
        form_0(encoding)


def test_channels_of_different_widths_and_unknown_types_are_refused() -> None:
    with pytest.raises(DataError, match="channels differ"):
        form_0(*({"bitwidth": bits, "scale": 1, "offset": 0} for bits in (4, 8)))
    with pytest.raises(DataError, match=r"enc_type is 'PER_LINE"):
        form_1(enc_type="PER_LINE\n", scale=[1.0], offset=[-8])
    with pytest.raises(DataError, match=r"output_dtype is 'bool'"):
        form_2(output_dtype="bool", y_scale=1.0)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-300, 300),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["int8", "uint", "float", "INT", "PER_TENSOR", "True", "a\nb"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.fixed_dictionaries({"x": inner})),
    max_leaves=4,
)
KEYS = ["bitwidth", "scale", "offset", "min", "max", "dtype", "is_symmetric", "name", "bw",
        "enc_type", "is_sym", "output_dtype", "y_scale", "y_zero_point", "axis"]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.sampled_from("012"), st.booleans(), st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_entry_gives_a_table_or_an_error_of_ours(
    version: str, by_name: bool, entry: Json
) -> None:
    entries: Any = {"a": [entry]} if by_name else [entry]
    section = "encodings" if version == "2" else "param_encodings"
    try:
        message = "" if parsed({"version": f"{version}.0.0", section: entries}).scales else "none"
    except IntactError as error:
        message = str(error)
    assert "\n" not in message


def test_a_range_too_narrow_for_a_scale_is_refused() -> None:
    with pytest.raises(DataError, match=r"activation_encodings\['a'\]: the scale 0.0 is not"):
        form_0({"bitwidth": 8, "min": -5e-324, "max": 0.0})
