"""`intact diagnose` names the cause of a seeded fault, and a command that mends it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intact
from intact.analyze.diagnose.weights import weight_finding
from intact.calibrate.outputs import FloatRuns
from intact.recipe.commands import command_line
from intact.recipe.options import QuantizeCommand
from tests.command_lines import Say, refused
from tests.faults.case import Case, evaluated_data, figure, quantized_data
from tests.faults.generated import FAULTS, HEALTHY
from tests.models import ModelBuilder

FOUND = (
    "pixels-unscaled",
    "std-for-scale",
    "dark-calibration",
    "percentile-90",
    "small-scales",
    "three-bits-in-conv2",
    "four-bit-activations",
    "outlier-channel",
    "spikes-minmax",
    "unlike-branches",
    "boxes-and-scores",
    "one-scale",
    "starved-channels",
    "variance-of-1e-6",
    "short-bias",
    "powers-of-two-fast",
    "mask-of-3000",
    "short-sums",
    "pairs",
    "sixteen-bits",
)
"""Names of faults of all kinds that are found."""
MENDED = ("pixels-unscaled", "dark-calibration", "percentile-90", "four-bit-activations")
"""Of those, some whose command is run."""
CASES = {case.name: case for case in (*FAULTS, *HEALTHY)}


def _quantized(case: Case, folder: Path, say: Say, *, faulty: bool = True) -> Any:
    options = (*case.build(folder, faulty), "--output", str(folder / "out"), "--json")
    return json.loads(say("quantize", *quantized_data(folder), *options))


def _diagnosed(folder: Path, say: Say, *options: str) -> Any:
    data = str(evaluated_data(folder))
    return json.loads(say("diagnose", str(folder / "out"), "--data", data, *options, "--json"))


def _named(findings: Any) -> set[tuple[str, str]]:
    return {(each["cause"], each["node"]) for each in findings}


def _not_of_time(findings: Any) -> list[Any]:
    """Leave out that a net of microseconds is slower than float: that depends on the machine."""
    return [each for each in findings if each["cause"] != "slower_than_float"]


@pytest.mark.parametrize("name", FOUND)
def test_the_first_finding_is_the_fault(name: str, tmp_path: Path, say: Say) -> None:
    """And none is left out that `quantize` has named."""
    case = CASES[name]
    quantized = _quantized(case, tmp_path, say)
    said = quantized["findings"][bool(quantized["loss"]) :]  # other samples may name another first
    found = _diagnosed(tmp_path, say)["findings"]
    assert _named(said) <= _named(found)
    first = found[0]
    assert case.is_named_by(first["cause"])
    assert first["evidence"]
    assert first["remedy"]
    for each in found:  # no remedy is offered that is known not to help
        assert each["gain"] is None or each["gain"] > 0.4
        assert (each["gain"] is None) == (each["measured"] == "")


@pytest.mark.parametrize("case", HEALTHY, ids=[case.name for case in HEALTHY])
def test_a_healthy_net_has_no_finding(case: Case, tmp_path: Path, say: Say) -> None:
    _quantized(case, tmp_path, say)
    assert _not_of_time(_diagnosed(tmp_path, say)["findings"]) == []


@pytest.mark.parametrize("name", MENDED)
def test_the_command_mends_the_result(
    name: str, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    _quantized(case, tmp_path, say)
    words = shlex.split(_diagnosed(tmp_path, say)["findings"][0]["remedy"])
    monkeypatch.chdir(tmp_path)
    assert words[0] == "intact"
    say(*words[1:])
    data = ("--data", str(evaluated_data(tmp_path)), "--samples", "100", "--json")
    before, after = (json.loads(say("evaluate", each, *data)) for each in ("out", "mended"))
    assert figure(case, after) - figure(case, before) >= case.loss / 2


@pytest.mark.parametrize(
    ("name", "unit"), [("pixels-unscaled", "points"), ("outlier-channel", "dB")]
)
def test_a_tried_remedy_has_its_gain(name: str, unit: str, tmp_path: Path, say: Say) -> None:
    _quantized(CASES[name], tmp_path, say)
    first = _diagnosed(tmp_path, say, "--try", "60")["findings"][0]
    assert first["unit"] == unit
    assert first["gain"] > 5
    assert first["remedy"].startswith("intact quantize ")


def test_a_tried_remedy_of_lost_sums_has_its_gain(tmp_path: Path, say: Say) -> None:
    _quantized(CASES["short-sums"], tmp_path, say)
    found = _diagnosed(tmp_path, say, "--try", "60")
    assert found["sqnr_db"]["logits"] < 10
    assert found["findings"][0]["gain"] > 15
    assert "--bits conv2=" in found["findings"][0]["remedy"]


def test_nothing_is_tried_when_the_time_is_over(tmp_path: Path, say: Say) -> None:
    _quantized(CASES["percentile-90"], tmp_path, say)
    first = _diagnosed(tmp_path, say, "--try", "0")["findings"][0]
    assert "the time was over before its trial was begun" in first["evidence"]
    assert (first["measured"], first["gain"] > 5) == ("simulated", True)
    assert first["remedy"].startswith("intact quantize ")


def test_a_tried_remedy_runs_no_module_of_the_working_directory(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    _quantized(CASES["percentile-90"], tmp_path, say)
    for name in ("intact", "numpy", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("import pathlib; pathlib.Path('written').touch()")
    monkeypatch.chdir(tmp_path)
    assert _diagnosed(tmp_path, say, "--try", "60")["findings"][0]["gain"] > 5
    assert not (tmp_path / "written").exists()


def test_a_remedy_that_fails_is_said_and_not_offered(tmp_path: Path, say: Say) -> None:
    case = CASES["percentile-90"]
    _quantized(case, tmp_path, say)
    (tmp_path / "model.onnx").unlink()
    found = _diagnosed(tmp_path, say, "--try", "60")["findings"]
    assert {each["cause"] for each in found} == {"clipping"}
    assert "was tried and fails" in found[0]["evidence"]
    assert "model.onnx" in found[0]["evidence"]
    assert found[0]["remedy"] == ""


@pytest.mark.parametrize(
    "line",
    [
        'data = "own:samples"',
        'improve = ["reconstruct{folder=written}"]',
        'cluster = "10.255.255.1:1"',
        'timings = "written"',
        'output = "written"',
    ],
)
def test_nothing_is_run_that_a_recipe_of_others_says(
    line: str, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    _quantized(CASES["percentile-90"], tmp_path, say)
    recipe = tmp_path / "out" / "recipe.toml"
    key = line.partition(" ")[0]
    lines = [each for each in recipe.read_text().splitlines() if not each.startswith(key)]
    lines.insert(next(i for i, each in enumerate(lines) if " = " in each), line)
    recipe.write_text("\n".join(lines))
    (tmp_path / "own.py").write_text("import pathlib\npathlib.Path('written').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subprocess.run", None)
    found = _diagnosed(tmp_path, say, "--try", "60")["findings"][0]
    assert found["cause"] == "clipping"
    assert found["gain"] is None
    assert not (tmp_path / "written").exists()
    is_refused = key in ("data", "improve")
    assert ("the remedy is not tried" in found["evidence"]) is is_refused


def test_quantize_names_the_command_where_much_is_lost(tmp_path: Path, say: Say) -> None:
    CASES["starved-channels"].build(tmp_path, True)
    out = tmp_path / "out"
    said = say("quantize", *quantized_data(tmp_path), "--output", str(out))
    assert f"intact diagnose {out}" in said.replace("\n", "")
    say("diagnose", str(out))


@pytest.mark.parametrize("name", ["percentile-90", "mask-of-3000", "one-scale"])
def test_quantize_and_diagnose_name_one_cause(name: str, tmp_path: Path, say: Say) -> None:
    options = CASES[name].build(tmp_path, True)
    out = str(tmp_path / "out")
    loss = json.loads(say("quantize", *quantized_data(tmp_path), *options, "-o", out, "--json"))
    assert loss["findings"][0]["cause"] == CASES[name].cause


def test_a_plan_without_weights_has_a_finding() -> None:
    model = ModelBuilder()
    x = model.input("x", ("N", 3, 4, 4))
    model.output(model.node("Add", x, x))
    data = np.ones((8, 3, 4, 4), np.float32)
    plan = intact.quantize(model.build(), data, allow_empty=True).plan
    runs = FloatRuns(plan.graph, [({"x": data}, 8)], threads=1)
    output = str(plan.graph.outputs[0].name)
    assert weight_finding(plan, runs, output, 1.0, "of the noise").cause == "rounding"


def test_inputs_are_drawn_where_there_are_no_data(tmp_path: Path, say: Say) -> None:
    _quantized(CASES["percentile-90"], tmp_path, say)
    found = json.loads(say("diagnose", str(tmp_path / "out"), "--json"))
    assert found["drawn"]
    assert found["findings"][0]["cause"] == "clipping"


def test_drawn_inputs_raise_no_alarm_of_their_own(tmp_path: Path, say: Say) -> None:
    CASES["residual"].build(tmp_path, False)
    for target in ("tflite", "onnxruntime"):
        out = str(tmp_path / target)
        say("quantize", *quantized_data(tmp_path), "--target", target, "--output", out)
        findings = json.loads(say("diagnose", out, "--json"))["findings"]
        assert _not_of_time(findings) == []


def test_what_is_printed_names_cause_evidence_and_remedy(tmp_path: Path, say: Say) -> None:
    _quantized(CASES["percentile-90"], tmp_path, say)
    said = say("diagnose", str(tmp_path / "out"), "--data", str(evaluated_data(tmp_path)))
    assert "1. clipping at" in said
    assert "measured: " in said
    assert "remedy: intact quantize " in said


def test_a_result_of_arrays_has_no_command(tmp_path: Path) -> None:
    CASES["percentile-90"].build(tmp_path, True)
    images = np.load(tmp_path / "calib.npz")["image"][:64]
    result = intact.quantize(
        tmp_path / "model.onnx",
        {"image": images},
        method="percentile",
        method_options={"percentile": 90},
    )
    found = intact.diagnose(result, {"image": images})
    causes = [each.cause for each in found.findings]
    assert set(causes) == {"clipping"}
    assert not any(each.remedy for each in found.findings)
    assert repr(found) == f"Diagnosis({', '.join(causes)})"


@pytest.mark.parametrize(
    ("labels", "reason"), [([3, 1, 40, 2], "1..40 for 10 classes"), ([1, 2], "2 labels for 4")]
)
def test_labels_that_do_not_match_are_named(
    labels: list[int], reason: str, tmp_path: Path, say: Say
) -> None:
    _quantized(HEALTHY[0], tmp_path, say)
    with np.load(tmp_path / "test.npz") as arrays:
        image = arrays["image"][:4]
    np.savez(tmp_path / "labels.npz", image=image, labels=np.array(labels))
    given = ("--data", str(tmp_path / "labels.npz"), "--no-layers", "--json")
    found = json.loads(say("diagnose", str(tmp_path / "out"), *given))
    assert any(reason in note for note in found["notes"])


def test_data_of_another_model_are_refused(
    tmp_path: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    _quantized(CASES["residual"], tmp_path, say)
    np.savez(tmp_path / "other.npz", image=np.zeros((4, 7), np.float32))
    data = str(tmp_path / "other.npz")
    assert "image" in refused(capfd, "diagnose", str(tmp_path / "out"), "--data", data)


def test_a_command_line_reads_back_as_its_options() -> None:
    values = {
        "model": "a model.onnx",
        "data": "calib.npz",
        "keep_float": ("a/b", "c d"),
        "method": "percentile",
        "method_options": {"percentile": 99.99},
        "mean": (1.5, 2.0),
    }
    line = command_line("quantize", QuantizeCommand, values)
    assert shlex.split(line) == [
        *("intact", "quantize", "a model.onnx", "--data", "calib.npz"),
        *("--keep-float", "a/b", "--keep-float", "c d", "--method", "percentile"),
        *("--method-option", "percentile=99.99", "--mean", "1.5,2.0"),
    ]
