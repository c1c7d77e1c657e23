"""Equalized graphs compute the same; their weights reach equally far."""

from __future__ import annotations

import numpy as np
import pytest

from intact.graph import Graph, normalize
from intact.improve.rewrite.equalize import equalize, notes
from intact.improve.rewrite.ties import Ties
from tests.improve.rewrite.networks import (
    ENDS,
    KEEPS,
    assert_same,
    conv,
    mobile,
    pair,
    reaches,
    uneven,
)
from tests.models import MODELS, ModelBuilder

RUNNABLE = [name for name in MODELS if name != "odd_names"]


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_model_computes_the_same(name: str) -> None:
    assert_same(MODELS[name].build(17))


@pytest.mark.parametrize("between", KEEPS)
def test_two_layers_reach_equally_far(between: str) -> None:
    before, after = assert_same(pair(KEEPS[between]))
    first, second = reaches(before, "first", (1, 2, 3)), reaches(before, "second", (0, 2, 3))
    bias, bias_after = (g.constant(g.node("first").inputs[2]) for g in (before, after))
    assert bias is not None
    assert bias_after is not None
    found = reaches(after, "first", (1, 2, 3)), reaches(after, "second", (0, 2, 3))
    factor = found[0] / first
    np.testing.assert_allclose(found[1], second / factor, rtol=1e-5)
    np.testing.assert_allclose(bias_after, bias * factor, rtol=1e-5)
    room = np.abs(bias).max() / np.abs(bias)
    assert (factor <= room * 1.00001).all()
    one, other = (each / each.max() for each in found)
    is_free = factor < 0.99 * room
    assert is_free.any()
    np.testing.assert_allclose(one[is_free], other[is_free], rtol=5e-3)


def test_a_channel_of_next_to_no_weights_keeps_its_bias_small() -> None:
    b = ModelBuilder(seed=6)
    weight = b.random.normal(size=(4, 3, 3, 3)).astype(np.float32)
    weight[2] *= np.float32(1e-7)
    bias = b.constant(np.array([1.0, -0.5, 0.5, 0.0], np.float32))
    x = b.input("image", ["n", 3, 6, 6])
    x = b.node("Conv", x, b.constant(weight), bias, name="first")
    b.node("Conv", b.node("Relu", x), b.weight(2, 4, 3, 3), name="second", out="y")
    b.output("y")
    before, after = assert_same(b.build())
    found = after.constant(after.node("first").inputs[2])
    assert found is not None
    assert before.hash != after.hash
    assert found[2] == 1.0  # not sqrt(1e7) times as large, but as the layer's largest
    assert np.abs(found).max() == 1.0


def test_three_with_a_depthwise_layer_between() -> None:
    b = ModelBuilder(seed=5)
    x = conv(b, b.input("image", ["batch", 2, 8, 8]), 2, 7, "first", bias=0)
    x = conv(b, b.node("Relu", x), 7, 7, "depth", bias=0, group=7)
    b.node("Conv", b.node("Relu", x), *uneven(b, 7, 3, 1), name="last", out="y")
    b.output("y")
    before, after = assert_same(b.build())
    assert before.hash != after.hash
    shares = [found / found.max() for found in (reaches(after, *each) for each in THREE)]
    np.testing.assert_allclose(shares[0], shares[1], rtol=2e-2)
    np.testing.assert_allclose(shares[1], shares[2], rtol=2e-2)


THREE = (("first", (1, 2, 3)), ("depth", (1, 2, 3)), ("last", (0, 2, 3)))


@pytest.mark.parametrize("last", ["Gemm", "MatMul"])
def test_a_mobilenet(last: str) -> None:
    before, after = assert_same(mobile(last=last))
    assert len(set(Ties.of(before).blocks[Ties.of(before).blocks >= 0].tolist())) == 4
    assert before.hash != after.hash

    def spread(graph: Graph) -> float:
        found = [layer for layer in Ties.of(graph).layers if not layer.is_dense]
        ratios = []
        for layer in found:
            reach = layer.reach_of_outputs(np.ones(layer.inputs), np.ones(layer.outputs))
            ratios.append(float(reach.max() / reach.min()))
        return max(ratios)

    assert spread(after) < spread(before) / 10
    assert notes(before) == ()


@pytest.mark.parametrize(("group", "transposed"), [(2, False), (1, True), (2, True)])
def test_groups_and_transposed_convolutions(group: int, transposed: bool) -> None:
    b = ModelBuilder(seed=7)
    x = conv(b, b.input("image", ["batch", 4, 6, 6]), 4, 8, "first", group=group)
    x = b.node("Relu", x)
    if transposed:
        weight = b.random.normal(size=(8, 6 // group, 2, 2)).astype(np.float32)
        x = b.node("ConvTranspose", x, b.constant(weight), name="second", group=group)
        x = conv(b, b.node("Relu", x), 6, 4, "third", group=2)
    else:
        x = conv(b, x, 8, 6, "second", group=group)
    b.nodes[-1].output[0] = "y"
    b.output("y")
    before, after = assert_same(b.build())
    assert before.hash != after.hash


def test_dead_channels_stay_as_they_are() -> None:
    b = ModelBuilder(seed=2)
    first, bias = np.ones((3, 2, 1, 1), np.float32), np.array([0.1, 2, 3], np.float32)
    first[1] = 0.0
    second = np.full((2, 3, 1, 1), 100.0, np.float32)
    second[:, 2] = 0.0
    x = b.node("Conv", b.input("image", ["n", 2, 2, 2]), b.constant(first), b.constant(bias))
    b.node("Conv", b.node("Relu", x), b.constant(second), name="second", out="y")
    b.output("y")
    _, after = assert_same(b.build())
    weight = after.constant(after.node("second").inputs[1])
    assert weight is not None
    (live, dead, unread) = weight[0].reshape(-1)
    assert (dead, unread) == (100.0, 0.0)
    assert live > 0


def test_the_memory_of_a_batch_norm_is_scaled() -> None:
    b = ModelBuilder(seed=4)
    x = b.batch_norm(conv(b, b.input("image", ["n", 2, 4, 4]), 2, 3, "first"), 3)
    conv(b, b.node("Relu", x), 3, 2, "second")
    b.nodes[-1].output[0] = "y"
    b.output("y")
    before, after = assert_same(b.build())
    (name, norm), *_ = before.batch_norms.items()
    other = after.batch_norms[name]
    factor = reaches(after, name, (1, 2, 3)) / reaches(before, name, (1, 2, 3))
    np.testing.assert_allclose(other.gamma, norm.gamma * factor, rtol=1e-5)
    np.testing.assert_allclose(other.beta, norm.beta * factor, rtol=1e-5)
    assert np.array_equal(other.variance, norm.variance)


def test_equalize_repeats_exactly() -> None:
    graph = normalize(mobile())
    assert equalize(graph).hash == equalize(graph).hash
    assert notes(normalize(pair(ENDS["sigmoid"])))
