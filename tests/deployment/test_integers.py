"""Plans as integer operations, in ONNX Runtime and TVM, against the integer engine."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from intact.errors import ExportError, MissingExtraError, PlanError
from intact.formats.base.format import Deployed, Io, WrittenFiles
from intact.formats.base.report import Verification
from intact.formats.onnx_integer.run import verify_onnx_integer
from intact.formats.onnx_integer.write import write_onnx_integer
from intact.formats.registry import FORMATS, runtime_of
from intact.formats.tvm.run import verify_tvm
from intact.formats.tvm.write import write_tvm
from intact.plan import QuantizedGraph
from intact.program.realize import integer_program
from tests.deployment.networks import with_wrong_bias, with_wrong_weight
from tests.models import ModelBuilder
from tests.plans import calibrate, planned
from tests.program.realize.networks import images, plan_for

pytestmark = pytest.mark.runtime_fact("onnxruntime", "apache-tvm")

LAYERS = 8


def batches(count: int) -> list[dict[str, np.ndarray]]:
    image = images(count)["image"]
    return [{"image": image[:5]}, {"image": image[5:]}]


def assert_exact(found: Verification, samples: int) -> None:
    assert found.samples == samples
    assert len(found.layers) >= LAYERS
    assert {layer.mismatches for layer in (*found.layers, *found.end_to_end)} == {0}
    assert all(layer.values for layer in found.layers)
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 5 * samples)]
    assert found.agreement == 100.0


@pytest.mark.parametrize("float_ends", [False, True])
@pytest.mark.parametrize("target", ["integer-pow2", "tvm", "tflite-micro", "x86"])
def test_onnx_runtime_has_the_engines_bits(target: str, float_ends: bool) -> None:
    plan = plan_for(target, curved=True)
    content = write_onnx_integer(integer_program(plan, float_ends=float_ends))
    found = verify_onnx_integer(plan, content, batches(12), float_ends=float_ends, threads=1)
    assert_exact(found, 12)
    assert "ONNX Runtime" in found.runtime


def test_vta_shifts_like_the_engine() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Relu", b.node("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), pads=[1, 1, 1, 1]))
    y = b.node("Conv", x, b.weight(8, 8, 3, 3), b.weight(8), pads=[1, 1, 1, 1])
    x = b.node("MaxPool", b.node("Add", x, y), kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.output(b.node("Gemm", x, b.weight(5, 8), b.weight(5), transB=1), ["batch", 5])
    plan = calibrate(planned(b.build(), "vta"), images(32, seed=1))
    assert all(plan.is_quantized(node) for node in plan.graph.nodes)
    content = write_onnx_integer(integer_program(plan))
    found = verify_onnx_integer(plan, content, batches(12), threads=1)
    assert {layer.mismatches for layer in (*found.layers, *found.end_to_end)} == {0}
    assert {"Convolution", "Elementwise add"} <= {layer.operation for layer in found.layers}
    assert found.agreement == 100.0


def test_curved_functions_and_means_of_any_window() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("HardSwish", b.node("Conv", x, b.weight(6, 3, 4, 2), b.weight(6)))
    x = b.node("Tanh", b.node("PRelu", x, b.weight(6, 1, 1)))
    x = b.node("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight(5, 6), b.weight(5), transB=1)
    b.output(b.node("Sigmoid", x), ["batch", 5])
    plan = calibrate(planned(b.build(), "tvm"), images(32, seed=1))
    content = write_onnx_integer(integer_program(plan))
    found = verify_onnx_integer(plan, content, batches(12), threads=1)
    assert_exact(found, 12)
    assert {"Function HardSwish", "Function Tanh", "PRelu", "Pool average"} <= {
        layer.operation for layer in found.layers
    }


def test_layers_are_named_as_the_plan_names_them() -> None:
    plan = plan_for("tvm")
    content = write_onnx_integer(integer_program(plan))
    found = verify_onnx_integer(plan, content, batches(6), threads=1)
    ends = {layer.operation: layer.end for layer in found.layers}
    assert ends["FullyConnected"] == "dense.output[0]"
    assert ends["Elementwise add"].endswith(".output[0]")
    assert {"Convolution", "Pool max", "Reduce mean"} <= set(ends)
    assert "input" not in ends


@pytest.mark.parametrize("wrong", [with_wrong_weight, with_wrong_bias])
def test_a_model_with_other_numbers_is_found_out(wrong: object) -> None:
    assert callable(wrong)
    plan = plan_for("tvm")
    content = write_onnx_integer(wrong(integer_program(plan), "dense"))
    found = verify_onnx_integer(plan, content, batches(12), threads=1)
    assert found.outputs[0].mismatches > 0


def test_a_model_of_floats_is_refused() -> None:
    plan = plan_for("onnxruntime")
    with pytest.raises(ExportError, match="float32"):
        verify_onnx_integer(plan, b"", batches(6))


def small_plan(target: str) -> QuantizedGraph:
    """A plan that TVM compiles in a second."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Relu", b.node("Conv", x, b.weight(4, 3, 3, 3), b.weight(4), strides=[3, 3]))
    x = b.node("Flatten", x)
    b.output(b.node("Gemm", x, b.weight(5, 16), b.weight(5), name="dense", transB=1), ["batch", 5])
    return calibrate(planned(b.build(), target), images(32, seed=1))


