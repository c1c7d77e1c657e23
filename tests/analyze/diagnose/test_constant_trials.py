"""Weights that are tried alone: some at a time, as sessions hold copies of them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from intact.analyze.diagnose import counterfactuals
from intact.calibrate.assign import assign
from intact.calibrate.method import Method
from intact.calibrate.outputs import FloatRuns
from intact.data.sources import open_samples
from intact.engines.piecewise import FloatPieces
from intact.program.lower.chains import Points
from intact.targets import in_blocks, load_target
from tests.block_nets import dense_net
from tests.plans import planned


def test_sessions_of_weights_that_were_tried_go(monkeypatch: pytest.MonkeyPatch) -> None:
    target = in_blocks(load_target("onnxruntime"), 32)
    plan = assign(planned(dense_net(), target), None, Method.of(target))
    data = np.random.default_rng(0).normal(size=(8, 100)).astype(np.float32)
    runs = FloatRuns(plan.graph, list(open_samples(data, plan.graph).real_batches(4)))
    points = [each for each in Points.of(plan).at_input.values() if each.is_constant]
    assert len(points) == 3
    trials = counterfactuals.ConstantTrials(plan, runs, "y", points)
    parts = [(point,) for point in points]
    together = trials.powers(parts)
    alive: list[weakref.ref[FloatPieces]] = []
    most: list[int] = []
    plain = FloatPieces.exchanged

    def counted(self: FloatPieces, constants: Any) -> FloatPieces:
        found = plain(self, constants)
        alive.append(weakref.ref(found))
        most.append(sum(each() is not None for each in alive))
        return found

    monkeypatch.setattr(FloatPieces, "exchanged", counted)
    monkeypatch.setattr(counterfactuals, "TRIED_BYTES", 1)
    assert trials.powers(parts) == together
    assert min(together) > 0
    assert max(most) == 1
