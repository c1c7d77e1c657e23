"""What is written runs once in its runtime: what does not, or computes otherwise, is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact import api, demo
from intact.cli.entry import run
from intact.engines import cpu
from intact.engines.cpu import instruction_sets
from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.errors import ExportError
from intact.formats.base.format import Deployed, Feeds, Io
from intact.formats.onnx_qdq import format as onnx_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.registry import FORMATS, runtime_of
from intact.graph import normalize
from intact.numerics.metrics import sqnr_db
from intact.program.lower import lower
from intact.results import first_run
from intact.targets import InstructionSet
from tests.graph.passes.test_gemm_weights import K, X, product
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

SAMPLES = 20


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Let the writer write one scale wrongly: ``scaled("conv2", 8)``."""
    write = write_qdq

    def wrong(node: str, factor: float) -> None:
        def written(*arguments: Any) -> Any:
            found = write(*arguments)
            (layer,) = (each for each in found.model.graph if each.name == node)
            weight = layer.inputs[1]
            dequantize = None if weight is None else weight.producer()
            scale = None if dequantize is None else dequantize.inputs[1]
            assert scale is not None
            assert scale.const_value is not None
            scale.const_value = ir.tensor(scale.const_value.numpy() * np.float32(factor))
            return found

        monkeypatch.setattr(onnx_qdq, "write_qdq", written)

    return wrong


def layers() -> list[str]:
    """The layers with weights of the demo's model."""
    graph = normalize(demo.model_path())
    return [str(n.name) for n in graph.nodes if n.op_type in ("Conv", "Gemm")]


def test_a_layer_that_computes_otherwise_is_named(
    scaled: Callable[[str, float], None], tmp_path: Path
) -> None:
    second = layers()[1]
    scaled(second, 8.0)
    with pytest.raises(ExportError, match=rf"first layer at fault is '{second}' \(Conv\)"):
        api.quantize(
            demo.model_path(), demo.calibration_path(), samples=SAMPLES, output=tmp_path / "out"
        )
    assert not list(tmp_path.iterdir())


def test_the_remedy_names_an_odd_layer_as_a_shell_takes_it(
    scaled: Callable[[str, float], None],
) -> None:
    model = onnx.load(demo.model_path())
    node = next(each for each in model.graph.node if each.op_type == "Conv")
    node.name = "first; of 2"
    scaled(node.name, 8.0)
    with pytest.raises(ExportError, match="keep_float 'first; of 2', and report it"):
        api.quantize(model, demo.calibration_path(), samples=SAMPLES)


def test_outputs_that_are_not_finite_are_refused(scaled: Callable[[str, float], None]) -> None:
    scaled(layers()[-1], 1e38)
    with pytest.raises(ExportError, match="are not finite"):
        api.quantize(demo.model_path(), demo.calibration_path(), samples=SAMPLES)


BATCHED = """
format = 1
extends = "{base}"
name = "batched"
description = "As {base}, with a scale a channel for weights that the runtime has none for"

[[op]]
ops = ["MatMul"]
when = {{ weight_ranks = [3] }}
{types}
float_output = true
weight = {{ granularity = "per_channel" }}
"""

TYPES = {
    "onnxruntime": 'inputs = ["uint8", "int8"]\noutputs = ["uint8"]',
    "openvino": 'inputs = ["int8", "int8"]\noutputs = ["int8"]',
}


@pytest.mark.parametrize(
    ("base", "reason"),
    [("onnxruntime", "fails on this input"), ("openvino", "computes something else")],
)
def test_what_a_runtime_does_not_run_is_refused(tmp_path: Path, base: str, reason: str) -> None:
    if base == "openvino":
        pytest.importorskip("openvino")
        if InstructionSet.AVX512_VNNI not in instruction_sets():
            pytest.skip("without 8-bit dot products OpenVINO computes what is written")
    target = tmp_path / "batched.toml"
    target.write_text(BATCHED.format(base=base, types=TYPES[base]))
    samples = np.random.default_rng(1).normal(size=(16, 3, 4, K)).astype(np.float32)
    model = product((16, 3, 4, K), (3, K, 5), relu=True)
    with pytest.raises(ExportError, match=reason) as error:
        api.quantize(model, [{X: samples}], target=target)
    assert "'product' (MatMul)" in str(error.value)
    assert error.value.remedy.startswith("keep_float product")
    api.quantize(model, [{X: samples}], target=target, keep_float=["product"], allow_empty=True)


