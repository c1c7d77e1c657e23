"""Where chains of layers end: what must not be scaled is left alone."""

from __future__ import annotations

import pytest

from intact.improve.rewrite.equalize import notes
from tests.improve.rewrite.networks import ENDS, KEEPS, assert_same, conv, mobile, pair
from tests.models import ModelBuilder


@pytest.mark.parametrize("between", ENDS)
def test_near_misses_are_left_alone(between: str) -> None:
    before, after = assert_same(pair(ENDS[between]))
    assert before.hash == after.hash


def test_a_result_that_is_shown_is_left_alone() -> None:
    before, after = assert_same(pair(KEEPS["relu"], show=True))
    assert before.hash == after.hash


def test_relu6_is_said() -> None:
    before, after = assert_same(mobile(ENDS["relu6"]))
    assert any("7 Clip node(s)" in line for line in notes(before))
    # Only nothing-in-between could link; there is a Clip behind every layer here.
    assert before.hash == after.hash


def test_weights_that_others_read_are_left_alone() -> None:
    b = ModelBuilder(seed=2)
    shared = b.weight(2, 2, 1, 1)
    x = b.node("Conv", b.input("image", ["n", 2, 2, 2]), shared)
    b.node("Conv", b.node("Relu", x), shared, out="y")
    b.output("y")
    before, after = assert_same(b.build())
    assert before.hash == after.hash


def test_a_weight_that_is_shown_is_left_alone() -> None:
    b = ModelBuilder(seed=2)
    shown = b.weight(2, 2, 1, 1)
    x = b.node("Conv", b.input("image", ["n", 2, 2, 2]), shown)
    b.node("Conv", b.node("Relu", x), b.weight(2, 2, 1, 1), out="y")
    b.output(shown)
    b.output("y")
    before, after = assert_same(b.build())
    assert before.hash == after.hash


def test_a_relu_that_is_shown_or_read_twice_is_left_alone() -> None:
    b = ModelBuilder(seed=2)
    x = b.node("Relu", conv(b, b.input("image", ["n", 2, 4, 4]), 2, 6, "first"))
    y = b.node("Relu", conv(b, x, 6, 6, "second"))
    b.output(b.node("Add", x, y))
    z = b.node("Relu", conv(b, y, 6, 6, "third"), out="z")
    b.output(z)
    b.output(conv(b, z, 6, 2, "last"))
    before, after = assert_same(b.build())
    assert before.hash == after.hash


def test_rows_that_become_columns_and_pools_across_channels_end_a_chain() -> None:
    b = ModelBuilder(seed=2)
    x = b.node("Relu", b.node("Gemm", b.input("a", [4, 5]), b.weight(5, 4), b.weight(4)))
    b.output(b.node("Gemm", x, b.weight(4, 3), transA=1))
    x = b.node("MatMul", b.input("b", [4, 3, 5]), b.weight(5, 6))
    x = b.node("MaxPool", x, kernel_shape=[3], pads=[1, 1])
    b.output(b.node("MatMul", x, b.weight(6, 2)))
    x = b.node("Conv", b.input("c", [1, 2, 2, 2]), b.weight(6, 2, 1, 1))
    b.output(b.node("Gemm", b.node("Reshape", x, b.ints(-1, 6)), b.weight(6, 2)))
    before, after = assert_same(b.build())
    assert before.hash == after.hash
