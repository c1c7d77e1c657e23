"""Patterns against another definition: two formulas are one where they sort to the same text."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.engines.session import FloatModel
from intact.graph import normalize
from intact.graph.builder import GraphBuilder
from intact.graph.passes.joins import JOINS, join
from intact.graph.passes.pattern import (
    Bindings,
    Pattern,
    behind,
    constant,
    either,
    op,
    search,
    value,
)
from tests.models import ModelBuilder

Formula: TypeAlias = str | float | tuple["str | Formula", ...]
COMMUTE = ("Add", "Mul", "Max")
FLOAT = ir.DataType.FLOAT

LEAVES = st.sampled_from(["x", "y", 0.5, 3.0])
FORMULAS = st.recursive(
    st.tuples(st.sampled_from(["Relu", "Erf"]), LEAVES),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["Relu", "Erf"]), inner),
        st.tuples(st.sampled_from([*COMMUTE, "Sub", "Div"]), inner | LEAVES, inner | LEAVES),
    ),
    max_leaves=6,
)


def sorted_text(formula: Formula) -> str:
    if not isinstance(formula, tuple):
        return str(formula)
    op_type, *inputs = formula
    parts = [sorted_text(each) for each in inputs]
    return f"{op_type}({','.join(sorted(parts) if op_type in COMMUTE else parts)})"


class Written:
    """A graph that computes formulas of x and y; with ``shared`` each part once."""

    def __init__(self, *, shared: bool) -> None:
        self.builder = GraphBuilder()
        self.ends = {name: self.builder.input(name, FLOAT, [2]) for name in "xy"}
        self._shared, self._made = shared, dict[str, ir.Value]()

    def write(self, formula: Formula, draw: st.DataObject) -> ir.Value:
        if isinstance(formula, str):
            return self.ends[formula]
        if isinstance(formula, float):
            return self.builder.number(formula)
        key, (op_type, *inputs) = sorted_text(formula), formula
        if self._shared and key in self._made:
            return self._made[key]
        if op_type in COMMUTE and draw.draw(st.booleans()):
            inputs = inputs[::-1]
        values = [self.write(each, draw) for each in inputs]
        name = draw.draw(st.sampled_from(["", "x", "Relu", "number", "a/b:0", "µ"]))
        self._made[key] = self.builder.node(str(op_type), values, name, shape=[2])
        return self._made[key]

    def pattern(self, formula: Formula) -> Pattern:
        if isinstance(formula, str):
            return value(lambda each: each is self.ends[formula])
        if isinstance(formula, float):
            return constant(lambda array: array.item() == formula)
        op_type, *inputs = formula
        return op(str(op_type), *(self.pattern(each) for each in inputs))


@given(st.lists(FORMULAS, min_size=2, max_size=2), st.booleans(), st.data())
@settings(max_examples=80, deadline=None)
def test_what_is_found_is_the_formula_with_operands_in_any_order(
    formulas: list[Formula], shared: bool, draw: st.DataObject
) -> None:
    written = Written(shared=shared)
    results = [written.write(each, draw) for each in formulas]
    written.builder.graph(results, opset=17)
    for formula in formulas:
        pattern = written.pattern(formula)
        for other, result in zip(formulas, results, strict=True):
            maker = result.producer()
            assert maker is not None
            is_found = pattern.at(maker) is not None
            assert is_found == (sorted_text(other) == sorted_text(formula))


@given(FORMULAS, st.data())
@settings(max_examples=40, deadline=None)
def test_a_sole_value_has_no_other_reader(formula: Formula, draw: st.DataObject) -> None:
    written = Written(shared=False)
    inner = written.write(formula, draw)
    node = written.builder.node("Relu", [inner], "y").producer()
    assert node is not None
    outputs = [node.outputs[0]]
    other = draw.draw(st.sampled_from(["none", "reader", "output"]))
    if other == "reader":
        outputs.append(written.builder.node("Abs", [inner], "reader"))
    elif other == "output":
        outputs.append(inner)
    written.builder.graph(outputs, opset=17)
    assert op("Relu", written.pattern(formula)).at(node) is not None
    assert (op("Relu", written.pattern(formula).sole).at(node) is not None) == (other == "none")


def test_the_same_pattern_is_the_same_value() -> None:
    b = GraphBuilder()
    x, y = (b.input(name, FLOAT, [2]) for name in "xy")
    squares = [b.node("Mul", pair, "square").producer() for pair in ((x, x), (x, y), (y, y))]
    number = b.node("Mul", [b.number(2.0), b.number(2.0)], "square").producer()
    b.graph([], opset=17)
    any_value, other = value(), value()
    found = [each is not None and (any_value * any_value).at(each) for each in (*squares, number)]
    assert [bool(each) for each in found] == [True, False, True, True]
    assert all(each is not None and (any_value * other).at(each) for each in squares)


def test_alternatives_are_tried_until_the_rest_fits() -> None:
    """The first alternative for the left operand fits and has to be given up for the right one."""
    b = GraphBuilder()
    x = b.input("x", FLOAT, [2])
    double = b.node("Mul", [x, b.number(2.0)], "double")
    node = b.node("Sub", [double, x], "y").producer()
    assert node is not None
    b.graph([], opset=17)
    data = value()
    found = (either(data, data * 2.0) - data).at(node)
    assert found is not None
    assert found[data] is x


def test_only_the_whole_of_a_match_counts() -> None:
    b = GraphBuilder()
    x, number = b.input("x", FLOAT, [2]), constant()
    first = b.node("Relu", [x], "a")
    scaled = b.node("Mul", [first, b.number(2.0)], "b")
    b.node("Add", [b.number(1.0), scaled], "c")
    again = b.node("Relu", [scaled], "d")
    b.graph([], opset=17)
    product = op("Relu", value())
    pattern = either(either(product, product * number) + constant(), product * number, product)
    names = [found.node(pattern).name for found in search(b.nodes, pattern)]
    assert names == ["c", again.name]


def test_inputs_that_are_left_out_or_more() -> None:
    b = GraphBuilder()
    x = b.input("x", FLOAT, [2])
    clips = [
        b.node("Clip", inputs, "clip").producer()
        for inputs in ([x], [x, b.number(0.0)], [x, None, b.number(6.0)])
    ]
    b.graph([], opset=17)
    lower, optional = op("Clip", value(), 0.0), op("Clip", value(), constant(optional=True))
    of_other = ir.node("Clip", [x], domain="other")
    for node, is_lower, is_optional in zip(
        (*clips, of_other), (0, 1, 0, 0), (1, 1, 0, 0), strict=True
    ):
        assert node is not None
        assert (lower.at(node) is not None, optional.at(node) is not None) == (
            bool(is_lower),
            bool(is_optional),
        )


def test_a_value_is_seen_behind_what_hands_it_on() -> None:
    b = GraphBuilder()
    x = b.input("x", FLOAT, [2])
    moved = x
    for op_type in ("Identity", "Squeeze", "Identity"):
        moved = b.node(op_type, [moved], "moved")
    node, data = b.node("Relu", [moved], "y").producer(), value()
    assert node is not None
    seen = behind(lambda each: each.op_type == "Identity", data)
    found = op("Relu", seen).at(node)
    assert found is not None
    assert found.node(data).op_type == "Squeeze"
    with pytest.raises(KeyError):
        found.array(data)
    assert Bindings().get(data) is None


def test_joined_operators_share_constants_and_keep_odd_names() -> None:
    """Two Gelus with one set of constants, whose new names are in use; a part is an output."""
    b = ModelBuilder(17)
    half, one, root = b.scalar(0.5), b.scalar(1.0), b.scalar(np.sqrt(0.5))
    x = b.input("x", ["batch", 8])
    for name, data in (("y", x), ("y_gelu", "y")):
        added = b.node("Add", one, b.node("Erf", b.node("Mul", root, data)), out=f"{name}_sum")
        product = b.node("Mul", added, data, name=f"{name}_gelu_1")
        b.node("Mul", half, product, out=name, name=name)
        b.output(name, ["batch", 8])
    graph = normalize(b.build())
    joined = join(graph, JOINS["Gelu"])
    assert [node.op_type for node in joined.nodes] == ["Gelu", "Gelu"]
    assert [value.name for value in joined.outputs] == ["y", "y_gelu"]
    feeds = {"x": np.random.default_rng(0).normal(0, 2, (4, 8)).astype(np.float32)}
    wanted, found = (FloatModel(each, threads=1).run(feeds) for each in (graph, joined))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    b.output("y_sum", ["batch", 8])
    kept = join(normalize(b.build()), JOINS["Gelu"])
    assert [node.op_type for node in kept.nodes].count("Gelu") == 1
