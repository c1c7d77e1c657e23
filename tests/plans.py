"""Plans of small models for tests of the rooms behind the plan, calibrated with min-max."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.config import TensorQuantConfig
from intact.data.sources import open_samples
from intact.graph import normalize
from intact.plan import Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.targets import Target, load_target
from tests.models import ModelBuilder, random_inputs

Arrays = dict[str, npt.NDArray[Any]]

HEADER = """
format = 1
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
requantize = "float32"
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
    return build_plan(normalize(model), described, overrides)


def calibrate(
    plan: QuantizedGraph, feeds: Arrays, method: str = "minmax", weights: str = "minmax"
) -> QuantizedGraph:
    """Give a plan its scales from one batch."""
    tensors = required_tensors(plan)
    statistics = collect(plan.graph, open_samples(feeds, plan.graph), tensors, threads=1)
    return assign(plan, statistics, Method.of(plan.target, method, weights))


def calibrated(
    model: onnx.ModelProto,
    target: Target | str = "onnxruntime",
    overrides: Overrides | None = None,
    *,
    seed: int = 1,
) -> QuantizedGraph:
    """A plan with scales from eight random samples."""
    return calibrate(planned(model, target, overrides), random_inputs(model, batch=8, seed=seed))


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
