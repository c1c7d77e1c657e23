"""What `quantize` says at its end without being asked: on seeded faults, and on healthy nets."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact import api
from intact.analyze.diagnose.loss import _disagrees
from intact.analyze.diagnose.weights import bias_finding
from intact.calibrate.outputs import Errors, Powers
from tests.command_lines import Say
from tests.faults.case import Case, quantized_data
from tests.faults.generated import FAULTS, HEALTHY
from tests.models import ModelBuilder
from tests.plans import calibrated

QUICK = ("--threads", "1", "--samples", "64")
CASES = {case.name: case for case in (*FAULTS, *HEALTHY)}


def quantized(case: Case, folder: Path, say: Say, *, faulty: bool = True) -> Any:
    options = case.build(folder, faulty)
    few = () if "--samples" in options else QUICK
    out = str(folder / "out")
    said = say("quantize", *quantized_data(folder), *options, *few, "--output", out, "--json")
    return json.loads(said)


@pytest.mark.parametrize(
    "name", ["pixels-unscaled", "mean-of-pixels-for-units", "mean-of-units-for-pixels"]
)
def test_wrong_preprocessing_is_named(name: str, tmp_path: Path, say: Say) -> None:
    found = quantized(CASES[name], tmp_path, say)["findings"]
    assert found[0]["cause"] == "preprocessing"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("percentile-90", "clipping"),
        ("short-bias", "bias_overflow"),
        ("variance-of-1e-6", "batch_norm_scale"),
    ],
)
def test_what_the_plan_tells_is_named(name: str, cause: str, tmp_path: Path, say: Say) -> None:
    found = quantized(CASES[name], tmp_path, say)
    assert cause in [each["cause"] for each in found["findings"]]


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_of_a_healthy_net_nothing_is_said(case: Case, tmp_path: Path, say: Say) -> None:
    found = quantized(case, tmp_path, say)
    of_net = [each for each in found["findings"] if each["cause"] != "pair_saturation"]
    assert (of_net, found["loss"]) == ([], None)  # sums saturate on some processors


def test_the_command_that_is_offered_prepares_the_samples(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = CASES["pixels-unscaled"].build(tmp_path, True)
    said = say("quantize", *quantized_data(tmp_path), *options, *QUICK, "--output", "out")
    (line,) = (each for each in said.splitlines() if "preprocessing: intact quantize" in each)
    say(*shlex.split(line.split("preprocessing: intact ", 1)[1]))
    assert Path("mended", "plan.json").exists()
    said = say("evaluate", "mended", "--data", "test.npz", "--json", *QUICK)
    assert json.loads(said)["accuracy"]["top1"][0] > 90


def _few_numbers(count: int) -> dict[str, np.ndarray]:
    """Heavy tails: the largest of some is far beyond all others."""
    return {"x": np.random.default_rng(1).standard_cauchy((count, 2)).astype(np.float32)}


@pytest.mark.parametrize(("count", "is_few"), [(16, True), (1024, False)])
def test_samples_that_do_not_show_the_ranges_of_others_are_said(count: int, is_few: bool) -> None:
    b = ModelBuilder(seed=1)
    b.output(b.node("Relu", b.node("MatMul", b.input("x", ["N", 2]), b.weight(2, 2))), ["N", 2])
    data = _few_numbers(count) if is_few else {"x": np.clip(_few_numbers(count)["x"], -3, 3)}
    found = api.quantize(b.build(), data, target="onnxruntime", samples=None, threads=1)
    said = [each for each in found.findings if "too few to show the ranges" in each.evidence]
    assert [each.cause for each in said] == ["calibration_samples"] * is_few
    assert found.loss is None


def test_decisions_that_differ_by_chance_are_no_loss() -> None:
    def powers(same: int, count: int) -> Powers:
        ones = np.ones(count)
        return Powers(ones, ones, np.arange(count) < same)

    assert not _disagrees(powers(7, 8))
    assert not _disagrees(powers(29, 32))
    assert _disagrees(powers(4, 8))
    assert _disagrees(powers(26, 32))
    assert not _disagrees(powers(0, 0))
    joined = Errors({"y": powers(4, 8)}).joined(Errors({"y": powers(8, 8)}))
    assert int(joined.outputs["y"].agrees.sum()) == 12


def test_one_channel_that_is_almost_dead_is_no_lack_of_room_for_biases() -> None:
    b = ModelBuilder()
    weight = np.random.default_rng(1).normal(size=(4, 4, 1, 1)).astype(np.float32)
    weight[2] *= 1e-7
    bias = b.constant(np.ones(4, np.float32))
    x = b.node("Conv", b.input("x", ["n", 4, 6, 6]), b.constant(weight), bias, name="conv")
    b.output(x, ["n", 4, 6, 6])
    plan = calibrated(b.build())
    assert bias_finding(plan) is None
