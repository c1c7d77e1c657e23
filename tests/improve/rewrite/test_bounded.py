"""Equalizing with known ranges, across sums and slices, through bounds and gates; absorption."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.data.sources import open_samples
from intact.graph import Graph, normalize
from intact.improve.channels import Channels, observe_channels
from intact.improve.rewrite.absorb import absorb, absorptions
from intact.improve.rewrite.equalize import equalize, tensors_of
from intact.improve.rewrite.ties import Ties
from tests.improve.rewrite.networks import conv, mobile, outputs, reaches, uneven
from tests.models import ModelBuilder, random_inputs


def seen_by(graph: Graph, model: onnx.ModelProto) -> dict[str, Channels]:
    """The channels for the inputs that `outputs` takes."""
    feeds = random_inputs(model, batch=4, seed=9)
    tensors = tensors_of(Ties.of(graph))
    return dict(observe_channels(graph, open_samples(feeds, graph), tensors, threads=1))


def assert_equal_outputs(before: Graph, after: Graph, model: onnx.ModelProto) -> None:
    wanted, found = outputs(before, model), outputs(after, model)
    for name, array in wanted.items():
        assert np.abs(found[name] - array).max() <= 1e-5 * np.abs(array).max(), name
    assert [node.name for node in before.nodes] == [node.name for node in after.nodes]


def residual(b: ModelBuilder) -> None:
    x = b.node("Relu", conv(b, b.input("image", ["batch", 4, 8, 8]), 4, 6, "stem"))
    y = b.node("Relu", conv(b, x, 6, 6, "one"))
    x = b.node("Relu", b.node("Add", conv(b, y, 6, 6, "two"), x))
    conv(b, x, 6, 3, "last")


def slices(b: ModelBuilder) -> None:
    image = b.input("image", ["batch", 4, 8, 8])
    parts = [b.node("Relu", conv(b, image, 4, size, f"part{size}")) for size in (2, 3)]
    conv(b, b.node("Concat", *parts, image, axis=1), 9, 3, "last")


def gated(b: ModelBuilder) -> None:
    x = b.node("Relu", conv(b, b.input("image", ["batch", 4, 8, 8]), 4, 6, "first"))
    gate = b.node("Relu", conv(b, b.node("GlobalAveragePool", x), 6, 3, "squeeze", kernel=1))
    gate = b.node("Sigmoid", conv(b, gate, 3, 6, "excite", kernel=1, bias=0))
    conv(b, b.node("Mul", x, gate), 6, 3, "last")


def shared_slope(b: ModelBuilder) -> None:
    x = conv(b, b.input("image", ["batch", 4, 8, 8]), 4, 6, "first")
    conv(b, b.node("PRelu", x, b.constant(np.array([0.2], np.float32))), 6, 3, "last")


Build = Callable[[ModelBuilder], None]


def built(build: Build) -> onnx.ModelProto:
    b = ModelBuilder(seed=3)
    build(b)
    b.nodes[-1].output[0] = "y"
    b.output("y")
    return b.build()


@pytest.mark.parametrize("build", [residual, slices, gated, shared_slope])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_function_stays(build: Build, per_channel: bool) -> None:
    model = built(build)
    before = normalize(model)
    after = equalize(before, seen_by(before, model), per_channel=per_channel)
    assert before.hash != after.hash
    assert_equal_outputs(before, after, model)
    unseen = equalize(before)
    assert unseen.hash != before.hash
    assert_equal_outputs(before, unseen, model)


def test_branches_of_a_sum_share_factors() -> None:
    before = normalize(built(residual))
    ties = Ties.of(before)
    out = {str(node.name): ids for node, ids in ties.out.items()}
    into = {str(node.name): ids for node, ids in ties.into.items()}
    assert np.array_equal(out["stem"], out["two"])
    assert np.array_equal(out["stem"], into["last"])
    assert not np.intersect1d(out["one"], out["stem"]).size
    assert len(set(ties.blocks[ties.blocks >= 0].tolist())) == 2


def test_slices_of_an_input_stay() -> None:
    ties = Ties.of(normalize(built(slices)))
    into = {str(node.name): ids for node, ids in ties.into.items()}
    assert (into["last"][5:] == -1).all()
    assert (into["last"][:5] >= 0).all()


def test_channels_below_a_bound_are_scaled_up_to_it() -> None:
    model = mobile(lambda b, x: b.clip(x, 0, 6))
    before = normalize(model)
    seen = seen_by(before, model)
    after = equalize(before, seen)
    assert equalize(before).hash == before.hash  # nothing is known
    assert_equal_outputs(before, after, model)
    assert before.hash != after.hash


def test_a_bound_that_acts_holds_its_channels() -> None:
    b = ModelBuilder(seed=3)
    image = b.input("image", ["batch", 4, 8, 8])
    x = b.clip(b.node("Conv", image, *uneven(b, 4, 6), name="first", pads=[1] * 4), 0, 6)
    b.node("Conv", x, *uneven(b, 6, 5), name="second", out="y")
    b.output("y")
    model = b.build()
    before = normalize(model)
    seen = seen_by(before, model)
    (channels,) = seen.values()
    factor = reaches(equalize(before, seen), "first", (1, 2, 3)) / reaches(
        before, "first", (1, 2, 3)
    )
    held = channels.cut > 1e-4
    assert 0 < np.count_nonzero(held) < 6
    assert np.allclose(factor[held], 1)
    assert not np.allclose(factor[~held], 1)


def shifted(pads: int, *, bound: float = np.inf, kernel: int = 3) -> onnx.ModelProto:
    """A channel that is always large, through a Relu into a convolution."""
    b = ModelBuilder(seed=5)
    weight = b.random.normal(size=(3, 2, 1, 1)).astype(np.float32) / 8
    bias = b.constant(np.array([20, 0, 1], np.float32))
    x = b.node("Conv", b.input("image", ["n", 2, 6, 6]), b.constant(weight), bias, name="first")
    x = b.clip(x, 0, bound) if np.isfinite(bound) else b.node("Relu", x)
    last = b.weight(4, 3, kernel, kernel)
    b.node("Conv", x, last, name="second", pads=[pads] * 4, out="y")
    b.output("y")
    return b.build()


def ranges(graph: Graph, model: onnx.ModelProto) -> dict[str, Channels]:
    feeds = random_inputs(model, batch=4, seed=9)
    tensors = [each.tensor for each in absorptions(graph)]
    return dict(observe_channels(graph, open_samples(feeds, graph), tensors, threads=1))


@pytest.mark.parametrize("bound", [np.inf, 50.0])
def test_a_high_bias_is_absorbed(bound: float) -> None:
    model = shifted(0, bound=bound)
    before = normalize(model)
    seen = ranges(before, model)
    after = absorb(before, seen)
    assert_equal_outputs(before, after, model)
    bias = after.constant(after.node("first").inputs[2])
    assert bias is not None
    assert bias[0] < 3
    assert bias[1] == 0
    assert after.constant(after.node("second").inputs[2]) is not None
    assert absorb(before).hash == before.hash  # nothing is known
    assert absorb(before, seen, []).hash == before.hash


def test_pads_and_bounds_that_act_absorb_nothing() -> None:
    assert not absorptions(normalize(shifted(1)))
    model = shifted(0, bound=19.0)
    graph = normalize(model)
    assert absorb(graph, ranges(graph, model)).hash == graph.hash


def test_a_remembered_batch_norm_is_absorbed() -> None:
    b = ModelBuilder(seed=4)
    x = b.node("Conv", b.input("image", ["n", 2, 4, 4]), b.weight(3, 2, 1, 1))
    one, mean = np.full(3, 0.5, np.float32), np.zeros(3, np.float32)
    beta = np.array([9, 0, 1], np.float32)
    numbers: list[npt.NDArray[np.float32]] = [one, beta, mean, np.full(3, 4, np.float32)]
    x = b.node("BatchNormalization", x, *map(b.constant, numbers))
    b.node("Conv", b.node("Relu", x), b.weight(2, 3, 1, 1), name="second", out="y")
    b.output("y")
    model = b.build()
    before = normalize(model)
    after = absorb(before)
    assert_equal_outputs(before, after, model)
    (norm,) = after.batch_norms.values()
    np.testing.assert_allclose(norm.beta, [1.5, 0, 1])
