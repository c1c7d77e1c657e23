"""An If whose condition is known gives way to the branch that it chooses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from intact.graph import normalize
from intact.graph.passes.control_flow import inline_ifs
from intact.graph.passes.expand import expand
from tests.graph.test_normalize import assert_same_results
from tests.models import ModelBuilder, run_model

Choice = st.sampled_from(["true", "false", "computed", "given"])
NAMES = ("a", "b", "c")


def if_node(
    condition: str,
    bodies: Sequence[tuple[Sequence[onnx.NodeProto], Sequence[str]]],
    outputs: Sequence[str],
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.NodeProto:
    """Make an If from nodes and result names of both branches."""
    graphs = [
        helper.make_graph(
            list(nodes),
            "body",
            [],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results],
            list(constants) if index == 0 else [],
        )
        for index, (nodes, results) in enumerate(bodies)
    ]
    return helper.make_node(
        "If",
        [condition],
        list(outputs),
        then_branch=graphs[0],
        else_branch=graphs[1],
        name=f"if_{outputs[0]}",
    )


class Random:
    """Writes random nodes into nested bodies; sibling bodies use the same names."""

    def __init__(self, data: st.DataObject, builder: ModelBuilder) -> None:
        self.data, self.builder = data, builder
        self.conditions = {
            "true": builder.constant(np.array(True)),
            "false": builder.constant(np.array([False])),
            "given": "flag",
        }
        self.conditions["computed"] = builder.node("Not", self.conditions["true"])

    def body(
        self, depth: int, outer: list[str], count: int
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return nodes and the names of their results."""
        nodes: list[onnx.NodeProto] = []
        visible = list(outer)
        results = []
        for k in range(count):
            name = f"{NAMES[k]}{depth}"
            nodes.append(self.node(depth, visible, name))
            visible.append(name)
            results.append(name)
        return nodes, results

    def node(self, depth: int, visible: list[str], name: str) -> onnx.NodeProto:
        source = self.data.draw(st.sampled_from(visible))
        kind = self.data.draw(st.sampled_from(["Neg", "Add", "Identity", "Constant", "If", "If"]))
        if kind == "If" and depth < 3:
            bodies = [self.body(depth + 1, visible, 2) for _ in range(2)]
            condition = self.conditions[self.data.draw(Choice)]
            return if_node(condition, bodies, [name, f"{name}_more"])
        if kind == "Constant":
            value = numpy_helper.from_array(self.builder.random.normal(size=3).astype("f4"))
            return helper.make_node("Constant", [], [name], value=value, name=f"n_{name}")
        if kind == "Add":
            return helper.make_node("Add", [source, visible[-1]], [name], name=f"n_{name}")
        return helper.make_node(
            kind if kind == "Identity" else "Neg", [source], [name], name=f"n_{name}"
        )


@given(st.data(), st.booleans())
@settings(max_examples=20, deadline=None)
def test_results_stay_with_random_nested_ifs(data: st.DataObject, flag: bool) -> None:
    builder = ModelBuilder(17)
    x = builder.input("x", [3])
    builder.input("flag", [], TensorProto.BOOL)
    random = Random(data, builder)
    nodes, results = random.body(0, [x], 3)
    builder.nodes.extend(nodes)
    for name in results:
        builder.output(name, [3])
    source = builder.build()
    feeds = {"x": builder.random.normal(size=3).astype("f4"), "flag": np.array(flag)}
    graph = normalize(source)
    known = [n for n in graph.model.graph.all_nodes() if n.op_type == "If"]
    assert all(n.inputs[0] is not None and n.inputs[0].const_value is None for n in known)
    result = ir.to_proto(graph.model)
    onnx.checker.check_model(result)
    chosen = expand(graph, ["If"])
    assert all(node.op_type != "If" for node in chosen.nodes)
    for name, array in run_model(source, feeds, results).items():
        np.testing.assert_array_equal(run_model(result, feeds, results)[name], array)
        found = run_model(ir.to_proto(chosen.model), feeds, results)[name]
        np.testing.assert_array_equal(found, array)


