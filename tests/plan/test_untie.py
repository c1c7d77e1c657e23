"""Inputs of joins that keep a scale of their own, and what that is worth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from intact.config import QuantState
from intact.engines.simulate import Simulator
from intact.formats.base.format import Io
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_tflite
from intact.numerics.metrics import sqnr_db
from intact.plan import load_plan, save_plan
from intact.plan.inspection import inspect_plan
from intact.plan.untie import RequantizeReason, requantized
from intact.targets import Target, load_target
from intact.targets.rules import JOINING, ScaleRule
from tests.deployment.networks import lowered, written, wrong
from tests.models import ModelBuilder, run_model
from tests.plans import calibrate, config, planned

JOINS = ("Concat", "Max", "Min", "Where", "Add")
FUNCTIONS = ("Sigmoid", "Tanh", "Softmax")
PATHS = ("direct", "Split", "MaxPool", "Resize")
BOTH = 2.0
"""A rounding more at a join costs 1.1 dB of what it reads, and less of all."""
DIRECT = [(join, function, "direct") for join in JOINS for function in FUNCTIONS]
BEHIND = [(join, "Tanh", path) for join in ("Concat", "Max") for path in PATHS[1:]]


@cache
def joined(join: str, function: str, path: str) -> onnx.ModelProto:
    """A convolution of some +-14 joined with a function of another, through an operator."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    wide = b.node("Conv", x, b.weight(8, 3, 1, 1), name="wide", out="wide_out")
    wide = b.node("Mul", wide, b.constant(np.float32(4)), name="scaled", out="scaled_out")
    options: dict[str, Any] = {"axis": 1} if function == "Softmax" else {}
    narrow = b.node("Conv", x, b.weight(8, 3, 1, 1), name="narrow", out="narrow_out")
    narrow = b.node(function, narrow, name="function", out="function_out", **options)
    if path == "Split":
        first, second = b.split(narrow, [4, 4], 1)
        narrow = b.node("Concat", second, first, name="path", out="path_out", axis=1)
    elif path == "MaxPool":
        narrow = b.node("MaxPool", narrow, name="path", out="path_out", kernel_shape=[1, 1])
    elif path == "Resize":
        scales = b.constant(np.ones(4, np.float32))
        narrow = b.node("Resize", narrow, "", scales, name="path", out="path_out", mode="nearest")
    if join == "Where":
        mask = b.node("Greater", wide, narrow, name="mask", out="mask_out")
        both = b.node("Where", mask, wide, narrow, name="join", out="join_out")
    else:
        options = {"axis": 1} if join == "Concat" else {}
        both = b.node(join, wide, narrow, name="join", out="join_out", **options)
    channels = 16 if join == "Concat" else 8
    b.output(b.node("Conv", both, b.weight(4, channels, 1, 1), name="last", out="y"))
    return b.build()


def images(count: int = 16) -> dict[str, np.ndarray]:
    values = np.random.default_rng(5).normal(size=(count, 3, 8, 8))
    return {"image": values.astype(np.float32)}


def untied(target: str) -> Target:
    """A target on which joins have a scale for each input."""
    described = load_target(target)
    free = [
        msgspec.structs.replace(rule, scales=ScaleRule.FREE) if rule.scales in JOINING else rule
        for rule in described.rules
    ]
    return msgspec.structs.replace(described, rules=tuple(free))


def decibels(model: onnx.ModelProto, target: Target) -> float:
    """Signal to quantization noise of a model for a target, simulated."""
    plan = calibrate(planned(model, target), images())
    found = Simulator(plan, threads=1).run(images())[0]["y"]
    return sqnr_db(run_model(model, images())["y"], found)


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["tflite", "tflite-16x8", "integer-pow2"])
@pytest.mark.parametrize(("join", "function", "path"), DIRECT + BEHIND)
def test_a_prescribed_scale_does_not_spread(
    join: str, function: str, path: str, target: str
) -> None:
    model = joined(join, function, path)
    assert decibels(model, load_target(target)) > decibels(model, untied(target)) - BOTH