@pytest.mark.parametrize("target", ["integer-pow2", "tvm"])
def test_tvm_has_the_engines_bits(target: str) -> None:
    plan = small_plan(target)
    found = verify_tvm(plan, write_tvm(integer_program(plan)), batches(7))
    assert [layer.operation for layer in found.layers] == [
        "Convolution",
        "Reshape",
        "FullyConnected",
    ]
    assert {layer.mismatches for layer in found.layers} == {0}
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 35)]
    assert found.runtime.startswith("TVM ")


@pytest.mark.slow
@pytest.mark.parametrize("float_ends", [False, True])
@pytest.mark.parametrize("target", ["integer-pow2", "tvm"])
def test_tvm_has_the_bits_of_every_layer(target: str, float_ends: bool) -> None:
    plan = plan_for(target, curved=True)
    module = write_tvm(integer_program(plan, float_ends=float_ends))
    assert_exact(verify_tvm(plan, module, batches(7), float_ends=float_ends), 7)


def test_a_module_with_other_numbers_is_found_out() -> None:
    plan = small_plan("integer-pow2")
    module = write_tvm(integer_program(plan))
    (name,) = [name for name in module.arrays if "dense" in name and "weight" in name]
    arrays = module.arrays | {name: np.flip(module.arrays[name], axis=0)}
    found = verify_tvm(plan, replace(module, arrays=arrays), batches(6))
    assert found.outputs[0].mismatches > 0
    assert {layer.mismatches for layer in found.layers} == {0}


def test_a_module_that_tvm_refuses() -> None:
    plan = small_plan("integer-pow2")
    module = write_tvm(integer_program(plan))
    wrong = replace(module, text=module.text.replace("R.nn.conv2d", "R.nn.conv9d"))
    with pytest.raises(ExportError, match=r"TVM .* refuses the written module"):
        verify_tvm(plan, wrong, batches(6))


def test_a_missing_tvm_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    plan = small_plan("integer-pow2")
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[tvm\]"'):
        verify_tvm(plan, write_tvm(integer_program(plan)), batches(6))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("tvm", "model.tvm.py"),
        ("tvm", "model.tvm.npz"),
        ("onnx_integer", "model.integer.onnx"),
    ],
)
def test_files_that_are_not_the_plans_never_reach_a_runtime(
    name: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a runtime was given a file of someone else's")

    monkeypatch.setattr("intact.formats.tvm.run.TvmRuntime", opened)
    monkeypatch.setattr("intact.formats.onnx_integer.run.OnnxIntegerRuntime", opened)
    plan = small_plan("tvm")
    exported = FORMATS[name].writer.write(plan, Io.INT8)
    assert isinstance(exported, WrittenFiles)
    files = {**exported.files, file: exported.files[file] + b"\n"}
    with pytest.raises(PlanError, match=f"{file} is not what this plan gives"):
        runtime_of(name).verify(Deployed(plan, WrittenFiles(files), None, 1), iter(()))


def test_an_output_that_no_sample_changes() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 3, 8, 8]), b.weight(4, 3, 3, 3), out="y")
    b.output(x)
    b.output(b.node("Identity", b.weight(4, 3), out="fixed"))
    plan = calibrate(planned(b.build(), "tvm"), images(8, seed=1))
    module = write_tvm(integer_program(plan, float_ends=True))
    found = verify_tvm(plan, module, batches(7), float_ends=True)
    assert [each.mismatches for each in found.outputs] == [0, 0]
