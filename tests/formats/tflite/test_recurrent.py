"""LSTM, GRU and RNN in a file: floats step by step, weights as integers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import intact
from intact.engines.simulate import Simulator
from intact.errors import ExportError
from intact.formats.base.format import Io
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.tflite.deployed import run_tflite
from intact.formats.tflite.run import Kernels, TfliteRuntime
from intact.formats.tflite.verify import verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.numerics.metrics import sqnr_db
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.build import complete
from intact.program.deployed import deployed_program
from intact.targets import load_target
from tests.gallery import sequence
from tests.models import ModelBuilder, run_model
from tests.plans import calibrate, files_of, planned

pytest.importorskip("ai_edge_litert")

Arrays = dict[str, npt.NDArray[Any]]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, SIZE = 3, 2, 4, 5


def recurrent(op_type: str, mode: str, options: str = "", **attributes: Any) -> onnx.ModelProto:
    """A recurrent node with all its outputs.

    Options are bias, open, lengths, fed lengths, given, constant and peepholes.
    """
    b = ModelBuilder()
    directions = 2 if mode == "bidirectional" else 1
    rows, state = GATES[op_type] * SIZE, (directions, BATCH, SIZE)
    names = ["h", "c"][: 1 + (op_type == "LSTM")]
    inputs = [b.input("x", ["steps" if "open" in options else STEPS, BATCH, INPUTS])]
    inputs += [b.weight(directions, rows, length) for length in (INPUTS, SIZE)]
    inputs += [b.weight(directions, 2 * rows) if "bias" in options else "", ""]
    if "fed lengths" in options:
        inputs[4] = b.input("lens", [BATCH], TensorProto.INT32)
    elif "lengths" in options:
        inputs[4] = b.constant(np.array([STEPS, 1], np.int32))
    if "given" in options:
        inputs += [b.input(name, list(state)) for name in names]
    elif "constant" in options:
        inputs += [b.weight(*state) for _ in names]
    if "peepholes" in options:
        inputs += ["", "", b.weight(directions, 3 * SIZE)]
    b.node(op_type, *inputs, hidden_size=SIZE, direction=mode, out="y", name="cell", **attributes)
    b.output("y")
    model = b.build()
    model.graph.node[-1].output.extend(f"last_{name}" for name in names)
    for name in names:
        info = helper.make_tensor_value_info(f"last_{name}", TensorProto.FLOAT, list(state))
        model.graph.output.append(info)
    return model


def feeds_of(model: onnx.ModelProto) -> Arrays:
    random = np.random.default_rng(5)
    shapes = {
        value.name: [axis.dim_value or STEPS for axis in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    feeds: Arrays = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    if "lens" in feeds:
        feeds["lens"] = np.array([STEPS, 1], np.int32)
    return feeds


def written(model: onnx.ModelProto) -> tuple[QuantizedGraph, bytes]:
    plan = calibrate(planned(model, "tflite"), feeds_of(model))
    program = deployed_program(plan, float_operations=True)
    return plan, write_tflite(program, io=Io.FLOAT, target=load_target("tflite"))


CASES = [
    *itertools.product(GATES, ("forward", "reverse"), ("", "bias given"), (0,)),
    *itertools.product(GATES, ("bidirectional",), ("bias given", "constant"), (0,)),
    *itertools.product(("GRU",), ("bidirectional",), ("", "bias", "bias given"), (1,)),
]


@pytest.mark.parametrize(("op_type", "mode", "options", "late"), CASES)
def test_litert_computes_what_onnx_runtime_does(
    op_type: str, mode: str, options: str, late: int
) -> None:
    attributes = {"linear_before_reset": 1} if late else {}
    model = recurrent(op_type, mode, options, **attributes)
    feeds = feeds_of(model)
    plan, content = written(model)
    wanted, _ = Simulator(plan, threads=1).run(feeds)
    for kernels in Kernels:
        found = run_tflite(plan, content, feeds, kernels)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6, err_msg=name)


def test_a_second_run_starts_anew() -> None:
    model = recurrent("LSTM", "forward")
    runtime = TfliteRuntime(written(model)[1])
    first, _ = runtime.run(feeds_of(model))
    again, _ = runtime.run(feeds_of(model))
    np.testing.assert_array_equal(first["y"], again["y"])


def test_functions_of_an_rnn_may_differ() -> None:
    model = recurrent("RNN", "bidirectional", activations=["Relu", "Sigmoid"])
    plan, content = written(model)
    found, wanted = (
        run_tflite(plan, content, feeds_of(model)),
        Simulator(plan, threads=1).run(feeds_of(model))[0],
    )
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=0, atol=1e-6)


def test_the_weights_are_integers() -> None:
    model = recurrent("LSTM", "bidirectional")
    plan, content = written(model)
    weights = [point.constant_codes() for point in quantization_points(plan)]
    assert len(weights) == 2
    for direction, codes in itertools.product(range(2), weights):
        assert codes[direction].astype(np.int8).tobytes() in content


def _quantized_by_others(axis: int | None) -> onnx.ModelProto:
    """An RNN whose weights ``[2, 5, 5]`` have scales along an axis."""
    b = ModelBuilder()
    random = np.random.default_rng(2)
    weights = []
    for _ in range(2):
        length = () if axis is None else (2 if axis == 0 else SIZE,)
        scale = b.constant(random.uniform(0.002, 0.02, length).astype(np.float32))
        zero = b.constant(random.integers(-3, 4, length).astype(np.int8))
        codes = b.constant(random.integers(-120, 120, (2, SIZE, SIZE)).astype(np.int8))
        weights.append(b.node("DequantizeLinear", codes, scale, zero, axis=axis or 0))
    inputs = [b.input("x", [STEPS, BATCH, SIZE]), *weights]
    b.node("RNN", *inputs, hidden_size=SIZE, direction="bidirectional", out="y", name="cell")
    b.output("y")
    return b.build()


@pytest.mark.parametrize("target", ["tflite", "tflite-micro"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_scales_of_others_may_lie_along_any_axis(axis: int | None, target: str) -> None:
    model = _quantized_by_others(axis)
    feeds = feeds_of(model)
    described = load_target(target)
    plan = calibrate(complete(read_qdq(model, described), described), feeds)
    program = deployed_program(plan, float_operations=True)
    found = run_tflite(plan, write_tflite(program, io=Io.FLOAT, target=plan.target), feeds)
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(found["y"], wanted, rtol=0, atol=1e-5)
    if target == "tflite-micro":  # its DEQUANTIZE takes the first scale for all
        assert all(t.encoding.axis is None for t in program.tensors() if t.encoding)


@pytest.mark.parametrize("target", ["tflite", "tflite-16x8", "tflite-xnnpack"])
@pytest.mark.parametrize("build", [sequence.lstm_net, sequence.gru_net])
def test_between_integer_layers(build: Any, target: str) -> None:
    random = np.random.default_rng(1)
    feeds = {"frames": random.normal(size=(8, 8, 16)).astype(np.float32)}
    plan = calibrate(planned(build(), target), feeds)
    content = write_tflite(deployed_program(plan, float_operations=True), target=plan.target)
    found = verify_tflite(plan, content, [feeds])
    values = sum(layer.values for layer in found.layers)
    differing = sum(layer.mismatches for layer in found.layers)
    assert values > 4000
    assert differing <= values / 1000  # float sums in another order, next to a tie


def packed() -> onnx.ModelProto:
    """An LSTM whose state is one tensor: outputs of +-1 and cells that reach hundreds."""
    b = ModelBuilder()
    x, state = b.input("x", [1, 1, INPUTS]), b.input("state", [2, 1, SIZE])
    x = b.node("MatMul", x, b.weight(INPUTS, INPUTS))
    before = [
        b.node("Slice", state, b.ints(k), b.ints(k + 1), b.ints(0), out=f"before{k}")
        for k in range(2)
    ]
    weights = [b.weight(1, 4 * SIZE, INPUTS), b.weight(1, 4 * SIZE, SIZE)]
    after = ["h", "c"]
    lstm = [x, *weights, "", "", *before]
    b.nodes.append(helper.make_node("LSTM", lstm, ["all", *after], "lstm", hidden_size=SIZE))
    b.output(b.node("Concat", *after, out="next_state", axis=0), [2, 1, SIZE])
    mask = b.node("Reshape", "all", b.ints(1, SIZE))
    b.output(b.node("Sigmoid", b.node("MatMul", mask, b.weight(SIZE, 3)), out="mask"), [1, 3])
    return b.build()


def test_a_packed_state_is_not_quantized_on_one_scale() -> None:
    random = np.random.default_rng(2)
    outputs, cells = random.uniform(-1, 1, (16, 1, SIZE)), random.uniform(-500, 500, (16, 1, SIZE))
    feeds = {
        "x": random.normal(size=(16, 1, INPUTS)).astype(np.float32),
        "state": np.stack([outputs, cells], axis=1).astype(np.float32),
    }
    result = intact.quantize(packed(), feeds, target="tflite", preset="fast")
    content = files_of(result, "tflite")["model.int8.tflite"]
    runtime = TfliteRuntime(content, kernels=Kernels.REF)
    assert runtime.inputs["state"].dtype == runtime.outputs["next_state"].dtype == np.float32
    for sample in range(16):
        one = {"x": feeds["x"][sample : sample + 1], "state": feeds["state"][sample]}
        found = run_tflite(result.plan, content, one)
        wanted = run_model(packed(), one)
        assert sqnr_db(wanted["mask"], found["mask"]) > 25
        assert sqnr_db(wanted["next_state"][0], found["next_state"][0]) > 20


def test_micro_has_one_scale() -> None:
    """Its DEQUANTIZE takes the first of several for all."""
    pytest.importorskip("tflite_micro")
    from intact.formats.tflite.micro import verify_micro

    feeds = {"frames": np.random.default_rng(1).normal(size=(4, 8, 16)).astype(np.float32)}
    plan = calibrate(planned(sequence.lstm_net(), "tflite-micro"), feeds)
    content = write_tflite(deployed_program(plan, float_operations=True), target=plan.target)
    outputs = verify_micro(plan, content, [feeds]).outputs
    assert [output.largest <= 1 for output in outputs] == [True]


@pytest.mark.parametrize(
    ("op_type", "options", "attributes", "reason"),
    [
        ("LSTM", "peepholes", {}, "LSTM of floats: it has peepholes"),
        ("LSTM", "", {"clip": 3.0}, "clips its sums"),
        ("LSTM", "", {"input_forget": 1}, "couples its gates"),
        ("GRU", "lengths", {}, "its sequences have lengths of their own"),
        ("GRU", "fed lengths", {}, "its input 'lens' is not constant"),
        ("GRU", "open", {}, "its sequence is open: fix it with input_shape"),
        ("LSTM", "", {"activations": ["Tanh"] * 3}, "its activations are Tanh, Tanh, Tanh"),
        ("RNN", "", {"activations": ["Softsign"]}, "its activations are Softsign"),
    ],
)
def test_what_is_not_written_out_is_refused_by_name(
    op_type: str, options: str, attributes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ExportError, match=f"'cell'.*{reason}.*cut them from the model"):
        written(recurrent(op_type, "forward", options, **attributes))


def test_a_long_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact.program.lower.recurrent._MOST_STEPS", STEPS - 1)
    with pytest.raises(ExportError, match="its sequence has 3 steps, written out are 1 to 2"):
        written(recurrent("GRU", "forward"))