def _model(*nodes: onnx.NodeProto, outputs: Sequence[str] = ("y",)) -> onnx.ModelProto:
    builder = ModelBuilder(17)
    builder.input("x", ["batch", 3])
    builder.constant(np.array(True), "yes")
    builder.nodes.extend(nodes)
    for name in outputs:
        builder.output(name)
    return builder.build()


def _node(op_type: str, source: str, out: str) -> onnx.NodeProto:
    return helper.make_node(op_type, [source], [out], name=f"{op_type}_{out}")


def test_nodes_and_tensors_of_a_branch_keep_their_names() -> None:
    inner = [_node("Relu", "x", "inside"), _node("Sigmoid", "inside", "end")]
    other = [_node("Neg", "x", "other")]
    source = _model(if_node("yes", [(inner, ["end"]), (other, ["other"])], ["y"]))
    graph = normalize(source)
    assert [(node.name, node.outputs[0].name) for node in graph.nodes] == [
        ("Relu_inside", "inside"),
        ("Sigmoid_end", "y"),
    ]
    assert_same_results(source, graph)


def test_names_that_two_branches_share_are_told_apart() -> None:
    def branch(op_type: str) -> tuple[list[onnx.NodeProto], list[str]]:
        return [_node("Relu", "x", "t"), _node(op_type, "t", "u")], ["u"]

    pairs = (("Exp", "y"), ("Sin", "z"))
    ifs = [if_node("yes", [branch(op), branch("Neg")], [out]) for op, out in pairs]
    source = _model(*ifs, outputs=("y", "z"))
    graph = normalize(source)
    assert [node.op_type for node in graph.nodes].count("Relu") == 2
    assert_same_results(source, graph)


def test_a_result_may_be_given_twice_and_read_by_both_outputs() -> None:
    body = [_node("Exp", "x", "t")], ["t", "t"]
    source = _model(if_node("yes", [body, body], ["y", "z"]), outputs=("y", "z"))
    x = np.array([[1, 2, 3]], "f4")
    found = run_model(ir.to_proto(normalize(source).model), {"x": x}, ["y", "z"])
    for name in ("y", "z"):  # ONNX Runtime makes only one of them of the given model
        np.testing.assert_allclose(found[name], np.exp(x), rtol=1e-6)


def test_constants_of_a_branch_become_those_of_the_graph() -> None:
    tensor = numpy_helper.from_array(np.array([1, 2, 3], "f4"), "w")
    body = [helper.make_node("Mul", ["x", "w"], ["t"], name="mul")], ["t"]
    other = [_node("Neg", "x", "t")], ["t"]
    source = _model(if_node("yes", [body, other], ["y"], [tensor]))
    graph = normalize(source)
    assert [node.op_type for node in graph.nodes] == ["Mul"]
    assert_same_results(source, graph)


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_that_copies_hands_on_what_is_outside(condition: bool) -> None:
    relu, result = _node("Relu", "x", "r"), _node("Sigmoid", "c", "y")
    copies = [([_node("Identity", name, "i")], ["i"]) for name in ("r", "x")]
    source = _model(relu, if_node("yes", copies, ["c"]), result)
    source.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(condition), "yes"))
    graph = normalize(source)
    assert [node.op_type for node in graph.nodes] == ["Relu"] * condition + ["Sigmoid"]
    assert graph.value("y").producer() is graph.node("Sigmoid_y")
    assert graph.consumers(graph.value("r" if condition else "x"))[-1][0].op_type == "Sigmoid"


def test_an_unknown_condition_stays() -> None:
    builder = ModelBuilder(17)
    builder.input("x", ["batch", 3])
    builder.input("flag", [1], TensorProto.BOOL)
    branches = [([_node(op, "x", "t")], ["t"]) for op in ("Relu", "Neg")]
    builder.nodes.append(if_node("flag", branches, ["y"]))
    builder.output("y")
    model = ir.from_proto(builder.build())
    assert inline_ifs(model) == 0


