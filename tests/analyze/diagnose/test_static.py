"""What plan and statistics tell is told by `quantize` and by `diagnose` alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import intact
from intact.analyze.diagnose.findings import Finding
from intact.analyze.diagnose.registry import behind
from tests.analyze.diagnose.test_batch_norms import dense


def named(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(each.cause, each.node) for each in findings}


@pytest.mark.parametrize("relu_behind", [True, False])
@pytest.mark.parametrize("given", [{"dead": 2}, {"tiny": 2}, {"dead": 1, "tiny": 1}])
def test_a_diagnosis_names_each_batch_normalization_that_quantize_names(
    given: dict[str, Any], relu_behind: bool
) -> None:
    """Also where the samples or the weights are at fault too, which costs more."""
    model = dense(relu_behind=relu_behind, **given)
    samples = {"x": np.random.default_rng(1).normal(size=(64, 16)).astype(np.float32)}
    result = intact.quantize(model, samples, target="tflite")
    found = intact.diagnose(result, samples, layers=False).findings
    assert named(result.findings) <= named(found)
    assert {each.node for each in found} >= {"norm" if relu_behind else "last"}
    assert [each.severity for each in found] == sorted((f.severity for f in found), reverse=True)


def test_what_was_not_measured_comes_behind_what_was() -> None:
    measured = [Finding("clipping", "", 0.9, node="a"), Finding("rounding", "", 0.3)]
    told = [Finding("batch_norm_scale", "", 0.5, node="b"), Finding("clipping", "", 0.2, node="a")]
    (found,) = behind(measured, told)
    assert (found.cause, found.node, found.severity) == ("batch_norm_scale", "b", 0.3)
    assert behind([], told) == told
