"""What is printed of a diagnosis."""

from __future__ import annotations

from pathlib import Path

from intact.analyze.diagnose.diagnosis import Diagnosis
from intact.analyze.diagnose.findings import CAUSES, Finding
from intact.cli.long_commands import remedy_of
from intact.cli.phases import with_phases
from intact.cli.printing import escape, print_json, say
from intact.cli.show_layers import model_errors


def diagnosis(found: Diagnosis, folder: Path, *, as_json: bool) -> None:
    """Print the findings on the result in a folder, worst first."""
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
        _finding(number, finding, folder)
    if found.errors is not None and found.errors.layers:
        model_errors(found.errors)
    for note in found.notes:
        say(f"note {escape(note)}")


def _finding(number: int, finding: Finding, folder: Path) -> None:
    place = f" at {escape(finding.node)}" if finding.node else ""
    say(f"{number}. {finding.cause}{place}: {CAUSES[finding.cause]}")
    say(f"   measured: {escape(finding.evidence)}")
    if finding.remedy:
        say(f"   remedy: {escape(remedy_of(finding, folder))}")
    if finding.gain is not None:
        say(f"   gain: {finding.gain:+.1f} {finding.unit}, measured")
