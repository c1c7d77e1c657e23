"""Whole models in torch: random nets, and those that other tests use."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intact.engines.session import Optimization, make_session
from intact.graph import Graph, normalize
from intact.improve.learn.operators import unsupported
from tests.improve.learn.operators.interpreter import Arrays, interpret
from tests.nets.nets import random_net


def largest_error(graph: Graph, feeds: Arrays, dtype: torch.dtype) -> float:
    """The largest distance from ONNX Runtime, as a share of the largest element of each output."""
    session = make_session(graph.model, threads=1, optimization=Optimization.NONE)
    names = [str(value.name) for value in graph.outputs]
    found = interpret(graph, feeds, dtype)
    worst = 0.0
    for name, right in zip(names, session.run(names, dict(feeds)), strict=True):
        assert found[name].shape == right.shape
        scale = np.abs(right).max(initial=1e-6)
        worst = max(worst, float(np.abs(found[name] - right).max(initial=0) / scale))
    return worst


SEEDS = [seed for seed in range(36) if random_net(seed).model().graph.node]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", SEEDS[:30])
def test_random_nets_compute_what_the_runtime_computes(seed: int) -> None:
    net = random_net(seed)
    graph = normalize(net.model())
    assert not unsupported(graph)
    for dtype in (torch.float32, torch.float64):
        assert largest_error(graph, net.samples(3), dtype) < 2e-5
