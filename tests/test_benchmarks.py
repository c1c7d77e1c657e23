"""Benchmarks that need no zoo run, and say what they measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
BENCHMARKS = REPOSITORY / "benchmarks"


def run(script: str, *options: str, folder: Path) -> str:
    """Run a benchmark in a folder, and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_other_quantizers_are_measured_beside_intact(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    # A tool that is not installed is a cell that says so.
    options = ("--models", "digits", "--rounds", "1", "--output", str(page))
    run("quantizers.py", *options, folder=tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "nan" not in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| digits ")]
    assert len(rows) == 6
    assert re.match(r"99\.\d\d$", rows[0][1])
    assert re.match(r"99\.\d\d \([+-]0\.\d\d \[", rows[0][2])
    assert rows[2][1].startswith("1.00 (")
    assert re.search(r"^- machine: .+, \d+ cores, ", text, re.MULTILINE)


@pytest.mark.slow
def test_placements_by_hand_are_fused_and_measured_beside_intact(tmp_path: Path) -> None:
    options = ("--patterns", "residual,pooling", "--batches", "1", "--seconds", "0.05", "--json")
    printed = run("placement.py", *options, folder=tmp_path)
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["pattern"] for row in rows] == ["residual", "pooling"]
    for row in rows:
        assert row["variant"] in row["variants"]
        assert row["ms"].keys() == {"float", "by hand", "intact", "fastest"}
        assert row["ratio"].keys() == {"intact", "fastest"}
        assert min(row["db"].values()) > 20
        assert "QLinearConv" in row["kernels"]["by hand"]
        assert not {"Conv", "Add", "AveragePool"} & row["kernels"]["by hand"].keys()
    assert "QLinearAdd" in rows[0]["kernels"]["by hand"]
