"""Constants far out of the range of the codes that they become."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_tflite
from intact.graph import constant_array
from intact.plan import QuantizedGraph
from intact.program.lower.chains import Points
from intact.program.lower.to_program import move_far_constants
from tests.deployment.networks import lowered, written, wrong
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

FAR = [-1e4, -1e9, float(np.finfo(np.float32).min), -np.inf]
MASK = np.tri(8, dtype=bool)


def chosen(number: float, tail: str, *, also_float: bool = False) -> onnx.ModelProto:
    """Scores of which half are a number, and what reads them."""
    b = ModelBuilder()
    x = b.input("x", ["batch", 8, 8])
    scores = b.node("MatMul", x, b.constant(np.abs(b.random.normal(size=(8, 8))).astype("f4")))
    masked = b.node("Where", b.constant(MASK[None]), scores, b.constant(np.float32(number), "far"))
    read = {
        "Softmax": lambda: b.node("Softmax", masked, axis=-1),
        "Relu": lambda: b.node("Relu", masked),
        "Max": lambda: b.node("Max", masked, b.constant(np.float32(number), "bound")),
        "ReduceMax": lambda: b.node("ReduceMax", masked, axes=[2], keepdims=1),
    }[tail]()
    b.node("MatMul", read, b.weight(1 if tail == "ReduceMax" else 8, 4), out="y")
    b.output("y")
    if also_float:
        b.output(b.node("Sin", masked, out="also"))
    return b.build()


def feeds(count: int = 16) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(1).normal(size=(count, 8, 8))
    return {"x": np.abs(drawn).astype(np.float32)}


def near(plan: QuantizedGraph, name: str = "far") -> float:
    found = move_far_constants(plan, Points.of(plan))
    values = {
        str(value.name): value for node in found.graph.nodes for value in node.inputs if value
    }
    array = constant_array(values[name])
    assert array is not None
    return float(array)


@pytest.mark.parametrize("number", FAR[1::2])
@pytest.mark.parametrize("tail", ["Softmax", "Relu", "ReduceMax"])
def test_litert_converts_them_as_the_engine_does(number: float, tail: str) -> None:
    plan = calibrate(planned(chosen(number, tail), "tflite"), feeds())
    model = written(lowered(plan))
    found = verify_tflite(plan, model, [feeds(8)], Kernels.REF)
    assert wrong(found.layers) == wrong(found.end_to_end) == []


@pytest.mark.parametrize("number", FAR)
def test_their_quotient_is_an_int32(number: float) -> None:
    plan = calibrate(planned(chosen(number, "Softmax"), "tflite"), feeds())
    softmax = next(node for node in plan.graph.nodes if node.op_type == "Softmax")
    scale = float(np.max(plan.input_config(softmax, 0).scale or 0))
    moved = near(plan)
    assert number <= moved < 0
    assert -moved / scale < 2**30
    assert (moved == number) == (-number / scale <= 2**29)


def test_a_constant_that_is_read_as_a_float_stays() -> None:
    plan = calibrate(planned(chosen(-1e9, "Softmax", also_float=True), "tflite"), feeds())
    assert near(plan) == -1e9
    assert move_far_constants(plan, Points.of(plan)) is plan


def test_the_plan_that_goes_in_keeps_its_constants() -> None:
    plan = calibrate(planned(chosen(-np.inf, "Softmax"), "tflite"), feeds())
    assert np.isfinite(near(plan))
    kept = next(n for n in plan.graph.nodes if n.op_type == "Where").inputs[2]
    assert constant_array(kept) == -np.inf
