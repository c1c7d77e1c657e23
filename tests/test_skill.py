"""What SKILL.md tells a coding agent is so: its commands run, and their JSON has what it names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

TEXT = (Path(__file__).parent.parent / "SKILL.md").read_text(encoding="utf-8")
MOST_LINES = 80


def commands() -> list[list[str]]:
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines()]


def values(found: Any, path: str) -> list[Any]:
    """Return what a path such as ``nodes[].reason`` names; KeyError where it names nothing."""
    values = [found]
    for part in path.split("."):
        name, several = part.removesuffix("[]"), part.endswith("[]")
        values = [value[name] for value in values]
        if several:
            values = [each for value in values for each in value]
    return values


def test_commands_run_and_print_what_the_table_says(here: Path, say: Any) -> None:
    printed = {words[0]: json.loads(say(*words)) for words in commands()}
    assert len(printed) == 5
    rows = re.findall(r"^\| (\w+) \| (`.*?`) \|", TEXT, re.MULTILINE)
    named = [(command, path) for command, cell in rows for path in re.findall("`(.*?)`", cell)]
    assert {command for command, _ in named} == set(printed)
    for command, path in named:
        assert values(printed[command], path) or command == "diagnose", path
    assert printed["evaluate"]["accuracy"]["top1"][0] > 95
    assert printed["quantize"]["loss"] is None
    assert set(values(printed["verify"], "verified[].layers[].mismatches")) == {0}


def test_findings_of_diagnose_have_their_keys(here: Path, say: Any) -> None:
    say("quantize", "model.onnx", "--data", "calib.npz", "--weight-bits", "2", "-o", "few")
    found = json.loads(say("diagnose", "few", "--data", "test.npz", "--json"))
    assert values(found, "findings[].cause")
    assert values(found, "findings[].remedy")[0].startswith("intact quantize ")


def test_it_is_short_and_has_a_heading_for_agents() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= MOST_LINES
    assert lines[:2] == ["---", "name: intact"]
    assert lines[2].startswith("description: ")
