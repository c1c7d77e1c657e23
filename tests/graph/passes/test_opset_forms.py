"""Operators whose meaning depends on the opset, before and after what newer opsets need."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.graph import Graph, normalize
from intact.graph.files.opset import convert_opset
from tests import models, opset_nets

NEWER = 21
"""The newest opset that a written model needs."""


@pytest.mark.parametrize("opset", opset_nets.OPSETS)
def test_every_operator_that_changed_computes_the_same_in_newer_opsets(opset: int) -> None:
    source = opset_nets.net(opset)
    feeds = {"x": np.random.default_rng(opset).normal(size=(2, *opset_nets.SHAPE))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    expected = models.run_model(source, feeds)
    graph = normalize(source)
    found = [graph.model]
    if graph.opset < NEWER:
        found.append(convert_opset(graph.model, NEWER))
    for model in found:
        actual = models.run_model(ir.to_proto(model), feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(actual[name], array, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize("opset", [11, 12, 18, 20])
def test_a_raised_opset_changes_no_node_that_is_planned(opset: int) -> None:
    graph = normalize(opset_nets.net(opset))
    raised = {str(node.name): node for node in convert_opset(graph.model, NEWER).graph}
    for node in graph.nodes:
        twin = raised[str(node.name)]
        assert twin.op_type == node.op_type
        kept = [None if value is None else value.name for value in node.inputs]
        assert [None if value is None else value.name for value in twin.inputs][: len(kept)] == kept
        assert [value.name for value in twin.outputs] == [value.name for value in node.outputs]


def _softmax(opset: int, shape: list[int | str], axis: int) -> Graph:
    b = models.ModelBuilder(opset)
    b.node("Softmax", b.input("x", shape), out="y", axis=axis, name="soft")
    b.output("y")
    return normalize(b.build())


@pytest.mark.parametrize("opset", [8, 11, 12])
@pytest.mark.parametrize(
    ("shape", "axis", "along"),
    [
        (["N", 6, 1, 1], 1, 1),
        (["N", 1, 6, 1], 1, 2),
        (["N", 6], 1, 1),
        (["N", 3, 6], 2, 2),
        (["N", 3, 1], 2, 2),
    ],
)
def test_axes_of_length_one_need_no_flattening(
    opset: int, shape: list[int | str], axis: int, along: int
) -> None:
    graph = _softmax(opset, shape, axis)
    assert [node.op_type for node in graph.nodes] == ["Softmax"]
    assert graph.nodes[0].attributes.get_int("axis", 0) in (along, along - len(shape))


def test_several_axes_become_one_under_the_given_names() -> None:
    graph = _softmax(11, ["N", 3, 6], 1)
    assert Counter(node.op_type for node in graph.nodes) == {
        "Flatten": 1,
        "Softmax": 1,
        "Reshape": 1,
    }
    assert graph.node("soft").op_type == "Softmax"
    assert graph.value("y").producer() is graph.nodes[-1]


def test_bodies_mean_the_same_too() -> None:
    b = models.ModelBuilder(11)
    x = b.input("x", ["N", 3, 4])
    wanted = b.node("Greater", b.node("ReduceSum", x, keepdims=0), b.scalar(0.0))
    branches = {}
    for name, axis in (("then_branch", 1), ("else_branch", 2)):
        inside = onnx.helper.make_node("Softmax", ["x"], [f"{name}_y"], axis=axis)
        value = onnx.helper.make_tensor_value_info(f"{name}_y", onnx.TensorProto.FLOAT, None)
        branches[name] = onnx.helper.make_graph([inside], name, [], [value])
    b.node("If", wanted, out="y", **branches)
    b.output("y")
    source = b.build()
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32) ** 2}
    expected = models.run_model(source, feeds)["y"]
    for model in (normalize(source).model, convert_opset(normalize(source).model, 13)):
        np.testing.assert_allclose(
            models.run_model(ir.to_proto(model), feeds)["y"], expected, rtol=1e-5
        )
