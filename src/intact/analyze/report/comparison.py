"""Writes the page of a comparison: the graphs of results side by side, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from intact._text import Figures
from intact.analyze.comparison import Comparison
from intact.analyze.report.network import outline_of
from intact.analyze.report.page import assembled
from intact.plan import QuantizedGraph

SCRIPTS = ("elements.js", "graph.js", "sections.js", "pictures.js", "comparison.js")
STYLES = ("page.css", "comparison.css")


def comparison_page(
    found: Comparison,
    plans: Sequence[QuantizedGraph],
    tables: Mapping[str, Figures],
    *,
    version: str,
) -> bytes:
    """Return the page of a comparison; equal comparisons give equal bytes.

    Args:
        found: What was compared.
        plans: The results' plans, in their order.
        tables: ``figures``, ``decisions``, ``scales`` and ``layers``.
        version: The version of intact.

    Raises:
        MissingExtraError: The package that lays out graphs is not installed.
    """
    data = {
        "intact": version,
        "comparison": _plain(found),
        "networks": [outline_of(plan) for plan in plans],
        "tables": tables,
    }
    title = ", ".join(result.name for result in found.results)
    encoded = msgspec.json.encode(data)
    return assembled(f"Comparison of {title}", {"comparison": encoded}, SCRIPTS, STYLES)


def _plain(found: Comparison) -> dict[str, Any]:
    """Return what the page shows; the errors of channels, of which there may be many, are not."""
    plain = found.to_json()
    for result in plain["results"]:
        for layer in (result["errors"] or {}).get("layers", ()):
            del layer["channels"]
    return plain
