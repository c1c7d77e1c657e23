"""`docs/documents.md` says of each point what intact gives, and `points.toml` names its tests."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "documents.md"
POINT = re.compile(
    r"^- \*\*(?P<number>[A-Z]\d+)\.\*\* (?P<says>.+?)"
    r"^  \*intact(?: \((?P<mark>\w+)\))?:\* (?P<gives>.+?)(?=^\S|^$)",
    re.MULTILINE | re.DOTALL,
)
POINTS = {"TFLite": "L", "Tengine": "T", "MQBench and OpenVINO": "M", "PPQ": "P", "HAGO": "H"}
CITED: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).parent / "points.toml").read_text(encoding="utf-8")
)
CITATIONS = sorted({cited for tests in CITED.values() for cited in tests})


class Point(NamedTuple):
    """One statement of a document: its number, the statement, an exception's mark, the answer."""

    number: str
    says: str
    mark: str | None
    gives: str


def points(text: str | None = None) -> list[Point]:
    """The points of the page, or of a part of it."""
    found = POINT.finditer(PAGE.read_text(encoding="utf-8") if text is None else text)
    return [Point(each["number"], each["says"], each["mark"], each["gives"]) for each in found]


@cache
def functions(file: str) -> frozenset[str]:
    """The tests in a file, those of classes too."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in names if name.startswith("test_"))


def named(file: str) -> set[str]:
    """The tests of a file that points name."""
    return {cited.partition("::")[2] for cited in CITATIONS if cited.startswith(f"{file}::")}


@pytest.mark.parametrize("file", sorted({cited.partition("::")[0] for cited in CITATIONS}))
def test_every_test_that_is_named_exists(file: str) -> None:
    assert (TESTS / file).is_file()
    assert named(file) <= functions(file)


def test_every_point_is_complete_and_has_tests() -> None:
    found = points()
    assert [point.number for point in found] == list(CITED)
    for point in found:
        assert point.says.strip(), point.number
        assert point.gives.strip(), point.number
        assert point.mark in {None, "option", "differs", "open"}, point.number
        assert CITED[point.number] or point.mark == "open", point.number


def test_the_summary_counts_the_points() -> None:
    marks = Counter(point.mark for point in points())
    summary = (
        f"Of {marks.total()} points, {marks[None]} hold by default and {marks['option']} with an "
        f"option, {marks['differs']} differ, and {marks['open']} are open."
    )
    assert summary in PAGE.read_text(encoding="utf-8")


def test_points_are_counted_from_1_under_their_document() -> None:
    parts = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    assert set(found) == set(POINTS)
    for title, letter in POINTS.items():
        numbers = [point.number for point in points(found[title])]
        assert numbers == [f"{letter}{number + 1}" for number in range(len(numbers))]


def test_the_tests_of_the_documents_are_all_named() -> None:
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path != Path(__file__):
            file = f"documents/{path.name}"
            assert functions(file) == named(file)


def test_the_page_is_found_from_the_references() -> None:
    assert "(documents.md)" in (PAGE.parent / "references.md").read_text(encoding="utf-8")
