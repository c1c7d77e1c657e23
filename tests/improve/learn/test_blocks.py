"""Blocks on small graphs, against a search that takes every tensor away in turn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
import torch

from intact.graph import is_constant
from intact.improve.learn.blocks import Block, articulations, blocks
from intact.improve.learn.slices import FLOAT, Slices
from intact.plan import quantization_points
from tests.improve.learn.nets import every_layer
from tests.models import ModelBuilder
from tests.plans import calibrated


def random_net(seed: int) -> onnx.ModelProto:
    """Convolutions and sums in an order that a seed decides; all that is left over is summed."""
    random = np.random.default_rng(seed)
    b = ModelBuilder(seed=seed)
    loose = [b.input("image", ["batch", 2, 4, 4])]
    for _ in range(12):
        count = len(loose)
        if count > 1 and random.random() < 0.5:
            first, second = (loose.pop(int(random.integers(len(loose)))) for _ in range(2))
            loose.append(b.node("Add", first, second))
        else:
            x = loose.pop(int(random.integers(count)))
            copies = int(random.integers(1, 3))
            loose += [b.node("Conv", x, b.weight(2, 2, 1, 1)) for _ in range(copies)]
    total = loose[0]
    for each in loose[1:]:
        total = b.node("Add", total, each)
    b.node("Relu", total, out="y")
    b.output("y", ["batch", 2, 4, 4])
    return b.build()


def sliced(model: onnx.ModelProto, target: str = "onnxruntime") -> Slices:
    return Slices(calibrated(model, target), {}, torch.device("cpu"))


def searched(slices: Slices) -> set[str]:
    """The tensors without which no output can be reached from any input."""
    graph = slices.plan.graph
    found = set()
    for taken in graph.values:
        if is_constant(taken):
            continue
        reached = {value for value in graph.inputs if value is not taken}
        for node in graph.nodes:
            if any(value in reached for value in node.inputs):
                reached |= {value for value in node.outputs if value is not taken}
        if not reached & set(graph.outputs):
            found.add(str(taken.name))
    ends = {str(value.name) for value in (*graph.inputs, *graph.outputs)}
    return found - ends


@pytest.mark.crossed
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("target", ["onnxruntime", "tflite"])
def test_articulations_are_those_of_a_search(seed: int, target: str) -> None:
    slices = sliced(random_net(seed), target)
    profile = slices.profile({"image": torch.randn(2, 2, 4, 4)})
    points = quantization_points(slices.plan)
    sources = {str(point.end): str(point.value.name) for point in points}
    cut = articulations(slices.steps, profile.sizes)
    found = {sources.get(key, key) for key in cut.values()}
    assert found - {"image"} == searched(slices)


def cut_of(slices: Slices, most: int = 4, largest: int = 8) -> tuple[Block, ...]:
    profile = slices.profile({"image": torch.randn(2, *FORM)})
    layers = {str(n.name) for n in slices.plan.graph.nodes if n.op_type in ("Conv", "Gemm")}
    return blocks(slices.steps, profile.sizes, layers, most, largest)


FORM = (3, 8, 8)


def inverted_residuals() -> onnx.ModelProto:
    """Wide between narrow, twice; the second time with a way around."""
    b = ModelBuilder()
    x = b.input("image", ["batch", *FORM])
    x = b.conv(x, 3, 4)
    for around in (False, True):
        y = b.node("Relu", b.conv(x, 4, 24, kernel=1))
        y = b.node("Relu", b.conv(y, 24, 24, group=24))
        y = b.conv(y, 24, 4, kernel=1)
        x = b.node("Add", x, y) if around else y
    b.node("Flatten", b.node("GlobalAveragePool", x), out="y")
    b.output("y", ["batch", 4])
    return b.build()


def test_blocks_are_cut_at_bottlenecks() -> None:
    found = cut_of(sliced(inverted_residuals()))
    assert [len(each.layers) for each in found if each.layers] == [4, 3]


def test_every_step_is_in_one_block() -> None:
    slices = sliced(every_layer())
    for most, largest in ((1, 1), (2, 3), (4, 8), (100, 100)):
        found = cut_of(slices, most, largest)
        edges = [(each.first, each.end) for each in found]
        assert edges[0][0] == 0
        assert edges[-1][1] == len(slices.steps.steps)
        assert all(a[1] == b[0] for a, b in pairwise(edges))
        if largest == 1:
            assert all(len(each.layers) <= 1 for each in found)


@pytest.mark.parametrize("most", [1, 4])
def test_blocks_in_float_give_the_outputs(most: int) -> None:
    from intact.engines.session import FloatModel

    slices = sliced(every_layer())
    image = torch.randn(3, *FORM, generator=torch.Generator().manual_seed(1))
    held = {"image": image}
    given: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for block in cut_of(slices, most, 2 * most - 1):
            assert set(held) >= block.reads
            held = slices.run(block, held, FLOAT)
            given |= held
    wanted = FloatModel(slices.plan.graph, threads=1).run({"image": image.numpy()})
    for key, name in zip(slices.steps.outputs, ("embedding", "scores"), strict=True):
        np.testing.assert_allclose(given[key].numpy(), wanted[name], rtol=1e-4, atol=1e-5)


def test_several_inputs_and_outputs_fall_apart_into_layers() -> None:
    """Two towers that never meet have no tensor that everything goes through."""
    b = ModelBuilder()
    for side in ("left", "right"):
        x = b.input(side, ["batch", 3, 4, 4])
        for _ in range(5):
            x = b.node("Relu", b.conv(x, 3, 3))
        b.output(b.node("Neg", x, out=f"{side}_out"), ["batch", 3, 4, 4])
    slices = sliced(b.build())
    profile = slices.profile({side: torch.randn(2, 3, 4, 4) for side in ("left", "right")})
    layers = {str(n.name) for n in slices.plan.graph.nodes if n.op_type == "Conv"}
    found = blocks(slices.steps, profile.sizes, layers, 4, 4)
    assert max(len(each.layers) for each in found) <= 4
    assert sum(len(each.layers) for each in found) == 10
