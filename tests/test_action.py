"""The steps of `action.yml` run as GitHub runs them, and no input becomes a command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

REPOSITORY = Path(__file__).parent.parent
ACTION: dict[str, Any] = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
"""What GitHub makes of `shell: bash`."""
EXPRESSION = re.compile(r"\${{ inputs\.([\w-]+) }}")
SECONDS = 300


@dataclass
class Job:
    """A run of the action in a folder: stops at the first step that fails."""

    folder: Path
    inputs: Mapping[str, str]
    code: int = 0
    log: str = ""

    def run(self, *names: str) -> Job:
        for name in names:
            (step,) = (step for step in STEPS if step["name"] == name)
            if self.code == 0:
                self._step(step)
        return self

    def _step(self, step: dict[str, Any]) -> None:
        defaults = {name: each.get("default", "") for name, each in ACTION["inputs"].items()}
        values = {**defaults, **self.inputs}
        given = {
            name: EXPRESSION.sub(lambda found: values[found[1]], text)
            for name, text in step["env"].items()
        }
        script = self.folder / "script.sh"
        script.write_text(step["run"], encoding="utf-8")
        done = subprocess.run(
            [*SHELL, str(script)],
            cwd=self.folder,
            env={**self._environment(), **given},
            text=True,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        self.code, self.log = done.returncode, self.log + done.stdout + done.stderr

    def _environment(self) -> dict[str, str]:
        names = {
            "GITHUB_STEP_SUMMARY": "summary",
            "GITHUB_OUTPUT": "outputs",
            "GITHUB_PATH": "path",
        }
        return {
            **os.environ,
            **{name: str(self.folder / file) for name, file in names.items()},
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY / "src"),
            "RUNNER_TEMP": str(self.folder),
            "GITHUB_ACTION_PATH": str(REPOSITORY),
        }

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


@pytest.fixture
def job(here: Path) -> Any:
    """Make a job in a folder with a model and data, in which the action is installed."""
    (here / "bin").mkdir()
    program(here / "bin" / "python", f'exec "{sys.executable}" "$@"')
    program(here / "bin" / "intact", f'exec "{sys.executable}" -m intact "$@"')

    def make(**inputs: str) -> Job:
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        return Job(here, {"model": "model.onnx", "data": "calib.npz", "test": "test.npz", **given})

    return make


def program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def test_what_loses_little_passes_with_a_summary_and_outputs(job: Any) -> None:
    done = job(options="--method\nminmax   --samples 50").run("Quantize", "Evaluate", "Judge")
    assert done.code == 0, done.log
    outputs = dict(line.split("=") for line in done.read("outputs").splitlines())
    assert set(outputs) == {"float", "quantized", "drop"}
    assert float(outputs["float"]) > 95
    assert float(outputs["drop"]) <= 1
    summary = done.read("summary")
    assert summary.startswith("### intact: passed\n")
    assert "| target | onnxruntime |" in summary
    recipe = (done.folder / "intact-result" / "recipe.toml").read_text(encoding="utf-8")
    assert 'method = "minmax"' in recipe
    assert "samples = 50" in recipe


def test_what_loses_more_than_allowed_fails(job: Any) -> None:
    options = "--weight-bits 2 --activation-bits 3 --preset fast"
    done = job(options=options, max_drop="0.5").run("Quantize", "Evaluate", "Judge")
    assert done.code == 1
    assert "::error title=intact::" in done.log
    assert done.read("summary").startswith("### intact: failed\n")
    assert float(re.findall(r"drop=([\d.]+)", done.read("outputs"))[0]) > 0.5


def test_an_error_of_a_command_fails_its_step_and_says_why(job: Any) -> None:
    done = job(model="none.onnx").run("Quantize", "Evaluate", "Judge")
    assert done.code == 2
    assert "'none.onnx' does not exist" in done.log
    assert not (done.folder / "summary").exists()


HOSTILE = (
    "$(touch owned)",
    "`touch owned`",
    "x; touch owned #",
    '"; touch owned; "',
    "' || touch owned || '",
    "x\ntouch owned",
    "--help",
    "* ? ~ $HOME",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_input_becomes_a_command(text: str, job: Any) -> None:
    """Programs that note their arguments stand for python and intact."""
    hostile = job(**{name: text for name in ACTION["inputs"] if name != "python"})
    folder = hostile.folder
    for name in ("python", "intact", "python3"):
        program(folder / "bin" / name, f"printf '%s\\0' \"$@\" >> '{folder}/said'; echo {{}}")
    fake = folder / "intact" / "bin"
    fake.mkdir(parents=True)
    program(fake / "python", f"printf '%s\\0' \"$@\" >> '{folder}/said'")
    done = hostile.run("Install", "Quantize", "Evaluate", "Judge")
    assert done.code == 0, done.log
    assert not (folder / "owned").exists()
    said = done.read("said").split("\0")
    assert f"{REPOSITORY}[{text}]" in said
    assert f"--data={text}" in said
    assert said[said.index("--") + 1] == text
    assert all(word in said for word in text.split())  # options are words, and not expanded
    assert f"--max-drop={text}" in said


def test_an_interpreter_of_a_hostile_name_is_not_found(job: Any) -> None:
    done = job(python="python3; touch owned").run("Install")
    assert done.code == 127
    assert not (done.folder / "owned").exists()


def test_scripts_hold_no_expressions_and_every_input_is_used() -> None:
    for step in STEPS:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        assert all(EXPRESSION.fullmatch(text) for text in step["env"].values())
    used = {EXPRESSION.sub(r"\1", text) for step in STEPS for text in step["env"].values()}
    assert used == set(ACTION["inputs"])
    assert all(each["description"] for each in ACTION["inputs"].values())


EVALUATED = {
    "samples": 10,
    "accuracy": None,
    "agreement": 97.5,
    "sqnr_db": None,
    "metrics": {"<b>": [0.5, 0.4]},
    "bytes": [2e6, 1e6],
    "speedup": None,
    "runtime": "`runtime` | <script>",
    "warnings": ["a\nb"],
}
QUANTIZED = {"target": "[x](y)", "quantized_nodes": 1, "nodes": 2}


@pytest.mark.parametrize(("agreement", "code"), [(97.5, 1), (99.5, 0), (None, 1)])
def test_without_labels_changed_answers_count(
    agreement: float | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools import judge

    for name, content in (("q", QUANTIZED), ("e", {**EVALUATED, "agreement": agreement})):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    monkeypatch.setattr(
        sys, "argv", ["judge", "--max-drop", "1", str(tmp_path / "q"), str(tmp_path / "e")]
    )
    assert judge.main() == code
    summary = (tmp_path / "summary").read_text(encoding="utf-8")
    assert "<script>" not in summary
    assert "| target | \\[x\\](y) |" in summary
    assert "\\`runtime\\` \\| &lt;script&gt;" in summary
