"""Calibrated plans of whole models, lowered and written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("ai_edge_litert")

from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.formats.base.format import Io
from intact.formats.tflite.run import Kernels, TfliteRuntime
from intact.formats.tflite.verify import verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.plan import QuantizedGraph
from intact.program import Array, Program
from intact.program.deployed import deployed_program
from intact.program.lower import lower
from intact.program.operations import FullyConnected
from intact.program.passes.integer_io import integer_io
from intact.program.passes.layout import IoLayout
from tests.formats.tflite.cases import real
from tests.formats.tflite.files import model_of, operators_of
from tests.images import Images, Preprocessing
from tests.models import MODELS, ModelBuilder, random_inputs
from tests.plans import calibrate, calibrated, planned

Arrays = dict[str, Array]


def differences(plan: QuantizedGraph, feeds: Arrays, kernels: Kernels) -> dict[str, Array]:
    """Return how far the file's outputs are from the simulation's, in steps."""
    program = integer_io(lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST))
    runtime = TfliteRuntime(write_tflite(program), kernels=kernels)
    found, _ = runtime.run(_codes(program, feeds))
    wanted, _ = Simulator(plan).run(feeds)
    steps = {}
    for name, tensor in program.outputs.items():
        assert tensor.encoding is not None
        floats = tensor.as_in_model(real(tensor.encoding, found[name]))
        steps[name] = np.abs(floats - wanted[name]) / float(tensor.encoding.scale)
    return steps


def _codes(program: Program, feeds: Arrays) -> Arrays:
    """Return float feeds as the file takes them."""
    codes = {}
    for name, tensor in program.inputs.items():
        assert tensor.encoding is not None
        floats = feeds[name]
        if tensor.permutation is not None:
            floats = floats.transpose(tensor.permutation)
        scaled = np.round(floats / tensor.encoding.scale) + tensor.encoding.zero_point
        codes[name] = np.clip(scaled, -128, 127).astype(np.int8)
    return codes


@pytest.mark.parametrize("kernels", Kernels)
@pytest.mark.parametrize("name", ["residual", "depthwise"])
def test_small_models_agree_with_the_simulation(name: str, kernels: Kernels) -> None:
    model = MODELS[name].build(17)
    plan = calibrated(model, "tflite")
    (steps,) = differences(plan, random_inputs(model, batch=3, seed=5), kernels).values()
    assert steps.max() <= 2


def test_floats_at_the_ends_are_in_the_layout_that_was_asked_for() -> None:
    model = MODELS["residual"].build(17)
    feeds = random_inputs(model, batch=3, seed=5)
    program = lower(calibrated(model, "tflite"), layout=IoLayout.MODEL)
    in_model, _ = TfliteRuntime(write_tflite(program, io=Io.FLOAT)).run(feeds)
    program = lower(calibrated(model, "tflite"), layout=IoLayout.CHANNELS_LAST)
    moved = {
        name: feeds[name].transpose(tensor.permutation or range(feeds[name].ndim))
        for name, tensor in program.inputs.items()
    }
    channels_last, _ = TfliteRuntime(write_tflite(program, io=Io.FLOAT)).run(moved)
    for name, array in in_model.items():
        np.testing.assert_array_equal(array, channels_last[name])


def test_a_batch_with_axes_folded_in_has_its_rows_in_the_file() -> None:
    """Readers that compute no shapes (microcontrollers, vendors' compilers) believe the file's."""
    micro = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    b = ModelBuilder(17)
    x = b.node("Reshape", b.input("x", ["batch", 4, 6]), b.ints(-1, 6))
    b.node("Reshape", b.node("Gemm", x, b.weight(6, 3)), b.ints(-1, 4, 3), out="y")
    b.output("y")
    program = lower(calibrated(b.build(), "tflite-micro"))
    content = write_tflite(program)
    (gemm,) = (step for step in program.steps if isinstance(step.operation, FullyConnected))
    shapes = {bytes(t.name).decode(): list(t.shape) for t in model_of(content).subgraphs[0].tensors}
    assert shapes[gemm.outputs[0].name] == [4, 3]
    codes = np.arange(24, dtype=np.int8).reshape(1, 4, 6)
    interpreter = micro.Interpreter.from_bytes(content)
    interpreter.set_input(codes, 0)
    interpreter.invoke()
    wanted = IntegerEngine(integer_io(program)).run({"x": codes}).outputs["y"]
    np.testing.assert_array_equal(interpreter.get_output(0), wanted)


CNNS = {"resnet20": 4, "mobilenetv2": 8, "mlperf_resnet8": 26}
"""Steps by which reference kernels may differ from the simulation: errors of one step in a layer
go through the next, and the last layer of ``mlperf_resnet8`` is a steep softmax (measured on 256
images: 3, 8, 24)."""


@pytest.mark.parametrize("name", CNNS)
def test_the_zoo_has_no_transposes_and_agrees(
    name: str, zoo: Path, cifar: Callable[..., Images]
) -> None:
    pixels = Preprocessing.PIXELS if name.startswith("mlperf") else Preprocessing.NORMALIZED
    plan = planned(onnx.load(zoo / f"{name}.onnx"), "tflite")
    plan = calibrate(plan, {"image": cifar("calib", 32, pixels).image})
    images: Arrays = {"image": cifar("test", 16, pixels).image}
    (steps,) = differences(plan, images, Kernels.OPTIMIZED).values()
    assert steps.max() <= CNNS[name]
    assert steps.mean() < 1
    content = write_tflite(lower(plan, layout=IoLayout.CHANNELS_LAST))
    assert "TRANSPOSE" not in operators_of(content)
    assert not {"QUANTIZE", "DEQUANTIZE"} & set(operators_of(content))


def test_tflite_micro_runs_a_model_of_the_zoo(zoo: Path, cifar: Callable[..., Images]) -> None:
    micro = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    plan = planned(onnx.load(zoo / "mlperf_resnet8.onnx"), "tflite")
    plan = calibrate(plan, {"image": cifar("calib", 32, Preprocessing.PIXELS).image})
    program = integer_io(lower(plan, layout=IoLayout.CHANNELS_LAST))
    feeds = _codes(program, {"image": cifar("test", 1, Preprocessing.PIXELS).image})
    content = write_tflite(program)
    interpreter = micro.Interpreter.from_bytes(content)
    interpreter.set_input(feeds["image"], 0)
    interpreter.invoke()
    found = interpreter.get_output(0).astype(int)
    wanted = TfliteRuntime(content).run(feeds)[0]["probabilities"]
    assert found.argmax() == wanted.argmax()
    # The dense layer alone differs, in how it rounds; softmax makes more than a step of that.
    assert np.abs(found - wanted).max() <= 12


@pytest.mark.parametrize(
    ("kernel", "stride", "output_padding", "pads"),
    [(1, 2, 0, 0), (1, 2, 1, 0), (2, 3, 0, 0), (2, 3, 1, 1), (3, 4, 0, 1), (3, 2, 1, 1)],
)
def test_transposed_windows_with_gaps_have_the_bits_of_xnnpack(
    kernel: int, stride: int, output_padding: int, pads: int
) -> None:
    b = ModelBuilder(17)
    weight, bias = b.weight(8, 8, kernel, kernel), b.weight(8)
    twice: dict[str, Any] = {
        "strides": [stride] * 2,
        "output_padding": [output_padding] * 2,
        "pads": [pads] * 4,
    }
    x = b.input("x", ["batch", 8, 12, 12])
    b.output(b.node("ConvTranspose", x, weight, bias, **twice))
    feeds = {"x": np.random.default_rng(0).normal(size=(16, 8, 12, 12)).astype(np.float32)}
    plan = calibrate(planned(b.build(), "tflite-xnnpack"), feeds)
    program = deployed_program(plan, float_operations=True)
    found = verify_tflite(plan, write_tflite(program), [feeds], Kernels.XNNPACK)
    (layer,) = (each for each in found.layers if each.end.startswith("ConvTranspose"))
    assert layer.values > 16 * 8 * 12 * 12
    assert layer.mismatches == 0
