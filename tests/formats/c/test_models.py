"""Whole models as C: the bits of the integer engine, and of the microcontroller runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import intact
from intact import demo
from intact.engines.integer import IntegerEngine
from intact.formats.c.run import CRuntime
from intact.formats.c.write import CProgram, write_c
from intact.formats.tflite.write import write_tflite
from intact.plan import QuantizedGraph
from intact.program import Program
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.program.passes.layout import IoLayout
from tests.formats.c import cases
from tests.formats.c.test_kernels import SANITIZED, STRICT


def planned(model: Path, data: Path, target: str | Path) -> QuantizedGraph:
    return intact.quantize(model, data, target=target, formats=["onnx_qdq"], samples=64).plan


def program_of(plan: QuantizedGraph) -> Program:
    return integer_io(lower(plan, layout=IoLayout.CHANNELS_LAST))


def assert_bits(program: Program, count: int, flags: tuple[str, ...]) -> CProgram:
    """Compare every output with the engine's."""
    written = write_c(program)
    fed = cases.feeds(program, count)
    with CRuntime(written, flags=flags) as runtime:
        found = runtime.run(fed)
    for name, codes in IntegerEngine(program).run(fed).outputs.items():
        assert np.array_equal(found[name], codes), name
        assert len(np.unique(codes)) > 8
    return written


def test_the_demo_in_fixed_point() -> None:
    plan = planned(demo.model_path(), demo.calibration_path(), "tflite-micro")
    written = assert_bits(program_of(plan), 40, SANITIZED)
    assert written.arena_bytes == written.arena_lower_bound


def test_the_demo_in_shifts() -> None:
    plan = planned(demo.model_path(), demo.calibration_path(), "integer-pow2")
    written = assert_bits(program_of(plan), 40, SANITIZED)
    assert "multiplier[scale]" not in written.files["model.c"]


def test_resnet8_in_fixed_point(zoo: Path) -> None:
    plan = planned(zoo / "mlperf_resnet8.onnx", zoo / "cifar10-calib.npz", "tflite-micro")
    written = assert_bits(program_of(plan), 12, (*STRICT, "-O2"))
    assert written.arena_bytes == written.arena_lower_bound == 49152
    assert 78_000 < written.flash_bytes < 86_000


def test_resnet8_in_shifts(zoo: Path) -> None:
    plan = planned(zoo / "mlperf_resnet8.onnx", zoo / "cifar10-calib.npz", "integer-pow2")
    assert_bits(program_of(plan), 12, (*STRICT, "-O2"))


def test_mobilenet_in_fixed_point(zoo: Path) -> None:
    plan = planned(zoo / "mobilenetv2.onnx", zoo / "cifar10-calib.npz", "tflite-micro")
    written = assert_bits(program_of(plan), 4, (*STRICT, "-O2"))
    assert written.arena_bytes == written.arena_lower_bound


def test_the_microcontroller_runtime_gives_these_bits() -> None:
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    pytest.importorskip("ai_edge_litert")
    plan = planned(demo.model_path(), demo.calibration_path(), "tflite-micro")
    program = program_of(plan)
    lowered = lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    interpreter = runtime.Interpreter.from_bytes(write_tflite(lowered))
    fed = cases.feeds(program, 30)
    with CRuntime(write_c(program)) as compiled:
        (found,) = compiled.run(fed).values()
    (codes,) = fed.values()
    for sample, wanted in zip(codes, found, strict=True):
        interpreter.set_input(sample[None], 0)
        interpreter.invoke()
        assert np.array_equal(interpreter.get_output(0)[0], wanted)
