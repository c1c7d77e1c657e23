"""The page of a comparison: the graphs of the results side by side, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from intact.analyze.compare import Comparison
from intact.analyze.report import figures
from intact.analyze.report.network import network_of
from intact.analyze.report.page import assembled
from intact.plan import QuantizedGraph

SCRIPTS = ("elements.js", "graph.js", "comparison.js")
STYLES = ("page.css", "comparison.css")


class Table(msgspec.Struct, frozen=True):
    """A table of text.

    Attributes:
        title: Above it.
        headings: Of its columns.
        rows: As many cells each.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def comparison_page(
    found: Comparison,
    plans: Sequence[QuantizedGraph],
    tables: Mapping[str, Table],
    *,
    version: str,
) -> bytes:
    """Return the page of a comparison; equal comparisons give equal bytes.

    Args:
        found: What was compared.
        plans: Of the results, in their order.
        tables: ``figures``, ``decisions``, ``scales`` and ``layers``.
        version: Of intact.

    Raises:
        MissingExtraError: The package that lays out graphs is not installed.
    """
    data = {
        "intact": version,
        "comparison": _plain(found),
        "networks": [_drawn(plan) for plan in plans],
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


def _drawn(plan: QuantizedGraph) -> figures.Network:
    """Lay out a graph: names, places and widths of nodes; all else is in the comparison."""
    network = network_of(plan, None, None)
    kept = ("name", "op", "x", "y", "kind", "bits", "weight_bits")
    nodes = (figures.Node(**{name: getattr(node, name) for name in kept}) for node in network.nodes)
    return msgspec.structs.replace(network, nodes=tuple(nodes), tensors=())
