"""Plans of small models for tests of the rooms behind the plan, calibrated with min-max."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.config import TensorQuantConfig
from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.formats.base.format import WrittenFiles
from intact.graph import Graph, normalize
from intact.plan import Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.results.result import Result
from intact.targets import Target, load_target
from tests.models import ModelBuilder, random_inputs

_BITS = 10

Arrays = dict[str, npt.NDArray[Any]]

HEADER = """
format = 2
name = "mine"
formats = ["onnx_qdq"]
[activation]
dtype = "uint8"
symmetric = false
[weight]
dtype = "int8"
quant_min = -127
symmetric = true
granularity = "per_channel"
[arithmetic]
requantize = { kind = "float_once" }
"""


def image(b: ModelBuilder) -> str:
    """The input of small convolutional models."""
    return b.input("image", ["batch", 4, 8, 8])


def conv(b: ModelBuilder, x: str, name: str) -> str:
    """A 1x1 convolution that keeps four channels."""
    return b.node("Conv", x, b.weight(4, 4, 1, 1), name=name, out=f"{name}_out")


def own_target(folder: Path, rules: str, *, header: str = HEADER) -> Target:
    """A target of u8 activations and s8 weights per channel, with these rules."""
    path = folder / "mine.toml"
    path.write_text(header + textwrap.dedent(rules), encoding="utf-8")
    return load_target(path)


def planned(
    model: onnx.ModelProto,
    target: Target | str = "onnxruntime",
    overrides: Overrides | None = None,
) -> QuantizedGraph:
    """The structure of a plan, without scales."""
    described = load_target(target) if isinstance(target, str) else target
    return build_plan(graph_of(model.SerializeToString(deterministic=True)), described, overrides)


@functools.lru_cache(maxsize=64)
def graph_of(model: bytes) -> Graph:
    """Normalize a model; plans share its graph, which nothing changes."""
    return normalize(onnx.load_model_from_string(model))


def op_types(graph: Graph) -> list[str]:
    """The types of a graph's nodes, in their order."""
    return [node.op_type for node in graph.nodes]


def lost(plan: QuantizedGraph, feeds: Arrays) -> float:
    """Mean squared error of the simulated output ``y``."""
    wanted = FloatModel(plan.graph, threads=1).run(feeds)["y"]
    found = Simulator(plan, threads=1).run(feeds)[0]["y"]
    return float(np.mean((wanted - found) ** 2))


def calibrate(
    plan: QuantizedGraph, feeds: Arrays, method: str = "minmax", weights: str = "minmax"
) -> QuantizedGraph:
    """Give a plan its scales from one batch."""
    return assign(plan, _observed(plan, feeds), Method.of(plan.target, method, weights))


def _observed(plan: QuantizedGraph, feeds: Arrays) -> Statistics:
    samples = open_samples(feeds, plan.graph)
    tensors = required_tensors(plan) or tuple(samples.specs)
    return collect(plan.graph, samples, tensors, threads=1)


def calibrated(
    model: onnx.ModelProto,
    target: Target | str = "onnxruntime",
    overrides: Overrides | None = None,
    *,
    seed: int = 1,
) -> QuantizedGraph:
    """A plan with scales from the ranges of eight random samples, rounded to wider ones.

    For tests of what is done with a plan: its scales do not depend on the last bits of the floats
    that a runtime computes on a processor. `calibrate` takes ranges as they are.
    """
    plan = planned(model, target, overrides)
    statistics = _wide(model.SerializeToString(deterministic=True), required_tensors(plan), seed)
    return assign(plan, statistics, Method.of(plan.target, "minmax", "minmax"))


@functools.lru_cache(maxsize=64)
def _wide(model: bytes, tensors: tuple[str, ...], seed: int) -> Statistics:
    graph = graph_of(model)
    feeds = random_inputs(onnx.load_model_from_string(model), batch=8, seed=seed)
    samples = open_samples(feeds, graph)
    statistics = collect(graph, samples, tensors or tuple(samples.specs), threads=1)
    for tensor in statistics.tensors.values():
        tensor.minimum, tensor.maximum = wider(tensor.minimum), wider(tensor.maximum)
    return statistics


def wider(bound: float) -> float:
    """The next number of ten significant bits, away from zero; two kernels rarely differ in it."""
    if not math.isfinite(bound):
        return bound
    fraction, exponent = math.frexp(bound)
    steps = math.ldexp(fraction, _BITS)
    return math.ldexp(math.copysign(math.ceil(abs(steps)), steps), exponent - _BITS)


def config(plan: QuantizedGraph, end: str) -> TensorQuantConfig:
    """The config of an end by its text, ``node.input[0]``."""
    return plan.configs[TensorEnd.parse(end)]


def floats(reason: str, plan: QuantizedGraph) -> set[str]:
    """The nodes that stay float for a reason that holds this text."""
    return {
        name
        for name, decision in plan.decisions.items()
        if not decision.quantized and reason in decision.reason
    }


def step_difference(left: npt.NDArray[Any], right: npt.NDArray[Any], scale: float) -> float:
    """The largest difference of two arrays, in steps."""
    return float(np.abs(left.astype(np.float64) - right).max(initial=0.0)) / scale


def files_of(result: Result, name: str) -> Mapping[str, bytes]:
    """Return what was written in a format, by file name."""
    exported = result.exports[name]
    assert isinstance(exported, WrittenFiles)
    return exported.files
