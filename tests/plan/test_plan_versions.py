"""A plan of another version is refused, in one line that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intact.errors import PlanError
from intact.plan import load_plan, save_plan
from intact.plan.plan_file import PLAN_VERSION
from tests.models import residual_net
from tests.plans import calibrated


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(PLAN_VERSION + 1, "update intact"), (10**6, "update intact"), (0, "quantize again")],
)
def test_other_versions_are_refused(tmp_path: Path, version: int, remedy: str) -> None:
    plan = calibrated(residual_net(), "onnxruntime")
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": version}))
    with pytest.raises(PlanError, match=rf"plan\.json: plan version {version}, .*; {remedy}"):
        load_plan(path, plan.graph)
