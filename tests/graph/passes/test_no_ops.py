"""Only what does exactly nothing is removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact.graph import normalize
from tests import models
from tests.models import ModelBuilder


def survives(op_type: str, *constants: Any, first: bool = False, **attributes: Any) -> bool:
    builder = ModelBuilder(17)
    x = builder.node("Relu", builder.input("x", ["batch", 3]))
    others = [builder.constant(value) for value in constants]
    inputs = [*others, x] if first else [x, *others]
    y = builder.node(op_type, *inputs, name="node", **attributes)
    builder.node("Neg", y, out="y")
    builder.output("y")
    return any(node.name == "node" for node in normalize(builder.build()).nodes)


F = np.float32


@pytest.mark.parametrize(
    ("op_type", "constant"),
    [
        *(
            ("Add", F(0)),
            ("Sub", F(-0.0)),
            ("Mul", F(1)),
            ("Div", F(1)),
            ("Mul", np.ones((1, 1), F)),
        ),
        *(("Max", F(-np.inf)), ("Min", F(np.inf))),
    ],
)
def test_neutral_constants(op_type: str, constant: Any) -> None:
    assert not survives(op_type, constant)


@pytest.mark.parametrize(
    ("op_type", "constant"),
    [
        ("Add", F(1e-45)),
        ("Mul", np.nextafter(F(1), F(2))),
        ("Mul", F(np.nan)),
        ("Add", np.zeros((1, 1, 1), F)),  # adds an axis
        ("Add", np.zeros((4, 1), F)),  # broadcasts
        ("Mul", F(-1)),
        ("Max", F(-3.4e38)),
        ("Max", F(np.inf)),
        ("Min", F(np.nan)),
        ("Max", np.full(3, -np.inf, F)),
    ],
)
def test_near_neutral_constants_stay(op_type: str, constant: Any) -> None:
    assert survives(op_type, constant)


def test_sides() -> None:
    assert not survives("Add", F(0), first=True)
    assert survives("Sub", F(0), first=True)
    assert survives("Div", F(1), first=True)


def test_bounds_at_infinity() -> None:
    assert not survives("Clip", F(-np.inf), F(np.inf))
    assert survives("Clip", F(-np.inf), F(6))
    assert survives("Clip", F(-np.inf))  # the largest finite number is its upper bound
    assert survives("Clip")
    assert survives("Max", F(-np.inf), F(0))
    assert survives("Min")


def test_dropout_and_cast() -> None:
    assert not survives("Dropout", F(0.5))
    assert not survives("Dropout", F(0.5), np.array(False))
    assert survives("Dropout", F(0.5), np.array(True))
    assert not survives("Cast", to=1)
    assert survives("Cast", to=11)


def test_copies_between_ports_stay() -> None:
    graph = normalize(models.shared_ports())
    kept = [node.outputs[0].name for node in graph.nodes if node.op_type == "Identity"]
    assert kept == ["second", "third", "copy"]
    seven = graph.value("seven")
    assert seven.is_graph_output()
