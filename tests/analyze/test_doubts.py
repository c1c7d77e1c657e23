"""A float model that does not get what it wants is seen by its outputs; a good one is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.analyze.doubts import doubts_of
from intact.analyze.evaluation.figures import Evaluation
from intact.analyze.verdict import Judgement
from intact.numerics.answers import is_chance
from tests.formats.onnx_qdq.pairs import PairBuilder
from tests.images import Images


def scores_for(chosen: npt.NDArray[Any], classes: int = 10) -> npt.NDArray[np.float32]:
    scores: npt.NDArray[np.float32] = np.eye(classes, dtype=np.float32)[chosen]
    return scores


@pytest.mark.parametrize(
    ("right", "count", "classes", "chance"),
    [
        (104, 1000, 10, True),
        (200, 1000, 10, False),
        (1, 300, 1000, True),
        (60, 300, 1000, False),
        (52, 100, 2, True),
        (70, 100, 2, False),
        (5, 10, 2, False),  # too few samples to tell
        (1, 5, 10, True),
        (2, 3, 10, False),
    ],
)
def test_chance_is_told_from_a_weak_model(
    right: int, count: int, classes: int, chance: bool
) -> None:
    assert is_chance(right, count, classes) == chance


@pytest.mark.parametrize(("shift", "how"), [(1, "subtracted from"), (-1, "added to")])
def test_labels_that_are_shifted_are_said_to_be(shift: int, how: str) -> None:
    chosen = 1 + np.arange(300) % 8
    (line,) = doubts_of(scores_for(chosen), chosen + shift)
    assert f"for 100.00 % if 1 is {how} each label" in line
    assert "--normalize" not in line


def test_chance_and_one_class_are_said_and_good_models_are_not() -> None:
    labels = np.arange(500) % 10
    random = np.random.default_rng(0).integers(0, 10, 500)
    (line,) = doubts_of(scores_for(random), labels)
    assert "no more than by chance among 10 classes" in line
    assert "--normalize" in line
    mostly_three = np.where(np.arange(60) < 40, 3, np.arange(60) % 10)
    (line,) = doubts_of(scores_for(np.full(60, 3)), mostly_three)
    assert "class 3 for all 60 samples" in line
    (line,) = doubts_of(scores_for(np.full(40, 7)), None)
    assert "class 7 for all 40 samples" in line
    assert doubts_of(scores_for(labels), labels) == ()
    assert doubts_of(scores_for(labels), None) == ()


def test_what_is_no_sign_of_anything() -> None:
    same = np.full(40, 3)
    assert doubts_of(scores_for(same), same) == ()  # all samples are of that class
    assert doubts_of(scores_for(same[:10]), None) == ()  # few samples
    boxes = np.tile(np.array([9, 40, 300, 20], np.float32), (40, 1))
    assert doubts_of(boxes, None) == ()  # four numbers that are no probabilities


@pytest.mark.parametrize("with_labels", [True, False])
def test_evaluate_warns_of_forgotten_preprocessing(
    digits_model: Path, digits_calib: Images, digits_test: Images, with_labels: bool
) -> None:
    result = intact.quantize(digits_model, {"image": digits_calib.image})
    data: dict[str, Any] = {"image": digits_test.image}
    data |= {"labels": digits_test.labels} if with_labels else {}
    assert intact.evaluate(result, data).warnings == ()
    (line,) = intact.evaluate(result, data, mean=[-3000]).warnings
    assert "the float model" in line
    assert "--normalize" in line


@pytest.mark.parametrize("with_labels", [True, False])
def test_evaluate_blames_what_was_calibrated_and_no_preprocessing(
    digits_model: Path, digits_calib: Images, digits_test: Images, with_labels: bool
) -> None:
    data: dict[str, Any] = {"image": digits_test.image}
    data |= {"labels": digits_test.labels} if with_labels else {}
    images = digits_calib.image
    unlike = intact.quantize(digits_model, {"image": images / 20})
    (line,) = intact.evaluate(unlike, data).warnings
    assert re.search(r"outside are \d+ % of 'image'", line)
    assert "calibrate on samples like those" in line
    narrow = intact.quantize(
        digits_model, {"image": images}, weight_bits=2, activation_bits=2, preset="fast"
    )
    found = intact.evaluate(narrow, data)
    assert found.sqnr_db < 5
    assert found.warnings == ()
    assert found.verdict is not None
    assert found.verdict.judgement is Judgement.LOSES


def test_search_warns_too(digits_model: Path, digits_test: Images) -> None:
    data: dict[str, Any] = {"image": digits_test.image[:100], "labels": digits_test.labels[:100]}
    wrong = intact.search_strategy(
        digits_model, data, mean=[-3000], max_drop=100.0, budget="2trials", preset="fast"
    )
    assert any("the float model" in line for line in wrong.remarks)
    right = intact.search_strategy(
        digits_model, data, max_drop=100.0, budget="2trials", preset="fast"
    )
    assert not any("the float model" in line for line in right.remarks)


def _wrongly_rebuilt() -> onnx.ModelProto:
    """A quantized model whose float form is another: its codes clamp around 0 on both sides."""
    b = PairBuilder()
    x = b.input("x", ["batch", 8])
    weight = b.dequantize(b.constant(np.full((4, 8), 100, np.int8)), 1.0, np.int8(0))
    x = b.node("Gemm", b.pair(x, 0.05, np.uint8(128)), weight, transB=1)
    clamped = b.pair(x, 0.001, np.uint8(128))
    codes = b.random.integers(-100, 100, (5, 4)).astype(np.int8)
    weight = b.dequantize(b.constant(codes), 0.01, np.int8(0))
    bias = b.constant(np.array([0.2, 0.1, 0, 0, 0], np.float32))
    b.node("Gemm", clamped, weight, bias, out="y", transB=1)
    b.output("y", ["batch", 5])
    return b.build()


def test_a_model_that_was_read_is_not_compared_with_a_wrong_one() -> None:
    random = np.random.default_rng(0)
    data: dict[str, Any] = {
        "x": random.normal(size=(50, 8)).astype(np.float32),
        "labels": np.arange(50) % 5,
    }
    result = intact.read_quantized(_wrongly_rebuilt())
    found = intact.evaluate(result, data)
    assert isinstance(found, Evaluation)
    assert found.accuracy is not None
    assert np.isnan(found.accuracy.top1[0])
    assert found.accuracy.top1[1] >= 0
    assert np.isnan(found.sqnr_db)
    assert found.agreement is None
    figures = found.figures()
    assert figures.headings == ("", "quantized")
    assert "no float figures" in figures.lines[0]
    assert "nan" not in str(found)
    assert "nan" not in repr(found)
