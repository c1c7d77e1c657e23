"""Windows get the pads that ONNX Runtime computes for pools that round up, and for ``auto_pad``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from tests.models import ModelBuilder, run_model

Lengths = tuple[int, ...]


def pools(
    kinds: list[tuple[str, dict[str, Any]]], sizes: Lengths | tuple[str, ...], opset: int
) -> onnx.ModelProto:
    """Pools in a chain, each behind a Relu."""
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 2, *sizes])
    for kind, attributes in kinds:
        x = b.node(kind, b.node("Relu", x), ceil_mode=1, **attributes)
    b.node("Relu", x, out="y")
    b.output("y", ["batch", 2, *(f"out{k}" for k in range(len(sizes)))])
    return b.build()


def rounding_up(graph: Graph) -> list[str]:
    return [str(n.name) for n in graph.nodes if n.attributes.get_int("ceil_mode", 0)]


def one_by_one(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Run node by node: no shape is inferred over more than one pool, nor planned for."""
    arrays = {"x": x}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for node in model.graph.node:
        (source,), (result,) = node.input, node.output
        ends = [
            onnx.helper.make_tensor_value_info(source, 1, arrays[source].shape),
            onnx.helper.make_tensor_value_info(result, 1, None),
        ]
        graph = onnx.helper.make_graph([node], "one", ends[:1], ends[1:])
        single = onnx.helper.make_model(
            graph, opset_imports=model.opset_import, ir_version=model.ir_version
        )
        session = onnxruntime.InferenceSession(single.SerializeToString(), options)
        (arrays[result],) = session.run(None, {source: arrays[source]})
    return arrays["y"]


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[str, dict[str, Any]], Lengths]:
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    kind = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [draw(st.integers(1, 5)) for _ in kernel],
        "pads": [draw(st.integers(0, each - 1)) for each in (*kernel, *kernel)],
    }
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    sizes = tuple(draw(st.integers(each, 12)) for each in kernel)
    return (kind, attributes), sizes


@settings(max_examples=30, deadline=None)
@given(windows(), st.sampled_from([11, 13, 21, 22]))
def test_the_numbers_and_the_shape_are_those_of_the_runtime(
    drawn: tuple[tuple[str, dict[str, Any]], Lengths], opset: int
) -> None:
    pool, sizes = drawn
    model = pools([pool], sizes, opset)
    x = np.random.default_rng(1).normal(0.5, 1, (2, 2, *sizes)).astype(np.float32)
    wanted = one_by_one(model, x)
    graph = normalize(model)
    assume(not rounding_up(graph))
    assert list(graph.outputs[0].shape or ())[2:] == list(wanted.shape[2:])
    found = FloatModel(graph, threads=1).run({"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


SHORT = ("MaxPool", {"kernel_shape": [3], "strides": [4], "pads": [1, 1]})
"""10 elements give three windows; ONNX's inference below opset 22 counts four."""


def test_lengths_behind_several_are_right() -> None:
    model = pools([SHORT, SHORT, ("AveragePool", {"kernel_shape": [2]})], (42,), 13)
    x = np.random.default_rng(0).uniform(size=(1, 2, 42)).astype(np.float32)
    wanted, graph = one_by_one(model, x), normalize(model)
    assert rounding_up(graph) == []
    assert [list(n.outputs[0].shape or ())[2] for n in graph.nodes] == [42, 11, 11, 3, 3, 2, 2]
    np.testing.assert_allclose(FloatModel(graph, threads=1).run({"x": x})["y"], wanted, rtol=1e-6)


def test_wrong_lengths_that_the_file_declares_are_corrected() -> None:
    inferred = onnx.shape_inference.infer_shapes(pools([SHORT], (10,), 13))
    declared = {v.name: v.type.tensor_type.shape.dim[2] for v in inferred.graph.value_info}
    assert 4 in [dim.dim_value for dim in declared.values()]  # or ONNX counts well by now
    graph = normalize(inferred)
    assert list(graph.outputs[0].shape or ())[2:] == [3]


def test_open_lengths_stay_as_they_are() -> None:
    graph = normalize(pools([SHORT], ("length",), 13))
    assert len(rounding_up(graph)) == 1


def test_pads_that_count_become_a_pad() -> None:
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    graph = normalize(pools([("AveragePool", attributes | {"count_include_pad": 1})], (6, 7), 17))
    assert [n.op_type for n in graph.nodes] == ["Relu", "Pad", "AveragePool", "Relu"]
    pool = graph.nodes[2]
    assert pool.attributes["pads"].as_ints() == (0, 0, 1, 0)
    assert all(value.shape is not None for value in graph.values)


def self_padded(op_type: str, mode: str, kernel: int, stride: int, length: int) -> onnx.ModelProto:
    """A window over images of two unlike lengths that pads by itself."""
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 3, length, 7])
    weights = [b.weight(3, 2, kernel, 3)] if op_type == "ConvTranspose" else []
    y = b.node(
        op_type,
        *(b.node("Relu", x), *weights),
        kernel_shape=[kernel, 3],
        strides=[stride, 2],
        auto_pad=mode,
    )
    b.output(b.node("Neg", y))
    return b.build()


