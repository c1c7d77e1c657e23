"""Of declared shapes only the inputs' are facts; their open axes have names of their own."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from intact.graph import Graph, normalize
from tests import models
from tests.models import ModelBuilder
from tests.old_models import OldModel


def declared(model: onnx.ModelProto, name: str, shape: list[int | str]) -> onnx.ModelProto:
    """Let a model say of a tensor that it has some shape."""
    claim = helper.make_tensor_value_info(name, 1, shape)
    for output in model.graph.output:
        if output.name == name:
            output.CopyFrom(claim)
            return model
    model.graph.value_info.append(claim)
    return model


def swapped() -> onnx.ModelProto:
    """Reshape ``[4, 6]`` to what is computed: its own lengths, the other way round."""
    b = ModelBuilder(17)
    x = b.input("x", ["rows", "columns"])
    shape = b.node("Shape", x)
    ends = [b.node("Gather", shape, b.ints(axis)) for axis in (1, 0)]
    reshaped = b.node("Reshape", x, b.node("Concat", *ends, axis=0), out="reshaped")
    b.node("MatMul", reshaped, b.weight(4, 3), out="y")
    b.output("y", ["columns", 3])
    return b.build()


def results(model: onnx.ModelProto, graph: Graph, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the model gives, and what the graph does."""
    before, after = (models.run_model(m, {"x": x}) for m in (model, ir.to_proto(graph.model)))
    return before["y"], after["y"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("reshaped", [1, "columns"]), ("y", [1, "n"]), ("y", [2, 9])],
)
def test_no_declared_shape_changes_a_result(name: str, shape: list[int | str]) -> None:
    source = declared(swapped(), name, shape)
    x = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    before, after = results(source, normalize(source), x)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert before.shape == (6, 3)


def test_a_reshape_to_a_declared_output_is_not_made_constant() -> None:
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 8])
    rows = b.input("rows", [2], 7)
    b.node("Reshape", b.node("Relu", x), rows, out="y")
    b.output("y", [1, "length"])
    graph = normalize(b.build())
    reshape = next(node for node in graph.nodes if node.op_type == "Reshape")
    assert reshape.inputs[1] is graph.value("rows")
    shape = graph.outputs[0].shape
    assert shape is not None
    assert all(not isinstance(n, int) and n.value != "length" for n in shape)


def test_a_wrong_shape_does_not_mislead_the_conversion_of_old_models() -> None:
    old = OldModel("softmax", (2, 3, 4)).node("Relu", "x", "r").node("Softmax", "r", "y", axis=1)
    source = declared(old.build(9), "r", [2, 12])
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    before, after = results(source, normalize(source), x)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_open_axes_get_names_of_their_own() -> None:
    b = ModelBuilder(17)
    x = b.input("x", [-1, 3, "?", "?"])
    b.input("other", [-1, "length", "None", 2])
    b.node("Relu", x, out="y")
    b.output("y", [-1, 3, -1, -1])
    graph = normalize(b.build())
    assert [str(value.shape) for value in graph.inputs] == [
        "[batch,3,x_2,x_3]",
        "[batch,length,other_2,2]",
    ]
    assert str(graph.outputs[0].shape) == "[batch,3,x_2,x_3]"
    assert normalize(graph.model).hash == graph.hash


def test_a_name_of_the_model_is_not_taken() -> None:
    b = ModelBuilder(17)
    x = b.input("x", [-1, "batch"])
    b.node("Relu", x, out="y")
    b.output("y")
    assert str(normalize(b.build()).inputs[0].shape) == "[batch_2,batch]"