@pytest.mark.crossed
@pytest.mark.runtime_fact("ai-edge-litert")
@pytest.mark.parametrize(
    ("target", "kernels"),
    [
        ("tflite", Kernels.REF),
        ("tflite-16x8", Kernels.REF),
        ("tflite-xnnpack", Kernels.XNNPACK),
    ],
)
@pytest.mark.parametrize(
    ("join", "function", "path"),
    [("Concat", "Tanh", "Split"), ("Max", "Sigmoid", "MaxPool"), ("Min", "Softmax", "Resize")],
)
def test_the_runtime_has_the_engines_bits(
    join: str, function: str, path: str, target: str, kernels: Kernels
) -> None:
    plan = calibrate(planned(joined(join, function, path), target), images())
    found = verify_tflite(plan, written(lowered(plan), Io.INT8), [images()], kernels)
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [each.mismatches for each in found.outputs] == [0]
    assert any(layer.end == "join.input[1]" for layer in found.layers)


def test_all_inputs_of_one_prescribed_scale_stay_tied() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 3, 8, 8]), b.weight(8, 3, 1, 1))
    left, right = (b.node("Sigmoid", x, name=name, out=f"{name}_out") for name in ("s", "t"))
    pooled = b.node("MaxPool", right, kernel_shape=[1, 1])
    both = b.node("Concat", left, pooled, name="join", out="join_out", axis=1)
    b.output(b.node("Max", both, b.scalar(0.25), name="bound", out="y"))
    plan = planned(b.build(), "tflite")
    assert not any(requantized(each) for each in plan.configs.values())
    assert config(plan, "bound.output[0]").scale == np.float32(1 / 256)


def test_a_constant_outside_of_a_prescribed_scale_breaks_the_tie() -> None:
    b = ModelBuilder()
    x = b.node("Sigmoid", b.input("image", ["batch", 3, 8, 8]), name="s", out="s_out")
    b.output(b.node("Max", x, b.scalar(1.5), name="bound", out="y"))
    plan = calibrate(planned(b.build(), "tflite"), images())
    assert requantized(config(plan, "bound.input[0]")) is RequantizeReason.PRESCRIBED
    assert config(plan, "bound.output[0]").value_range()[1] == pytest.approx(1.5)


def test_unlike_prescribed_scales_give_a_join_a_scale_of_its_own() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    left, right = b.node("Sigmoid", x, name="s"), b.node("Tanh", x, name="t")
    b.output(b.node("Concat", left, right, name="join", out="y", axis=1))
    plan = calibrate(planned(b.build(), "tflite"), images())
    assert requantized(config(plan, "join.input[0]")) is RequantizeReason.PRESCRIBED
    assert requantized(config(plan, "join.input[1]")) is RequantizeReason.PRESCRIBED
    low, high = config(plan, "join.output[0]").value_range()
    assert -1.01 < low < -0.9
    assert 0.9 < high < 1.01


def test_a_plan_file_keeps_broken_ties(tmp_path: Path) -> None:
    plan = calibrate(planned(joined("Concat", "Tanh", "direct"), "tflite"), images())
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", plan.graph)
    assert requantized(config(again, "join.input[1]")) is RequantizeReason.PRESCRIBED
    assert config(again, "join.input[1]").state is QuantState.PASSIVE
    assert {str(end): each.key for end, each in again.configs.items()} == {
        str(end): each.key for end, each in plan.configs.items()
    }


def test_an_inspection_says_what_is_requantized() -> None:
    plan = planned(joined("Concat", "Tanh", "direct"), "tflite")
    (row,) = (row for row in inspect_plan(plan).nodes if row.node == "join")
    assert row.reason.endswith("; requantizes 'function_out': its scale is prescribed")
