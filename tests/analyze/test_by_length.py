"""`--by length`: short and long samples apart, and what leaves its range in long ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import intact
from intact.analyze.evaluation.by_length import ByLength
from intact.data.labels import Reference
from intact.errors import UsageError
from intact.results.result import Result
from tests.models import ModelBuilder

Feeds = list[dict[str, Reference]]


def summing(steps: int | str) -> onnx.ModelProto:
    """A net whose sum over time grows with the length."""
    build = ModelBuilder()
    x = build.node("MatMul", build.input("x", ["n", steps, 8]), build.weight(8, 8))
    total = build.with_axes("ReduceSum", x, [1], keepdims=0)
    build.nodes[-1].output[0] = total = "total"
    small = build.node("Mul", build.node("MatMul", total, build.weight(8, 8)), build.scalar(0.05))
    build.node("MatMul", build.node("Tanh", small), build.weight(8, 6), out="y")
    build.output("y", ["n", 6])
    return build.build()


def sequences(lengths: range, seed: int) -> Feeds:
    random = np.random.default_rng(seed)
    shapes = [(1, length, 8) for length in lengths]
    return [{"x": (random.normal(size=shape) + 0.3).astype(np.float32)} for shape in shapes]


@pytest.fixture(scope="module")
def found() -> tuple[Result, ByLength]:
    data = sequences(range(8, 40), 0)
    made = intact.quantize(summing("time"), data, target="onnxruntime", by="length")
    lengths = intact.evaluate(made, sequences(range(8, 136, 4), 1), by="length").lengths
    assert lengths is not None
    return made, lengths


def test_loss_is_shown_by_length(found: tuple[Result, ByLength]) -> None:
    groups = found[1].groups
    assert [(each.shortest, each.longest) for each in groups] == [
        (8, 36),
        (40, 68),
        (72, 100),
        (104, 132),
    ]
    assert sum(each.share for each in groups) == pytest.approx(100)
    assert groups[0].sqnr_db > groups[-1].sqnr_db + 20
    assert groups[-1].share > 50


def test_what_overflows_in_the_longest_is_named(found: tuple[Result, ByLength]) -> None:
    assert found[1].overflow.startswith("tensor 'total' reaches")
    assert "length 132" in found[1].overflow


def test_calibration_notes_the_same_of_its_samples(found: tuple[Result, ByLength]) -> None:
    notes = [each.message for each in found[0].plan.notes if each.message.startswith("length ")]
    assert len(notes) == 4


def test_samples_of_one_length_are_one_group(found: tuple[Result, ByLength]) -> None:
    same = sequences(range(20, 21), 0) * 5
    lengths = intact.evaluate(found[0], same, by="length").lengths
    assert lengths is not None
    assert lengths.lines() == ["all samples have length 20: nothing to compare by"]


def test_a_model_of_one_length_says_so() -> None:
    data = sequences(range(9, 10), 0) * 8
    made = intact.quantize(summing(9), data, target="onnxruntime")
    with pytest.raises(UsageError, match="no open axis"):
        intact.evaluate(made, data, by="length")
