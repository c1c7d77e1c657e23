"""Writes the page of a report: one file of HTML, with styles, scripts and figures inlined.

Nothing is fetched: a policy in the page forbids every request, and every script but its own;
pictures are part of it. What a model's names say is only ever text: figures are JSON in which no
tag can begin, and the scripts write text, never HTML.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib import resources

from intact.analyze.report.figures import Report
from intact.results.folder import REPORT_HEAD

SCRIPTS = ("elements.js", "graph.js", "sections.js", "charts.js", "pictures.js", "page.js")
"""In the order in which they run. `graph.js` draws graphs, several on one page if wanted."""
_PLACE = re.compile(r"\{\{ (\w+) \}\}")
_ESCAPED = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def page_of(report: Report) -> bytes:
    """Return the page of a report; equal reports give equal bytes."""
    title = f"{report.summary.model} for {report.summary.target}"
    return assembled(title, {"report": report.encode()}, SCRIPTS)


def assembled(
    title: str,
    data: dict[str, bytes],
    scripts: tuple[str, ...],
    styles: tuple[str, ...] = ("page.css",),
) -> bytes:
    """Put a page together.

    Args:
        title: The page's title; any text.
        data: JSON by the id of the element that holds it.
        scripts: Names of scripts beside this module, in the order in which they run.
        styles: Names of style sheets, likewise.
    """
    style = "\n".join(read(name) for name in styles)
    script = "\n".join(read(name) for name in scripts)
    held = "\n".join(
        f'<script type="application/json" id="{name}">{_harmless(text.decode())}</script>'
        for name, text in data.items()
    )
    parts = {
        "title": html.escape(title),
        "policy": _policy(style, script),
        "style": style,
        "data": held,
        "script": script,
    }
    # In one pass: a place that stands in a model's name is text by then, and not looked at again.
    text = _PLACE.sub(lambda place: parts[place[1]], read("page.html"))
    return REPORT_HEAD + text.encode()


def read(name: str) -> str:
    """Return a file beside this module."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _harmless(text: str) -> str:
    """Write JSON so that it cannot end the element that holds it."""
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text


def _policy(style: str, script: str) -> str:
    """Allow this style and this script, and nothing else."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
