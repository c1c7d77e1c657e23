"""Outputs of classes, tokens or places: the share of equal numbers is told, and no decibels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import intact
from intact.analyze.verdict import Judgement, Measured, verdict
from intact.calibrate.outputs import Errors
from intact.errors import DataError
from intact.graph import normalize
from intact.graph.ops import outputs_of_choices
from intact.numerics.metrics import Equality, EqualShare
from tests.models import ModelBuilder

DATA = np.random.default_rng(1).normal(size=(64, 3, 8, 8)).astype(np.float32)


def net(end: str, *, with_scores: bool = False) -> onnx.ModelProto:
    """A convolution with one of several ends."""
    b = ModelBuilder(seed=2)
    y = b.conv(b.input("x", ["N", 3, 8, 8]), 3, 6)
    if with_scores:
        b.output(y, ["N", 6, 8, 8])
    kind = TensorProto.INT64
    if end == "pixels":
        kind = TensorProto.UINT8
        y = b.node("Cast", b.node("Relu", b.node("Mul", y, b.scalar(40.0))), to=kind, out="y")
    elif end == "condition":
        kind = TensorProto.BOOL
        y = b.node("Greater", y, b.scalar(0.0), out="y")
    else:
        y = b.node("ArgMax", y, axis=1, keepdims=0)
        y = b.node("Cast", y, to=TensorProto.INT32) if end == "cast" else y
        kind = TensorProto.INT32 if end == "cast" else kind
        y = b.node("Unsqueeze", y, b.ints(1), out="y")
    b.output(y, None, dtype=kind)
    return b.build()


@pytest.mark.parametrize(
    ("end", "wanted"), [("ids", {"y"}), ("cast", {"y"}), ("condition", {"y"}), ("pixels", set())]
)
def test_what_an_operator_decides_on_is_a_choice(end: str, wanted: set[str]) -> None:
    assert outputs_of_choices(normalize(net(end)).outputs) == wanted


def test_choices_are_judged_by_how_many_are_equal(tmp_path: Path) -> None:
    result = intact.quantize(net("ids"), DATA, preset="fast", threads=1, output=tmp_path / "out")
    assert result.verdict is not None
    assert "of the numbers of an output are the float model's" in str(result.verdict)
    found = intact.evaluate(result, DATA)
    names = {"x": DATA}
    runs = [intact.execute(result, names, executor=each) for each in ("float", "integer")]
    same = np.mean([a == b for a, b in zip(*(run.outputs["y"] for run in runs), strict=True)])
    assert found.equal is not None
    assert found.equal.percent == pytest.approx(100 * same)
    assert math.isnan(found.sqnr_db)
    assert f"output y: {100 * same:.2f} % of its numbers are the float model's" in str(found)
    assert "dB" not in str(found)
    report = intact.report(result, DATA)
    assert report.verdict is not None
    assert str(report.verdict) == str(found.verdict)
    assert f"{100 * same:.2f} %" in [
        box.value for box in report.boxes if box.name == "equal numbers"
    ]


def test_choices_beside_scores_leave_the_level_of_the_scores() -> None:
    result = intact.quantize(net("ids", with_scores=True), DATA, preset="fast", threads=1)
    found = intact.evaluate(result, DATA)
    assert found.outputs["y"].equal is not None
    assert math.isfinite(found.sqnr_db)
    assert f"{found.sqnr_db:.1f} dB" in str(found.verdict)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_numbers_of_classes_have_an_accuracy(keepdims: int) -> None:
    b = ModelBuilder(seed=2)
    y = b.node("GlobalAveragePool", b.conv(b.input("x", ["N", 3, 8, 8]), 3, 6))
    y = b.node("Flatten", y)
    b.output(b.node("ArgMax", y, axis=1, keepdims=keepdims), None, dtype=TensorProto.INT64)
    result = intact.quantize(b.build(), DATA, preset="fast", threads=1)
    runs = [intact.execute(result, {"x": DATA}, executor=each) for each in ("float", "integer")]
    given, found = (np.ravel([*run.outputs.values()]) for run in runs)
    labels = np.where(np.arange(64) % 4, given, (given + 1) % 6)
    told = intact.evaluate(result, {"x": DATA, "labels": labels})
    assert told.accuracy is not None
    assert told.accuracy.top1 == pytest.approx((75.0, 100 * np.mean(found == labels)))
    assert told.accuracy.top_k is None
    assert told.verdict is not None
    assert "accuracy" in str(told.verdict)
    with pytest.raises(DataError, match="check that labels start at 0"):
        intact.evaluate(result, {"x": DATA, "labels": labels - 1})


@pytest.mark.parametrize(
    ("equal", "judgement"),
    [
        ((99.0, 98.0, 99.5), Judgement.GOOD),
        ((90.0, 85.0, 94.0), Judgement.LOSES),
        ((96.0, 90.0, 98.0), Judgement.UNSURE),
    ],
)
def test_a_verdict_on_choices(equal: tuple[float, float, float], judgement: Judgement) -> None:
    assert verdict(Measured(samples=64, equal=EqualShare(*equal))).judgement is judgement


def test_numbers_of_a_sample_that_are_alike_count_as_one() -> None:
    same = np.zeros((8, 100), np.int64)
    far = same.copy()
    far[:4] = 1  # whole samples differ
    spread = same.copy()
    spread[:, :50] = 1  # half of each sample
    alike, unlike = (Equality.of(same, each, 8).share for each in (far, spread))
    assert alike.percent == unlike.percent == 50
    assert alike.high - alike.low > 3 * (unlike.high - unlike.low)
    assert Equality.of(same, same[:, :7], 8).share.percent == 0  # of another length


def test_passes_stay_where_more_choices_are_equal() -> None:
    b = ModelBuilder(seed=2)
    y = b.node("Relu", b.conv(b.input("x", ["N", 3, 8, 8]), 3, 16))
    y = b.node("Gemm", b.node("Flatten", y), b.weight(16 * 64, 24))
    b.output(b.node("ArgMax", y, axis=1, keepdims=0), None, dtype=TensorProto.INT64)
    data = np.random.default_rng(3).normal(size=(256, 3, 8, 8)).astype(np.float32)
    plain, rounded = (
        intact.quantize(b.build(), data, weight_bits=3, threads=1, **given)
        for given in ({"preset": "fast"}, {"improve": ["rounding"]})
    )
    (told,) = rounded.improvements
    assert told.improvement.kept
    equal = [intact.evaluate(each, data).equal for each in (plain, rounded)]
    assert equal[0] is not None
    assert equal[1] is not None
    assert equal[1].percent > equal[0].percent


def test_a_choice_that_is_lost_is_a_loss() -> None:
    fine, coarse = (Errors({}, {"y": Equality(np.repeat(part, 32), 1)}) for part in (1.0, 0.5))
    assert coarse.loses(fine)
    assert not fine.loses(coarse)
    assert fine.is_better(coarse)
    assert not coarse.is_better(fine)
