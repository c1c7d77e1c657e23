"""Prints a diagnosis."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from intact.analyze.diagnose.diagnosis import Diagnosis
from intact.analyze.diagnose.findings import CAUSES, RUN, SIMULATION, Finding
from intact.cli.long_commands import remedy_of
from intact.cli.markup import escape
from intact.cli.phases import with_phases
from intact.cli.printing import print_json, say
from intact.cli.show_layers import model_errors
from intact.limits import REMEDIES_SECONDS

_MEASURED = {SIMULATION: "simulated", RUN: "measured"}


def diagnosis(found: Diagnosis, folder: Path, *, as_json: bool, was_tried: bool) -> None:
    """Print the findings on the result in a folder, worst first.

    Args:
        found: What was found.
        folder: Where the result is.
        as_json: Print JSON.
        was_tried: Whether remedies were run, as far as there was time.
    """
    if as_json:
        print_json(with_phases(found.to_json()))
        return
    drawn = ", drawn from what calibration saw" if found.is_drawn else ""
    worst = min(found.decibels.items(), key=lambda each: each[1], default=None)
    if worst is not None:
        output, decibels = worst
        say(f"output {escape(output)}: SQNR {decibels:.1f} dB on {found.samples} samples{drawn}")
    if not found.findings:
        say("nothing wrong was found")
    for number, finding in enumerate(found.findings, 1):
        _finding(number, finding, folder, was_tried=was_tried)
    if found.errors is not None and found.errors.layers:
        model_errors(found.errors)
    for note in found.notes:
        say(f"note {escape(note)}")


def _finding(number: int, finding: Finding, folder: Path, *, was_tried: bool) -> None:
    say(f"{number}. {escape(finding.place)}: {CAUSES[finding.cause]}")
    say(f"   measured: {escape(finding.evidence)}")
    if finding.remedy:
        say(f"   remedy: {escape(remedy_of(finding, folder))}")
    if finding.gain is not None:
        say(f"   gain: {finding.gained}, {_MEASURED[finding.measured]}")
    elif finding.remedy.startswith("intact "):
        how = shlex.join(["intact", *sys.argv[1:], "--try", str(REMEDIES_SECONDS)])
        measure = "" if was_tried else f"; to measure it: {escape(how)}"
        say(f"   gain: not measured{measure}")
