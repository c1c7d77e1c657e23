"""One sentence says what to do, and follows from the figures alone."""

from __future__ import annotations

import re

import numpy as np
import pytest

import intact
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.verdict import Judgement, Measured, keeps_enough, verdict
from intact.data.detections import KEPT
from intact.data.metric import ADDED, Compared
from tests.models import ModelBuilder

FLOAT_COMMAND = "intact quantize model.onnx --data d --keep-float conv --output mended"


@pytest.mark.parametrize(
    ("change", "judgement", "said"),
    [
        ((0.1, -0.4, 0.6), Judgement.GOOD, "good to deploy: accuracy +0.10 points"),
        ((-0.5, -0.9, -0.1), Judgement.GOOD, "less than 1 lost"),
        ((-1.0, -1.7, -0.3), Judgement.LOSES, "loses 1.0 points of accuracy"),
        ((-1.0, -2.58, 0.59), Judgement.UNSURE, "within chance; evaluate it on about 760 samples"),
        ((-0.33, -1.25, 0.59), Judgement.UNSURE, "within chance; evaluate it on about 570 samples"),
        ((0.0, -28.0, 28.0), Judgement.UNSURE, "cannot be told from 300 samples"),
    ],
)
def test_accuracy_is_judged_by_its_interval(
    change: tuple[float, float, float], judgement: Judgement, said: str
) -> None:
    found = verdict(Measured(samples=300, change=change, agreement=50.0, decibels=5.0))
    assert found.judgement is judgement
    assert said in found.sentence


NAN = float("nan")


@pytest.mark.parametrize(
    ("growth", "judgement", "said"),
    [
        ((0.3, -0.2, 0.8), Judgement.GOOD, "good to deploy: perplexity +0.30 % [-0.20, +0.80]"),
        ((38.5, 19.4, 60.6), Judgement.LOSES, "loses beyond chance: perplexity +38.50 %"),
        ((2.0, -1.0, 5.0), Judgement.UNSURE, "give more text"),
        ((2.0, NAN, NAN), Judgement.UNSURE, "cannot be told from one window"),
        ((NAN, NAN, NAN), Judgement.LOSES, "loses much: an output has 5.0 dB"),
    ],
)
def test_texts_are_judged_by_perplexity(
    growth: tuple[float, float, float], judgement: Judgement, said: str
) -> None:
    found = verdict(Measured(samples=4, growth=growth, decibels=5.0))
    assert found.judgement is judgement
    assert said in found.sentence


@pytest.mark.parametrize(
    ("samples", "agreement", "decibels", "judgement", "said"),
    [
        (512, 99.0, 20.0, Judgement.GOOD, "507 of 512 answers are the float model's, 20.0 dB"),
        (512, 90.0, 20.0, Judgement.LOSES, "loses answers beyond chance: 461 of 512"),
        (8, 100.0, 20.0, Judgement.UNSURE, "cannot be told from 8 samples"),
        (8, 100.0, 31.0, Judgement.GOOD, "as far as 8 samples tell"),
        (8, 87.5, 12.0, Judgement.LOSES, "an output has 12.0 dB"),
        (1, None, 22.0, Judgement.UNSURE, "22.0 dB of signal to quantization noise on 1 sample:"),
        (8, None, 40.0, Judgement.GOOD, "good to deploy: outputs have 40.0 dB"),
        (8, 100.0, -100.0, Judgement.LOSES, "loses all: an output is NaN"),
        (0, None, None, Judgement.UNSURE, "without samples"),
    ],
)
def test_without_labels_answers_and_decibels_are_judged(
    samples: int, agreement: float | None, decibels: float | None, judgement: Judgement, said: str
) -> None:
    found = verdict(Measured(samples=samples, agreement=agreement, decibels=decibels))
    assert found.judgement is judgement
    assert said in found.sentence


def test_equal_outputs_are_called_so() -> None:
    found = verdict(Measured(samples=8, decibels=np.inf))
    assert found.sentence == "good to deploy: outputs are the float model's on 8 samples"


