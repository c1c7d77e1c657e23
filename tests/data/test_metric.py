"""Metrics of the user's are called once, and what they do wrong is said in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact.data.metric import Metric, OutputRecord
from intact.errors import DataError, UsageError

MODULE = """
def count(outputs, references):
    return len(outputs["y"])

def no_metric(outputs, references):
    return references["labels"]

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_metrics.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    sys.modules.pop("my_metrics", None)
    return "my_metrics"


def test_a_function_of_a_module_is_a_metric(module: str) -> None:
    metric = Metric.of(f"{module}:count")
    assert metric({"y": np.ones((3, 2))}, {}) == {"count": 3.0}
    assert Metric.of(metric) is metric


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_metrics:cuont", "metric my_metrics:cuont: .* no function 'cuont'; did you mean"),
        ("my_metrics:number", "has no function 'number'"),
        ("nowhere_at_all:count", "metric .*cannot import 'nowhere_at_all' .ModuleNotFoundError"),
        ("my_metrics.py:count", "write my_metrics:count"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(module: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Metric.of(text)


def test_a_name_without_a_module_says_what_is_built_in() -> None:
    with pytest.raises(UsageError, match=r"metric top1: is not module:function; .*top-1.*cosine"):
        Metric.of("top1")


def test_an_error_of_the_function_is_one_line_with_type_and_message(module: str) -> None:
    with pytest.raises(
        DataError,
        match=r"^metric my_metrics:no_metric: raises KeyError: 'labels' \(\S+:6, in no_metric\)$",
    ):
        Metric.of(f"{module}:no_metric")({}, {})

    def noisy(outputs: Any, references: Any) -> float:
        raise ValueError("first\nsecond")

    with pytest.raises(DataError, match=r"^metric noisy: raises ValueError: first second \("):
        Metric.of(noisy)({}, {})


@pytest.mark.parametrize(
    ("value", "figures"),
    [
        (1, {"f": 1.0}),
        (np.float32(0.5), {"f": 0.5}),
        (np.array(2), {"f": 2.0}),
        ({"ap": 0.5, "recall": np.int64(1)}, {"ap": 0.5, "recall": 1.0}),
        (float("inf"), {"f": float("inf")}),
    ],
)
def test_numbers_and_dicts_of_numbers_are_figures(value: Any, figures: dict[str, float]) -> None:
    assert Metric("f", lambda *_: value)({}, {}) == figures


def test_nan_is_a_figure() -> None:
    found = Metric("f", lambda *_: float("nan"))({}, {})
    assert np.isnan(found["f"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returns NoneType; return a number, or a dict"),
        ("0.5", "returns str"),
        (True, "returns bool"),
        (np.ones(2), "returns ndarray"),
        ([0.5], "returns list"),
        ({}, "returns no figures"),
        ({1: 0.5}, "returns names that are not strings"),
        ({"ap": "high"}, "returns str for 'ap'"),
        (10**400, "returns a number that exceeds float64"),
    ],
)
def test_other_results_are_refused(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^metric f: {message}"):
        Metric("f", lambda *_: value)({}, {})


def test_a_record_holds_every_real_sample() -> None:
    record = OutputRecord()
    whole = np.arange(10.0).reshape(5, 2)
    record.add({"y": whole[:3], "total": np.array(1.0)}, 3, 3)
    record.add({"y": whole[[3, 4, 4]], "total": np.array(2.0)}, 3, 2)
    found = record.outputs()
    np.testing.assert_array_equal(found["y"], whole)
    assert [float(total) for total in found["total"]] == [1.0, 2.0]


def test_samples_of_different_shapes_are_a_list() -> None:
    record = OutputRecord()
    for length in (2, 3):
        record.add({"y": np.full((2, length), length)}, 2, 2)
    assert [sample.shape for sample in record.outputs()["y"]] == [(2,), (2,), (3,), (3,)]


def test_detections_without_a_sample_axis_stay_together_sample_by_sample() -> None:
    record = OutputRecord()
    for detections in (2, 0, 1):
        record.add({"boxes": np.ones((detections, 4))}, 1, 1)
    assert [sample.shape for sample in record.outputs()["boxes"]] == [(2, 4), (0, 4), (1, 4)]
