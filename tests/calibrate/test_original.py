"""What is quantized is compared with the given model: damage stops, rounding and chance do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact import api, demo
from intact.calibrate import original
from intact.calibrate.original import Original, OriginalComparison, difference
from intact.errors import ModelError
from intact.graph import Graph, normalize
from tests.models import ModelBuilder

X = np.random.default_rng(7).normal(size=(1, 8)).astype(np.float32)


def dense(b: ModelBuilder, x: str, width: int = 8) -> str:
    return b.node("MatMul", x, b.weight(8, width))


def chain(opset: int = 17) -> onnx.ModelProto:
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 8])
    hidden = b.node("Relu", dense(b, x), out="hidden")
    b.node("Softmax", dense(b, hidden), out="y")
    b.output("y", ["batch", 8])
    return b.build()


def damaged(source: onnx.ModelProto, change: Callable[[ir.Node], None], op_type: str) -> Graph:
    """Normalize a model, and change one node of it."""
    model = normalize(source).model.clone()
    change(next(node for node in model.graph if node.op_type == op_type))
    return Graph(model)


def test_the_first_tensor_that_differs_is_named() -> None:
    def become_absolute(node: ir.Node) -> None:
        node.op_type = "Abs"

    source = chain()
    graph = damaged(source, become_absolute, "Relu")
    with pytest.raises(ModelError, match=r"tensor 'hidden' of node '.*' \(Relu\) is the first"):
        Original(source).compare(graph, {"x": X})


def test_outputs_without_a_name_are_none_of_both() -> None:
    """A GRU that gives its last state alone: the runtime was asked for the other one too."""
    b = ModelBuilder(17)
    x = b.input("x", [3, 1, 8])
    b.node("Relu", x, out="hidden")
    b.output("last", [1, 1, 4])
    source = b.build()
    operands = ["hidden", b.weight(1, 12, 8), b.weight(1, 12, 4)]
    source.graph.node.append(helper.make_node("GRU", operands, ["", "last"], hidden_size=4))
    for name in operands[1:]:
        shape = (1, 12, 8 if name == operands[1] else 4)
        array = np.random.default_rng(5).normal(size=shape).astype(np.float32)
        source.graph.initializer.append(numpy_helper.from_array(array, name))

    def become_absolute(node: ir.Node) -> None:
        node.op_type = "Abs"

    graph = damaged(source, become_absolute, "Relu")
    assert any(not value.name for node in graph.nodes for value in node.outputs)
    sample = {"x": np.random.default_rng(6).normal(size=(3, 1, 8)).astype(np.float32)}
    with pytest.raises(ModelError, match=r"tensor 'hidden' of node '.*' \(Relu\) is the first"):
        Original(source).compare(graph, sample)


def test_a_small_difference_is_none_of_rounding() -> None:
    def shift(node: ir.Node) -> None:
        weight = node.inputs[1]
        assert weight is not None
        assert weight.const_value is not None
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.001))

    source = chain()
    with pytest.raises(ModelError, match="computes something else"):
        Original(source).compare(damaged(source, shift, "MatMul"), {"x": X})


def test_what_agrees_gives_the_outputs_and_no_note(tmp_path: Path) -> None:
    source, path = chain(), tmp_path / "model.onnx"
    onnx.save(source, path)
    for each in (source, path, str(path), ir.from_proto(source)):
        found = Original(each).compare(normalize(source), {"x": X})
        assert found.notes == ()
        assert found.outputs is not None
        assert found.outputs["y"].shape == (1, 8)


def amplifying(kind: str) -> onnx.ModelProto:
    """A model whose output hangs on the last bits of a sum: a tie, or what cancels."""
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 8])
    weight = b.weight(8, 4)
    one = b.node("MatMul", x, weight)
    scaled = b.node("MatMul", b.node("Mul", x, b.scalar(3.0)), weight)
    other = b.node("Mul", scaled, b.scalar(1 / 3))
    rest = b.node("Sub", one, other)  # 0, but for the last bits
    if kind == "cancels":
        b.node("Identity", rest, out="y")
    else:
        b.node("ArgMax", rest, out="y", axis=1)
    b.output("y", None)
    model = b.build()
    if kind == "tie":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


@pytest.mark.parametrize("kind", ["cancels", "tie"])
def test_what_rounding_decides_is_noted(kind: str) -> None:
    """The graph multiplies in another order: the last bits are others."""

    def reverse(model: ir.Model) -> Graph:
        product = next(node for node in model.graph if node.op_type == "MatMul")
        weight = product.inputs[1]
        assert weight is not None
        assert weight.const_value is not None
        array = weight.const_value.numpy()
        weight.const_value = ir.tensor(np.nextafter(array, np.float32(9)))
        return Graph(model)

    source = amplifying(kind)
    graph = reverse(normalize(source).model.clone())
    sample = {"x": np.random.default_rng(3).normal(size=(64, 8)).astype(np.float32)}
    notes = Original(source).compare(graph, sample).notes
    assert [note.message for note in notes] == [
        "output 'y' depends on float rounding: rounding the weights otherwise changes it as much "
        "as normalizing the model did"
    ]


def test_chance_is_noted_and_the_rest_compared() -> None:
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 8])
    b.node("Relu", dense(b, x), out="sure")
    noise = b.node("RandomNormalLike", x, name="dice")
    b.node("Add", x, noise, out="noisy")
    for name in ("sure", "noisy"):
        b.output(name, ["batch", 8])
    source = b.build()
    notes = Original(source).compare(normalize(source), {"x": X}).notes
    assert [note.message for note in notes] == [
        "what is quantized was not compared with the given model: output 'noisy' depends on "
        "chance, at node 'dice' (RandomNormalLike)"
    ]

    api.quantize(source, [{"x": np.repeat(X, 16, axis=0)}])  # nor is it held against the runtime

    def become_absolute(node: ir.Node) -> None:
        node.op_type = "Abs"

    with pytest.raises(ModelError, match="tensor 'sure'"):
        Original(source).compare(damaged(source, become_absolute, "Relu"), {"x": X})


def test_half_precision_is_compared_as_coarsely_as_it_computes() -> None:
    source = chain()
    for tensor in source.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for port in (*source.graph.input, *source.graph.output):
        port.type.tensor_type.elem_type = TensorProto.FLOAT16
    found = Original(source).compare(normalize(source), {"x": X.astype(np.float16)})
    assert found.notes == ()


def test_what_the_runtime_does_not_run_is_noted() -> None:
    source = chain()
    graph = normalize(source)
    source.graph.node.append(helper.make_node("NoSuch", ["y"], ["z"], domain="nowhere"))
    source.opset_import.append(helper.make_opsetid("nowhere", 1))
    source.graph.output.append(onnx.ValueInfoProto(name="z"))
    (note,) = Original(source).compare(graph, {"x": X}).notes
    assert "was not compared" in note.message
    assert "refuses the model" in note.message


def test_no_sample_is_needed() -> None:
    source = chain()
    assert Original(source).compare(normalize(source), None) == OriginalComparison()

    def become_absolute(node: ir.Node) -> None:
        node.op_type = "Abs"

    with pytest.raises(ModelError, match="'hidden'"):
        Original(source).compare(damaged(source, become_absolute, "Relu"), None)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 1.0], np.inf),
        ([1.0, np.inf], [1.0, -np.inf], np.inf),
        ([0.0, 0.0], [0.0, 1e-30], np.inf),
        ([[1.0]], [1.0], np.inf),
        ([1, 2], [1, 3], np.inf),
        ([True], [True], 0.0),
        ([], [], 0.0),
    ],
)
def test_differences(one: list[float], other: list[float], expected: float) -> None:
    assert difference(np.array(one), np.array(other)) == expected


COMMANDS: dict[str, Callable[[Path], object]] = {
    "quantize": lambda _: api.quantize(demo.model_path(), demo.calibration_path(), samples=4),
    "several": lambda _: api.quantize_for(
        demo.model_path(), demo.calibration_path(), targets=["tflite", "openvino"], samples=4
    ),
    "search": lambda _: api.search_strategy(
        demo.model_path(), demo.calibration_path(), samples=4, budget="1"
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_compares(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    asked: list[bool] = []

    def refuse(_original: Original, _graph: Graph, sample: object) -> OriginalComparison:
        asked.append(sample is not None)
        raise ModelError("it differs")

    monkeypatch.setattr(original.Original, "compare", refuse)
    with pytest.raises(ModelError, match="it differs"):
        COMMANDS[command](tmp_path)
    assert asked == [True]