@pytest.mark.crossed
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool", "ConvTranspose"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_windows_that_pad_by_themselves_get_the_pads_of_the_runtime(
    op_type: str, mode: str
) -> None:
    for kernel, stride, length in [(2, 2, 7), (3, 1, 6), (4, 3, 8), (3, 2, 5), (1, 1, 4)]:
        model = self_padded(op_type, mode, kernel, stride, length)
        x = np.random.default_rng(0).normal(size=(2, 3, length, 7)).astype(np.float32)
        (expected,) = run_model(model, {"x": x}).values()
        graph = normalize(model)
        assert not any("auto_pad" in node.attributes for node in graph.nodes)
        (found,) = run_model(ir.to_proto(graph.model), {"x": x}).values()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_windows_of_unknown_length_keep_padding_by_themselves() -> None:
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 3, "height", 8])
    b.output(b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"))
    (node,) = normalize(b.build()).nodes
    assert node.attributes.get_string("auto_pad") == "SAME_UPPER"


@pytest.mark.runtime_fact("openvino")
def test_openvino_computes_transposed_convolutions_that_pad_by_themselves() -> None:
    """Of the given model it makes another shape."""
    openvino = pytest.importorskip("openvino")
    model = self_padded("ConvTranspose", "SAME_UPPER", 3, 1, 6)
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 7)).astype(np.float32)
    (expected,) = run_model(model, {"x": x}).values()
    written = ir.to_proto(normalize(model).model).SerializeToString()
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(written), "CPU", settings)
    np.testing.assert_allclose(compiled({"x": x})[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("wanted", [(9, 12), (8, 11), (7, 9), (12, 12)])
@pytest.mark.parametrize("extra", [(), (1, 0)])
def test_lengths_of_transposed_convolutions_become_pads(
    auto_pad: str, wanted: Lengths, extra: Lengths
) -> None:
    b = ModelBuilder(17)
    options: dict[str, Any] = {"output_padding": extra} if extra else {}
    weight = b.weight(2, 3, 3, 2)
    sizes: dict[str, Any] = {"output_shape": wanted, "strides": (2, 3), "auto_pad": auto_pad}
    b.node("ConvTranspose", b.input("x", ["batch", 2, 5, 4]), weight, out="y", **sizes, **options)
    b.output("y", ["batch", 3, *wanted])
    model = b.build()
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 2, 5, 4)).astype(np.float32)}
    graph = normalize(model)
    (found,) = run_model(ir.to_proto(graph.model), feeds).values()
    (expected,) = run_model(model, feeds).values()
    np.testing.assert_array_equal(found, expected)
    is_reached = wanted[0] <= 11 + sum(extra[:1]) and wanted[1] <= 11
    assert ("output_shape" in graph.nodes[0].attributes) is not is_reached
