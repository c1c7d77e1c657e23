"""A Sum of two tensors becomes an Add."""

from __future__ import annotations

import pytest

from intact.graph import normalize
from tests.graph.test_normalize import assert_same_results
from tests.models import ModelBuilder


@pytest.mark.parametrize(("count", "expected"), [(2, "Add"), (3, "Sum")])
def test_only_a_sum_of_two_becomes_an_add(count: int, expected: str) -> None:
    builder = ModelBuilder()
    x = builder.node("Relu", builder.input("x", ["batch", 3]))
    builder.node("Sum", x, *("x" for _ in range(count - 1)), out="y", name="join")
    builder.output("y")
    graph = normalize(builder.build())
    assert graph.node("join").op_type == expected
    assert_same_results(builder.build(), graph)


def test_the_sides_broadcast_as_before() -> None:
    builder = ModelBuilder()
    x = builder.input("x", ["batch", 3, 4])
    builder.node("Sum", x, builder.weight(3, 1), out="y", name="join")
    builder.output("y")
    graph = normalize(builder.build())
    assert graph.node("join").op_type == "Add"
    assert_same_results(builder.build(), graph)


def test_a_sum_with_zero_is_gone() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.input("x", ["batch", 3]))
    b.node("Neg", b.node("Sum", b.scalar(0), x), out="y")
    b.output("y")
    assert [node.op_type for node in normalize(b.build()).nodes] == ["Relu", "Neg"]
