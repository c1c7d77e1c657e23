"""Blocks are equalized and biases absorbed where that loses less, and not elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx

from intact.calibrate.method import Method
from intact.graph import Graph, normalize
from intact.improve.rewrite.equalize import tensors_of
from intact.improve.rewrite.gate import Gate, absorb_measured, equalize_measured
from intact.improve.rewrite.ties import Ties
from intact.plan import build_plan
from intact.plan.gains import Gain
from tests.improve.rewrite.networks import conv
from tests.improve.rewrite.test_bounded import ranges, seen_by, shifted
from tests.models import ModelBuilder, random_inputs
from tests.plans import own_target

RULES = """
[[op]]
ops = ["Conv", "Relu", "Clip"]
inputs = ["uint8", "int8"]
outputs = ["uint8"]
"""


def gate_of(graph: Graph, model: onnx.ModelProto, folder: Path, count: int = 4) -> Gate:
    target = own_target(folder, '[bias]\ndtype = "int32"\n' + RULES)
    feeds = [random_inputs(model, batch=4, seed=seed) for seed in range(count)]
    return Gate(graph, partial(build_plan, target=target), Method.of(target), feeds, threads=1)


def uneven_pair() -> onnx.ModelProto:
    b = ModelBuilder(seed=3)
    x = conv(b, b.input("image", ["batch", 4, 8, 8]), 4, 6, "first", bias=0)
    conv(b, b.node("Relu", x), 6, 5, "second", bias=0)
    b.nodes[-1].output[0] = "y"
    b.output("y")
    return b.build()


def test_a_block_that_gains_is_equalized_and_said(tmp_path: Path) -> None:
    model = uneven_pair()
    graph, gains = normalize(model), list[Gain]()
    gate = gate_of(graph, model, tmp_path)
    seen = seen_by(graph, model)
    after = equalize_measured(gate, seen, per_channel=True, report=gains.append)
    (gain,) = gains
    assert gain.node == "second"
    assert gain.kept == (gain.after > gain.before + 0.2) == (after.hash != graph.hash)
    again = equalize_measured(gate, seen, per_channel=True)
    assert again.hash == after.hash


def test_one_batch_changes_nothing(tmp_path: Path) -> None:
    model = uneven_pair()
    graph = normalize(model)
    gate = gate_of(graph, model, tmp_path, count=1)
    assert equalize_measured(gate, seen_by(graph, model)).hash == graph.hash


def test_a_high_bias_is_absorbed_where_it_helps(tmp_path: Path) -> None:
    model = shifted(0)
    graph, gains = normalize(model), list[Gain]()
    gate = gate_of(graph, model, tmp_path)
    after = absorb_measured(gate, ranges(graph, model), report=gains.append)
    (gain,) = gains
    assert gain.kept
    assert gain.after > gain.before + 3
    assert after.hash != graph.hash


def test_a_block_knows_its_nodes() -> None:
    graph = normalize(uneven_pair())
    ties = Ties.of(graph)
    (block,) = set(ties.blocks[ties.blocks >= 0].tolist())
    names = [node.op_type for node in ties.nodes_of(graph, block)]
    assert names == ["Conv", "Relu", "Conv"]
    assert len(tensors_of(ties)) == 1
    assert np.isfinite(ties.blocks).all()
