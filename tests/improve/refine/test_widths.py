"""Wider codes where most is lost for the size."""

from __future__ import annotations

import numpy as np
import pytest

import intact
from intact.data.sources import open_samples
from intact.errors import UsageError
from intact.improve.refine.widths import widen
from intact.plan import QuantizedGraph, TensorEnd
from intact.plan.gains import Gain
from tests.block_nets import WORDS, decoder, dense_net
from tests.improve.refine.test_rounding_blocks import LAYERS, mixed, plan_of
from tests.plans import lost


def bits(plan: QuantizedGraph) -> dict[str, int]:
    return {name: plan.configs[TensorEnd.input(name, 1)].bits for name in LAYERS}


def sizes_of(plan: QuantizedGraph) -> dict[str, int]:
    weights = {name: plan.graph.constant(plan.graph.node(name).inputs[1]) for name in LAYERS}
    return {name: 0 if array is None else array.size for name, array in weights.items()}


def stored(plan: QuantizedGraph) -> float:
    """Bytes of codes and half precision scales."""
    total = 0.0
    for name, count in sizes_of(plan).items():
        config = plan.configs[TensorEnd.input(name, 1)]
        total += count * config.bits / 8 + 2 * np.asarray(config.scale).size
    return total


@pytest.mark.parametrize("zero_points", [False, True])
def test_the_weight_with_most_noise_a_byte_becomes_wide(zero_points: bool) -> None:
    plan = plan_of(dense_net(), zero_points=zero_points)
    feeds = mixed(32, 1)
    gains: list[Gain] = []
    sizes = sizes_of(plan)
    overrides = (tuple(each for each in LAYERS if each != name) for name in LAYERS)
    alone = {
        name: lost(plan_of(dense_net(), zero_points=zero_points, keep_float=others), feeds)
        / sizes[name]
        for name, others in zip(LAYERS, overrides, strict=True)
    }
    samples = open_samples(feeds, plan.graph)
    for growth in (0.0, 10.0, 30.0, 60.0, 200.0):
        expected: set[str] = set()
        room = growth / 100 * stored(plan)
        for name in sorted(LAYERS, key=lambda name: -alone[name]):
            if sizes[name] / 2 <= room:
                room -= sizes[name] / 2
                expected.add(name)
        gains.clear()
        found = widen(plan, samples, growth=growth, most=32, report=gains.append)
        assert {name for name, width in bits(found).items() if width == 8} == expected
        assert {each.node for each in gains} == expected
        assert not expected or lost(found, feeds) < lost(plan, feeds)
    assert lost(found, feeds) < 0.02 * lost(plan, feeds)
    assert set(bits(plan).values()) == {4}


def test_a_table_and_its_layer_become_wide_together() -> None:
    plan = plan_of(decoder())
    ids = np.random.default_rng(0).integers(0, WORDS, (4, 9))
    found = widen(plan, open_samples({"ids": ids}, plan.graph), growth=200)
    widths = {str(end): each.bits for end, each in found.configs.items() if each.grid.block}
    assert set(widths.values()) == {8}


def test_the_command_says_what_it_is_for() -> None:
    with pytest.raises(UsageError, match="widths is for weights in blocks"):
        intact.quantize(dense_net(), mixed(8, 1), improve=["widths"])


def test_widths_and_rounding_together_are_what_the_runtime_computes() -> None:
    improve = ["widths{growth=40}", "rounding"]
    made = intact.quantize(dense_net(), mixed(64, 1), block=32, improve=improve)
    assert [each.improvement.kept for each in made.improvements] == [True, True]
    widths = bits(made.plan)
    assert set(widths.values()) == {4, 8}
    baked = {each.node for each in made.plan.baked}
    assert baked == {name for name, width in widths.items() if width == 4}
    compared = intact.verify(made, mixed(8, 2)).float_layers
    assert compared
    assert not any(each.differs for each in compared)
