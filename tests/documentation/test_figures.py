"""Pages quote the figures that benchmarks measured, and no others for the same fact."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import figures

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", figures.PAGES)
def test_tables_are_those_of_the_file(name: str) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert "<!-- figures: " in text
    assert figures.filled(text, figures.read()) == text, "run python benchmarks/figures.py"


def test_the_page_of_the_run_has_the_same_figures() -> None:
    text = (REPOSITORY / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name, each in figures.read()["models"].items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        cells = [cell.split()[0] for cell in row.strip("| ").split(" | ")]
        assert float(cells[1]) == each["float"]
        for cell, made in zip(cells[2:], each["int8"].values(), strict=True):
            is_number = re.fullmatch(r"[\d.]+", cell) is not None
            assert is_number == ("top1" in made)
            assert not is_number or float(cell) == made["top1"]


def test_a_new_run_keeps_what_others_measured(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    figures.write({"run": {}, "models": {"a": {"float": 1.0, "four_bits": {"nearest": 2.0}}}}, file)
    figures.write({"run": {"rounds": 3}, "models": {"a": {"float": 5.0}, "b": {}}}, file)
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["run"] == {"rounds": 3}
    assert found["models"] == {"a": {"float": 5.0, "four_bits": {"nearest": 2.0}}, "b": {}}
