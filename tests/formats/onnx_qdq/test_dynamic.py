"""Dense layers whose input is quantized while running: run, predicted, written and read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import intact
from intact.calibrate.assign import assign, required_tensors
from intact.calibrate.method import Method
from intact.engines.integer import IntegerEngine
from intact.engines.piecewise.simulator import PiecewiseSimulator
from intact.engines.simulate import Simulator
from intact.errors import TargetError, UsageError
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.graph import normalize
from intact.numerics.dynamic import DynamicQuantizer
from intact.plan import QuantizedGraph, build_plan
from intact.plan.plan_file import load_plan, save_plan
from intact.program.lower import lower
from intact.program.operations import DynamicFullyConnected, DynamicQuantize, FullyConnected
from intact.program.program import Encoding, Program, Step, Tensor
from intact.targets import load_target
from intact.targets.activations import Activations, with_activations
from tests.models import ModelBuilder

Array = np.ndarray[Any, Any]


def _net(*, looks_up: bool = False) -> onnx.ModelProto:
    """Two products of one tensor, one with a bias behind; a Gemm with a turned weight."""
    b = ModelBuilder()
    if looks_up:
        table = b.constant(b.random.normal(size=(11, 24)).astype(np.float32))
        x = b.node("Gather", table, b.input("x", ["N", 3], onnx.TensorProto.INT64))
    else:
        x = b.input("x", ["N", 3, 24])
    first = b.node("Add", b.node("MatMul", x, b.weight(24, 8), name="first"), b.weight(8))
    gate = b.node("Sigmoid", b.node("MatMul", x, b.weight(24, 8), name="second"))
    flat = b.node("Reshape", b.node("Mul", first, gate), b.ints(-1, 24))
    b.node("Gemm", flat, b.weight(5, 24), b.weight(5), transB=1, out="y", name="last")
    b.output("y", ["N", 5])
    return b.build()


def _plan(target: str = "onnxruntime") -> QuantizedGraph:
    described = with_activations(load_target(target), Activations.DYNAMIC)
    plan = build_plan(normalize(ir.from_proto(_net())), described)
    assert required_tensors(plan) == ()
    return assign(plan, None, Method.of(described))


def _samples(count: int = 6) -> Array:
    values = np.random.default_rng(1).normal(size=(count, 3, 24)).astype(np.float32)
    values[1:2], values[2:3] = 0, np.rint(values[2:3] * 4) / 2  # zeros, and ties
    return values


@pytest.mark.parametrize("target", ["onnxruntime", "onnxruntime-avx2"])
def test_the_engine_computes_the_bits_of_the_runtime(target: str) -> None:
    plan = _plan(target)
    written = write_qdq(plan)
    kinds = [node.op_type for node in written.model.graph]
    assert kinds.count("DynamicQuantizeLinear") == 2  # one for both readers of the input
    assert kinds.count("MatMulInteger") == 3
    engine, runtime = IntegerEngine(lower(plan)), QdqRuntime(written.model)
    for values in (_samples(), _samples(1)):
        found = engine.run({"x": values}).outputs["y"]
        np.testing.assert_array_equal(found, runtime.run({"x": values})[0]["y"])


def test_the_simulation_computes_the_same_scales() -> None:
    plan = _plan()
    values = _samples()
    expected = IntegerEngine(lower(plan)).run({"x": values}).outputs["y"]
    close = partial(np.testing.assert_allclose, desired=expected, rtol=1e-5, atol=1e-5)
    close(Simulator(plan).run({"x": values})[0]["y"])
    pieces = PiecewiseSimulator(plan.graph)
    close(pieces.run(pieces.prepare(plan), 0, {"x": values})["y"])


def test_verification_compares_codes_scales_and_results() -> None:
    plan = _plan()
    written = write_qdq(plan)
    found = verify_qdq(plan, written, [{"x": _samples()}])
    kinds = [layer.operation for layer in found.layers]
    assert kinds.count("DynamicQuantize") == 6  # codes, scale and zero point of two tensors
    assert kinds.count("DynamicFullyConnected") == 2  # the last one's result is an output
    assert not any(layer.mismatches for layer in found.layers)
    sums = next(n for n in written.model.graph if n.op_type == "MatMulInteger")
    weight = sums.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    weight.const_value = ir.Tensor(weight.const_value.numpy()[::-1].copy(), name=weight.name)
    written = replace(written, executed=None)
    broken = verify_qdq(plan, written, [{"x": _samples()}])
    assert any(layer.mismatches for layer in broken.layers)


@pytest.mark.parametrize("target", ["onnxruntime", "tflite"])  # one scale a tensor, one a row
def test_a_plan_is_loaded_as_it_was(target: str, tmp_path: Path) -> None:
    plan = _plan(target)
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", plan.graph)
    assert {str(end): repr(config) for end, config in again.configs.items()} == {
        str(end): repr(config) for end, config in plan.configs.items()
    }
    assert again.target == plan.target


def _dense(arithmetic_of: str, weights: Array, codes: Array) -> tuple[Array, Array]:
    """Return the sums of the dynamic layer and of the static one, on pairs that saturate."""
    arithmetic = load_target(arithmetic_of).arithmetic_for("MatMul")
    assert arithmetic.pairs is not None
    ones, zeros = np.ones(len(weights), np.float32), np.zeros(len(weights), np.int64)
    weight = Tensor("w", weights.shape, Encoding(ones, zeros, -127, 127, 0), weights)
    one = Encoding(np.array(1, np.float32), np.array(3, np.int64), 0, 255)
    plain = Tensor("x", codes.shape, plain=np.dtype(np.uint8))
    scale, zero = Tensor("s", ()), Tensor("z", (), plain=np.dtype(np.uint8))
    result = Tensor("y", (len(codes), len(weights)))
    given = {"x": plain, "s": scale, "z": zero}
    layer = DynamicFullyConnected(DynamicQuantizer(0, 255))
    dynamic = Step("d", layer, (plain, scale, zero, weight, None), (result,), arithmetic)
    held = replace(plain, encoding=one)
    static = Step("f", FullyConnected(), (held, weight, None), (result,), arithmetic)
    feeds: dict[str, Array] = {"x": codes, "s": np.array(1, np.float32)}
    feeds["z"] = np.array(3, np.uint8)
    first = IntegerEngine(Program(given, {"y": result}, (dynamic,))).run(feeds).outputs["y"]
    second = IntegerEngine(Program({"x": held}, {"y": result}, (static,))).run(feeds).outputs["y"]
    return first, second


def test_pairs_saturate_as_in_a_static_layer() -> None:
    weights = np.random.default_rng(0).integers(-127, 128, (4, 7)).astype(np.int8)
    codes = np.random.default_rng(1).integers(128, 256, (5, 7)).astype(np.uint8)
    found, expected = _dense("onnxruntime-avx2", weights, codes)
    np.testing.assert_array_equal(found, expected)
    exact = (codes.astype(np.int64) - 3) @ weights.astype(np.int64).T
    assert (found != exact).any()


@pytest.mark.parametrize("kind", ["per tensor", "per channel", "unsigned"])
@pytest.mark.parametrize("looks_up", [False, True])
def test_models_of_quantize_dynamic_are_read_with_their_codes(
    kind: str, looks_up: bool, tmp_path: Path
) -> None:
    onnx.save(_net(looks_up=looks_up), tmp_path / "float.onnx")
    options: dict[str, Any] = {
        "per tensor": {},
        "per channel": {"per_channel": True},
        "unsigned": {"weight_type": QuantType.QUInt8},
    }[kind]
    path = tmp_path / "theirs.onnx"
    quantize_dynamic(tmp_path / "float.onnx", path, **options)
    plan = read_qdq(path, load_target("onnxruntime"))
    values = (np.arange(18) % 11).reshape(6, 3) if looks_up else _samples()
    theirs = QdqRuntime(ir.load(path)).run({"x": values})[0]["y"]
    written = write_qdq(plan)
    np.testing.assert_array_equal(QdqRuntime(written.model).run({"x": values})[0]["y"], theirs)
    assert not any(e.mismatches for e in verify_qdq(plan, written, [{"x": values}]).layers)
    steps = [type(step.operation) for step in lower(plan).steps]
    assert steps.count(DynamicQuantize) == (1 if looks_up else 2)


def test_no_data_is_asked_for_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    onnx.save(_net(), path)
    result = intact.quantize(path, activations="dynamic", output=tmp_path / "result")
    assert sum(each.quantized for each in result.plan.decisions.values()) == 3
    reports = {each.node: each for each in intact.inspect(path, activations="dynamic").nodes}
    assert (reports["last"].activation_bits, reports["last"].is_dynamic) == (8, True)
    with pytest.raises(UsageError, match="format openvino"):
        intact.quantize(path, activations="dynamic", formats=["openvino"])
    with pytest.raises(TargetError, match="give target onnxruntime or") as refused:
        intact.quantize(path, activations="dynamic", target="ncnn")
    assert "tflite" in str(refused.value)


def test_a_section_of_a_target_is_checked() -> None:
    target = load_target("onnxruntime")
    assert target.dynamic is not None
    silent = msgspec.structs.replace(target.dynamic, reason="")
    from intact.targets.check import check

    with pytest.raises(TargetError, match=r"\[dynamic\] reason is empty"):
        check(msgspec.structs.replace(target, dynamic=silent), "file")
