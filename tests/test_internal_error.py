"""What nobody foresaw ends in one line that says so, with a log to attach."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from intact.cli import entry
from intact.cli.entry import app
from tests.models import residual_net

INTERNAL = 70


def broken(*_: object, **__: object) -> None:
    raise KeyError("a\nb" * 1000)


def test_an_internal_error_is_one_line_with_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(app, "invoke", broken)
    assert entry.run(["inspect", "model.onnx"]) == INTERNAL
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert err.startswith("intact: internal error: KeyError: ")
    assert len(err) < 700
    found = re.search(r"report it with (\S+) and", err)
    assert found
    log = Path(found[1]).read_text("utf-8")
    assert "Traceback (most recent call last)" in log
    assert "arguments: ['inspect', 'model.onnx']" in log
    assert log.startswith("intact ")


def test_an_internal_error_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr(app, "invoke", broken)
    assert entry.run(["inspect", "model.onnx"]) == INTERNAL
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no log could be written" in err


def test_the_process_ends_with_that_code(tmp_path: Path) -> None:
    code = (
        "from intact.cli import entry\n"
        "def broken(*_): raise RuntimeError('unforeseen')\n"
        "entry.app.invoke = broken\n"
        "entry.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == INTERNAL
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(closed: str, tmp_path: Path) -> None:
    """Nor does a file that is opened later take their place."""
    model = tmp_path / "model.onnx"
    onnx.save(residual_net(), model)
    for command in (f"inspect {model} --json", "targets"):
        line = f"{sys.executable} -m intact {command} {closed}"
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    onnx.checker.check_model(onnx.load(model))
