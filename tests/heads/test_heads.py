"""Detectors find the float model's boxes again, in their real runtimes and without a flag."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import intact
from intact.formats.base.format import Deployed
from intact.formats.registry import runtime_of
from intact.placement.heads import Heads
from intact.plan import NoteKind
from intact.results.result import Result
from tests.heads.matching import matched
from tests.heads.nets import FAMILIES, Family, images

MATCHED = 0.96
"""Of some hundred boxes; of more it is 0.98 (`benchmarks/heads.py`)."""
_TESTED = 6


@cache
def _model(family: Family) -> onnx.ModelProto:
    return family.build()


@cache
def _in_float(family: Family) -> npt.NDArray[Any]:
    session = ort.InferenceSession(_model(family).SerializeToString())
    return np.asarray(session.run(["detections"], {"image": images(_TESTED, seed=2)})[0])


def quantized(name: str, target: str, **options: Any) -> Result:
    """Quantize a family's detector."""
    samples = {"image": images(16, seed=1)}
    return intact.quantize(_model(FAMILIES[name]), samples, target=target, **options)


def share(name: str, result: Result) -> float:
    """Run what was written, and match its boxes."""
    ((format_name, exported),) = result.exports.items()
    run = runtime_of(format_name).run
    feeds = [{"image": each[None]} for each in images(_TESTED, seed=2)]
    deployed = Deployed(result.plan, exported, threads=1)
    found = np.concatenate([run(deployed, each)["detections"] for each in feeds])
    return matched(FAMILIES[name], _in_float(FAMILIES[name]), found).share


def _notes(result: Result) -> list[str]:
    return [str(note) for note in result.plan.notes if note.kind is NoteKind.HEAD]


@pytest.mark.parametrize("name", ["yolo_v5", "yolo_v8", "yolo_v10_dense", "ssd", "keypoints"])
def test_a_full_integer_file_keeps_boxes_and_scores(name: str) -> None:
    result = quantized(name, "tflite")
    assert share(name, result) >= MATCHED
    (note,) = _notes(result)
    assert "on one scale" in note
    assert note.endswith("--quantize-heads undoes it")


@pytest.mark.parametrize("target", ["onnxruntime", "ncnn"])
@pytest.mark.parametrize("name", ["yolo_v8", "segmentation"])
def test_an_expectation_over_bins_is_no_layer(name: str, target: str) -> None:
    result = quantized(name, target)
    assert share(name, result) >= MATCHED
    assert not result.plan.decisions["expectation"].quantized


def test_a_join_behind_a_choice_stays_float_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes and scores share a scale there, and no simulation can tell what that loses."""
    monkeypatch.setattr(Heads, "_measured", lambda *_: ((), None))
    result = quantized("yolo_v10", "tflite")
    assert result.plan.decisions["top"].quantized
    assert not result.plan.decisions["Concat_detections"].quantized
    (note,) = _notes(result)
    assert "behind a choice of the best" in note


def test_the_flag_undoes_it() -> None:
    result = quantized("yolo_v8", "tflite", quantize_heads=True)
    assert _notes(result) == []
    assert all(decision.quantized for decision in result.plan.decisions.values())
    assert share("yolo_v8", result) < 0.1


def test_a_rewrite_keeps_the_decision() -> None:
    result = quantized("yolo_v8", "tflite", improve=["equalize"])
    assert len(_notes(result)) == 1
    assert not result.plan.decisions["expectation"].quantized


def test_outputs_that_need_no_float_stay_codes() -> None:
    result = quantized("segmentation", "tflite")
    assert result.plan.decisions["Concat_detections"].quantized is False
    producer = next(n for n in result.plan.graph.outputs if n.name == "prototypes").producer()
    assert producer is not None
    assert result.plan.is_quantized(producer)


def test_a_target_without_floats_is_left_as_it_is() -> None:
    result = quantized("yolo_v8", "tflite-micro", formats=["c"])
    assert _notes(result) == []
