"""Ranges end where the readers of a tensor tell values apart no longer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from intact.calibrate.scales.ranges import relevant_ranges, within
from intact.graph import normalize
from intact.numerics.distribution import Distribution
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import calibrated

READERS: dict[str, tuple[Callable[[ModelBuilder, str], str], tuple[float, float]]] = {
    "Max": (lambda b, x: b.node("Max", x, b.scalar(-0.5)), (-0.5, np.inf)),
    "Max first": (lambda b, x: b.node("Max", b.scalar(-0.5), x), (-0.5, np.inf)),
    "Max by channel": (
        lambda b, x: b.node(
            "Max", x, b.constant(np.array([[[0.5]], [[-1]], [[0]], [[1]]], np.float32))
        ),
        (-1, np.inf),
    ),
    "Min": (lambda b, x: b.node("Min", x, b.scalar(0.25)), (-np.inf, 0.25)),
    "Clip": (lambda b, x: b.node("Clip", x, b.scalar(-0.25), b.scalar(0.75)), (-0.25, 0.75)),
    "LeakyRelu": (
        lambda b, x: b.node("Max", b.node("LeakyRelu", x, alpha=0.25), b.scalar(-0.5)),
        (-2, np.inf),
    ),
    "moved": (
        lambda b, x: b.node("Max", b.node("Transpose", x, perm=[0, 1, 3, 2]), b.scalar(-0.5)),
        (-0.5, np.inf),
    ),
    "two": (
        lambda b, x: b.node(
            "Add", b.node("Max", x, b.scalar(-0.5)), b.node("Max", x, b.scalar(-1))
        ),
        (-1, np.inf),
    ),
}
ALL: dict[str, Callable[[ModelBuilder, str], str]] = {
    "another reader": lambda b, x: b.node("Add", b.node("Max", x, b.scalar(-0.5)), x),
    "computed": lambda b, x: b.node("Max", x, b.node("Mul", x, x)),
    "slope below 0": lambda b, x: b.node("Max", b.node("LeakyRelu", x, alpha=-0.5), b.scalar(-1)),
    "scaled": lambda b, x: b.node("Max", b.node("Mul", x, b.scalar(2)), b.scalar(-1)),
}


def net(make: Callable[[ModelBuilder, str], str], *, shown: bool = False) -> ModelBuilder:
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 4, 8, 8]), b.weight(4, 4, 3, 3), out="x")
    b.output(b.node("Conv", make(b, x), b.weight(4, 4, 1, 1)))
    if shown:
        b.output(x)
    return b


@pytest.mark.parametrize("reader", READERS)
def test_nothing_beyond_changes_an_output(reader: str) -> None:
    make, interval = READERS[reader]
    model = net(make).build()
    assert relevant_ranges(normalize(model))["x"] == interval
    clipped = net(
        lambda b, x: make(b, b.node("Clip", x, *(b.scalar(max(min(e, 9), -9)) for e in interval)))
    ).build()
    (expected,), (found,) = (run_model(m, random_inputs(m)).values() for m in (model, clipped))
    np.testing.assert_array_equal(expected, found)


@pytest.mark.parametrize("reader", ALL)
def test_all_counts_for_other_readers(reader: str) -> None:
    assert "x" not in relevant_ranges(normalize(net(ALL[reader]).build()))


def test_all_of_an_output_counts() -> None:
    assert "x" not in relevant_ranges(normalize(net(READERS["Max"][0], shown=True).build()))


def test_values_beyond_are_moved_to_the_ends() -> None:
    values = np.linspace(-8, 4, 1001, dtype=np.float32)
    found = within(Distribution.from_values(values), (-1.0, 2.0))
    clipped = np.clip(values, -1, 2)
    assert (found.minimum, found.maximum, found.total) == (-1, 2, len(values))
    assert found.mean == pytest.approx(clipped.mean(), abs=0.01)
    assert found.mean_square == pytest.approx(np.square(clipped).mean(), rel=0.02)
    assert (found.low[1:] >= found.high[:-1]).all()


def test_each_maximum_has_its_own_scale() -> None:
    """One constant that several nodes read joins no ranges; nor is a step lost below it."""
    b = ModelBuilder()
    low = b.constant(np.full((1, 1, 1, 1), -0.25, np.float32))
    x = b.input("image", ["batch", 4, 8, 8])
    for factor in (1, 16):
        weight = b.constant(factor * np.eye(4, dtype=np.float32)[:, :, None, None])
        x = b.node("LeakyRelu", b.node("Conv", x, weight), alpha=0.25)
        x = b.node("Max", x, low, name=f"max_{factor}")
    b.output(x)
    plan = calibrated(b.build(), "tflite")
    ends = [next(c for e, c in plan.configs.items() if e.node == f"max_{k}") for k in (1, 16)]
    scales = [float(end.dominator.params.scale) for end in ends if end.dominator.params]
    assert scales[1] > 8 * scales[0]
    for end in ends:
        assert end.dominator.value_range()[0] == pytest.approx(-0.25, abs=scales[1] / 2)