def test_as_many_samples_as_are_advised_suffice() -> None:
    few = verdict(Measured(samples=8, agreement=100.0, decibels=20.0))
    (number,) = re.findall(r"evaluate it on about (\d+) samples", few.sentence)
    many = verdict(Measured(samples=int(number), agreement=100.0, decibels=20.0))
    assert many.judgement is Judgement.GOOD


def _finding(cause: str, severity: float, **others: object) -> Finding:
    return Finding(cause, "what was measured", severity, **others)  # type: ignore[arg-type]


def test_a_loss_names_its_place_and_what_regains_it() -> None:
    findings = [
        _finding("slower_than_float", 1.0),
        _finding("rounding", 0.8, node="conv", remedy=FLOAT_COMMAND, gain=0.7, unit="points"),
    ]
    found = verdict(
        Measured(samples=900, change=(-1.0, -1.7, -0.3)).explained_by(findings)
    ).sentence
    assert found.endswith("beyond chance; most at 'conv'; the remedy below regains 0.7 points")


def test_nothing_to_do_is_said_of_what_is_good() -> None:
    findings = [_finding("rounding", 0.8, node="conv", remedy=FLOAT_COMMAND, gain=0.7)]
    found = verdict(Measured(samples=900, change=(0.0, -0.4, 0.4)).explained_by(findings))
    assert found.judgement is Judgement.GOOD
    assert "conv" not in found.sentence


def test_a_float_model_that_is_wrong_is_not_judged() -> None:
    text = Remedy(text="give labels that are larger by 1")
    findings = [_finding("labels", 2.0, remedies=(text,))]
    found = verdict(Measured(samples=900, change=(0.0, -0.4, 0.4)).explained_by(findings))
    assert found.judgement is Judgement.WRONG
    assert found.sentence == "not to be judged yet: what was measured; " + text.text


def test_drawn_samples_do_not_tell() -> None:
    found = verdict(Measured(samples=32, decibels=45.0, is_drawn=True))
    assert found.judgement is Judgement.UNSURE
    assert "evaluate it on real ones" in found.sentence


@pytest.mark.parametrize(
    ("decibels", "judgement", "said"),
    [(40.0, Judgement.UNSURE, "too few; evaluate it on others"), (5.0, Judgement.LOSES, "5.0 dB")],
)
def test_samples_that_tell_little_do_not_make_a_result_good(
    decibels: float, judgement: Judgement, said: str
) -> None:
    found = verdict(Measured(samples=4, decibels=decibels, untelling="4 samples are too few"))
    assert found.judgement is judgement
    assert said in found.sentence


@pytest.mark.parametrize(
    ("added", "judgement"), [((0.0, 0.5), Judgement.GOOD), ((70.0, 90.0), Judgement.LOSES)]
)
def test_boxes_that_are_not_there_are_a_loss(
    added: tuple[float, float], judgement: Judgement
) -> None:
    figures = {KEPT: (100.0, 100.0), ADDED: (0.0, sum(added) / 2)}
    intervals = {KEPT: (0.0, 0.0), ADDED: added}
    judged = verdict(Measured(samples=64, metrics=figures, intervals=intervals))
    assert judged.judgement is judgement
    assert keeps_enough(Compared(figures, intervals)) is (judgement is Judgement.GOOD)


def test_answers_are_counted_on_more_samples_where_few_leave_it_open() -> None:
    b = ModelBuilder(seed=2)
    x = b.node("Relu", b.conv(b.input("x", ["N", 3, 8, 8]), 3, 8, kernel=3))
    x = b.node("Flatten", b.node("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4]))
    b.output(b.node("Gemm", x, b.weight(32, 12), out="y"), ["N", 12])
    data = np.random.default_rng(2).normal(size=(64, 3, 8, 8)).astype(np.float32)
    result = intact.quantize(b.build(), data, weight_bits=3, preset="fast", threads=1)
    assert result.verdict is not None
    assert result.verdict.judgement is Judgement.LOSES
    assert " of 32 answers are the float model's" in result.verdict.sentence
    assert result.loss is not None
    assert result.loss.samples == 32
