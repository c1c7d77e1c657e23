"""Checks are asked once, when what they need is there, within a budget or where a sign speaks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

import intact
from intact.analyze.diagnose import evidence, quick_findings, registry
from intact.analyze.diagnose.evidence import DIAGNOSED, Calibrated, Evidence
from intact.analyze.diagnose.findings import CAUSES, Finding
from intact.analyze.diagnose.registry import CHECKS, Check, Inquiry, Need
from intact.calibrate.assign import required_tensors
from intact.calibrate.choice import elements_of
from intact.calibrate.collect import collect
from intact.calibrate.outputs import FloatRuns
from intact.data.sources import open_samples
from tests.models import ModelBuilder
from tests.plans import calibrated, planned


def test_each_cause_has_a_check_and_each_check_is_there() -> None:
    assert {cause for check in CHECKS for cause in check.causes} == set(CAUSES)
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert callable(registry._function(check.look))
        assert not check.sign or callable(registry._function(check.sign))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def check(name: str, severity: float, **given: object) -> Check:
        def look(_: Evidence) -> Sequence[Finding]:
            found.append(name)
            return [Finding("rounding", name, severity)]

        monkeypatch.setattr(quick_findings, name, look, raising=False)
        return Check(name, ("rounding",), look=f"quick_findings:{name}", **given)  # type: ignore[arg-type]

    monkeypatch.setattr(quick_findings, "speaks", lambda each: each.is_lost, raising=False)
    checks = (
        check("free", 0.1, needs=frozenset()),
        check("dear", 0.6, needs=frozenset(), seconds=lambda _: 9.0, sign="quick_findings:speaks"),
        check("late", 0.2, needs=frozenset({Need.PLAN}), unless_sure=True),
    )
    monkeypatch.setattr(registry, "CHECKS", checks)
    return found


@pytest.mark.parametrize(
    ("seconds", "is_lost", "wanted"),
    [
        (1.0, False, ["free", "late"]),
        (1.0, True, ["free", "dear"]),
        (math.inf, False, ["free", "dear"]),
    ],
    ids=["budget", "sign", "no budget"],
)
def test_a_check_is_asked_once_within_the_budget_or_by_its_sign(
    seconds: float, is_lost: bool, wanted: list[str], asked: list[str]
) -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("x", ["n", 3, 4, 4]), 3, 4, kernel=1))
    plan = calibrated(b.build())
    runs = FloatRuns(plan.graph, [], threads=1)
    inquiry = Inquiry(Evidence(runs, is_lost=is_lost), seconds=seconds)
    inquiry.ask()
    assert asked == [name for name in wanted if name != "late"]
    found = inquiry.ask(Evidence(runs, is_lost=is_lost, planned=plan))
    assert asked == wanted
    assert [each.severity for each in found] == sorted((f.severity for f in found), reverse=True)


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_labels_that_are_shifted_are_no_wrong_preprocessing(shift: int) -> None:
    """And answers that become wrong beyond chance are never nothing."""
    b = ModelBuilder(seed=2)
    x = b.node("Relu", b.node("Gemm", b.input("x", ["N", 16]), b.weight(16, 32)))
    b.output(b.node("Gemm", x, b.weight(32, 12), out="y"), ["N", 12])
    values = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    result = intact.quantize(b.build(), {"x": values}, threads=1)
    (scores,) = FloatRuns(result.plan.graph, [({"x": values}, 2000)], threads=1).outputs()
    labels = scores["y"].argmax(axis=1) - shift
    shown = (labels >= 0) & (labels < 12)
    data = {"x": values[shown], "labels": labels[shown]}
    found = intact.diagnose(result, data, samples=2000, layers=False, threads=1).findings
    if shift:
        assert found[0].cause == "labels"
        assert f"if 1 is {'added to' if shift > 0 else 'subtracted from'}" in found[0].evidence
    else:
        assert any("more than chance" in each.evidence for each in found)
        # Where answers of the first ones differ, four times as many are judged.
        found = intact.diagnose(result, data, samples=500, layers=False, threads=1).findings
        assert any(" of 2000 answers become wrong" in each.evidence for each in found)


def test_quantize_looks_for_causes_on_fewer_samples_where_they_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("x", ["batch", 3, 8, 8]), 3, 4))
    plan = planned(b.build())
    data = {"x": np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32)}
    seen = collect(plan.graph, open_samples(data, plan.graph), tensors=required_tensors(plan))
    runs = FloatRuns(plan.graph, [({"x": each[None]}, 1) for each in data["x"]], threads=1)
    diagnosed = Evidence(runs, statistics=seen)
    quantized = Evidence(runs, statistics=seen, calibrated=Calibrated(("x",)))
    assert len(quantized.few) == len(diagnosed.few) == DIAGNOSED
    for samples, wanted in ((0.5, 1), (3.5, 3)):
        monkeypatch.setattr(evidence, "MOST_ELEMENTS", int(samples * elements_of(seen)))
        assert len(Evidence(runs, statistics=seen, calibrated=Calibrated(("x",))).few) == wanted
        assert len(Evidence(runs, statistics=seen).few) == DIAGNOSED
