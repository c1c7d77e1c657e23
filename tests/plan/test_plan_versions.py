"""Plans of every version that was released are read, and what is newer is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import intact
from intact.data.preprocess import Preprocess
from intact.errors import PlanError
from intact.graph import Graph
from intact.plan import load_plan, plan_to_json, save_plan
from intact.plan.plan_file import PLAN_VERSION, migrate
from intact.targets import Addition
from tests.models import residual_net
from tests.plans import calibrated

RESULTS = Path(__file__).resolve().parent.parent / "results"


def released(version: int) -> Path:
    return RESULTS / f"version-{version}"


def test_a_result_of_version_1_is_read() -> None:
    result = intact.load_result(released(1))
    assert result.statistics is not None
    assert result.preprocess == Preprocess((100.0, 120.0), (0.015625,))
    assert len(result.plan.configs) == len(json.loads(_text(1))["configs"])
    assert result.plan.baked == {}


def test_a_plan_of_version_1_says_the_same_in_the_newest(tmp_path: Path) -> None:
    graph = Graph.load(released(1) / "model.onnx")
    plan = load_plan(released(1) / "plan.json", graph)
    save_plan(plan, tmp_path / "plan.json")
    before, after = json.loads(_text(1)), json.loads((tmp_path / "plan.json").read_bytes())
    assert (before["version"], after["version"]) == (1, PLAN_VERSION)
    assert "weights" not in before
    assert after["weights"] == ""
    assert after["configs"] == before["configs"]
    assert after["decisions"] == before["decisions"]
    assert after["provenance"] == {
        **before["provenance"],
        "mean": [100.0, 120.0],
        "scale": [0.015625],
    }
    assert not (tmp_path / "weights.npz").exists()
    assert plan_to_json(load_plan(tmp_path / "plan.json", graph)) == plan_to_json(plan)


def test_a_result_of_version_2_is_read() -> None:
    result = intact.load_result(released(2))
    found, texts = result.plan.provenance, json.loads(_text(2))["provenance"]
    assert texts["formats"] == "onnx_qdq,encodings"
    assert found.formats == ("onnx_qdq", "encodings")
    assert found.improve == ("weight-scales",)
    assert found.method_options == {"percentile": 99.5}
    assert found.preprocess == texts["preprocess"]
    assert result.preprocess == Preprocess((1.5,), (0.5,))
    assert list(result.exports) == ["onnx_qdq", "encodings"]
    assert result.recipe == ""


def test_a_damaged_plan_of_version_1_is_one_line(tmp_path: Path) -> None:
    graph = Graph.load(released(1) / "model.onnx")
    document = json.loads(_text(1))
    document["configs"][0]["color"] = "red"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanError, match="color"):
        load_plan(tmp_path / "plan.json", graph)


@pytest.mark.parametrize("provenance", [3, [], {"method": 1}, {"mean": "a"}, None])
def test_damaged_provenance_of_version_2_is_an_error(tmp_path: Path, provenance: object) -> None:
    document = json.loads(_text(2)) | {"provenance": provenance}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanError, match="provenance"):
        load_plan(tmp_path / "plan.json", Graph.load(released(2) / "model.onnx"))


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (PLAN_VERSION + 1, "is newer than this intact, which reads up to"),
        (10**6, "newer than this intact"),
        (0, "there is no plan version 0"),
        (-1, "there is no plan version -1"),
    ],
)
def test_other_versions_are_refused(tmp_path: Path, version: int, reason: str) -> None:
    document = json.loads(_text(1)) | {"version": version}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanError, match=reason) as caught:
        load_plan(tmp_path / "plan.json", Graph.load(released(1) / "model.onnx"))
    assert "plan.json" in str(caught.value)


def test_every_version_has_a_way_to_the_newest() -> None:
    for version in range(1, PLAN_VERSION + 1):
        assert migrate({"version": version}, version)["version"] == PLAN_VERSION


def test_kernels_that_version_3_derived_from_other_fields_are_named(tmp_path: Path) -> None:
    plan = calibrated(residual_net(), "onnxruntime")
    save_plan(plan, tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_bytes()) | {"version": 3}
    arithmetic = document["target"]["arithmetic"]
    for entry in (arithmetic, *arithmetic["overrides"]):
        del entry["addition"], entry["integer_whole_windows"]
    arithmetic["overrides"] = arithmetic["overrides"][:1]  # the others said nothing else
    (tmp_path / "plan.json").write_text(json.dumps(document))
    target = load_plan(tmp_path / "plan.json", plan.graph).target
    for op_type in ("Add", "Sub"):  # as they were computed, where the target computes them
        assert target.arithmetic_for(op_type).addition == (
            plan.target.arithmetic_for(op_type).addition
        )
    assert target.arithmetic_for("Add").addition is Addition.FUSED_MULTIPLY_ADD
    assert target.arithmetic_for("AveragePool").integer_whole_windows
    assert target.arithmetic_for("Conv") == plan.target.arithmetic_for("Conv")


def _text(version: int) -> bytes:
    return (released(version) / "plan.json").read_bytes()
