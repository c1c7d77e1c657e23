"""Weights of float nodes in written files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from intact.engines.simulate import Simulator
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.targets import Target
from tests.models import ModelBuilder
from tests.plans import HEADER, calibrate, own_target, planned

Feeds = dict[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]

FRAMES: Feeds = {"x": np.linspace(-1, 1, 5 * 2 * 4, dtype=np.float32).reshape(5, 2, 4)}
IDS: Feeds = {"ids": np.array([[0, 8, -1], [-9, 3, 3]])}


def recurrent(op_type: str = "LSTM", gates: int = 4, *, opset: int = 17) -> onnx.ModelProto:
    b = ModelBuilder(opset)
    x = b.input("x", [5, 2, 4])
    inputs = [x, b.weight(2, gates * 3, 4), b.weight(2, gates * 3, 3)]
    b.node(op_type, *inputs, hidden_size=3, direction="bidirectional", out="y", name="cell")
    b.output("y")
    return b.build()


def embedding(*shape: int, axis: int = 0, opset: int = 17) -> onnx.ModelProto:
    b = ModelBuilder(opset)
    ids = b.input("ids", [2, 3], onnx.TensorProto.INT64)
    b.node("Gather", b.weight(*shape), ids, axis=axis, out="y", name="words")
    b.output("y")
    return b.build()


def tied() -> onnx.ModelProto:
    """A table that two Gathers and a Gemm read."""
    b = ModelBuilder()
    ids, table = b.input("ids", [2, 3], onnx.TensorProto.INT64), b.weight(9, 16, name="table")
    words = b.node("Gather", table, ids, name="words")
    again = b.node("Gather", table, b.node("Min", ids, b.ints(0)), name="again")
    x = b.node("Reshape", b.node("Add", words, again), b.ints(6, 16))
    b.node("Gemm", x, table, transB=1, out="y", name="dense")
    b.output("y")
    return b.build()


def calibrated(
    model: onnx.ModelProto,
    feeds: Feeds,
    target: Target | str = "onnxruntime",
    overrides: Overrides | None = None,
) -> QuantizedGraph:
    return calibrate(planned(model, target, overrides), feeds)


def check(plan: QuantizedGraph, feeds: Feeds, *, error: float = 0.0) -> ir.Model:
    """The written model computes what the simulation does, and verification says so."""
    exported = write_qdq(plan)
    onnx.checker.check_model(ir.to_proto(exported.model), full_check=True)
    found = QdqRuntime(exported.model, threads=1).run(feeds)[0]
    expected, _ = Simulator(plan, threads=1).run(feeds)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=0, atol=error)
    verified = verify_qdq(plan, exported, [feeds], threads=1)
    assert verified.layers
    assert [layer.mismatches for layer in verified.layers] == [0] * len(verified.layers)
    return exported.model


def constants_of(model: ir.Model) -> list[str]:
    """The types of constants with more than one axis of more than one element."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    large = (t for t in tensors if t is not None and sum(n > 1 for n in t.shape.numpy()) > 1)
    return [tensor.dtype.name for tensor in large]


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_weights_of_recurrent_operators(op_type: str, gates: int, opset: int) -> None:
    model = check(calibrated(recurrent(op_type, gates, opset=opset), FRAMES), FRAMES)
    assert constants_of(model) == ["INT8", "INT8"]
    assert model.opset_imports[""] == opset


def test_the_runtime_makes_floats_of_them_when_it_loads_the_model(tmp_path: Path) -> None:
    import onnxruntime

    exported = write_qdq(calibrated(recurrent(), FRAMES))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    content = ir.to_proto(exported.model).SerializeToString()
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx")
    assert [node.op_type for node in optimized.graph.node] == ["LSTM"]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("shape", "axis"), [((9, 16), 0), ((16, 9), 1), ((2, 9, 4, 4), -3)])
def test_tables_are_looked_up_in_codes(shape: tuple[int, ...], axis: int, opset: int) -> None:
    model = check(calibrated(embedding(*shape, axis=axis, opset=opset), IDS), IDS)
    assert constants_of(model) == ["INT8"]


def test_one_table_is_stored_once_for_lookups_and_a_product() -> None:
    model = check(calibrated(tied(), IDS), IDS, error=1e-5)
    assert constants_of(model) == ["INT8"]


@pytest.mark.parametrize(
    "weight",
    [
        'granularity = "per_tensor"',
        'dtype = "uint8", symmetric = false',
        'dtype = "uint8", symmetric = false, granularity = "per_tensor"',
        "bits = 4",
    ],
)
def test_other_schemes(weight: str, tmp_path: Path) -> None:
    rule = f"""
        [[op]]
        ops = ["Gather", "LSTM"]
        quantize = false
        weights_only = true
        reason = "it computes in float"
        weight = {{ {weight} }}
    """
    target = own_target(tmp_path, rule, header=HEADER)
    for model, feeds in ((recurrent(), FRAMES), (embedding(9, 16), IDS)):
        stored = constants_of(check(calibrated(model, feeds, target), feeds))
        assert set(stored) == {"UINT8" if "uint8" in weight else "INT8"}


@pytest.mark.parametrize(("end", "feeds"), [("cell.input[1]", FRAMES), ("words.input[0]", IDS)])
def test_verification_finds_another_integer(end: str, feeds: Feeds) -> None:
    plan = calibrated(recurrent() if end.startswith("cell") else embedding(9, 16), feeds)
    exported = write_qdq(plan)
    constant = exported.model.graph.initializers[exported.stored[TensorEnd.parse(end)]]
    assert constant.const_value is not None
    codes = constant.const_value.numpy().copy()
    codes.reshape(-1)[0] ^= 1
    constant.const_value = ir.tensor(codes)
    layers = verify_qdq(plan, exported, [feeds], threads=1).layers
    found = {layer.end: (layer.mismatches, layer.largest) for layer in layers}
    assert found.pop(end) in ((1, 1), (2, 1))  # a row may be looked up twice
    assert not any(mismatches for mismatches, _ in found.values())


def test_formats_that_quantize_weights_themselves_get_floats_on_the_grid() -> None:
    model = write_qdq(calibrated(recurrent(), FRAMES), float_weights=True).model
    assert constants_of(model) == ["FLOAT", "FLOAT"]
    assert [node.op_type for node in model.graph] == ["LSTM"]


def test_what_is_kept_float_is_written_as_it_is() -> None:
    plan = calibrated(recurrent(), FRAMES, overrides=Overrides(keep_float=("cell",)))
    assert constants_of(check_outputs(plan, FRAMES)) == ["FLOAT", "FLOAT"]


def check_outputs(plan: QuantizedGraph, feeds: Feeds) -> ir.Model:
    exported = write_qdq(plan)
    found = QdqRuntime(exported.model, threads=1).run(feeds)[0]
    np.testing.assert_array_equal(found["y"], Simulator(plan, threads=1).run(feeds)[0]["y"])
    return exported.model
