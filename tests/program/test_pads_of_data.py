"""Pads that repeat elements: in integers, in the real runtimes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.numerics.metrics import sqnr_db
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.program.operations import FloatNodes, Gather
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

MODES = ["reflect", "edge", "wrap"]


def padded(mode: str, height: int | str = 6, pads: tuple[int, int] = (2, 3)) -> onnx.ModelProto:
    b = ModelBuilder(19)
    x = b.node("Conv", b.input("x", ["batch", 3, height, 5]), b.weight(4, 3, 1, 1))
    x = b.node("Pad", x, b.ints(0, 0, pads[0], 1, 0, 0, pads[1], 0), mode=mode, name="pad")
    b.node("Conv", x, b.weight(4, 4, 3, 3), out="y")
    b.output("y")
    return b.build()


def samples(count: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(count).normal(size=(count, 3, 6, 5)).astype(np.float32)}


def calibrated(mode: str, target: str) -> QuantizedGraph:
    return calibrate(planned(padded(mode), target), samples(16))


@pytest.mark.parametrize("target", ["tflite", "tvm", "integer-pow2"])
@pytest.mark.parametrize("mode", MODES)
def test_elements_are_gathered(mode: str, target: str) -> None:
    plan = calibrated(mode, target)
    program = lower(plan)
    gathers = [step for step in program.steps if isinstance(step.operation, Gather)]
    assert len(gathers) == 2
    assert not any(isinstance(step.operation, FloatNodes) for step in program.steps)
    found = IntegerEngine(program).run(samples(8)).outputs
    wanted, _ = Simulator(plan).run(samples(8))
    assert sqnr_db(wanted["y"], found["y"]) > 30


@pytest.mark.parametrize("mode", MODES)
def test_litert_computes_the_same(mode: str) -> None:
    pytest.importorskip("ai_edge_litert")
    from intact.formats.tflite.verify import verify_tflite
    from intact.formats.tflite.write import write_tflite
    from intact.program.passes.layout import IoLayout

    plan = calibrated(mode, "tflite")
    layout = IoLayout.CHANNELS_LAST
    content = write_tflite(lower(plan, float_operations=True, layout=layout))
    found = verify_tflite(plan, content, [samples(8)])
    assert sum(each.mismatches for each in found.outputs) == 0


def test_an_axis_of_unknown_length_stays_float() -> None:
    plan = calibrate(planned(padded("reflect", "height"), "tflite"), samples(8))
    assert "unknown length" in lower(plan).in_float["pad"]
