"""What is printed of a report: where its page is, and what it lacks; the reports of new results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact.cli.phases import with_phases
from intact.cli.printing import escape, print_json, progress, say

if TYPE_CHECKING:
    from intact.analyze.report.figures import Report
    from intact.flow.result import Result
    from intact.recipe.groups import OutputOptions

_LATER = ("accuracy", "verification")
"""Parts that the command `report` measures, and no report of a result that was just made."""


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


def require(options: OutputOptions) -> None:
    """Check early that a report that is asked for can be written.

    Raises:
        MissingExtraError: The extra ``report`` is not installed.
    """
    if options.with_report:
        from intact.analyze.report.layout import require_layout

        require_layout()


def written(made: Result | Mapping[str, Result], options: OutputOptions, *, quiet: bool) -> None:
    """Write the reports of results that were just made, where they are asked for.

    Args:
        made: A result with its folder, or one for each target.
        options: As they were given.
        quiet: Print nothing.
    """
    if not options.with_report:
        return
    from intact import api

    arguments: dict[str, Any] = {"leave_out": _LATER}
    for name in ("data", "skip_bad", "threads"):
        value = getattr(options, name, None)
        if value:
            arguments[name] = value
    for result in made.values() if isinstance(made, Mapping) else [made]:
        with progress("reading the result", quiet=quiet) as shown:
            found = api.report(result, progress=shown, **arguments)
        if not quiet:
            report(found, (result.folder or Path()) / "report.html", as_json=False)
