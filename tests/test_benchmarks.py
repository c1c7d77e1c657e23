"""The script behind `make bench` runs without the zoo, and writes what it measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SCRIPT = REPOSITORY / "benchmarks" / "quantizers.py"


@pytest.mark.slow
def test_other_quantizers_are_measured_beside_intact(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    # A tool that is not installed is a cell that says so.
    options = ("--models", "digits", "--rounds", "1", "--output", str(page))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "nan" not in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| digits ")]
    assert len(rows) == 6
    assert re.match(r"99\.\d\d$", rows[0][1])
    assert re.match(r"99\.\d\d \([+-]0\.\d\d \[", rows[0][2])
    assert rows[2][1].startswith("1.00 (")
    assert re.search(r"^- machine: .+, \d+ cores, ", text, re.MULTILINE)
