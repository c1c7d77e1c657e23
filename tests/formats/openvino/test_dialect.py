"""What OpenVINO reads otherwise than ONNX comes out as ONNX has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import intact
from intact.errors import ExportError
from intact.formats.openvino.run import OpenVinoRuntime
from intact.formats.openvino.write import OpenVinoModel, write_openvino
from intact.numerics.metrics import sqnr_db
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import calibrate, calibrated, planned

pytestmark = pytest.mark.runtime_fact("openvino")


def written(b: ModelBuilder, y: str) -> tuple[OpenVinoModel, np.ndarray]:
    """What is written of a model behind its first, integer layer, and the float result."""
    b.node("Identity", y, out="y")
    b.output("y")
    model = b.build()
    return write_openvino(calibrated(model, "openvino")), run_model(model, random_inputs(model))[
        "y"
    ]


def run(model: OpenVinoModel, b: ModelBuilder, folder: Path) -> np.ndarray:
    pytest.importorskip("openvino")
    model.save(folder)
    outputs, _ = OpenVinoRuntime(folder / "model.fq.onnx", threads=1).run(random_inputs(b.build()))
    return outputs["y"]


@pytest.mark.crossed
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_pools_rounded_up_have_the_windows_of_onnx(pool: str, size: int, tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 2, size, size]), 2, 2)
    places: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [1, 1, 1, 1]}
    model, expected = written(b, b.node(pool, x, ceil_mode=1, **places))
    found = run(model, b, tmp_path)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 0.1


def test_a_pool_of_unknown_size_gets_a_note() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 2, "h", "w"]), b.weight(2, 2, 1, 1))
    b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, out="y", name="pool")
    b.output("y")
    model = b.build()
    feeds = {"image": np.random.default_rng(0).normal(size=(4, 2, 6, 6)).astype(np.float32)}
    notes = write_openvino(calibrate(planned(model, "openvino"), feeds)).notes
    assert any(note.node == "pool" and "ceil_mode" in note.message for note in notes)


@pytest.mark.parametrize("op_type", ["ReduceL1", "ReduceLogSum"])
def test_reductions_keep_their_axes(op_type: str, tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Abs", b.conv(b.input("image", ["batch", 2, 6, 5]), 2, 2))
    y = b.node(op_type, x, axes=[2], keepdims=0)
    model, expected = written(b, b.node("Neg", y))
    found = run(model, b, tmp_path)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 0.2


def test_the_logarithm_of_sums_of_exponentials_is_refused() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 2, 6, 5]), 2, 2)
    with pytest.raises(ExportError, match="without its axes"):
        written(b, b.node("ReduceLogSumExp", x, axes=[2], name="smooth"))


def _body(name: str, nodes: list[Any], inputs: list[Any], outputs: list[str]) -> onnx.GraphProto:
    types = {"again": TensorProto.BOOL}
    ends = [
        helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), None) for n in outputs
    ]
    return helper.make_graph(nodes, name, inputs, ends)


@pytest.mark.parametrize("asked", [(), (1,), (1, 1), (1, 1, 1)])
def test_an_if_may_ask_for_any_number_of_axes(asked: tuple[int, ...], tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 2, 4, 4]), 2, 2)
    low = b.node("Reshape", b.node("ReduceMin", x, keepdims=0), b.ints(*asked))
    branches = {
        name: _body(name, [helper.make_node(kind, [x], [name], name=name)], [], [name])
        for name, kind in (("then_branch", "Abs"), ("else_branch", "Neg"))
    }
    wanted = b.node("Less", low, b.scalar(0.0))
    model, expected = written(b, b.node("If", wanted, **branches))
    assert np.abs(run(model, b, tmp_path) - expected).max() < 0.1


@pytest.mark.parametrize("asked", [(), (1,), (1, 1)])
def test_a_loop_may_ask_so_too_and_leave_ranks_open(asked: tuple[int, ...], tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 2, 4, 4]), 2, 2)
    weight = b.weight(2, 2, 1, 1)
    again = b.constant(np.ones(asked, bool))
    nodes = [
        helper.make_node("Conv", ["state", weight], ["next"], name="inner"),
        helper.make_node("And", ["wanted", again], ["again"], name="and"),
    ]
    inputs = [
        helper.make_tensor_value_info("count", TensorProto.INT64, []),
        helper.make_tensor_value_info("wanted", TensorProto.BOOL, None),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
    ]
    body = _body("body", nodes, inputs, ["again", "next"])
    times = b.constant(np.full(asked, 3, np.int64))
    model, expected = written(b, b.node("Loop", times, again, x, body=body))
    assert np.abs(run(model, b, tmp_path) - expected).max() < 0.1


@pytest.mark.parametrize("slopes", [(4,), (1,), (1, 4)])
def test_slopes_of_one_axis_belong_to_the_last(slopes: tuple[int, ...], tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 2, 6, 4]), 2, 4)
    y = b.node(
        "PRelu", x, b.constant(np.linspace(-2, 2, slopes[-1], dtype=np.float32).reshape(slopes))
    )
    model, expected = written(b, y)
    found = run(model, b, tmp_path)
    assert np.abs(found - expected).max() < 0.1


@pytest.mark.parametrize(
    "readers", ["GRU GRU", "LSTM RNN GRU", "GRU Transpose", "RNN reverse", "swapped swapped"]
)
def test_recurrent_operators_that_read_one_tensor_read_all_of_it(
    readers: str, tmp_path: Path
) -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("image", [5, "batch", 6]), b.weight(6, 6))
    gates = {"LSTM": 4, "GRU": 3}
    results = []
    for each in readers.split():
        if each == "Transpose":
            results.append(b.node("Relu", b.node(each, x, perm=[1, 0, 2])))
            continue
        weights = [b.weight(1, gates.get(each, 1) * 4, size) for size in (6, 4)]
        attributes = {"direction": "reverse"} if each == "reverse" else {}
        read = b.node("Transpose", x, perm=[1, 0, 2]) if each == "swapped" else x
        op_type = "RNN" if each not in gates else each
        results.append(b.node(op_type, read, *weights, hidden_size=4, **attributes))
    for result in results:
        b.output(result)
    model = b.build()
    feeds = {"image": np.random.default_rng(0).normal(size=(5, 3, 6)).astype(np.float32)}
    written_model = write_openvino(calibrate(planned(model, "openvino-avx2"), feeds))
    pytest.importorskip("openvino")
    written_model.save(tmp_path)
    outputs, _ = OpenVinoRuntime(tmp_path / "model.fq.onnx", threads=1).run(feeds)
    expected = run_model(model, feeds)
    for result in results:
        assert sqnr_db(expected[result], outputs[result]) > 20


@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("product", ["Conv", "ConvTranspose"])
def test_biases_before_a_recurrent_operator_stay_those_of_each_channel(
    op_type: str, product: str, tmp_path: Path
) -> None:
    b = ModelBuilder(seed=1)
    weight = b.weight(*((8, 3) if product == "Conv" else (3, 8)), 3, 3)
    image = b.input("image", ["batch", 3, 6, 5])
    bias = b.constant(np.linspace(-2, 2, 8, dtype=np.float32))
    x = b.node("Relu", b.node(product, image, weight, bias, pads=[1] * 4))
    x = b.node("Transpose", b.conv(x, 8, 4), perm=[3, 0, 1, 2])
    x = b.node("Reshape", x, b.ints(5, -1, 24))
    gates = {"LSTM": 4, "GRU": 3}.get(op_type, 1)
    weights = b.weight(1, gates * 4, 24), b.weight(1, gates * 4, 4)
    model, expected = written(b, b.node(op_type, x, *weights, hidden_size=4))
    assert sqnr_db(expected, run(model, b, tmp_path)) > 20


def test_biases_stay_where_the_model_asks_for_lengths() -> None:
    b = ModelBuilder(17)
    x = b.node("Relu", b.node("Conv", b.input("x", ["batch", 8, 6, 6]), b.weight(16, 8, 1, 1)))
    x = b.node("Relu", b.node("Conv", x, b.weight(8, 16, 1, 1), b.weight(8), name="biased"))
    rows = b.node("Reshape", x, b.ints(-1, 288))
    count = b.node("Gather", b.node("Shape", rows), b.constant(np.array([0])), axis=0)
    state = b.node("ConstantOfShape", b.node("Concat", count, b.ints(10), axis=0))
    state = b.node("MatMul", state, b.weight(10, 10))
    b.node("Tanh", b.node("Add", b.node("MatMul", rows, b.weight(288, 10)), state), out="y")
    b.output("y", ["batch", 10])
    data = {"x": np.random.default_rng(0).normal(size=(8, 8, 6, 6)).astype(np.float32)}
    made = intact.quantize(b.build(), data, target="openvino")
    assert all(each.sqnr_db > 60 for each in intact.verify(made, data).outputs)
