"""Moving code moves no bit of what is written and computed for a small net on every target."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intact.targets import target_names
from tools.hashes import EXACT, differences, lines

HASHES = Path(__file__).with_name("hashes.txt")
UPDATE = "INTACT_UPDATE_GOLDEN"


def test_a_target_writes_and_computes_what_it_did() -> None:
    """After a wanted change run the test with INTACT_UPDATE_GOLDEN=1, and say why in the commit."""
    found = list(lines(EXACT, target_names()))
    if os.environ.get(UPDATE):
        HASHES.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    assert differences(HASHES.read_text(encoding="utf-8").splitlines(), found) == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [(["a 1", "b 2"], []), (["a 1", "b 3"], ["- b 2", "+ b 3"]), (["a 1"], ["- b 2"])],
)
def test_differences_are_told(now: list[str], expected: list[str]) -> None:
    assert differences(["a 1", "b 2"], now) == expected
