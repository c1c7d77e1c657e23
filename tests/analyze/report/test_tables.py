"""The figures of nodes as CSV and as node data for Model Explorer."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import intact
from intact.analyze.layers import ModelErrors, model_errors
from intact.analyze.report.model_explorer import EXACT_DB, FIGURES, node_data
from intact.analyze.report.tables import NodeFigures, csv_of, node_figures
from intact.plan.inspection import inspect_plan
from intact.results.result import Result
from tests.command_lines import Say
from tests.reports import EVIL, evil_model, samples

PARTS = ["--leave-out", "accuracy", "--leave-out", "verification", "--leave-out", "diagnosis"]


@pytest.fixture(scope="module")
def result() -> Result:
    return intact.quantize(evil_model(), samples(), keep_float=["GlobalAveragePool"], preset="fast")


@pytest.fixture(scope="module")
def errors(result: Result) -> ModelErrors:
    return model_errors(result.plan, result.draw_samples(8))


def test_each_node_has_a_row_with_the_errors_of_its_layer(
    result: Result, errors: ModelErrors
) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of(node_figures(result.plan, errors)).decode())))
    assert [row["node"] for row in rows] == [str(node.name) for node in result.plan.graph.nodes]
    of = {layer.name: layer for layer in errors.layers}
    chained = [row for row in rows if row["layer"]]
    assert len(chained) > len(of) > 0  # a Relu has those of the Conv that it is fused with
    for row in chained:
        assert float(row["own_db"]) == pytest.approx(of[row["layer"]].own, rel=1e-5)
        assert float(row["mse"]) == pytest.approx(of[row["layer"]].accumulated.mse, rel=1e-5)
    pool = next(row for row in rows if row["node"] == "pool")
    assert pool["computes"] == "float"
    assert pool["own_db"] == pool["activation_bits"] == ""


def test_without_errors_a_row_has_the_decisions(result: Result) -> None:
    rows = list(node_figures(result.plan, None))
    assert {row.own_db for row in rows} == {None}
    assert {row.weight_bits for row in rows} == {8, None}


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x"])
def test_no_name_is_a_formula(name: str) -> None:
    row = NodeFigures(
        node=name, op="Relu", computes="float", activation_bits=None, weight_bits=None,
        fused_into="", reason="", own_db=float("inf"), mse=-1.5,
    )  # fmt: skip
    (found,) = csv.DictReader(io.StringIO(csv_of(iter([row])).decode()))
    assert found["node"] == f"'{name}"
    assert found["own_db"] == "inf"
    assert found["mse"] == "-1.5"


def test_node_data_are_as_documented(result: Result, errors: ModelErrors) -> None:
    found = node_data(result.plan, errors)
    assert list(found) == list(FIGURES)
    tensors = {str(v.name) for node in result.plan.graph.nodes for v in node.outputs}
    nodes = {row.node: row for row in inspect_plan(result.plan).nodes}
    for name, content in found.items():
        data = json.loads(content)
        assert data.keys() == {"name", "results", "thresholds"}
        assert data["results"].keys() <= {*nodes, *tensors}
        assert all(each.keys() == {"value"} for each in data["results"].values())
        values = [each["value"] for each in data["results"].values()]
        levels = [each["value"] for each in data["thresholds"]]
        assert levels == sorted(levels)
        assert max(values) <= levels[-1] == (32 if "bits" in name else EXACT_DB)
        assert all(each.keys() == {"value", "bgColor", "textColor"} for each in data["thresholds"])
    own = json.loads(found["own"])["results"]
    assert EVIL in own
    layer = errors.layers[0]
    assert own[layer.name]["value"] == own[layer.tensor]["value"] == round(layer.own, 2)
    bits = json.loads(found["activation_bits"])["results"]
    assert bits["pool"]["value"] == 32


def test_without_errors_there_are_widths(result: Result) -> None:
    assert list(node_data(result.plan, None)) == ["weight_bits", "activation_bits"]


def node_data_classes() -> Any:
    """The classes of the package itself, without the server that it starts with."""
    spec = importlib.util.find_spec("model_explorer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the package ai-edge-model-explorer")
    bare = types.ModuleType("model_explorer")
    bare.__path__ = list(spec.submodule_search_locations)
    sys.modules["model_explorer"] = bare
    return importlib.import_module("model_explorer.node_data_builder")


def test_the_package_reads_and_writes_the_same(
    result: Result, errors: ModelErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    builder = node_data_classes()

    def made(data: Mapping[str, Any]) -> Any:
        results = {key: builder.NodeDataResult(**value) for key, value in data["results"].items()}
        levels = [builder.ThresholdItem(**each) for each in data["thresholds"]]
        return builder.GraphNodeData(results=results, name=data["name"], thresholds=levels)

    for content in node_data(result.plan, errors).values():
        data = json.loads(content)
        again = json.loads(made(data).to_json_string())
        assert {name: again[name] for name in data} == data


def test_the_command_writes_the_files_and_says_which(
    result: Result, tmp_path: Path, say: Say
) -> None:
    result.save(tmp_path / "out")
    table, data = tmp_path / "nodes.csv", tmp_path / "nodes.json"
    files = ["--csv", str(table), "--model-explorer", str(data)]
    text = say("report", str(tmp_path / "out"), *PARTS, *files)
    names = {"nodes.csv", "nodes.json", "nodes.accumulated.json", "nodes.alone.json"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert all(name in text for name in names)
    assert b'"written"' not in (tmp_path / "out" / "report.html").read_bytes()
