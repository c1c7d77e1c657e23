"""What decides what a user sees has one home, a reason each, and is what the documents say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import intact
from intact import limits

PACKAGE = Path(intact.__file__).parent
DOCS = Path(__file__).resolve().parents[1] / "docs"
DRAWN = {"EXACT_DB", "_EXACT_DB"}
"""How figures are drawn, which decides nothing."""


def constants(path: Path) -> list[tuple[str, bool]]:
    """List the constants of a module, each with whether a text behind it says why."""
    body = ast.parse(path.read_text("utf-8")).body
    found = []
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = getattr(behind, "value", None) if isinstance(behind, ast.Expr) else None
            found.append((node.targets[0].id, isinstance(text, ast.Constant)))
    return found


def test_each_has_a_reason() -> None:
    named = constants(Path(limits.__file__))
    assert len(named) > 30
    assert [name for name, has_reason in named if not has_reason] == []


def test_decibels_are_at_home_here() -> None:
    elsewhere = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "limits.py"
        for name, _ in constants(path)
        if name.endswith("_DB") and name not in DRAWN
    ]
    assert elsewhere == []


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("diagnosis.md", f"If every output of the simulation has {limits.WELL_DB:g} dB or more"),
        ("diagnosis.md", f"an output has less than {limits.LOST_DB:g} dB"),
        ("diagnosis.md", f"on fewer than {100 * limits.AGREEING:g} % of the samples"),
        ("diagnosis.md", f"Below {limits.USUAL_DB:g} dB something is always named"),
        ("diagnosis.md", f"counts as -{limits.MOST_DB:g} dB"),
        ("precision.md", f"Below {limits.LOST_DB:g} dB of signal to noise"),
    ],
)
def test_documents_have_the_same_numbers(page: str, text: str) -> None:
    said = re.sub(r"\s+", " ", (DOCS / page).read_text("utf-8"))
    assert text in said
