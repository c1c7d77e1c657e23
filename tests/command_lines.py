"""What the tests of command lines share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from intact.cli import run

Say = Callable[..., str]
"""Runs a command line that succeeds, and returns what it prints."""


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Run a command line that fails, and return the one line that says why."""
    assert run(arguments) == code
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def evaluated(say: Say, *options: str) -> Any:
    """Evaluate the result ``out``."""
    return json.loads(say("evaluate", "out", "--json", *options))
