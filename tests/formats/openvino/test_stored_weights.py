"""Weights of float nodes in what is written for OpenVINO."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.engines.simulate import Simulator
from intact.formats.openvino.write import write_openvino
from tests.models import ModelBuilder
from tests.plans import calibrate, calibrated, planned

IDS = {"ids": np.array([[0, 8, 3], [1, 1, 5]])}


def embedding() -> onnx.ModelProto:
    b = ModelBuilder()
    ids = b.input("ids", ["batch", 3], onnx.TensorProto.INT64)
    b.node("Gather", b.weight(9, 16), ids, out="y", name="words")
    b.output("y", ["batch", 3, 16])
    return b.build()


def recurrent() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", [5, 2, 4])
    inputs = [x, b.weight(1, 12, 4), b.weight(1, 12, 3)]
    b.node("LSTM", *inputs, hidden_size=3, out="y", name="cell")
    b.output("y", [5, 1, 2, 3])
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


def test_weights_of_recurrent_operators_are_constants() -> None:
    """OpenVINO refuses others, also where the plan is of a target that stores them as integers."""
    model = write_openvino(calibrated(recurrent(), "onnxruntime")).model
    assert [node.op_type for node in model.graph] == ["LSTM"]
