"""The command that shows a result on a page, ``report``; and the reports of results just made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact.cli.parameters import Command, Given
from intact.cli.phases import LOADING
from intact.recipe.reports import ReportCommand, ReportOptions

if TYPE_CHECKING:
    from intact.recipe.groups import OutputOptions
    from intact.results.result import Result

_LATER = ("accuracy", "verification")
"""Parts of a report that only the command measures."""


def _report(given: Given[ReportCommand]) -> None:
    """Write the report of a result: one page that opens from disk, with graph, errors and causes.

    It shows the network with the error of each layer, distributions with thresholds, weights by
    channel, the diagnosis, the search or the training, and the recipe. Needs the extra `report`.

    Example: intact report out/ --data test.npz
    """
    options, found = given.options, given.call("report", ReportOptions)
    from intact.cli import show_report

    page = options.output or _page(Path(options.result))
    show_report.report(found, page, as_json=options.as_json)


def require(options: OutputOptions) -> None:
    """Check early that a report that is asked for can be written.

    Raises:
        MissingExtraError: The extra ``report`` is not installed.
    """
    if options.with_report:
        from intact.analyze.report.layout import require_layout

        require_layout()


def write(made: Result | Mapping[str, Result], options: OutputOptions, *, quiet: bool) -> None:
    """Write the reports of results that were just made, where they are asked for.

    Args:
        made: A result with its folder, or one for each target.
        options: As they were given.
        quiet: Print nothing.
    """
    if not options.with_report:
        return
    from intact import api
    from intact.cli import show_report
    from intact.cli.phases import is_quiet
    from intact.cli.printing import progress as shown

    given = {name: getattr(options, name, None) for name in ("data", "skip_bad", "threads")}
    arguments: dict[str, Any] = {name: value for name, value in given.items() if value}
    quiet = quiet or is_quiet()
    for result in made.values() if isinstance(made, Mapping) else [made]:
        with shown(LOADING, quiet=quiet) as progress:
            found = api.report(result, leave_out=_LATER, progress=progress, **arguments)
        if not quiet:
            show_report.report(found, _page(result.folder or Path()), as_json=False)


def _page(folder: Path) -> Path:
    """Name the page in a result's folder, which may be named by the plan in it."""
    from intact.results.folder import PLAN, REPORT

    return (folder.parent if folder.name == PLAN and folder.is_file() else folder) / REPORT


REPORT = Command("report", ReportCommand, _report, timed=True)
