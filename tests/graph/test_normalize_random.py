"""Random networks of everything that normalisation rewrites: results and names stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.graph import normalize
from tests.graph.test_normalize import assert_same_results
from tests.models import OPSETS, ModelBuilder

Step = Callable[[ModelBuilder, str], str]


def _pad(b: ModelBuilder, x: str) -> str:
    return b.node("Pad", x, b.ints(0, 0, 1, 0, 0, 0, 0, 1), b.scalar(0))


def _shrink(b: ModelBuilder, x: str) -> str:
    return b.node("Slice", x, b.ints(0, 0), b.ints(6, 6), b.ints(2, 3))


def _there_and_back(b: ModelBuilder, x: str) -> str:
    return b.node("Transpose", b.node("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])


def _turn(b: ModelBuilder, x: str) -> str:
    return b.node("Transpose", x, perm=[0, 1, 3, 2])


def _odd_add(b: ModelBuilder, x: str) -> str:
    return b.node("Add", x, b.constant(np.full((1, 4, 1, 1), 1e-12, dtype=np.float32)))


def _same_conv(b: ModelBuilder, x: str) -> str:
    return b.node("Conv", x, b.weight(4, 4, 2, 2), auto_pad="SAME_LOWER")


def _squeeze_excite(b: ModelBuilder, x: str) -> str:
    return b.node("Mul", x, b.node("Sigmoid", b.mean(x, [3, 2], keepdims=1)))


STEPS: list[Step] = [
    lambda b, x: b.conv(x, 4, 4),
    lambda b, x: b.conv(x, 4, 4, group=4, bias=False),
    lambda b, x: b.batch_norm(x, 4),
    lambda b, x: b.node("Relu", x),
    lambda b, x: b.clip(x, -1, 1),
    lambda b, x: b.node("Identity", x),
    lambda b, x: b.node("Dropout", x),
    lambda b, x: b.node("Mul", x, b.scalar(1)),
    _pad,
    _shrink,
    _there_and_back,
    _turn,
    _odd_add,
    _same_conv,
    _squeeze_excite,
]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_networks(data: st.DataObject) -> None:
    builder = ModelBuilder(data.draw(st.sampled_from(OPSETS)), seed=data.draw(st.integers(0, 9)))
    tensors = [builder.input("image", ["batch", 4, 7, 7])]
    for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=10)):
        source = data.draw(st.sampled_from(tensors[-3:]))
        tensors.append(step(builder, source))
    outputs = data.draw(st.sets(st.sampled_from(tensors[1:]), max_size=2)) | {tensors[-1]}
    for name in sorted(outputs):
        builder.output(name)
    model = builder.build()
    graph = normalize(model)
    assert {value.name for value in graph.outputs} == outputs
    assert_same_results(model, graph)
    assert normalize(graph.model).hash == graph.hash
