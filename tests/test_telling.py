"""What a caller is told without asking: warnings, what results show of themselves, a log."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import intact
from intact import demo
from intact.cli import printing, run
from intact.cli.phases import Phases
from intact.cli.printing import Lines
from intact.errors import ClusterError, ExportError, IntactError, SearchError

ONE = np.load(demo.calibration_path())["image"][:1]


def test_what_weighs_is_a_warning_of_the_line_that_called_and_stands_in_the_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "intact"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = intact.quantize(demo.model_path(), ONE)
        several = intact.quantize_for(demo.model_path(), ONE, targets=["onnxruntime", "tensorrt"])
    told = [each for each in caught if each.category is intact.IntactWarning]
    assert {Path(each.filename) for each in told} == {Path(__file__)}
    assert [str(each.message) for each in told] == [*result.worries(), *several.worries()]
    (samples,) = (each for each in result.worries() if each.startswith("calibration_samples: "))
    assert samples.endswith("calibrate on some hundred samples (data, samples)")  # no flags
    assert f"\nwarning: {samples}" in repr(result)
    assert "warning: calibration_samples" in result._repr_html_()
    assert f"tensorrt: {samples}" in several.worries()
    phases = [each.getMessage() for each in caplog.records if each.name == "intact"]
    assert phases.index("reading the model") < phases.index("calibrating")


def test_what_weighs_in_an_evaluation_is_a_warning() -> None:
    class Found:
        warnings = ("as good as chance",)

    from intact.recipe.declare import warn_of

    with pytest.warns(intact.IntactWarning, match="as good as chance"):
        warn_of(Found())


def test_a_command_shows_no_warning_of_python(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", image=ONE)
    command = [sys.executable, "-m", "intact", "quantize", demo.model_path(), "--data", "one.npz"]
    done = subprocess.run(
        [*map(str, command), "--output", "out"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "warning calibration_samples: " in done.stdout
    assert "Warning" not in done.stderr


def test_off_a_terminal_each_phase_is_a_line_once_a_command_takes_long(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "SILENT", 0.2)
    now = time.perf_counter()
    with Lines(Phases(now), "reading", quiet=False) as lines:
        lines.phase("quick")
        assert capfd.readouterr().err == ""
        deadline = time.monotonic() + 30
        while not (err := capfd.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert err.endswith(" s: quick\n")  # in the middle of a phase that tells nothing
        lines.phase("improving: bias")
        lines.stand("12 trials")  # told a moment ago
    assert capfd.readouterr().err.endswith(" s: improving: bias\n")
    with Lines(Phases(now - 1), "reading", quiet=True) as lines:
        lines.phase("calibrating")
    assert capfd.readouterr().err == ""


def test_quiet_commands_print_what_was_asked_for_alone(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del here
    monkeypatch.setattr(printing, "SILENT", 0.0)
    quantize = ["quantize", "model.onnx", "--data", "calib.npz", "--output", "out"]
    assert run([*quantize, "--samples", "8"]) == 0
    told = capfd.readouterr()
    assert "\nout/model.int8.onnx\n" in told.out
    assert " s: calibrating\n" in told.err
    assert run([*quantize, "--samples", "8", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    assert run(["run", "out", "--data", "test.npz", "--output", "y.npz", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    assert run([*quantize, "--samples", "8", "--quiet", "--json"]) == 0
    assert capfd.readouterr().out.startswith("{")
    assert run(["inspect", "nothing.onnx", "--quiet"]) == 2
    assert "does not exist" in capfd.readouterr().err


def _all_below(error: type[IntactError]) -> list[type[IntactError]]:
    return [error, *(each for below in error.__subclasses__() for each in _all_below(below))]


@pytest.mark.parametrize("error", _all_below(IntactError))
def test_like_mistakes_end_with_like_codes(
    error: type[IntactError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("x")

    monkeypatch.setattr("intact.api.inspect", fail)
    of_results = issubclass(error, ClusterError | ExportError | SearchError)
    assert run(["inspect", "model.onnx"]) == (1 if of_results else 2)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("intact qua", ["quantize"]),
        ("intact quantize --shorter", ["--shorter-side"]),
        ("intact quantize m.onnx --target tflite-m", ["tflite-micro"]),
        ("intact search m.onnx --method perc", ["percentile"]),
        ("intact quantize m.onnx --preset be", ["best"]),
        ("intact quantize m.onnx --improve ada", ["adaround"]),
        ("intact quantize m.onnx --normalize imagenet-", ["imagenet-caffe"]),
        ("intact targets show openvino-a", ["openvino-avx2"]),
    ],
)
def test_shells_complete_commands_flags_and_names(words: str, offered: list[str]) -> None:
    environment = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_INTACT_COMPLETE": "bash_complete",
    }
    command = [sys.executable, "-m", "intact"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    found = [line.partition(",") for line in done.stdout.splitlines()]
    assert [value for kind, _, value in found if kind == "plain"] == offered
    assert not done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_by_the_variable(
    shell: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    assert f"_INTACT_COMPLETE={shell}_complete" in capfd.readouterr().out
    assert run(["completion", "tcsh"]) == 2
