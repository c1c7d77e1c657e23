"""Open axes of inputs: shapes that are given, that samples have, and that are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact
from intact.errors import UsageError
from intact.graph import normalize
from intact.results.result import Result
from tests.half import halved
from tests.models import ModelBuilder


def model() -> onnx.ModelProto:
    """A convolution of [N, 3, H, W], then rows of W * 4, of which Shape computes the length."""
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    arrays = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.array([0], np.int64), "zero"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
        numpy_helper.from_array(np.array([-1], np.int64), "rest"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Shape", ["r"], ["sizes"], "shape"),
        helper.make_node("Slice", ["sizes", "zero", "one"], ["batch"], "slice"),
        helper.make_node("Concat", ["batch", "rest"], ["to"], "concat", axis=0),
        helper.make_node("Reshape", ["r", "to"], ["y"], "reshape"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "H", "W"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "L"])]
    graph = helper.make_graph(nodes, "open", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(height: int = 6, width: int = 8, count: int = 4) -> np.ndarray:
    shape = (count, 3, height, width)
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def sizes(result: Result) -> list[object]:
    return [d if isinstance(d, int) else None for d in result.plan.graph.inputs[0].shape or ()]


def test_formats_of_fixed_sizes_get_those_of_the_samples() -> None:
    found = intact.quantize_for(model(), images(), targets=["onnxruntime", "tengine"])
    assert sizes(found["onnxruntime"]) == [None, 3, None, None]
    assert sizes(found["tengine"])[1:] == [3, 6, 8]
    assert "Shape" not in {node.op_type for node in found["tengine"].plan.graph.nodes}


def gated() -> onnx.ModelProto:
    """A HardSigmoid of [N, 4], divided by the number of its elements."""
    nodes = [
        helper.make_node("HardSigmoid", ["x"], ["h"], "gate"),
        helper.make_node("Size", ["h"], ["size"], "size"),
        helper.make_node("Cast", ["size"], ["count"], "count", to=TensorProto.FLOAT),
        helper.make_node("Div", ["h", "count"], ["y"], "divide"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "gated", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("named", ["size", "Size"])
def test_what_computes_sizes_may_be_named_where_they_are_fixed(named: str) -> None:
    samples = np.linspace(-4, 4, 16, dtype=np.float32).reshape(4, 4)

    def fixed(**options: Any) -> Result:
        return intact.quantize(gated(), samples, target="tflite", io="float", **options)

    plain = fixed().plan
    assert "Size" not in {node.op_type for node in plain.graph.nodes}
    kept = fixed(keep_float=[named, "gate_Mul"], allow_empty=True).plan
    assert not kept.is_quantized(kept.graph.node("gate_Mul"))
    assert fixed(bits={"size.output": 8}).plan.configs.keys() == plain.configs.keys()
    with pytest.raises(UsageError, match="no such node or op type"):
        fixed(keep_float=["sizes"])


def test_a_model_is_inspected_as_it_would_be_quantized(tmp_path: Path) -> None:
    def types(**options: Any) -> set[str]:
        return {row.op_type for row in intact.inspect(gated(), **options).nodes}

    assert types() == {"HardSigmoid", "Size", "Cast", "Div"}
    assert types(input_shape={"": (2, 4)}) == {"HardSigmoid", "Mul"}
    assert types(input_shape={"": (2, 4)}, expand=["HardSigmoid"]) == {"Mul", "Add", "Clip"}
    with pytest.raises(UsageError, match=r"'x=\?,5' contradicts the model"):  # quoted to be pasted
        intact.inspect(gated(), input_shape={"x": (None, 5)})
    intact.quantize(model(), images(), output=tmp_path / "out")
    for options in ({"expand": ["Div"]}, {"input_shape": {"x": (2, 3, 6, 8)}}):
        with pytest.raises(UsageError, match="its operators, shapes, widths and float nodes are"):
            intact.inspect(tmp_path / "out", **options)


def test_a_size_with_a_name_is_set_wherever_it_has_that_name() -> None:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", "L"]) for n in "xyz"]
    nodes = [helper.make_node("Add", ["x", "y"], ["z"], "add")]
    graph = helper.make_graph(nodes, "named", ports[:2], ports[2:])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = normalize(source, {"x": (None, 5)})
    assert [str(value.shape) for value in (*found.inputs, *found.outputs)] == ["[N,5]"] * 3


def test_samples_of_an_iterator_are_all_read() -> None:
    def batches() -> Iterator[dict[str, np.ndarray]]:
        for each in images():
            yield {"x": each[None]}

    found = intact.quantize(model(), batches(), target="tengine")
    assert sizes(found)[1:] == [3, 6, 8]
    assert found.statistics is not None
    assert found.statistics["x"].samples == 4


def test_given_shapes_are_written_for_every_target() -> None:
    found = intact.quantize(model(), images(), input_shape={"x": [1, 3, 6, 8]})
    assert sizes(found) == [1, 3, 6, 8]
    assert "Shape" not in {node.op_type for node in found.plan.graph.nodes}
    assert "input_shape" in found.recipe
    found = intact.quantize(model(), images(), input_shape={"": [None, 3, 6, None]})
    assert sizes(found) == [None, 3, 6, None]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"x": [1, 4, 6, 8]}, r"contradicts the model, whose input is \[\?, 3, \?, \?\]"),
        ([1, 3, 6], "contradicts the model"),
        ({"z": [1, 3, 6, 8]}, "no such input; known: x"),
        ({"x": [0, 3, 6, 8]}, "give sizes by name"),
    ],
)
def test_shapes_that_contradict_the_model_are_refused(shape: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        intact.quantize(model(), images(), input_shape=shape)  # type: ignore[arg-type]


def test_drawn_inputs_have_the_shapes_that_calibration_saw() -> None:
    mixed = [{"x": images(6, 8)}, {"x": images(5, 7, 2)}]
    for batches in (mixed, mixed[::-1]):
        result = intact.quantize(model(), batches)
        assert result.plan.provenance.input_shapes == {"x": (1, 3, 6, 8)}
        feeds, _ = next(result.draw_samples(2).batches(1))
        assert feeds["x"].shape == (1, 3, 6, 8)
    assert intact.verify(result, samples=2).samples == 2


@pytest.mark.parametrize(
    ("target", "package"),
    [
        ("tflite", "ai_edge_litert"),
        ("ncnn", "ncnn"),
        ("tengine", "numpy"),
        ("onnxruntime", "onnxruntime"),
    ],
)
def test_half_models_take_what_their_format_has(target: str, package: str) -> None:
    pytest.importorskip(package)
    b = ModelBuilder()
    b.conv(b.node("Relu", b.conv(b.input("x", ["N", 3, 8, 8]), 3, 4)), 4, 4)
    b.nodes[-1].output[0] = "y"
    b.output("y")
    x = images(8, 8).astype(np.float16)
    result = intact.quantize(halved(b.build()), x, target=target, preset="fast")
    has_half = target == "onnxruntime"
    assert all((n.op_type == "Cast") <= has_half for n in result.plan.graph.nodes)
    assert str(result.plan.graph.inputs[0].dtype) == ("FLOAT16" if has_half else "FLOAT")
    (note,) = (str(each) for each in result.plan.notes if "float16" in str(each))
    assert ("stay" if has_half else "outputs are float32") in note


def decoder() -> onnx.ModelProto:
    """Scores the next of 20 tokens; what is padded is seen by none."""
    b = ModelBuilder(18)
    ids = b.input("input_ids", ["batch", "sequence"], onnx.TensorProto.INT64)
    mask = b.input("attention_mask", ["batch", "sequence"], onnx.TensorProto.INT64)
    x = b.node("Gather", b.weight(20, 8), ids)
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    known = b.with_axes("Unsqueeze", b.node("Cast", mask, to=onnx.TensorProto.BOOL), [1])
    chosen = b.node("Where", known, b.scalar(0.0), b.scalar(-1e4))
    seen = b.node("Softmax", b.node("Add", scores, chosen), axis=-1)
    b.node("MatMul", b.node("MatMul", seen, x), b.weight(8, 20), out="logits")
    b.output("logits", ["batch", "sequence", 20])
    return b.build()


@pytest.mark.parametrize("padded", [False, True])
def test_padded_masks_stay_inputs_of_ncnn(padded: bool) -> None:
    pytest.importorskip("ncnn")
    ids = np.random.default_rng(0).integers(0, 20, (16, 6))
    mask = np.ones_like(ids)
    mask[3, 4:] = 1 - padded
    data = {"input_ids": ids, "attention_mask": mask}
    result = intact.quantize(decoder(), data, target="ncnn", preset="fast")
    names = [value.name for value in result.plan.graph.inputs]
    assert names == (["input_ids", "attention_mask"] if padded else ["input_ids"])
    told = [each for each in result.plan.notes if "'attention_mask'" in each.message]
    assert len(told) == (0 if padded else 1)
    verified = intact.verify(result, data)
    assert not any(each.mismatches for each in verified.layers)


def test_ncnn_gets_one_sample_where_samples_are_joined() -> None:
    """Tokens of all samples are rows, as LeViT has them; other targets keep the open batch."""
    pytest.importorskip("ncnn")
    b = ModelBuilder(18)
    rows = b.node("Reshape", b.input("x", ["batch", 6, 8]), b.ints(-1, 8))
    made = b.node("Relu", b.node("Gemm", rows, b.weight(8, 4), b.weight(4)))
    b.node("Reshape", made, b.ints(-1, 24), out="y")
    b.output("y", ["batch", 24])
    data = np.random.default_rng(1).normal(size=(32, 6, 8)).astype(np.float32)
    made_for = {
        name: intact.quantize(b.build(), data, target=name) for name in ("ncnn", "onnxruntime")
    }
    batches = {}
    for name, each in made_for.items():
        shape = each.plan.graph.inputs[0].shape
        assert shape is not None
        batches[name] = shape[0]
    assert batches["ncnn"] == 1
    assert str(batches["onnxruntime"]) == "batch"
    verified = intact.verify(made_for["ncnn"], data)
    assert not any(each.mismatches for each in verified.layers)
