"""Lowering node by node: float nodes as whole layers, for formats that have them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from intact.ops import functions
from intact.program import Program, Step
from intact.program.float_operations import (
    FloatOperation,
    LayerNormalization,
    PixelShuffle,
)
from intact.program.lower import lower, lower_nodes
from intact.program.operations import (
    FloatNodes,
    Function,
    Pad,
    PadMode,
    Pool,
    PoolKind,
    Quantize,
    Resize,
    ResizeMode,
    Transpose,
)
from tests.formats.ncnn.cases import CASES, Build, build_case, node, resize
from tests.models import MODELS, ModelBuilder
from tests.plans import calibrated, planned


def lowered(build: Build, *shape: int) -> Program:
    b = ModelBuilder(18)
    b.output(build(b, b.input("x", ["batch", *shape])))
    return lower_nodes(planned(b.build(), "ncnn"))


def last(program: Program) -> Step:
    return [step for step in program.steps if step.nodes][-1]


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("layer norm", LayerNormalization(2, float(np.float32(1e-4)))),
        (
            "hard sigmoid",
            Function(functions.hard_sigmoid, (float(np.float32(0.3)), float(np.float32(0.4)))),
        ),
        ("pad by edges", Pad(((0, 0), (0, 0), (1, 2), (2, 1)), PadMode.EDGE)),
        ("pad of named axes", Pad(((0, 0),) * 3 + ((1, 2),), PadMode.CONSTANT)),
        ("depth to space, CRD", PixelShuffle(2)),
        (
            "max pool, up",
            Pool(PoolKind.MAX, (2, 2), (2, 2), ((0, 0), (0, 1))),
        ),
        ("linear", Resize(ResizeMode.LINEAR, (9, 14), half_pixel=True)),
    ],
)
def test_float_node_is_one_operation(name: str, operation: object) -> None:
    assert last(lower_nodes(calibrated(build_case(name), "ncnn"))).operation == operation


@pytest.mark.parametrize("name", CASES)
def test_every_node_is_at_most_one_step(name: str) -> None:
    program = lower_nodes(calibrated(build_case(name), "ncnn"))
    nodes = [name for step in program.steps for name in step.nodes]
    assert len(nodes) == len(set(nodes))


def test_steps_of_no_node_are_conversions() -> None:
    program = lower_nodes(calibrated(MODELS["residual"].build(17), "ncnn"))
    conversions = {type(step.operation) for step in program.steps if not step.nodes}
    assert conversions == {Quantize, Transpose}


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (node("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]), "its window is dilated"),
        (
            node("MaxPool", kernel_shape=[8, 3], strides=[3, 1]),
            "its window is longer than its input with the pads",
        ),
        (resize("cubic", "half_pixel", (12, 14)), "its mode is cubic with half_pixel"),
        (node("Hardmax"), ""),
    ],
)
def test_node_without_an_operation_has_the_reason(build: Build, reason: str) -> None:
    operation = last(lowered(build, 4, 6, 7)).operation
    assert isinstance(operation, FloatNodes)
    assert operation.reason == reason


@pytest.mark.parametrize("name", ["layer norm", "mish", "pad by reflection", "batch norm"])
def test_programs_for_the_engine_have_no_float_layers(name: str) -> None:
    plan = calibrated(build_case(name), "ncnn")
    for float_operations in (False, True):
        program = lower(plan, float_operations=float_operations)
        assert not any(isinstance(s.operation, get_args(FloatOperation)) for s in program.steps)
