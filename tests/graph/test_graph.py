"""The view: names, consumers, constants, the hash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import ModelError
from intact.graph import IMPLICIT_SLOT, BatchNorm, Graph, normalize
from tests import models


@pytest.fixture(scope="module")
def residual() -> Graph:
    return normalize(models.residual_net())


def test_ports_and_nodes(residual: Graph) -> None:
    assert [value.name for value in residual.inputs] == ["image"]
    assert [value.name for value in residual.outputs] == ["logits"]
    assert residual.opset == 17
    written: set[ir.Value | None] = {*residual.inputs}
    for node in residual.nodes:
        computed = {value for value in node.inputs if residual.constant(value) is None}
        assert computed <= written
        written.update(node.outputs)


def test_nodes_and_values_by_name(residual: Graph) -> None:
    for node in residual.nodes:
        assert node.name is not None
        assert residual.node(node.name) is node
    assert residual.value("image") is residual.inputs[0]
    with pytest.raises(ModelError, match="no node 'Gem_logits'; did you mean 'Gemm_logits'"):
        residual.node("Gem_logits")
    with pytest.raises(ModelError, match="no tensor 'imag'; did you mean 'image'"):
        residual.value("imag")


def test_constants_are_read_only(residual: Graph) -> None:
    gemm = residual.node("Gemm_logits")
    weight = residual.constant(gemm.inputs[1])
    assert weight is not None
    assert weight.shape == (5, 8)
    assert residual.constant(gemm.inputs[1]) is weight
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1
    assert residual.constant(gemm.inputs[0]) is None
    assert residual.constant(None) is None


def test_consumers_in_order_with_slots(residual: Graph) -> None:
    add = next(node for node in residual.nodes if node.op_type == "Add")
    for slot, value in enumerate(add.inputs):
        assert value is not None
        assert (add, slot) in residual.consumers(value)
    assert residual.consumers(residual.outputs[0]) == ()
    assert len(residual.consumers(add.inputs[0] or add.outputs[0])) == 2


def test_one_node_reading_a_value_twice() -> None:
    builder = models.ModelBuilder()
    x = builder.input("x", ["batch", 2])
    builder.node("Mul", x, x, out="y", name="square")
    builder.output("y")
    graph = normalize(builder.build())
    assert [(n.name, s) for n, s in graph.consumers(graph.inputs[0])] == [
        ("square", 0),
        ("square", 1),
    ]


def test_bodies_are_consumers() -> None:
    graph = normalize(models.control_flow())
    convolution = next(node for node in graph.nodes if node.op_type == "Conv")
    branch = next(node for node in graph.nodes if node.op_type == "If")
    assert (branch, IMPLICIT_SLOT) in graph.consumers(convolution.outputs[0])


def test_is_float() -> None:
    builder = models.ModelBuilder()
    x = builder.input("x", ["batch", 2])
    builder.output(builder.node("Cast", builder.node("Shape", x), to=onnx.TensorProto.FLOAT))
    graph = normalize(builder.build())
    shape = next(node for node in graph.nodes if node.op_type == "Shape")
    assert graph.is_float(graph.inputs[0])
    assert not graph.is_float(shape.outputs[0])
    assert not graph.is_float(None)
    assert not graph.is_float(ir.Value(name="unknown"))


def test_equal_names_are_refused() -> None:
    with pytest.raises(ModelError, match="nodes without a unique name; normalize"):
        Graph(ir.from_proto(models.odd_names()))
    model = ir.from_proto(models.residual_net())
    next(iter(model.graph)).outputs[0].name = "image"
    with pytest.raises(ModelError, match="values without a unique name"):
        Graph(model)


def test_clones_do_not_share_changes(residual: Graph) -> None:
    before = residual.hash
    copy = residual.clone()
    assert copy.hash == before
    first = copy.model.graph.initializers[next(iter(copy.model.graph.initializers))]
    first.name = "renamed"
    copy.nodes[0].attributes["pads"] = ir.AttrInt64s("pads", [0, 0, 0, 0])
    assert Graph(copy.model).hash != before
    assert Graph(residual.model).hash == before


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_saving_keeps_hash_and_memory(name: str, tmp_path: Path) -> None:
    graph = normalize(models.MODELS[name].build(17))
    graph.save(tmp_path / "model.onnx")
    again = Graph.load(tmp_path / "model.onnx")
    assert again.hash == graph.hash
    assert again.batch_norms.keys() == graph.batch_norms.keys()
    for node, norm in graph.batch_norms.items():
        for field in ("gamma", "beta", "mean", "variance"):
            array = getattr(again.batch_norms[node], field)
            np.testing.assert_array_equal(array, getattr(norm, field))
        assert again.batch_norms[node].epsilon == norm.epsilon


def test_hash_ignores_what_a_file_may_change() -> None:
    source = models.residual_net()
    expected = Graph(ir.from_proto(source)).hash
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(source)
    tensors = list(shuffled.graph.initializer)[::-1]
    del shuffled.graph.initializer[:]
    shuffled.graph.initializer.extend(tensors)
    shuffled.producer_name = "someone"
    shuffled.doc_string = "notes"
    shuffled.graph.node[0].doc_string = "more notes"
    assert Graph(ir.from_proto(shuffled)).hash == expected
    raw = onnx.numpy_helper.to_array(shuffled.graph.initializer[0])
    shuffled.graph.initializer[0].ClearField("raw_data")
    shuffled.graph.initializer[0].float_data.extend(raw.flatten())
    assert Graph(ir.from_proto(shuffled)).hash == expected


def _other_weight(model: onnx.ModelProto) -> None:
    array = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    array.flat[0] = np.nextafter(array.flat[0], np.float32(1e9))
    model.graph.initializer[0].raw_data = array.tobytes()


def _other_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute[0].i = 1 - model.graph.node[0].attribute[0].i


def _other_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version += 1


def _other_name(model: onnx.ModelProto) -> None:
    model.graph.node[0].name += "x"


def _other_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 9


@pytest.mark.parametrize(
    "change", [_other_weight, _other_attribute, _other_opset, _other_name, _other_input]
)
def test_hash_sees_every_difference(change: object) -> None:
    model = models.residual_net()
    before = Graph(ir.from_proto(model)).hash
    assert callable(change)
    change(model)
    assert Graph(ir.from_proto(model)).hash != before


def test_hash_sees_bodies() -> None:
    model = models.control_flow()
    before = Graph(ir.from_proto(model)).hash
    model.graph.node[3].attribute[0].g.node[0].op_type = "Tanh"
    assert Graph(ir.from_proto(model)).hash != before


def test_hash_sees_functions() -> None:
    model = models.local_function()
    before = Graph(ir.from_proto(model)).hash
    model.functions[0].node[0].op_type = "Tanh"
    assert Graph(ir.from_proto(model)).hash != before


def test_broken_memory_is_an_error() -> None:
    graph = normalize(models.batch_norm_net())
    name = next(iter(graph.batch_norms))
    assert isinstance(graph.batch_norms[name], BatchNorm)
    for text in ("no json", "{}", '{"gamma": "?", "beta": "", "mean": "", "variance": ""}', "[]"):
        graph.node(name).metadata_props["intact.batch_norm"] = text
        with pytest.raises(ModelError, match="cannot be read; normalize the original"):
            _ = Graph(graph.model).batch_norms
