"""Convolutions that add a tensor to their sums, and float biases behind integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.errors import ExportError, PlanError
from intact.formats.c.format import c_program
from intact.formats.tflite.write import write_tflite
from intact.plan import QuantizedGraph
from intact.program import Program, Step
from intact.program.deployed import deployed_program
from intact.program.lower import lower
from intact.program.operations import Bounds, Convolution, FullyConnected
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrated, own_target

FIXED = """
format = 2
name = "mine"
formats = ["tflite"]
[activation]
dtype = "int8"
symmetric = true
[weight]
dtype = "int8"
symmetric = true
[bias]
dtype = "float32"
[arithmetic]
requantize = { kind = "fixed_point", product = "double" }
[[op]]
ops = ["Conv", "Add", "Relu"]
[[fusion]]
pattern = [["Conv"], ["Add"], ["Relu"]]
[[fusion]]
pattern = [["Conv"], ["Add"]]
"""


def block(*, first: bool = False, clip: bool = False, groups: int = 1) -> onnx.ModelProto:
    """A residual block; ``first``: the convolution is the first operand of the addition."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    x = b.node("Relu", b.conv(x, 4, 4), out="trunk")
    y = b.node("Conv", x, b.weight(4, 4 // groups, 3, 3), b.weight(4), name="branch", group=groups,
               pads=[1] * 4, out="branch_out")  # fmt: skip
    x = b.node("Add", *((y, x) if first else (x, y)), name="add", out="sum")
    x = b.clip(x, 0.0, 1.5) if clip else b.node("Relu", x)
    b.output(b.conv(x, 4, 4, kernel=1))
    return b.build()


def branch_of(program: Program) -> Step:
    return next(step for step in program.steps if "branch" in step.nodes)


@pytest.mark.parametrize("target", ["tensorrt", "openvino", "openvino-avx2"])
@pytest.mark.parametrize("first", [False, True])
def test_the_addition_is_computed_inside(target: str, first: bool) -> None:
    program = lower(calibrated(block(first=first), target))
    step = branch_of(program)
    assert step.nodes[:2] == ("branch", "add")
    assert isinstance(step.operation, Convolution)
    assert step.operation.bounds == Bounds(0)
    bias, residual = step.inputs[2:]
    assert bias is not None
    assert bias.encoding is None
    assert residual is not None
    assert residual.value == "trunk"
    assert residual.encoding is not None
    assert residual.shape == step.outputs[0].shape == (None, 8, 8, 4)
    assert program.in_float == {}


@pytest.mark.crossed
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
def test_the_simulation_agrees_but_next_to_ties(target: str, clip: bool, groups: int) -> None:
    model = block(clip=clip, groups=groups)
    plan = calibrated(model, target)
    feeds = random_inputs(model, batch=5, seed=9)
    found = IntegerEngine(lower(plan)).run(feeds).outputs
    expected, _ = Simulator(plan).run(feeds)
    name = next(iter(found))
    step = np.abs(expected[name]).max() / 100
    assert np.abs(found[name] - expected[name]).max() <= step


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("at_once", [1, 1 << 11])
def test_residuals_of_parts_are_those_of_the_whole(
    groups: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = lower(calibrated(block(groups=groups), "openvino"))
    feeds = random_inputs(block(), batch=5, seed=9)
    whole = IntegerEngine(program).run(feeds).outputs
    monkeypatch.setattr("intact.engines.integer.products.convolution.ROWS_IN_CACHE", at_once)
    for name, found in IntegerEngine(program).run(feeds).outputs.items():
        np.testing.assert_array_equal(found, whole[name])


def test_a_residual_of_another_shape_or_no_codes_is_computed_in_float() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    row = b.input("row", ["batch", 4, 1, 1])
    y = b.node("Conv", x, b.weight(4, 4, 1, 1), name="branch", out="branch_out")
    y = b.node("Add", y, b.node("Relu", row), name="add", out="sum")
    b.output(b.conv(y, 4, 4, kernel=1))
    program = lower(calibrated(b.build(), "openvino"))
    assert "another shape" in program.in_float["branch"]


@pytest.mark.parametrize("repeated", ["branch", "residual"])
def test_one_sample_added_to_a_whole_batch_is_no_residual(repeated: str) -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    once = b.node("ReduceMax", x, axes=[0], keepdims=1)
    first, second = (once, x) if repeated == "branch" else (x, once)
    y = b.node("Conv", b.node("Relu", first), b.weight(4, 4, 1, 1), name="branch")
    y = b.node("Add", y, b.node("Relu", second), name="add")
    b.output(b.conv(y, 4, 4, kernel=1))
    model = b.build()
    plan = calibrated(model, "openvino")
    program = lower(plan)
    assert "another shape" in program.in_float["branch"]
    feeds = random_inputs(model, batch=3, seed=1)
    expected, _ = Simulator(plan).run(feeds)
    for name, found in IntegerEngine(program).run(feeds).outputs.items():
        assert found.shape == expected[name].shape


def test_a_tensor_added_to_itself_is_no_residual() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 4, 8, 8]), 4, 4, kernel=1)
    x = b.node("Add", x, x, name="add")
    b.output(b.conv(x, 4, 4, kernel=1))
    plan = calibrated(b.build(), "openvino")
    assert lower(plan).steps


@pytest.mark.parametrize(
    ("arithmetic", "how"),
    [
        ('"fixed_point", product = "double"', "in integers"),
        ('"float_once", precision = "float64"', "in float64"),
        ('"float_in_turn"', "by one scale after another"),
    ],
)
def test_other_hardware_adds_no_real_numbers(tmp_path: Path, arithmetic: str, how: str) -> None:
    header = FIXED.replace('"fixed_point", product = "double"', arithmetic)
    program = lower(calibrated(block(), own_target(tmp_path, "", header=header)))
    assert program.in_float["branch"].endswith(
        f"its bias is float, and the target scales sums {how}"
    )


def fully(target: str) -> QuantizedGraph:
    b = ModelBuilder()
    x = b.node("Gemm", b.input("x", ["batch", 6]), b.weight(4, 6), b.weight(4), transB=1, name="g")
    x = b.node("Relu", x)
    b.output(b.node("Gemm", x, b.weight(3, 4), b.weight(3), transB=1))
    return calibrated(b.build(), target)


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
def test_dense_layers_have_float_biases(target: str) -> None:
    program = lower(fully(target))
    dense = [step for step in program.steps if isinstance(step.operation, FullyConnected)]
    assert [step.outputs[0].encoding is not None for step in dense] == [True, False]
    assert program.in_float == {}


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_a_bias_that_is_not_finite_raises_with_its_name(number: float) -> None:
    b = ModelBuilder()
    bias = b.constant(np.array([1, number], np.float32))
    x = b.input("image", ["batch", 3, 4, 4])
    x = b.node("Conv", x, b.weight(2, 3, 1, 1), bias, name="wrong")
    b.output(b.conv(b.node("Relu", x), 2, 2))
    program = lower(calibrated(b.build(), "openvino"))
    with pytest.raises(PlanError, match="'wrong' has a bias that is not finite; mend the model"):
        IntegerEngine(program)


def test_residual_and_float_bias_are_unsupported_by_integer_formats() -> None:
    plan = calibrated(block(), "tensorrt")
    with pytest.raises(ExportError) as refused:
        write_tflite(deployed_program(plan))
    listed = str(refused.value)
    assert "'branch': a tensor is added to its sums" in listed
    assert "is in float" in listed
    with pytest.raises(ExportError) as refused:
        c_program(plan)
    assert "a tensor is added to its sums" in str(refused.value)
