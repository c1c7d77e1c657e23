"""``tools/fuzz.py``: progress, what it keeps, and how it ends."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.campaign import Failure
from tools import fuzz


def test_a_run_without_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    arguments = ["--minutes", "0", "--kind", "labels", "--seed", "5", "--output", str(folder)]
    assert fuzz.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("seed 5", "0 failures")
    assert f"{fuzz.CASES} cases     0 failures  labels from 0" in lines[1]
    assert not folder.exists()


def test_failures_are_kept_and_can_be_fed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(kind: str, seed: int, first: int, count: int) -> Iterator[Failure]:
        yield Failure(kind, seed, first, "KeyError", b"file,label\n")

    monkeypatch.setattr(fuzz, "run_cases", fails)
    common = ["--kind", "labels"]
    assert fuzz.main([*common, "--minutes", "0", "--seed", "5", "--output", str(tmp_path)]) == 1
    assert "1 failures, in " in capsys.readouterr().out
    assert fuzz.main([*common, "--file", str(tmp_path / "labels-5-0.csv")]) == 0
    assert "refused with one line" in capsys.readouterr().out


def test_a_file_needs_its_kind() -> None:
    with pytest.raises(SystemExit):
        fuzz.main(["--file", "x.csv"])


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_runs_it_for_as_long_as_asked() -> None:
    # Under `make test` this make is the inner one, and would say where it is.
    command = ["make", "--no-print-directory", "--dry-run", "fuzz", "MINUTES=3"]
    plan = subprocess.run(command, cwd=fuzz.ROOT, capture_output=True, text=True, check=True)
    assert plan.stdout.splitlines()[-1].endswith("tools/fuzz.py --minutes 3")
