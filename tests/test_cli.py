"""The command line as programs and people use it: what it prints, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from intact.cli import run, show_verification
from intact.engines.cpu import detect_cpu
from intact.formats.base.comparison import LayerComparison, OutputComparison
from intact.formats.base.processor import ProcessorFinding
from intact.formats.base.report import Verification
from intact.numerics.levels import Scheme
from intact.numerics.thresholds import METHODS
from intact.results.folder import FILES

DOCS = Path(__file__).resolve().parent.parent / "docs"
ENDLESS = """
import time
import numpy as np
def images():
    open('started', 'w').close()
    while True:
        time.sleep(0.005)
        yield {'image': np.ones((2, 1, 8, 8)), 'labels': [1, 2]}
"""


def printed(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command line that succeeds and return what it prints; stderr stays empty."""
    assert run(arguments) == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    return captured.out


def quantized(capfd: pytest.CaptureFixture[str], *options: str, output: str = "out") -> str:
    return printed(capfd, "quantize", "model.onnx", "-d", "calib.npz", "-o", output, *options)


def intact(here: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "intact", *arguments]
    return subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def strict_json(text: str) -> Any:
    """Parse JSON that has no NaN or Infinity, which other programs refuse."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_quantize_says_what_it_made_and_what_comes_next(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = "a folder with spaces/" + "long" * 30
    options = ("--method", "percentile", "--method-option", "percentile=99.9")
    lines = quantized(capfd, *options, output=folder).splitlines()
    assert lines[0].startswith(("good to deploy", "cannot be told"))
    assert lines[1] == f"{folder}/model.int8.onnx"  # whole, however long
    assert "percentile (percentile=99.9)" in lines[3]
    assert "200 samples" in lines[3]
    assert re.search(r"\d\.\d s$", lines[3])
    assert lines[-2] == f"next: intact evaluate '{folder}' --data FILE"
    assert sorted(path.name for path in (here / folder).iterdir()) == sorted(FILES)


@pytest.mark.parametrize("targets", [[], ["--target", "tflite", "--target", "onnxruntime"]])
def test_what_cannot_be_verified_is_not_said_to_come_next(
    here: Path, capfd: pytest.CaptureFixture[str], targets: list[str]
) -> None:
    few = ("--samples", "4", *targets)
    assert "intact verify" in quantized(capfd, *few)
    assert "intact verify" not in quantized(capfd, *few, "--format", "encodings", output="scales")


def test_a_method_that_is_not_defined_leaves_a_note(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "note kl is not defined" in quantized(capfd, "--method", "kl")


def test_json_is_all_that_is_printed(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = strict_json(quantized(capfd, "--json", "--samples", "20"))
    assert made["samples"] == 20
    assert made["seconds"] > 0
    found = strict_json(printed(capfd, "evaluate", "out", "-d", "test.npz", "--json"))
    assert found["samples"] == 600
    assert found["accuracy"]["top1"][0] > 90
    checked = strict_json(printed(capfd, "verify", "out", "--samples", "5", "--json"))
    assert checked["verified"][0]["samples"] == 5
    assert strict_json(printed(capfd, "inspect", "model.onnx", "--json"))["nodes"]
    assert strict_json(printed(capfd, "targets", "--json"))
    assert strict_json(printed(capfd, "targets", "show", "tensorrt", "--json"))


def test_infinite_decibels_are_null_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    same = Verification(
        target="t",
        runtime="runtime",
        cpu=detect_cpu(),
        samples=1,
        layers=[],
        simulation=[LayerComparison("a.output[0]", values=3)],
        outputs_sqnr_db={"y": float("inf")},
        not_simulated=("z",),
        processor=ProcessorFinding("it saturates", "with x=1", [OutputComparison("y", 9, 4)], "x"),
    )
    show_verification.verifications([same], as_json=True)
    (row,) = strict_json(capfd.readouterr().out)["verified"]
    assert row["outputs_sqnr_db"] == {"y": None}
    show_verification.verifications([same], as_json=False)
    printed_text = capfd.readouterr().out
    assert "identical" in printed_text
    assert "not simulated: z" in printed_text
    assert "it saturates. Compared with x=1; without, 4 of 9 output values" in printed_text


def test_evaluate_keeps_the_preprocessing_that_is_not_given(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantized(capfd, "--mean", "2", "--scale", "0.5")
    arguments = ("evaluate", "out", "-d", "test.npz", "--samples", "50", "--json")
    whole = strict_json(printed(capfd, *arguments, "--mean", "2", "--scale", "0.5"))
    for options in ((), ("--mean", "2"), ("--scale", "0.5")):
        assert strict_json(printed(capfd, *arguments, *options))["sqnr_db"] == whole["sqnr_db"]
    other = strict_json(printed(capfd, *arguments, "--mean", "0"))
    assert other["sqnr_db"] != whole["sqnr_db"]


def test_a_result_is_replaced_even_as_the_working_directory(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    quantized(capfd, output="link")
    first = (here / "real" / "plan.json").read_text()
    monkeypatch.chdir(here / "real")
    data = str(here / "calib.npz")
    printed(capfd, "quantize", "../model.onnx", "-d", data, "-o", ".", "--method", "minmax")
    assert (here / "link").is_symlink()
    assert Path("plan.json").read_text() != first
    assert sorted(path.name for path in Path().iterdir()) == sorted(FILES)
    assert not list(here.glob(".*"))


def test_samples_with_names_that_look_like_a_function(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "calib.npz").rename(here / "a b:c.npz")
    printed(capfd, "quantize", "model.onnx", "-d", "a b:c.npz", "-o", "out")


def test_ctrl_c_leaves_nothing(here: Path) -> None:
    (here / "endless.py").write_text(ENDLESS)
    arguments = ("-d", "endless:images", "-o", "out", "--samples", "1000000")
    process = intact(here, "quantize", "model.onnx", *arguments)
    deadline = time.monotonic() + 30
    while not (here / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    before = {path.name for path in here.iterdir()}
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()  # where it does not stop it would run for ever
    assert (process.returncode, out, err) == (130, "", "intact: stopped; nothing was written\n")
    assert {path.name for path in here.iterdir()} == before


def test_a_source_without_end_is_read_up_to_the_limit(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "endless.py").write_text(ENDLESS)
    data = ("-d", "endless:images", "--samples", "7", "--json")
    quantized(capfd)
    assert strict_json(printed(capfd, "evaluate", "out", *data))["samples"] == 7


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_printed(here: Path) -> None:
    command = [sys.executable, "-m", "intact", "targets", "show", "tensorrt"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "intact: No space left on device\n")


def test_without_a_command_the_help_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "quantize" in capfd.readouterr().out
    assert "Usage" in printed(capfd, "--help")
    assert printed(capfd, "--version").startswith("intact ")


def test_the_help_is_quick(here: Path) -> None:
    def seconds() -> float:  # of processors, which other programs do not slow down
        before = os.times()
        assert intact(here, "--help").wait(60) == 0
        after = os.times()
        return (after.children_user - before.children_user) + (
            after.children_system - before.children_system
        )

    assert min(seconds() for _ in range(3)) < 1


def test_a_table_for_another_program_has_a_row_a_line(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantized(capfd)
    lines = printed(capfd, "inspect", "model.onnx").splitlines()
    nodes = [line.split()[0] for line in lines if "target onnxruntime" in line]
    assert "block2_depthwise/Relu" in nodes
    rows = [line.split() for line in printed(capfd, "verify", "out").splitlines()]
    assert any(row[:3] == ["by", "layer", "12"] for row in rows)


def test_the_documentation_lists_the_methods_and_files_there_are() -> None:
    section = (DOCS / "precision.md").read_text().split("### Methods")[1].split("##")[0]
    listed = re.findall(r"^\| `(\w+)` \|.*\| ([a-z, -]+) \|$", section, re.MULTILINE)
    named = {Scheme.SYMMETRIC: "symmetric", Scheme.ONE_SIDED: "one-sided"}
    schemes = {
        name: "all"
        if m.schemes == frozenset(Scheme)
        else ", ".join(text for scheme, text in named.items() if scheme in m.schemes)
        for name, m in METHODS.items()
    }
    assert dict(listed) == schemes
    text = (DOCS / "files.md").read_text()
    assert all(f"`{name}`" in text for name in FILES)


def test_the_demo_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert "top-1" in printed(capfd, "demo")
