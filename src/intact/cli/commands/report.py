"""The command that shows a result on a page: ``report``."""

from __future__ import annotations

from pathlib import Path

from intact.cli.parameters import Command, Given
from intact.cli.phases import LOADING
from intact.recipe.reports import ReportCommand, ReportOptions


def _report(given: Given[ReportCommand]) -> None:
    """Write the report of a result: one page that opens from disk, with graph, errors and causes.

    It shows the network with the error of each layer, distributions with thresholds, weights by
    channel, the diagnosis, the search or the training, and the recipe. Needs the extra `report`.

    Example: intact report out/ --data test.npz
    """
    from intact.cli.printing import progress as shown

    options = given.options
    with shown(LOADING, quiet=options.as_json, at_most=options.samples) as progress:
        from intact import api

        found = api.report(**given.of(ReportOptions), progress=progress)
    from intact.cli import show_report

    path = options.output or Path(options.result) / "report.html"
    show_report.report(found, path, as_json=options.as_json)


REPORT = Command("report", ReportCommand, _report, timed=True)
