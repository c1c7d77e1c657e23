"""Normalization keeps results, names, ports and opset, and does what it promises."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import ModelError
from intact.graph import Graph, normalize
from tests import models

CASES = [
    (name, opset)
    for name, model in models.MODELS.items()
    for opset in models.OPSETS
    if opset >= model.since
]
ZOO = ["mlperf_resnet8", "mlperf_vww", "mobilenetv2", "mobilenetv2-raw", "resnet20", "vit"]


def op_counts(graph: Graph) -> Counter[str]:
    return Counter(node.op_type for node in graph.nodes)


def assert_same_results(source: onnx.ModelProto, graph: Graph, *, batch: int = 2) -> None:
    """Compare the graph outputs, and every inner tensor whose name survived."""
    result = ir.to_proto(graph.model)
    made = {value.name for value in graph.values if value.producer() is not None}
    common = [name for node in source.graph.node for name in node.output if name in made]
    ports = [value.name for value in source.graph.output]
    feeds = models.random_inputs(source, batch=batch)
    names = list(dict.fromkeys((*ports, *common)))
    expected = models.run_model(source, feeds, names)
    actual = models.run_model(result, feeds, names)
    for name in names:
        assert actual[name].shape == expected[name].shape, name
        scale = float(np.abs(expected[name]).max()) if expected[name].size else 0.0
        np.testing.assert_allclose(
            actual[name], expected[name], rtol=1e-4, atol=1e-5 * scale + 1e-30
        )


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("name", "opset"), CASES)
def test_nothing_that_matters_changes(name: str, opset: int) -> None:
    source = models.MODELS[name].build(opset)
    before = source.SerializeToString(deterministic=True)
    graph = normalize(source)
    assert source.SerializeToString(deterministic=True) == before
    assert graph.opset == opset
    for ports, kept in (
        (source.graph.input, graph.inputs),
        (source.graph.output, graph.outputs),
    ):
        assert [port.name for port in ports] == [value.name for value in kept]
    for port, value in zip(source.graph.input, graph.inputs, strict=True):
        dimensions = [d.dim_param or d.dim_value for d in port.type.tensor_type.shape.dim]
        assert value.shape is not None
        assert [d.value if isinstance(d, ir.SymbolicDim) else d for d in value.shape] == dimensions
    onnx.checker.check_model(ir.to_proto(graph.model))
    assert_same_results(source, graph)
    assert_same_results(source, graph, batch=3)


@pytest.mark.parametrize(("name", "opset"), [case for case in CASES if case[1] in {11, 18}])
def test_normalizing_twice_changes_nothing(name: str, opset: int) -> None:
    graph = normalize(models.MODELS[name].build(opset))
    assert normalize(graph.model).hash == graph.hash


@pytest.mark.parametrize("name", ZOO)
def test_zoo_models(name: str, zoo: Path) -> None:
    source = onnx.load(zoo / f"{name}.onnx")
    graph = normalize(zoo / f"{name}.onnx")
    assert graph.opset == source.opset_import[0].version
    assert_same_results(source, graph)
    assert normalize(graph.model).hash == graph.hash


def test_raw_export_becomes_the_clean_network(zoo: Path) -> None:
    raw = normalize(zoo / "mobilenetv2-raw.onnx")
    clean = normalize(zoo / "mobilenetv2.onnx")
    assert op_counts(raw) == op_counts(clean)
    assert len(raw.nodes) == 100
    assert len(raw.batch_norms) == 52
    assert op_counts(normalize(zoo / "resnet20.onnx"))["GlobalAveragePool"] == 1
    assert "ReduceMean" not in op_counts(raw) + op_counts(normalize(zoo / "resnet20.onnx"))


def test_transformer_stays_as_it_is(zoo: Path) -> None:
    counts = op_counts(normalize(zoo / "vit.onnx"))
    assert counts["Erf"] == 6
    assert counts["ReduceMean"] == 1  # over tokens
    assert counts["GlobalAveragePool"] == counts["Gelu"] == 0


def test_clutter_is_cleared() -> None:
    graph = normalize(models.clutter(17))
    counts = op_counts(graph)
    gone = ("Constant", "Identity", "Dropout", "Cast", "Slice", "Pad", "Transpose", "Expand")
    assert not set(gone) & set(counts)
    assert counts["Reshape"] == counts["Unsqueeze"] == counts["GlobalAveragePool"] == 1
    for node in graph.nodes:
        if node.op_type == "Conv":
            assert node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"


def test_tiny_epsilons_are_not_taken_for_zero() -> None:
    graph = normalize(models.clutter(17))
    arrays = [array for value in graph.values if (array := graph.constant(value)) is not None]
    floats = {float(array.flat[0]) for array in arrays if array.dtype == np.float32}
    assert float(np.float32(1e-12)) in floats
    assert op_counts(graph)["Add"] == 1


def test_dilated_automatic_pads_are_left_alone() -> None:
    builder = models.ModelBuilder(17)
    x = builder.input("x", ["batch", 1, 8, 8])
    weight = builder.weight(1, 1, 3, 3)
    builder.node("Conv", x, weight, out="y", auto_pad="SAME_UPPER", dilations=[2, 2])
    builder.output("y", ["batch", 1, 8, 8])
    attributes = normalize(builder.build()).nodes[0].attributes
    assert attributes.get_string("auto_pad") == "SAME_UPPER"
    assert "pads" not in attributes


def test_computed_shapes_become_constants() -> None:
    for opset in (11, 13, 17):
        builder = models.ModelBuilder(opset)
        x = builder.input("x", ["batch", 2, 4, 6])
        sizes = builder.node("Shape", x)
        ends = [builder.node("Gather", sizes, builder.ints(axis), axis=0) for axis in (0, 1)]
        target = builder.node("Concat", *ends, builder.ints(24), axis=0)
        builder.node("Reshape", x, target, out="y")
        builder.output("y", ["batch", 2, 24])
        graph = normalize(builder.build())
        assert op_counts(graph) == {"Reshape": 1}
        target_array = graph.constant(graph.nodes[0].inputs[1])
        assert target_array is not None
        assert target_array.tolist() == [-1, 2, 24]
        assert_same_results(builder.build(), graph)


def test_large_weights_are_folded_too() -> None:
    builder = models.ModelBuilder(17)
    x = builder.input("x", ["batch", 300])
    half = builder.constant(np.ones((400, 300), dtype=np.float16), "half")
    weight = builder.node("Transpose", builder.node("Cast", half, to=1), perm=[1, 0])
    builder.node("MatMul", x, weight, out="y", name="product")
    builder.node("Relu", builder.node("MatMul", x, weight), out="z")
    builder.output("y")
    builder.output("z")
    graph = normalize(builder.build())
    assert op_counts(graph) == {"MatMul": 2, "Relu": 1}
    first, second = (node.inputs[1] for node in graph.nodes if node.op_type == "MatMul")
    assert first is second  # shared before, shared after


def test_weights_listed_as_inputs_become_constants() -> None:
    model = models.residual_net(11)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(info)
    graph = normalize(model)
    assert [value.name for value in graph.inputs] == ["image"]
    assert graph.model.ir_version >= 4
    assert_same_results(models.residual_net(11), graph)


def test_control_flow_functions_and_unknown_operators_stay() -> None:
    assert op_counts(normalize(models.control_flow())) == {
        "Conv": 1, "ReduceMax": 1, "Greater": 1, "If": 1, "Sigmoid": 1,
    }  # fmt: skip
    graph = normalize(models.local_function())
    assert [function.name for function in graph.model.functions.values()] == ["Swish"]
    graph = normalize(models.custom_domain())
    assert [node.op_type for node in graph.nodes] == ["Warp", "Conv", "Relu", "NoSuchOperator"]
    assert graph.node("warp").attributes.get_int("power") == 2
    assert graph.model.opset_imports == {"": 17, "my.ops": 3}


def test_types_behind_unknown_operators() -> None:
    graph = normalize(models.custom_domain())
    conv, relu = graph.nodes[1:3]
    assert graph.is_float(conv.outputs[0])
    assert graph.is_float(relu.outputs[0])
    assert not graph.is_float(graph.node("warp").outputs[0])


def test_library_notes_are_removed() -> None:
    graph = normalize(models.clutter(17))
    keys = {key for node in graph.nodes for key in node.metadata_props}
    keys |= {key for value in graph.values for key in value.metadata_props}
    assert not {key for key in keys if key.startswith("pkg.onnxscript")}


def test_libraries_stay_quiet(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    level = logging.getLogger("onnxscript").level
    for name in ("clutter", "detector", "local_function"):
        normalize(models.MODELS[name].build(17))
    normalize(models.custom_domain())
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("onnxscript").level == level


def test_cycles_are_an_error() -> None:
    model = models.odd_names()
    model.graph.node[0].input[0] = "a"
    with pytest.raises(ModelError, match="cycle"):
        normalize(model)


def test_unsorted_nodes_are_sorted() -> None:
    source = models.residual_net()
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(source)
    nodes = list(shuffled.graph.node)[::-1]
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    assert_same_results(source, normalize(shuffled))


def test_dead_nodes_go_and_inputs_stay() -> None:
    builder = models.ModelBuilder(17)
    x = builder.input("x", ["batch", 2])
    builder.input("unused", ["batch", 2])
    builder.node("Relu", x, out="y")
    builder.node("Exp", x, out="dead")
    builder.output("y")
    graph = normalize(builder.build())
    assert [value.name for value in graph.inputs] == ["x", "unused"]
    assert op_counts(graph) == {"Relu": 1}
