"""A report shows what is known of a result, and lies in its folder without being in the way."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import intact
from intact import demo
from intact.analyze.layers import model_errors
from intact.analyze.report import figures
from intact.analyze.report.logs import search_of, training_of
from intact.analyze.report.page import page_of
from intact.errors import DataError, OutputError, UsageError
from intact.improve.trained import Epoch
from intact.results.folder import REPORT, REPORT_HEAD, check_output
from intact.results.result import Result
from intact.search.logs.line import read_log
from tests.command_lines import Say, refused
from tests.reports import EVIL, evil_model, samples, write_result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result with its report."""
    out = write_result(tmp_path_factory.mktemp("report"))
    intact.report(out, samples(), leave_out=["verification"])
    return out


@pytest.fixture(scope="module")
def shown(folder: Path) -> figures.Report:
    """What its page shows."""
    return intact.report(folder, samples())


def _held(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def test_a_page_holds_the_figures_as_json(folder: Path, shown: figures.Report) -> None:
    held = _held(page_of(shown).decode())
    assert held == json.loads(shown.encode())
    assert held["summary"]["model"] == "test"
    assert [node["name"] for node in held["network"]["nodes"]].count(EVIL) == 1
    assert (folder / REPORT).read_bytes().startswith(REPORT_HEAD)


def test_names_of_a_model_are_text(shown: figures.Report) -> None:
    evil = msgspec.structs.replace(shown.summary, model=EVIL)
    text = page_of(msgspec.structs.replace(shown, summary=evil, recipe=EVIL)).decode()
    assert EVIL not in text
    assert "\u2028" not in text.partition("</title>")[2]  # it ends lines of scripts
    assert text.count("<script") == text.count("</script>") == 2  # the figures, and what draws them
    assert html.escape(EVIL) in text  # the title


def test_a_page_fetches_nothing(shown: figures.Report) -> None:
    text = page_of(shown).decode()
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert text.count("'sha256-") == 2


def test_equal_results_have_equal_pages(folder: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("one.html", "two.html"):
        intact.report(folder, output=tmp_path / name, leave_out=["verification"])
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_layers_have_their_errors_distributions_and_weights(shown: figures.Report) -> None:
    nodes = {node.name: (index, node) for index, node in enumerate(shown.network.nodes)}
    index, conv = (
        nodes["Conv_conv"]
        if "Conv_conv" in nodes
        else next(each for each in nodes.values() if each[1].op == "Conv")
    )
    relu = nodes[EVIL][1]
    assert conv.errors is not None
    assert conv.errors.own is not None
    assert relu.layer == conv.layer == index  # fused
    assert relu.errors is None  # at the first node only
    assert conv.weight is not None
    assert conv.weight.count == 8
    assert conv.weights == 8 * 3 * 9
    assert {end.slot for end in conv.ends} == {"input 0", "weight", "bias", "output"}
    tensors = {tensor.name: tensor for tensor in shown.network.tensors}
    output = next(end.tensor for end in relu.ends if end.slot == "output")
    assert tensors[output].histogram is not None
    assert tensors[output].clipped == pytest.approx(0.1, abs=0.03)  # a percentile of 90
    assert shown.findings is not None
    assert shown.findings[0].cause == "clipping"
    found = [node for node in shown.network.nodes if 0 in node.findings]
    assert [node.name for node in found] == [shown.findings[0].node]


def test_the_summary_says_what_is_float_and_what_was_verified(shown: figures.Report) -> None:
    floats = [shown.network.nodes[i].name for group in shown.floats for i in group.nodes]
    assert "pool" in floats
    assert all(group.reason for group in shown.floats)
    assert shown.summary.integer == shown.summary.nodes - len(floats)
    assert shown.summary.samples == len(samples())
    (verified,) = shown.verified
    assert verified.values > 0
    assert verified.differ == 0
    assert shown.accuracy is not None
    assert shown.accuracy.top1 is None  # there are no labels
    assert shown.accuracy.agreement is not None
    assert not shown.left_out


@pytest.mark.runtime_fact("onnxruntime")
def test_labels_give_an_accuracy_and_times(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", image=samples(), labels=np.arange(16) % 8)
    found = intact.report(
        folder, tmp_path / "data.npz", output=tmp_path / "a.html", leave_out=["errors", "diagnosis"]
    )
    assert found.accuracy is not None
    assert found.accuracy.change is not None
    change, low, high = found.accuracy.change
    assert low <= change <= high
    times = [node.time_ms for node in found.network.nodes if node.op == "Conv"]
    assert all(times)  # of kernels that bear the names of these nodes
    assert sum(filter(None, times)) < (found.accuracy.kernels_ms or 0)
    assert found.findings is None
    assert all(node.errors is None for node in found.network.nodes)


def test_a_result_in_memory_has_no_page_unless_one_is_named(tmp_path: Path) -> None:
    result = intact.quantize(evil_model(), samples(), preset="fast")
    found = intact.report(result, leave_out=["verification", "diagnosis"])
    assert found.command == ""
    assert not list(tmp_path.iterdir())
    intact.report(result, output=tmp_path / "page.html", leave_out=["verification", "diagnosis"])
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


# ---- the folder ------------------------------------------------------------------------------


def test_a_result_with_a_report_may_be_replaced(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "out")
    assert (tmp_path / "out" / REPORT).is_file()
    Result.load(folder).save(tmp_path / "out")
    assert not (tmp_path / "out" / REPORT).exists()  # it was of another result


def test_a_page_of_others_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "out")
    (tmp_path / "out" / REPORT).write_text("<!doctype html><p>mine")
    with pytest.raises(OutputError, match="did not write"):
        check_output(tmp_path / "out")


def test_a_page_is_written_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    quick = ["errors", "diagnosis", "verification"]
    for name in ("page.html", "no/such/page.html", "a\0b"):
        with pytest.raises((OutputError, UsageError)):
            intact.report(folder, output=tmp_path / name, leave_out=quick)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


# ---- the command line ------------------------------------------------------------------------


def test_json_has_the_figures_of_the_page(folder: Path, say: Say) -> None:
    found = json.loads(say("report", str(folder), "--leave-out", "verification", "--json"))
    assert found["page"] == str(folder / REPORT)
    assert found["phases"]
    del found["phases"], found["page"]
    assert found == _held((folder / REPORT).read_text("utf-8"))


def test_quantize_writes_a_report_if_asked(tmp_path: Path, say: Say) -> None:
    say(
        *("quantize", str(demo.model_path()), "--data", str(demo.calibration_path())),
        *("--samples", "20", "--preset", "fast", "--report", "--output", str(tmp_path / "out")),
    )
    held = _held((tmp_path / "out" / REPORT).read_text("utf-8"))
    assert held["samples"] == 64
    assert held["command"] == f"intact quantize --recipe {tmp_path}/out/recipe.toml --output again"
    assert "accuracy" not in held
    assert "with_report" not in held["recipe"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--leave-out", "eror"], "--leave-out 'eror'; did you mean 'errors'?"),
        (["--log", "some.jsonl"], "--log some.jsonl: this result was found by no search"),
    ],
)
def test_wrong_options_are_named(
    folder: Path, capfd: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    quick = [f"--leave-out={part}" for part in ("errors", "diagnosis", "verification")]
    told = refused(capfd, "report", str(folder), *quick, *options, code=2)
    assert reason in told


def test_data_that_do_not_fit_are_refused(folder: Path) -> None:
    before = (folder / REPORT).read_bytes()
    with pytest.raises(DataError):
        intact.report(folder, np.zeros((4, 5, 8, 8), np.float32))
    assert (folder / REPORT).read_bytes() == before


# ---- logs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A result that a search of the demo found."""
    folder = tmp_path_factory.mktemp("search")
    intact.search_strategy(
        demo.model_path(), demo.calibration_path(), samples=32, budget="6trials", max_drop=20,
        minimize="bytes", preset="fast", output=folder / "out",
    )  # fmt: skip
    return Result.load(folder / "out")


def test_a_search_is_shown_from_the_log_beside_the_result(searched: Result) -> None:
    found = search_of(searched, None)
    assert found is not None
    assert searched.folder is not None
    log = searched.folder.with_name("out.search.jsonl")
    trials = [entry.trial for entry in read_log(log) if not entry.is_confirmation]
    assert [trial.number for trial in found.trials] == [trial.number for trial in trials]
    assert found.cost == "bytes"
    front = sorted((t for t in found.trials if t.is_front), key=lambda t: t.cost or 0)
    scores = [trial.score for trial in front if trial.score is not None]
    assert scores == sorted(set(scores))
    assert found.best in {trial.number for trial in trials}


def test_a_log_that_is_not_there_is_only_missing(searched: Result, tmp_path: Path) -> None:
    assert searched.folder is not None
    shutil.copytree(searched.folder, tmp_path / "moved")
    found = search_of(Result.load(tmp_path / "moved"), None)
    assert found is not None
    assert not found.trials
    with pytest.raises(DataError):
        search_of(searched, tmp_path / "none.jsonl")


def test_a_training_is_shown_from_the_log_beside_the_result(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "out")
    result = Result.load(tmp_path / "out")
    assert training_of(result) is None
    provenance = msgspec.structs.replace(result.plan.provenance, trained="lsq, best of 2 epochs: 1")
    result.plan = replace(result.plan, provenance=provenance)
    bare = training_of(result)
    assert bare is not None
    assert not bare.epochs
    epochs = [
        Epoch(0, None, 0.5, 80.0, 0.0),
        Epoch(1, 0.3, 0.2, 90.0, 1.0),
        Epoch(2, 0.2, 0.25, 88.0, 1.0),
    ]
    lines = b"\n".join(msgspec.json.encode(epoch) for epoch in epochs)
    (tmp_path / "out.train.jsonl").write_bytes(lines + b'\n{"number": 3, "lo')  # cut by a kill
    found = training_of(result)
    assert found is not None
    assert found.best == 1
    assert [tuple(msgspec.to_builtins(epoch)) for epoch in found.epochs][1] == (1, 0.3, 0.2, 90.0)


def test_errors_of_layers_are_measured_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def counted(*arguments: Any, **options: Any) -> Any:
        measured.append(arguments)
        return model_errors(*arguments, **options)

    for module in ("intact.analyze.report.gather", "intact.analyze.diagnose.diagnosis"):
        monkeypatch.setattr(f"{module}.model_errors", counted)
    intact.report(folder, leave_out=["verification"])
    assert len(measured) == 1


def test_a_result_that_another_runtime_runs_has_its_accuracy(tmp_path: Path) -> None:
    data = samples()
    result = intact.quantize(evil_model(), data, target="tflite", preset="fast")
    found = intact.report(result, data, output=tmp_path / "page.html", leave_out=["diagnosis"])
    assert found.accuracy is not None
    assert not found.left_out


def test_a_report_is_a_line_where_it_is_printed(folder: Path) -> None:
    found = intact.report(folder, leave_out=["errors", "diagnosis", "verification"])
    assert repr(found).startswith("Report(")
    assert len(repr(found)) < 400


def test_large_activations_are_compared_on_few_samples(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intact.analyze.report.gather.REPORTED_ELEMENTS", 1)
    monkeypatch.setattr("intact.analyze.layers._COSTED", 1)
    monkeypatch.setattr("intact.analyze.layers._FEWEST_LAYERS", 1)
    place = tmp_path / "page.html"
    found = intact.report(folder, samples(64), output=place, leave_out=["diagnosis"])
    assert found.samples == 8
    assert [each.samples for each in found.verified] == [8]
    alone = [each.errors.alone for each in found.network.nodes if each.errors is not None]
    assert len(alone) == 2
    assert sum(isinstance(each, float) for each in alone) == 1
    assert found.accuracy is not None
    assert found.accuracy.samples == 64  # which is of all samples
