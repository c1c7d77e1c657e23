"""Thresholds of ends that share a scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.numerics.affine_params import params_from_range
from intact.plan import QuantizedGraph
from intact.plan.tie import THRESHOLD_RECTIFY, Follows, Range, largest_threshold, rectifies
from intact.targets import ScaleRule
from tests.models import ModelBuilder
from tests.plans import HEADER, calibrate, config, own_target, planned

THRESHOLDS = st.integers(0, 2**40).map(lambda number: number / 2**20)
ENDS = st.lists(st.tuples(st.integers(2, 16), THRESHOLDS), min_size=1, max_size=5)


@given(ENDS)
def test_the_documents_formula(ends: list[tuple[int, float]]) -> None:
    """In exact arithmetic: unified_scale = t* / 2^(b* - 1), where * has the largest threshold."""
    bits, thresholds = zip(*ends, strict=True)
    at = int(np.argmax(thresholds))
    unified_scale = Fraction(thresholds[at]) / 2 ** (bits[at] - 1)
    expected = [unified_scale * 2 ** (width - 1) for width in bits]
    found = largest_threshold(bits, [(-t, t) for t in thresholds])
    assert [Fraction(high) for _, high in found] == expected
    assert [-Fraction(low) for low, _ in found] == expected


def test_the_documents_add_with_8_and_6_bits() -> None:
    """np.argmax of the thresholds [4, 2] is the first: its scale is 4/128, and 6 bits reach 1."""
    found = THRESHOLD_RECTIFY[Follows.UNION]([8, 6], [(-4.0, 4.0), (-2.0, 2.0)])
    assert found == [(-4.0, 4.0), (-1.0, 1.0)]


@given(st.lists(st.tuples(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30)), min_size=1, max_size=5))
def test_with_equal_widths_it_is_the_union(pairs: list[tuple[float, float]]) -> None:
    ranges = [(min(pair), max(pair)) for pair in pairs]
    union = (min(low for low, _ in ranges), max(high for _, high in ranges))
    assert largest_threshold([8] * len(ranges), ranges) == [union] * len(ranges)


@given(st.lists(st.floats(2.0**-30, 2.0**30), min_size=2, max_size=5))
def test_the_largest_power_of_two_is_that_of_the_largest_threshold(sizes: list[float]) -> None:
    """So it makes no difference whether thresholds are rounded before or after they are unified."""
    scales = [
        params_from_range(-t, t, -127, 127, symmetric=True, power_of_two=True).scale
        for t in [*sizes, max(sizes)]
    ]
    assert max(scales[:-1]) == scales[-1]


def tied_sum(folder: Path, scales: str) -> QuantizedGraph:
    """x + y with ranges -1..3 and -4..2, and their sum."""
    b = ModelBuilder()
    x, y = b.input("x", ["batch", 2]), b.input("y", ["batch", 2])
    b.node("Add", x, y, name="add", out="sum")
    b.output("sum")
    rules = f'[[op]]\nops = ["Add"]\nscales = "{scales}"\n'
    header = HEADER.replace(
        'dtype = "uint8"\nsymmetric = false', 'dtype = "int8"\nsymmetric = true'
    )
    plan = planned(b.build(), own_target(folder, rules, header=header))
    feeds = {"x": np.array([[-1, 3]], np.float32), "y": np.array([[-4, 2]], np.float32)}
    return calibrate(plan, feeds)


def scale(plan: QuantizedGraph, end: str) -> float:
    found = config(plan, end).scale
    assert found is not None
    return float(found)


@pytest.mark.parametrize(
    ("rule", "x", "y", "result"),
    [
        (ScaleRule.FREE, 3, 4, 5),
        (ScaleRule.OUTPUT_FOLLOWS_INPUT, 3, 4, 3),
        (ScaleRule.UNIFY_INPUTS, 4, 4, 5),
        (ScaleRule.UNIFY_ALL, 5, 5, 5),
    ],
)
def test_tied_ends_have_the_largest_threshold(
    tmp_path: Path, rule: ScaleRule, x: float, y: float, result: float
) -> None:
    plan = tied_sum(tmp_path, rule.value)
    ends = ("add.input[0]", "add.input[1]", "add.output[0]")
    steps = plan.target.activation.quant_max + 0.5
    assert [round(scale(plan, end) * steps, 1) for end in ends] == [x, y, result]


@pytest.fixture
def restored() -> Iterator[None]:
    """Put back what the test registers."""
    kept = dict(THRESHOLD_RECTIFY)
    yield
    THRESHOLD_RECTIFY.clear()
    THRESHOLD_RECTIFY.update(kept)


@pytest.mark.usefixtures("restored")
def test_the_registered_function_gives_the_range(tmp_path: Path) -> None:
    before = scale(tied_sum(tmp_path, "unify_all"), "add.output[0]")

    @rectifies(Follows.UNION)
    def doubled(bits: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
        assert bits == [8, 8, 8]
        assert ranges == [(-3.0, 3.0), (-4.0, 4.0), (-5.0, 5.0)]
        return [(-10.0, 10.0)] * 3

    assert scale(tied_sum(tmp_path, "unify_all"), "add.output[0]") == 2 * before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("rule", "expected"), [("unify_all", 4), ("output_follows_input", 5)])
def test_a_function_of_one_operator_comes_before_that_of_the_rule(
    tmp_path: Path, rule: str, expected: float
) -> None:
    before = tied_sum(tmp_path, rule)
    assert all(each.detail.get("follows") != "Add" for each in before.configs.values())

    @rectifies("Add")
    def second(bits: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
        return [ranges[1]] * len(bits)

    @rectifies("Concat")
    def other(_bits: Sequence[int], _ranges: Sequence[Range]) -> list[Range]:
        raise AssertionError

    plan = tied_sum(tmp_path, rule)
    assert config(plan, "add.output[0]").detail["follows"] == "Add"
    assert scale(plan, "add.output[0]") == np.float32(expected / 127)
