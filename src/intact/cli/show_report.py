"""What is printed of a report: where its page is, and what it lacks."""

from __future__ import annotations

import json
from pathlib import Path

from intact.analyze.report.figures import Report
from intact.cli.markup import escape
from intact.cli.phases import with_phases
from intact.cli.printing import print_json, say


def report(found: Report, path: str | Path, *, as_json: bool) -> None:
    """Print where the page is; or everything that it shows."""
    if as_json:
        print_json(with_phases({"page": str(path), **json.loads(found.encode())}))
        return
    say(f"[bold]{escape(str(path))}[/]")
    for table, what in found.written.items():
        say(f"[bold]{escape(table)}[/]: {escape(what)}")
    for part, reason in found.left_out.items():
        say(f"[yellow]without {part}[/]: {escape(reason)}")
