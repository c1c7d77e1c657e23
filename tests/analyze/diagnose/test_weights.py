"""Of the weights that one is named that costs most, and of its causes that which explains most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.analyze.diagnose.weights import weight_finding
from intact.calibrate.outputs import FloatRuns
from intact.plan import Overrides, QuantizedGraph
from tests.models import ModelBuilder
from tests.plans import HEADER, calibrate, config, own_target, planned

PER_TENSOR = HEADER.replace('"per_channel"', '"per_tensor"')
SIZES = np.where(np.arange(16) == 5, 97.0, 1.0)


class Case(NamedTuple):
    """Two convolutions side by side: what ``quiet`` computes is a thousandth of the sum.

    Attributes:
        cause: What is to be named at ``loud``.
        bits: Of weights.
        header: Of the target.
        unlike: The weights whose output channels are unlike.
        inputs: Whether the input channels that ``loud`` reads are unlike.
        scale: Times that of ``loud`` that it has.
        quiet: Likewise.
    """

    cause: str
    bits: Mapping[str, int] = {}
    header: str = HEADER
    unlike: tuple[str, ...] = ()
    inputs: bool = False
    scale: float = 1.0
    quiet: float = 1.0


CASES = {
    "fewest bits where they cost nothing": Case("rounding", {"quiet": 2, "loud": 3}),
    "unlike channels where they cost nothing": Case(
        "rounding", {"loud": 3}, PER_TENSOR, unlike=("quiet",)
    ),
    "unlike channels of few bits": Case(
        "per_tensor_weights", {"loud": 6}, PER_TENSOR, unlike=("loud",)
    ),
    "room for a bias where it costs nothing": Case("rounding", {"loud": 3}, quiet=9.0),
    "room for a bias": Case("bias_overflow", scale=9.0),
    "cut off": Case("clipping", scale=0.2),
    "cut off, and a few bits": Case("clipping", {"loud": 6}, scale=0.2),
    "one large input": Case("dead_channel", inputs=True),
}


def _net(case: Case) -> tuple[onnx.ModelProto, npt.NDArray[np.float32]]:
    b = ModelBuilder(seed=5)
    x, sizes = b.input("x", ["batch", 16, 4, 4]), SIZES if case.inputs else np.ones(16)
    sums = []
    for name, times in (("quiet", 1e-3), ("loud", 1.0)):
        outputs = SIZES if name in case.unlike else np.ones(16)
        weight = b.random.normal(size=(16, 16, 1, 1)) * outputs[:, None, None, None]
        weight *= sizes[None, :, None, None] if name == "loud" else 1
        y = b.node("Conv", x, b.constant(weight.astype(np.float32)), name=name)
        mixed = b.random.normal(size=(8, 16, 1, 1)) * times / outputs[None, :, None, None]
        sums.append(b.node("Conv", y, b.constant(mixed.astype(np.float32)), name=f"{name}_last"))
    b.output(b.node("Add", *sums, out="y"))
    data = b.random.normal(size=(16, 16, 4, 4)) / sizes[None, :, None, None]
    return b.build(), data.astype(np.float32)


def _plan(case: Case, folder: Path) -> tuple[QuantizedGraph, FloatRuns]:
    model, data = _net(case)
    target = own_target(folder, '[[op]]\nops = ["Conv", "Add"]\n', header=case.header)
    plan = calibrate(planned(model, target, Overrides(bits=dict(case.bits))), {"x": data})
    for name, times in (("loud", case.scale), ("quiet", case.quiet)):
        weight = config(plan, f"{name}.input[1]").dominator
        assert weight.params is not None
        weight.set_params(weight.params.scale * np.float32(times), weight.params.zero_point)
    return plan, FloatRuns(plan.graph, [({"x": data}, 16)], threads=1)


@pytest.mark.parametrize("name", CASES)
def test_the_weight_and_the_cause_that_cost_most_are_named(name: str, tmp_path: Path) -> None:
    plan, runs = _plan(CASES[name], tmp_path)
    found = weight_finding(plan, runs, "y", 1.0, "of the noise")
    assert (found.cause, found.node) == (CASES[name].cause, "loud")
    assert repr(found.tensor) in found.evidence


@pytest.mark.parametrize("inputs", [64, 70])
def test_blocks_are_judged_by_their_own_scales_also_where_the_last_is_short(inputs: int) -> None:
    b, random = ModelBuilder(), np.random.default_rng(0)
    b.output(b.node("MatMul", b.input("x", ["N", inputs]), b.weight(inputs, 7)))
    data = {"x": random.normal(size=(32, inputs)).astype(np.float32)}
    with pytest.warns(intact.IntactWarning, match="it has 2 bits; without that"):
        intact.quantize(b.build(), data, block=32, weight_bits=2, preset="fast")
