"""`--float float16`: what computes in float16, what stays float32 and why, in every runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import intact
from intact.engines.piecewise import PiecewiseSimulator
from intact.engines.session import make_session, run_session
from intact.engines.simulate import Simulator
from intact.errors import PlanError, TargetError, UsageError
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import QuantizedGraph
from intact.plan.plan_file import load_plan, save_plan
from intact.results.result import Result
from tests.half import halved
from tests.models import ModelBuilder

_WIDTH = 16
_DATA = np.random.default_rng(5).normal(size=(32, 4, _WIDTH)).astype(np.float32)
_TARGETS = ("onnxruntime", "openvino", "tensorrt")


def _model() -> onnx.ModelProto:
    """A normalization, a product, and what float16 cannot hold: a power, a small constant."""
    b = ModelBuilder(opset=17)
    x = b.input("x", ["batch", 4, _WIDTH])
    scale, bias = b.constant(np.full(_WIDTH, 1.3, np.float32)), b.weight(_WIDTH)
    normal = b.node("LayerNormalization", x, scale, bias, name="norm", axis=-1)
    product = b.node("MatMul", normal, b.weight(_WIDTH, _WIDTH), name="product")
    curve = b.node("Tanh", product, name="curve")
    far = b.node("Exp", b.node("Mul", curve, b.scalar(16.0), name="steep"), name="far")
    near = b.node("Log", far, name="near")
    tiny = b.node("Add", near, b.scalar(1e-9), name="tiny")
    b.output(b.node("Mul", tiny, b.scalar(0.3), name="last"), ["batch", 4, _WIDTH])
    return b.build()


@pytest.fixture(scope="module", params=_TARGETS)
def result(request: pytest.FixtureRequest) -> Result:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    return intact.quantize(_model(), _DATA, target=request.param, float_type="float16")


def test_nodes_that_would_overflow_stay_float32_by_name(result: Result) -> None:
    found = result.plan.float16
    assert found is not None
    # TensorRT from 10.16 on sums up in the type of a normalization's input.
    in_float32 = {"norm"} if result.plan.target.name == "tensorrt" else set()
    assert set(found.nodes) == {"norm", "curve", "steep", "last"} - in_float32
    assert in_float32 <= found.float32.keys()
    assert "reaches" in found.float32["far"]
    assert "65,504" in found.float32["near"]
    assert "1e-09" in found.float32["tiny"]
    notes = " ".join(str(note) for note in result.plan.notes)
    assert "(2 node(s): far, near)" in notes
    assert "tiny: stays float32" in notes


def test_plan_is_read_back(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(result.plan, path)
    assert load_plan(path, result.plan.graph).float16 == result.plan.float16
    (first, *_) = result.plan.float16.nodes  # type: ignore[union-attr]
    damaged = path.read_text().replace(f'"nodes":["{first}"', '"nodes":["product"')
    path.write_text(damaged)
    with pytest.raises(PlanError, match="'product' is no float node"):
        load_plan(path, result.plan.graph)


def test_simulators_agree(result: Result) -> None:
    plan, feeds = result.plan, {"x": _DATA}
    whole = Simulator(plan, threads=1).run(feeds)[0]
    pieces = PiecewiseSimulator(plan.graph)
    in_pieces = pieces.run(pieces.prepare(plan), 0, feeds)
    for name, array in whole.items():
        # A code may be next to the other where ONNX Runtime rounds in other places.
        np.testing.assert_allclose(in_pieces[name], array, atol=0.05)
    (with_float16,) = whole.values()
    (without,) = Simulator(_in_float32(result), threads=1).run(feeds)[0].values()
    noise = with_float16 - without
    assert 0 < np.abs(noise).max() < 0.5


def _in_float32(result: Result) -> QuantizedGraph:
    plan = result.plan.copy()
    plan.float16 = None
    return plan


def test_verify_finds_the_codes_that_were_predicted(result: Result) -> None:
    found = intact.verify(result, _DATA)
    assert min(found.outputs_sqnr_db.values()) > 50
    assert not any(found.rules.values())
    if found.target == "openvino":
        assert not any(layer.mismatches for layer in (*found.layers, *found.end_to_end))
    # What ONNX Runtime rounds, its own session tells.
    assert sum(layer.mismatches for layer in found.simulation) <= 2


def test_files_hold_float16_and_end_in_float32(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    model = write_qdq(result.plan).model  # which all three targets' writers begin with
    made = {str(n.name): n for n in model.graph}
    assert made["last"].inputs[1].dtype is ir.DataType.FLOAT16  # type: ignore[union-attr]
    assert {v.dtype for v in (*model.graph.inputs, *model.graph.outputs)} == {ir.DataType.FLOAT}
    scales = [n.inputs[1] for n in model.graph if n.op_type == "QuantizeLinear"]
    assert {scale.dtype for scale in scales if scale is not None} == {ir.DataType.FLOAT}
    assert {node.is_float16 for node in intact.inspect(tmp_path / "out").nodes} == {True, False}


@pytest.mark.parametrize("activations", ["static", "float"])
def test_a_float16_model_stays_one(activations: str) -> None:
    """Its ends are float16, and no value goes to float32 and back between two nodes."""
    b = ModelBuilder()
    y = b.node("Tanh", b.input("x", ["batch", 8]), name="curve")
    y = b.node("Sigmoid", b.node("MatMul", y, b.weight(8, 8), name="product"), name="gate")
    b.output(y, ["batch", 8])
    data = np.random.default_rng(3).normal(size=(8, 8)).astype(np.float16)
    result = intact.quantize(halved(b.build()), data, float_type="float16", activations=activations)
    model = write_qdq(result.plan).model
    ends = (*model.graph.inputs, *model.graph.outputs)
    assert {value.dtype for value in ends} == {ir.DataType.FLOAT16}
    assert result.plan.float16.nodes[-1] == "gate"  # type: ignore[union-attr]
    (out,) = run_session(make_session(model, threads=1), {"x": data}, [str(ends[1].name)])
    assert out.dtype == np.float16


def test_values_are_rounded_where_kernels_store_float16() -> None:
    result = intact.quantize(
        _model(), _DATA, target="tensorrt", float_type="float16", activations="float"
    )
    assert result.plan.quantized_nodes == 0
    (out,) = Simulator(result.plan, threads=1).run({"x": _DATA})[0].values()
    np.testing.assert_array_equal(out, out.astype(np.float16).astype(np.float32))


def test_without_samples_ranges_are_said_to_be_unknown() -> None:
    result = intact.quantize(
        _model(), target="onnxruntime", float_type="float16", activations="float"
    )
    assert "far" in result.plan.float16.nodes  # type: ignore[union-attr]
    assert any("no samples were run" in note.message for note in result.plan.notes)


def test_float16_is_refused_before_anything_is_read() -> None:
    with pytest.raises(TargetError, match="give target onnxruntime or openvino or tensorrt"):
        intact.quantize("missing.onnx", target="tflite", float_type="float16")
    with pytest.raises(UsageError, match="use formats onnx_qdq or openvino"):
        intact.quantize(
            "missing.onnx", target="tensorrt", float_type="float16", formats=["encodings"]
        )


def test_a_plan_without_float16_writes_none() -> None:
    result = intact.quantize(_model(), _DATA, target="onnxruntime")
    assert result.plan.float16 is None
    assert not any(node.op_type == "Cast" for node in write_qdq(result.plan).model.graph)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    b = ModelBuilder()
    weight = np.ones((_WIDTH, _WIDTH), np.float32)
    weight[1, 2] = value
    b.node("MatMul", b.input("x", ["n", _WIDTH]), b.constant(weight, "w"), name="product", out="y")
    b.output("y", ["n", _WIDTH])
    with pytest.raises(PlanError, match=r"weight 'w' of product holds NaN or infinity.*again"):
        intact.quantize(halved(b.build()), activations="float", float_type="float16")
