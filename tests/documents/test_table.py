"""`docs/documents.md` names tests that exist, and all that stand beside this file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "documents.md"
ROW = re.compile(r"\| [A-Z]\d+ \|")
CITED = re.compile(r"([\w/]+\.py)::(\w+)")
POINTS = {"TFLite": "L", "Tengine": "T", "MQBench and OpenVINO": "M", "PPQ": "P", "HAGO": "H"}


def rows() -> list[list[str]]:
    """The cells of each point."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line in lines
        if ROW.match(line)
    ]


@cache
def functions(file: str) -> frozenset[str]:
    """The tests in a file, those of classes too."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in names if name.startswith("test_"))


CITATIONS = sorted({pair for row in rows() for pair in CITED.findall(row[-1])})


@pytest.mark.parametrize("file", sorted({file for file, _ in CITATIONS}))
def test_every_test_that_is_named_exists(file: str) -> None:
    assert (TESTS / file).is_file()
    assert {name for each, name in CITATIONS if each == file} <= functions(file)


def test_every_point_is_complete() -> None:
    found = rows()
    assert len(found) > 56  # those of an audit
    for number, _, gives, holds, *cited in found:
        assert gives, number
        word, _, remark = holds.partition(":")
        assert word in {"yes", "by name", "otherwise", "later"}, number
        assert bool(remark) is (word in {"by name", "otherwise"}), number
        assert len(cited) == 1, number
        left = CITED.sub("", cited[0]).strip(", |")
        assert not left, number  # nothing that only looks like a test
        assert CITED.search(cited[0]) or word == "later", number


def test_the_summary_counts_the_points() -> None:
    kinds = Counter(row[3].partition(":")[0] for row in rows())
    summary = (
        f"Of {kinds.total()} points {kinds['yes']} hold without more, {kinds['by name']} by name, "
        f"{kinds['otherwise']} otherwise, and {kinds['later']} come later."
    )
    assert summary in PAGE.read_text(encoding="utf-8")


def test_points_are_counted_from_1_under_their_document() -> None:
    parts = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    assert set(found) == set(POINTS)
    for title, letter in POINTS.items():
        numbers = [line.split()[1] for line in found[title].splitlines() if ROW.match(line)]
        assert numbers == [f"{letter}{number + 1}" for number in range(len(numbers))]


def test_the_tests_of_the_documents_are_all_named() -> None:
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path != Path(__file__):
            file = f"documents/{path.name}"
            assert functions(file) == {name for each, name in CITATIONS if each == file}


def test_the_page_is_found_from_the_references() -> None:
    assert "(documents.md)" in (PAGE.parent / "references.md").read_text(encoding="utf-8")
