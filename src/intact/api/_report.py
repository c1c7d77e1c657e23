"""Write the report of a result."""

from __future__ import annotations

from intact.analyze.report import gather as flow
from intact.analyze.report.figures import Report
from intact.recipe.declare import public
from intact.recipe.reports import ReportOptions


@public(ReportOptions)
def report(options: ReportOptions) -> Report:
    """Write all that is known of a result as one page: report.html in its folder.

    Returns:
        What the page shows, as figures.

    Raises:
        MissingExtraError: The extra ``report`` is not installed.
        IntactError: The folder or the data is wrong, or the page cannot be written.
    """
    return flow.report(options)
