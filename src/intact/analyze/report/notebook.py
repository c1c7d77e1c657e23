"""Shows the page of a report in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from intact._files import write_whole
from intact.analyze.report.figures import Report
from intact.analyze.report.gather import report_with_page
from intact.recipe.reports import ReportOptions

if TYPE_CHECKING:
    from intact.recipe.groups import DataSource
    from intact.results.result import Result

_HEIGHT = 900
"""Pixels of the page in a notebook."""


class ReportPage(msgspec.Struct, frozen=True):
    """A report as a page.

    Attributes:
        figures: What it shows.
        page: The file, HTML in UTF-8.
    """

    figures: Report
    page: bytes

    def __repr__(self) -> str:
        """Say what it is and how large."""
        summary = self.figures.summary
        return f"ReportPage({summary.model} for {summary.target}, {len(self.page):,} bytes)"

    def _repr_html_(self) -> str:
        """Embed the page in a frame of its own: its scripts see nothing of the notebook."""
        return (
            f'<iframe sandbox="allow-scripts" width="100%" height="{_HEIGHT}" '
            f'style="border: 0" title="Report" srcdoc="{html.escape(self.page.decode())}"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page.

        Raises:
            OutputError: It cannot be written.
        """
        write_whole(Path(path), self.page)


def report_page(result: Result, data: DataSource | None, given: Mapping[str, Any]) -> ReportPage:
    """Report on a result as a page.

    Raises:
        MissingExtraError: The extra ``report`` is not installed.
        IntactError: The data or an option is wrong.
    """
    options = ReportOptions(result, data, **given)
    with options.in_force():
        return ReportPage(*report_with_page(options))