@pytest.mark.parametrize("shape", [["batch", 4], ["batch", 3, 1]])
def test_branches_of_other_shapes_are_not_chosen_between(shape: list[int | str]) -> None:
    b = ModelBuilder(17)
    x, z = b.input("x", ["batch", 3]), b.input("z", shape)
    b.input("flag", [], TensorProto.BOOL)
    bodies = [([_node("Relu", x, "first")], ["first"]), ([_node("Relu", z, "second")], ["second"])]
    b.nodes.append(if_node("flag", bodies, ["y"]))
    b.output("y", None)
    (node,) = expand(normalize(b.build()), ["If"]).nodes
    assert node.op_type == "If"


def test_branches_of_fewer_results_are_not_chosen_between() -> None:
    b = ModelBuilder(17)
    b.input("x", ["batch", 3])
    b.input("flag", [], TensorProto.BOOL)
    bodies = [([_node(kind, "x", kind)], [kind]) for kind in ("Relu", "Neg")]
    b.nodes.append(if_node("flag", bodies, ["y"]))
    b.output("y", None)
    graph = normalize(b.build())
    (node,) = graph.nodes
    node.attributes["else_branch"].as_graph().outputs.clear()
    assert [each.op_type for each in expand(graph, ["If"]).nodes] == ["If"]


def test_ifs_of_one_name_in_two_bodies_are_written_out() -> None:
    def inner(result: str) -> tuple[list[onnx.NodeProto], list[str]]:
        """An If that bodies side by side have, under one name."""
        branches = [([_node("Neg", "x", "z")], ["z"]), ([_node("Abs", "x", "z")], ["z"])]
        return [if_node("flag", branches, ["inner"]), _node("Neg", "inner", result)], [result]

    b = ModelBuilder(17)
    b.input("x", [3])
    b.input("flag", [], TensorProto.BOOL)
    yes = b.constant(np.array(True))
    # The first is moved out of its body when the graph is normalized, the second by `expand`.
    b.nodes.append(if_node(yes, [inner("p"), inner("q")], ["first"]))
    b.nodes.append(if_node("flag", [inner("r"), inner("s")], ["second"]))
    for name in ("first", "second"):
        b.output(name, [3])
    source = b.build()
    chosen = expand(normalize(source), ["If"])
    assert "If" not in [node.op_type for node in chosen.nodes]
    names = [node.name for node in chosen.nodes]
    assert len(set(names)) == len(names)
    for flag in (True, False):
        feeds = {"x": np.array([-1, 0, 2], np.float32), "flag": np.array(flag)}
        for name, array in run_model(source, feeds).items():
            found = run_model(ir.to_proto(chosen.model), feeds)[name]
            np.testing.assert_array_equal(found, array)


def test_truth_values_are_chosen_between() -> None:
    b = ModelBuilder(17)
    b.input("x", [3])
    b.input("flag", [], TensorProto.BOOL)
    zero = b.constant(np.array(0, "f4"))
    compared = [helper.make_node(kind, ["x", zero], ["t"]) for kind in ("Less", "Greater")]
    b.nodes.append(if_node("flag", [([node], ["t"]) for node in compared], ["chosen"]))
    b.node("Where", "chosen", "x", b.constant(np.array(5, "f4")), out="y")
    b.output("y", [3])
    source = b.build()
    for body in source.graph.node[0].attribute:
        body.g.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    chosen = expand(normalize(source), ["If"])
    assert "If" not in [node.op_type for node in chosen.nodes]
    for flag in (True, False):
        feeds = {"x": np.array([-1, 0, 2], np.float32), "flag": np.array(flag)}
        found = run_model(ir.to_proto(chosen.model), feeds)["y"]
        np.testing.assert_array_equal(found, run_model(source, feeds)["y"])
