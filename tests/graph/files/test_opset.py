"""Old opsets: converted on load, with the same results, or refused by the name of the node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from intact.errors import ModelError
from intact.graph import load_model, normalize
from intact.graph.files.opset import convert_opset
from tests import models
from tests.old_models import OPSETS, OldModel, old_models

CASES = [
    pytest.param(opset, old, weights_are_inputs, id=f"{opset}-{old.name}-{weights_are_inputs}")
    for opset in OPSETS
    for old in old_models(opset)
    for weights_are_inputs in ((False, True) if opset in (7, 10) else (False,))
]
LIGHT_MODELS = ("inception_v1", "resnet50", "shufflenet", "squeezenet", "vgg19")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.parametrize(("opset", "old", "weights_are_inputs"), CASES)
def test_old_models_compute_what_they_did(
    opset: int, old: OldModel, weights_are_inputs: bool
) -> None:
    source = old.build(opset, weights_are_inputs=weights_are_inputs)
    before = source.SerializeToString(deterministic=True)
    x = np.random.default_rng(3).normal(size=old.shape).astype(np.float32)
    expected = models.run_model(source, {"x": x})["y"]
    graph = normalize(source)
    assert source.SerializeToString(deterministic=True) == before
    assert graph.opset == 13
    assert [value.name for value in graph.inputs] == ["x"]
    proto = ir.to_proto(graph.model)
    onnx.checker.check_model(proto)
    actual = models.run_model(proto, {"x": x})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_nodes_that_become_others_keep_their_names_and_values() -> None:
    old = OldModel("up", (1, 1, 2, 2)).node("Upsample", "x", "u", scales=[1.0, 1.0, 2.0, 2.0])
    graph = normalize(old.node("Clip", "u", "y", min=0.0).build(8))
    assert [node.op_type for node in graph.nodes] == ["Resize", "Clip"]
    assert [node.name for node in graph.nodes] == ["my Upsample", "my Clip"]
    assert [node.outputs[0].name for node in graph.nodes] == ["u", "y"]


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_the_onnx_packages_own_models_normalize(name: str) -> None:
    source = onnx.load(LIGHT / f"light_{name}.onnx")
    assert source.opset_import[0].version < 11
    graph = normalize(LIGHT / f"light_{name}.onnx")
    assert graph.opset == 13
    inputs, outputs = ([value.name for value in each] for each in (graph.inputs, graph.outputs))
    constants = {tensor.name for tensor in source.graph.initializer}
    assert inputs == [v.name for v in source.graph.input if v.name not in constants]
    assert outputs == [value.name for value in source.graph.output]


@pytest.mark.parametrize("opset", [1, 6])
def test_older_ones_are_refused(opset: int) -> None:
    source = OldModel("relu", (2, 3)).node("Relu", "x", "y").build(opset)
    with pytest.raises(ModelError, match=f"opset {opset}, the oldest .* is 7; export") as caught:
        load_model(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "says"),
    [
        (
            OldModel("norm", (2, 4))
            .weights(g=[4], b=[4], m=[4], v=[4])
            .node("Relu", "x", "r")
            .node("BatchNormalization", "r g b m v", "y", spatial=0),
            "node 'my BatchNormalization' .*spatial",
        ),
        (OldModel("none", (2, 4)).node("NoSuchOp", "x", "y"), "node 'my NoSuchOp'"),
    ],
)
def test_what_cannot_be_converted_is_named(old: OldModel, says: str) -> None:
    with pytest.raises(ModelError, match=f"has opset 8 and .*{says}.*; export") as caught:
        load_model(old.build(8))
    assert "\n" not in str(caught.value)


def test_the_first_scan_is_refused() -> None:
    body = OldModel("body", (3,)).node("Identity", "x", "y").build(8).graph
    source = OldModel("scan", (1, 2, 3)).build(8)
    source.graph.node.append(
        helper.make_node("Scan", ["", "x"], ["y"], name="old", num_scan_inputs=1, body=body)
    )
    with pytest.raises(ModelError, match="node 'old' \\(Scan\\)"):
        load_model(source)


def test_large_weights_are_not_copied_by_a_conversion() -> None:
    old = OldModel("large", (2, 64)).weights(w=[64, 64]).node("MatMul", "x w", "m")
    source = load_model(old.node("Clip", "m", "y", min=0.0).build(11))
    converted = convert_opset(source, 13)
    weights = [model.graph.initializers["w"].const_value for model in (source, converted)]
    assert weights[0] is weights[1]
    assert [value.name for value in converted.graph.inputs] == ["x"]


def test_functions_stay_where_their_operators_mean_the_same() -> None:
    source = models.local_function()
    converted = ir.to_proto(convert_opset(load_model(source), 21))
    feeds = models.random_inputs(source)
    expected, actual = (models.run_model(model, feeds) for model in (source, converted))
    np.testing.assert_array_equal(actual["result"], expected["result"])


def test_functions_that_would_mean_something_else_are_refused() -> None:
    source = models.local_function()
    body = helper.make_node("ReduceMean", ["x"], ["s"], axes=[1], keepdims=1)
    source.functions[0].node[0].CopyFrom(body)
    with pytest.raises(ModelError, match="function 'Swish' has ReduceMean"):
        convert_opset(load_model(source), 21)


@pytest.mark.parametrize(("axis", "nodes"), [(2, 4), (-1, 1)])
def test_a_softmax_of_unknown_rank_becomes_nodes_of_different_names(axis: int, nodes: int) -> None:
    b = models.ModelBuilder(12)
    x = b.input("x", ["batch", 3, 4])
    lengths = b.input("lengths", ["rank"], 7)
    b.node("Softmax", b.node("Reshape", x, lengths), out="y", axis=axis, name="soft")
    b.output("y")
    source = b.build()
    converted = ir.to_proto(convert_opset(load_model(source), 13))
    names = [node.name for node in converted.graph.node]
    assert len(set(names)) == len(names) == 1 + nodes
    assert "soft" in names
    feeds = {
        "x": np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32),
        "lengths": np.array([2, 2, 6]),
    }
    expected, actual = (models.run_model(model, feeds)["y"] for model in (source, converted))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
