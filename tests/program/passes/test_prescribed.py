"""Plans that others made, on hardware whose kernels write one scale only."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.integer import IntegerEngine
from intact.formats.onnx_qdq.read import read_qdq
from intact.ops import functions
from intact.plan import QuantizedGraph
from intact.program import Program
from intact.program.lower import lower
from intact.program.operations import Dequantize, Function, Quantize, Requantize, Softmax
from intact.program.passes.encodings import signed
from intact.targets import load_target
from tests.models import ModelBuilder

IMPORTED = (1 / 255, 0)
"""What ONNX Runtime's quantizer gives numbers from 0 to 1 as uint8."""


def plan_of(op_type: str, target: str, scale: float, zero_point: int) -> QuantizedGraph:
    """Return the plan of one function between uint8 codes."""
    b = ModelBuilder(17)

    def moved(x: str, scale: float, zero_point: int, out: str | None = None) -> str:
        parameters = (b.scalar(scale), b.constant(np.uint8(zero_point)))
        codes = b.node("QuantizeLinear", x, *parameters)
        return b.node("DequantizeLinear", codes, *parameters, out=out)

    x = moved(b.input("x", ["batch", 256]), 0.05, 128)
    moved(b.node(op_type, x), scale, zero_point, out="y")
    b.output("y")
    return read_qdq(b.build(), load_target(target))


def kinds(program: Program) -> list[type]:
    return [type(step.operation) for step in program.steps]


@pytest.mark.parametrize(("op_type", "kind"), [("Softmax", Softmax), ("Sigmoid", Function)])
def test_codes_go_through_the_prescribed_ones(op_type: str, kind: type) -> None:
    program = lower(plan_of(op_type, "tflite", *IMPORTED))
    assert kinds(program) == [Quantize, kind, Requantize, Dequantize]
    written, kept = (step.outputs[0].encoding for step in program.steps[1:3])
    assert written is not None
    assert kept is not None
    assert (float(written.scale), int(written.zero_point)) == (1 / 256, 0)  # -128 of int8
    assert float(kept.scale) == float(np.float32(1 / 255))
    assert len({tensor.name for tensor in program.tensors()}) == 5
    assert program.steps[1].outputs[0].end is None


@pytest.mark.parametrize(("target", "given"), [("tflite", (1 / 256, 0)), ("onnxruntime", IMPORTED)])
def test_prescribed_or_free_outputs_stay(target: str, given: tuple[float, int]) -> None:
    assert Requantize not in kinds(lower(plan_of("Softmax", target, *given)))


def test_another_function_is_left_alone() -> None:
    plan = plan_of("LeakyRelu", "tflite", 0.04, 3)
    (step,) = (each for each in lower(plan).steps if isinstance(each.operation, Function))
    assert isinstance(step.operation, Function)
    assert step.operation.kind is functions.leaky_relu
    assert Requantize not in kinds(lower(plan))


@pytest.mark.parametrize("op_type", ["Softmax", "Sigmoid", "Tanh"])
def test_the_file_keeps_the_scale_and_has_the_engines_bits(op_type: str) -> None:
    pytest.importorskip("ai_edge_litert")
    from intact.formats.tflite.run import TfliteRuntime
    from intact.formats.tflite.write import write_tflite
    from intact.program.passes.integer_io import integer_io

    program = integer_io(signed(lower(plan_of(op_type, "tflite", 1 / 120, 110))))
    runtime = TfliteRuntime(write_tflite(program))
    assert runtime.outputs["y"].scale == np.float32(1 / 120)
    codes = np.random.default_rng(3).permuted(
        np.tile(np.arange(-128, 128, dtype=np.int8), (4, 1)), axis=1
    )
    found, _ = runtime.run({"x": codes})
    wanted = IntegerEngine(program).run({"x": codes}).outputs["y"]
    np.testing.assert_array_equal(found["y"], wanted)
