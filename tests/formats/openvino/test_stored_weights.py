"""Weights of float nodes in what is written for OpenVINO."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.engines.simulate import Simulator
from intact.formats.openvino.intermediate import intermediate_files
from intact.formats.openvino.write import write_openvino
from intact.plan import quantization_points
from tests.models import ModelBuilder
from tests.plans import calibrate, calibrated, planned

PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}
IDS = {"ids": np.array([[0, 8, 3], [1, 1, 5]])}


def embedding() -> onnx.ModelProto:
    b = ModelBuilder()
    ids = b.input("ids", ["batch", 3], onnx.TensorProto.INT64)
    b.node("Gather", b.weight(9, 16), ids, out="y", name="words")
    b.output("y", ["batch", 3, 16])
    return b.build()


GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
FRAMES = {"x": np.linspace(-1, 1, 2 * 5 * 4, dtype=np.float32).reshape(5, 2, 4)}


def recurrent(op_type: str, mode: str) -> onnx.ModelProto:
    """A recurrent operator behind a layer that OpenVINO computes with integers."""
    b = ModelBuilder()
    directions, rows = 1 + (mode == "bidirectional"), GATES[op_type] * 3
    data = b.node("MatMul", b.input("x", [5, 2, 4]), b.weight(4, 4), name="dense")
    inputs = [data, b.weight(directions, rows, 4), b.weight(directions, rows, 3)]
    inputs.append(b.weight(directions, 2 * rows))
    b.node(op_type, *inputs, hidden_size=3, direction=mode, out="y", name="cell")
    b.output("y", [5, directions, 2, 3])
    return b.build()


def test_tables_are_codes() -> None:
    model = write_openvino(calibrate(planned(embedding(), "openvino"), IDS)).model
    tables = [value.const_value for value in model.graph.initializers.values()]
    assert [t.dtype.name for t in tables if t is not None and t.size == 9 * 16] == ["INT8"]


def test_openvino_looks_up_what_the_simulation_does() -> None:
    openvino = pytest.importorskip("openvino")
    plan = calibrate(planned(embedding(), "openvino"), IDS)
    content = ir.to_proto(write_openvino(plan).model).SerializeToString()
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(content), "CPU")
    expected, _ = Simulator(plan, threads=1).run(IDS)
    np.testing.assert_array_equal(compiled(IDS)[0], expected["y"])


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("mode", ["reverse", "bidirectional"])
def test_openvino_makes_weights_of_codes_when_it_loads_them(
    op_type: str, mode: str, tmp_path: Path
) -> None:
    openvino = pytest.importorskip("openvino")
    plan = calibrate(planned(recurrent(op_type, mode), "openvino-avx2"), FRAMES)
    written = write_openvino(plan)
    wanted, _ = Simulator(plan, threads=1).run(FRAMES)
    files = intermediate_files(written.model)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    weights = [point for point in quantization_points(plan) if point.end.node == "cell"]
    codes = [point.constant_codes().astype(np.int8) for point in weights if point.is_constant]
    assert [each.tobytes() in files["model.bin"] for each in codes] == [True, True]
    core = openvino.Core()
    for source in (ir.to_proto(written.model).SerializeToString(), tmp_path / "model.xml"):
        compiled = core.compile_model(core.read_model(source), "CPU", PRECISION)
        np.testing.assert_allclose(compiled(FRAMES)[0], wanted["y"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("target", ["openvino", "onnxruntime"])
def test_weights_of_recurrent_operators_are_codes(target: str) -> None:
    model = write_openvino(calibrated(recurrent("LSTM", "forward"), target)).model
    stored = [value.const_value for value in model.graph.initializers.values()]
    assert [t.dtype.name for t in stored if t is not None and t.shape.rank() == 3] == ["INT8"] * 2
