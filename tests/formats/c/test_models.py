"""Whole models as C: the bits of the integer engine, and of the microcontroller runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact import demo
from intact.formats.c.runtime import CRuntime
from intact.formats.c.write import CProgram, write_c
from intact.formats.tflite.write import write_tflite
from intact.plan import QuantizedGraph
from intact.program import Program
from intact.program.integer_io import integer_io
from intact.program.layout import Layout
from intact.program.lower import lower
from intact.run.integer import IntegerEngine
from tests.formats.c import cases
from tests.formats.c.test_kernels import SANITIZED, STRICT

POOLS = """
format = 1
extends = "integer-pow2"
name = "pow2-with-pools"
description = "Shifts, and a unit for means"

[[op]]
ops = ["AveragePool", "GlobalAveragePool", "ReduceMean"]
"""


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of powers of two that also has means."""
    path: Path = tmp_path_factory.mktemp("target") / "pools.toml"
    path.write_text(POOLS)
    return path


@pytest.fixture(scope="module")
def resnet8(zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet8 without the softmax at its end, which shifts alone do not compute."""
    model = onnx.load(zoo / "mlperf_resnet8.onnx")
    (softmax,) = (node for node in model.graph.node if node.op_type == "Softmax")
    (before,) = (node for node in model.graph.node if node.output[0] == softmax.input[0])
    before.output[0] = softmax.output[0]
    model.graph.node.remove(softmax)
    path: Path = tmp_path_factory.mktemp("model") / "resnet8.onnx"
    onnx.save(model, path)
    return path


def planned(model: Path, data: Path, target: str | Path) -> QuantizedGraph:
    return intact.quantize(model, data, target=target, formats=["onnx_qdq"], samples=64).plan


def program_of(plan: QuantizedGraph) -> Program:
    return integer_io(lower(plan, layout=Layout.CHANNELS_LAST))


def assert_bits(program: Program, count: int, flags: tuple[str, ...]) -> CProgram:
    """Compare every output with the engine's."""
    written = write_c(program)
    fed = cases.feeds(program, count)
    with CRuntime(written, flags=flags) as runtime:
        found = runtime.run(fed)
    for name, codes in IntegerEngine(program).run(fed).outputs.items():
        assert np.array_equal(found[name], codes), name
        assert len(np.unique(codes)) > 20
    return written


def test_the_demo_in_fixed_point() -> None:
    plan = planned(demo.model_path(), demo.calibration_path(), "tflite-micro")
    written = assert_bits(program_of(plan), 40, SANITIZED)
    assert written.arena_bytes == written.arena_lower_bound


def test_the_demo_in_shifts(pools: Path) -> None:
    plan = planned(demo.model_path(), demo.calibration_path(), pools)
    written = assert_bits(program_of(plan), 40, SANITIZED)
    assert "multiplier[scale]" not in written.files["model.c"]


def test_resnet8_in_fixed_point(zoo: Path) -> None:
    plan = planned(zoo / "mlperf_resnet8.onnx", zoo / "cifar10-calib.npz", "tflite-micro")
    written = assert_bits(program_of(plan), 12, (*STRICT, "-O2"))
    assert written.arena_bytes == written.arena_lower_bound == 49152
    assert 78_000 < written.flash_bytes < 86_000


def test_resnet8_in_shifts(resnet8: Path, zoo: Path, pools: Path) -> None:
    plan = planned(resnet8, zoo / "cifar10-calib.npz", pools)
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
    lowered = lower(plan, float_operations=True, layout=Layout.CHANNELS_LAST)
    interpreter = runtime.Interpreter.from_bytes(write_tflite(lowered))
    fed = cases.feeds(program, 30)
    with CRuntime(write_c(program)) as compiled:
        (found,) = compiled.run(fed).values()
    (codes,) = fed.values()
    for sample, wanted in zip(codes, found, strict=True):
        interpreter.set_input(sample[None], 0)
        interpreter.invoke()
        assert np.array_equal(interpreter.get_output(0)[0], wanted)
