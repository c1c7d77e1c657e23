"""The seeded faults cost what they say, and the healthy nets are well."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from intact.analyze.diagnose.findings import CAUSES
from intact.engines.exact_sums import saturates_pairs
from tests.command_lines import Say
from tests.faults.case import Case, evaluated_data, figure, quantized_data
from tests.faults.generated import FAULTS, HEALTHY
from tests.faults.nets import Builder, attention, depthwise, digits, plain, recurrent

HEALTHY_DB = 20.0
"""What 8 bits leave of a healthy net."""
QUICK = ("--threads", "1")
FEW = ("--samples", "64")
TESTED = ("--samples", "100", "--batch", "25")

_known: dict[tuple[object, ...], Any] = {}
"""Evaluations by files and options: many cases have the same net without their fault."""


def _names(cases: tuple[Case, ...]) -> list[str]:
    return [case.name for case in cases]


def _evaluated(case: Case, folder: Path, say: Say, *, faulty: bool) -> Any:
    folder.mkdir()
    options = case.build(folder, faulty)
    files = sorted(path for path in folder.iterdir() if path.suffix in (".onnx", ".npz"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    key = digest, *(each for each in options if str(folder) not in each)
    if faulty or key not in _known:
        out = str(folder / "out")
        few = () if "--samples" in options else FEW
        say("quantize", *quantized_data(folder), *options, *few, "--output", out, *QUICK)
        data = str(evaluated_data(folder))
        said = say("evaluate", out, "--data", data, *TESTED, "--json", *QUICK)
        _known[key] = json.loads(said)
    return _known[key]


@pytest.mark.parametrize("case", FAULTS, ids=_names(FAULTS))
def test_a_fault_costs_what_it_says(case: Case, tmp_path: Path, say: Say) -> None:
    if case.cause == "pair_saturation" and not saturates_pairs():
        pytest.skip("pairs of products saturate on processors without 8-bit dot products only")
    if case.unit == "times":
        pytest.skip("times are measured by benchmarks/diagnosing.py, on a machine that is idle")
    healthy = _evaluated(case, tmp_path / "healthy", say, faulty=False)
    faulty = _evaluated(case, tmp_path / "faulty", say, faulty=True)
    assert figure(case, healthy) - figure(case, faulty) >= case.loss
    assert healthy["accuracy"]["top1"][1] > 90


@pytest.mark.parametrize("case", HEALTHY, ids=_names(HEALTHY))
def test_a_healthy_net_is_well(case: Case, tmp_path: Path, say: Say) -> None:
    found = _evaluated(case, tmp_path / "healthy", say, faulty=True)
    assert figure(case, found) > HEALTHY_DB
    before, after = found["accuracy"]["top1"]
    assert before > 90
    assert abs(before - after) <= 2


def test_the_set_has_faults_of_many_kinds_by_their_names() -> None:
    kinds = {case.cause for case in FAULTS}
    assert kinds <= set(CAUSES)
    assert len(kinds) >= 14
    assert len(FAULTS) >= 20
    assert len({case.name for case in (*FAULTS, *HEALTHY)}) == len(FAULTS) + len(HEALTHY)


@pytest.mark.parametrize("build", [plain, depthwise, recurrent, attention])
def test_a_net_comes_out_the_same_each_time(build: Builder) -> None:
    first, second = (build().model.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_what_tests_was_not_fitted_to() -> None:
    parts = [digits(part).pixels.tobytes() for part in ("calib", "fit", "test")]
    assert parts[0][:4096] not in parts[2]
    assert parts[1][:4096] not in parts[2]
    assert len(digits("test").labels) == 300