@pytest.mark.parametrize("instructions", [InstructionSet.AVX2, InstructionSet.AVX512_VNNI])
def test_what_saturates_on_this_processor_is_no_fault(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = ModelBuilder()
    y = b.node("Gemm", b.input("x", ["n", 8]), b.constant(np.ones((8, 4), np.float32)), out="y")
    b.output(y)
    feeds = {"x": np.random.default_rng(2).uniform(0.5, 1, (16, 8)).astype(np.float32)}
    plan = calibrate(planned(b.build(), "openvino"), feeds)
    saturating = replace(plan, target=plan.target.on(InstructionSet.AVX2))
    outputs = IntegerEngine(lower(saturating)).run(feeds).outputs
    assert first_run._difference(outputs, Simulator(plan).run(feeds)[0])
    monkeypatch.setattr(cpu, "instruction_sets", lambda: (instructions,))
    written = FORMATS["openvino"].writer.write(plan, Io.FLOAT)
    made = first_run._Run("openvino", runtime_of("openvino"), Deployed(plan, written), feeds)
    assert made._is_of_processor(outputs) == (instructions is InstructionSet.AVX2)
    assert not made._is_of_processor({name: -array for name, array in outputs.items()})


def test_the_loss_of_few_bits_is_no_fault(tmp_path: Path) -> None:
    result = api.quantize(
        demo.model_path(),
        demo.calibration_path(),
        samples=SAMPLES,
        weight_bits=2,
        output=tmp_path / "out",
    )
    assert (tmp_path / "out" / "plan.json").is_file()
    feeds = next(result.draw_samples(1).batches(1))[0]
    in_float = first_run._float_outputs(result.plan.graph, feeds, 1)
    quantized = Simulator(result.plan).run(dict(feeds))[0]
    assert first_run._difference(quantized, in_float)  # so it was compared further


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("onnx_qdq", "onnxruntime"),
        ("onnx_integer", "tflite-micro"),
        ("tflite", "tflite"),
        ("tflite", "tflite-xnnpack"),
        ("tflite", "tflite-micro"),
        ("ncnn", "ncnn"),
        ("openvino", "openvino"),
        ("tensorrt", "tensorrt"),
        ("c", "tflite-micro"),
    ],
)
def test_a_format_runs_what_it_wrote(name: str, target: str) -> None:
    runtime = runtime_of(name)
    for package in (*FORMATS[name].writer.packages, *runtime.packages):
        pytest.importorskip(package)
    data = demo.calibration_path()
    result = api.quantize(demo.model_path(), data, samples=5, target=target, formats=[name])
    feeds = next(result.draw_samples(1).batches(1))[0]
    outputs = runtime.run(Deployed(result.plan, result.exports[name]), feeds)
    for output, expected in Simulator(result.plan).run(dict(feeds))[0].items():
        assert outputs[output].shape == expected.shape
        assert sqnr_db(expected, outputs[output]) > 15


def test_a_program_that_takes_long_to_compile_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    result = api.quantize(
        demo.model_path(), demo.calibration_path(), samples=5, target="tflite-micro", formats=["c"]
    )
    runtime, written = runtime_of("c"), result.exports["c"]
    assert runtime.can_run(written)
    with monkeypatch.context() as changed:
        changed.setattr(runtime, "run_up_to", 100)
        assert not runtime.can_run(written)
    monkeypatch.setattr(runtime, "packages", ("no_such_package",))
    assert not runtime.can_run(written)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ONNX Runtime refuse what is written."""

    def refuse(_deployed: Deployed, _feeds: Feeds) -> Feeds:
        raise ExportError("ONNX Runtime refuses the written model")

    monkeypatch.setattr(runtime_of("onnx_qdq"), "run", refuse)


COMMANDS = {
    "quantize": ["quantize", "{model}", "--data", "{data}", "--samples", "5"],
    "several": [
        *("quantize", "{model}", "--data", "{data}", "--samples", "5"),
        *("--target", "onnxruntime", "--target", "onnxruntime-avx2"),
    ],
    "export": ["export", "{result}", "--format", "onnx_qdq"],
    "import": ["import", "{result}/model.int8.onnx"],
    "search": ["search", "{model}", "--data", "{data}", "--samples", "5", "--budget", "1"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_leaves_what_does_not_run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    command: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = {"model": demo.model_path(), "data": demo.calibration_path()}
    if "{result}" in " ".join(COMMANDS[command]):
        target = ["--target", "onnxruntime"]
        line = [part.format(**places) for part in COMMANDS["quantize"]]
        assert run([*line, *target, "--output", str(tmp_path / "result")]) == 0
    request.getfixturevalue("failing")
    line = [part.format(**places, result=tmp_path / "result") for part in COMMANDS[command]]
    capfd.readouterr()
    assert run([*line, "--output", str(tmp_path / "out")]) == 1
    error = capfd.readouterr().err
    assert "intact: onnx_qdq: ONNX Runtime refuses the written model" in error
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


LOADED = {
    "onnx_qdq": "onnxruntime",
    "onnx_levels": "nnie",
    "onnx_integer": "tflite-micro",
    "tflite": "tflite",
    "ncnn": "ncnn",
    "openvino": "openvino",
    "tensorrt": "tensorrt",
    "c": "tflite-micro",
}


def test_whatever_can_be_run_can_be_loaded_without_inputs() -> None:
    runtimes = {name: row.runtime for name, row in FORMATS.items() if row.runtime is not None}
    assert {name for name, runtime in runtimes.items() if runtime.run_up_to} == set(LOADED)
    for method in ("run", "load"):
        own = {name for name, each in runtimes.items() if method in vars(type(each))}
        assert own == set(LOADED)


@pytest.mark.parametrize("name", LOADED)
def test_what_no_sample_can_be_drawn_for_is_loaded_at_least(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = runtime_of(name)
    for package in (*FORMATS[name].writer.packages, *runtime.packages):
        pytest.importorskip(package)
    loaded: list[str] = []

    def refuse(deployed: Deployed) -> None:
        load(deployed)
        loaded.append(name)
        raise ExportError("the runtime refuses the written model")

    load = runtime.load
    result = api.quantize(
        demo.model_path(),
        demo.calibration_path(),
        samples=2,
        target=LOADED[name],
        formats=[name],
        allow_empty=True,
    )
    monkeypatch.setattr(runtime, "load", refuse)
    monkeypatch.setattr(first_run, "draw_sample", lambda _plan, _statistics: None)
    with pytest.raises(ExportError, match="refuses the written model"):
        first_run.run_once(result)
    assert loaded == [name]


def test_an_output_of_another_shape_is_a_difference() -> None:
    one, other = np.ones((20, 1, 4), np.float32), np.ones((1, 80), np.float32)
    assert not first_run._difference({"y": one}, {"y": one})
    assert "shape [1, 80]" in first_run._difference({"y": other}, {"y": one})
