"""Spaces that leave out what the formats of a deployment cannot express."""

from __future__ import annotations

import random
from functools import cache

import pytest

from intact.calibrate.assign import Method, assign
from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.data.sources import open_samples
from intact.errors import ExportError
from intact.formats.base.expressible import Expressible
from intact.formats.base.format import (
    Io,
)
from intact.formats.registry import FORMATS, export, expressible
from intact.graph import Graph, normalize
from intact.plan import build_plan
from intact.search.space import FLOAT, Candidate, GroupKind, Space, deployable
from intact.targets import load_target, target_names
from tests.models import ModelBuilder, random_inputs
from tests.plans import conv, image

PAIRS = [
    (target, name)
    for target in target_names()
    for name in load_target(target).formats
    if name in FORMATS
]


@cache
def residual() -> tuple[Graph, Statistics]:
    """Convolutions with a residual, a mean and a linear layer, and what its tensors hold."""
    b = ModelBuilder()
    x = b.node("Relu", conv(b, image(b), "first"), name="relu")
    x = b.node("Add", conv(b, x, "second"), x, name="add")
    x = b.node("Relu", x, name="last_relu")
    x = b.node("Flatten", b.node("GlobalAveragePool", x, name="mean"), name="flat")
    b.node("Gemm", x, b.weight(4, 4), b.weight(4), name="linear", out="out")
    b.output("out")
    model = b.build()
    graph = normalize(model)
    values = {str(v.name) for n in graph.nodes for v in (*n.inputs, *n.outputs) if v is not None}
    names = sorted(name for name in values if name not in graph.model.graph.initializers)
    samples = open_samples(random_inputs(model, batch=4, seed=0), graph)
    return graph, collect(graph, samples, tuple(names), threads=1)


def space_of(target: str, limits: Expressible) -> Space:
    space = Space.of(residual()[0], load_target(target), widths=range(2, 17))
    return deployable(
        space,
        weight_bits=limits.weight_bits,
        activation_bits=limits.activation_bits,
        floats=limits.floats,
        mixes=limits.mixes,
    )


def write(space: Space, candidate: Candidate, name: str) -> None:
    graph, statistics = residual()
    target = space.plan.target
    plan = build_plan(graph, target, space.requests(candidate))
    plan = assign(plan, statistics, Method.of(target, "minmax"))
    export(plan, [name], Io.FLOAT if FORMATS[name].writer.has_io else Io.INT8)


@pytest.mark.parametrize(("target", "name"), PAIRS)
def test_whatever_is_left_can_be_written(target: str, name: str) -> None:
    for package in FORMATS[name].writer.packages:
        pytest.importorskip(package)
    space = space_of(target, expressible([name]))
    assert deployable(space, weight_bits=(), activation_bits=(), floats=False).open == ()
    draw = random.Random(0)
    narrowest = tuple(min(group.choices) for group in space.groups)
    drawn = [tuple(draw.choice(group.choices) for group in space.groups) for _ in range(3)]
    for candidate in (space.default, narrowest, *drawn):
        space.check(candidate)
        write(space, candidate, name)


@pytest.mark.parametrize(
    ("target", "name", "bits"),
    [
        ("tvm", "tvm", FLOAT),
        ("tvm", "onnx_integer", FLOAT),
        ("tflite-micro", "c", FLOAT),
        ("tflite", "tflite", 4),
        ("ncnn", "ncnn", 4),
        ("tengine", "tengine", 4),
        ("tensorrt", "tensorrt", 4),
    ],
)
def test_what_is_left_out_cannot_be_written(target: str, name: str, bits: int) -> None:
    space = space_of(target, Expressible())
    candidate = list(space.default)
    index = next(
        index
        for index, group in enumerate(space.groups)
        if bits in group.choices and (group.kind is GroupKind.ACTIVATION or bits == FLOAT)
    )
    candidate[index] = bits
    with pytest.raises(ExportError):
        write(space, tuple(candidate), name)


def test_several_formats_leave_what_all_express() -> None:
    found = expressible(["tflite", "c"])
    eight = frozenset({8})
    assert found == Expressible(
        frozenset(range(2, 9)),
        eight,
        floats=False,
        stored_bits=frozenset({8, 16, 32}),
        open_sizes=False,
        mixes=False,
        half_ends=False,
    )
    assert expressible([]) == Expressible()
    assert expressible(["onnx_qdq"]) == Expressible(integer_bits=frozenset(range(2, 9)))


def test_a_group_without_choices_keeps_the_targets_width() -> None:
    space = space_of("onnxruntime", Expressible(frozenset({16}), frozenset({3}), floats=False))
    assert {group.choices for group in space.groups if group.kind is GroupKind.WEIGHT} == {(8,)}
    assert {group.choices for group in space.groups if group.kind is GroupKind.ACTIVATION} == {(3,)}
