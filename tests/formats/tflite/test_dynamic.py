"""Dense layers of int8 weights whose floats LiteRT quantizes row by row while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.calibrate.assign import assign
from intact.calibrate.method import Method
from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.errors import TargetError
from intact.formats.base.format import Io
from intact.formats.tflite.run import Kernels, TfliteRuntime
from intact.formats.tflite.verify import verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.graph import normalize
from intact.plan import QuantizedGraph, build_plan
from intact.program.deployed import deployed_program
from intact.targets import load_target
from intact.targets.activations import Activations, with_activations
from tests.models import ModelBuilder


def _net() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", ["N", 3, 24])
    y = b.node("MatMul", x, b.weight(24, 8))
    flat = b.node("Reshape", y, b.ints(-1, 24))
    b.node("Gemm", flat, b.weight(5, 24), b.weight(5), transB=1, out="y")
    b.output("y", ["N", 5])
    return b.build()


def _plan(kernels: Kernels = Kernels.REF) -> QuantizedGraph:
    name = "tflite-xnnpack" if kernels is Kernels.XNNPACK else "tflite"
    target = with_activations(load_target(name), Activations.DYNAMIC)
    plan = build_plan(normalize(ir.from_proto(_net())), target)
    return assign(plan, None, Method.of(target))


def _samples() -> np.ndarray[Any, Any]:
    values = np.random.default_rng(1).normal(size=(6, 3, 24)).astype(np.float32)
    values[1] = 0
    values[2] = np.arange(-36, 36).reshape(3, 24) / 2 + 0.5  # ties, with 127 as the largest
    values[2, :, 0] = 127
    return values


@pytest.mark.parametrize("kernels", Kernels)
def test_the_engine_computes_the_bits_of_the_kernels(kernels: Kernels) -> None:
    plan = _plan(kernels)
    program = deployed_program(plan, float_operations=True)
    content = write_tflite(program, target=plan.target)
    values = _samples()
    found = IntegerEngine(program).run({"x": values}).outputs["y"]
    runtime = TfliteRuntime(content, kernels=kernels)
    np.testing.assert_array_equal(found, runtime.run({"x": values})[0]["y"])


@pytest.mark.parametrize("kernels", Kernels)
def test_verification_shows_the_layers(kernels: Kernels) -> None:
    plan = _plan(kernels)
    program = deployed_program(plan, float_operations=True)
    content = write_tflite(program, io=Io.FLOAT, target=plan.target)
    found = verify_tflite(plan, content, [{"x": _samples()}], kernels)
    layers = [each for each in found.layers if each.operation != "FloatNodes"]
    assert [layer.operation for layer in layers] == ["DynamicFullyConnected"] * 2
    assert not any(layer.mismatches for layer in found.layers)


def test_the_simulation_computes_the_same_scales() -> None:
    for kernels in Kernels:
        plan, values = _plan(kernels), _samples()
        expected = IntegerEngine(deployed_program(plan)).run({"x": values}).outputs["y"]
        found = Simulator(plan).run({"x": values})[0]["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["tflite-micro", "tflite-16x8"])
def test_a_target_over_another_may_have_no_such_kernels(target: str) -> None:
    with pytest.raises(TargetError, match="describes no activations"):
        with_activations(load_target(target), Activations.DYNAMIC)
