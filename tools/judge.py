"""Judge an evaluation for continuous integration: fail if too much is lost.

    intact quantize model.onnx --data calib.npz --output out --json > quantize.json
    intact evaluate out --data test.npz --json > evaluate.json
    python tools/judge.py --max-drop 1 quantize.json evaluate.json

The last step of the action in `action.yml`. Writes a table to the file that GITHUB_STEP_SUMMARY
names and the figures to that of GITHUB_OUTPUT, where these are set. Ends with 1 if more than
``--max-drop`` is lost, or if nothing can be said. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> int:
    """Print the verdict; return the exit code."""
    parser = argparse.ArgumentParser(description="Fail if a quantized model loses too much.")
    parser.add_argument("--max-drop", type=float, required=True, help="points of top-1")
    parser.add_argument("quantized", type=Path, help="what `intact quantize --json` printed")
    parser.add_argument("evaluated", type=Path, help="what `intact evaluate --json` printed")
    arguments = parser.parse_args()
    if not math.isfinite(arguments.max_drop):
        parser.error(f"--max-drop {arguments.max_drop}: give a number")
    quantized, evaluated = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (arguments.quantized, arguments.evaluated)
    )

    drop, unit = lost(evaluated)
    if drop is None:
        verdict, failed = "Nothing to judge by: give labels, or a model that names classes.", True
    else:
        failed = drop > arguments.max_drop
        verdict = f"{drop:.2f} {unit} lost, {arguments.max_drop:g} allowed."
    append("GITHUB_STEP_SUMMARY", summary(quantized, evaluated, verdict, failed=failed))
    append("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in outputs(evaluated)))
    print(f"::error title=intact::{verdict}" if failed else verdict)
    return 1 if failed else 0


def lost(evaluated: dict[str, Any]) -> tuple[float | None, str]:
    """Return what was lost and its unit: points of top-1, or else answers that changed."""
    accuracy = evaluated["accuracy"]
    if accuracy is not None:
        before, after = accuracy["top1"]
        return before - after, "points of top-1"
    if evaluated["agreement"] is not None:
        return 100 - evaluated["agreement"], "% of the answers"
    return None, ""


def outputs(evaluated: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the outputs of the step: numbers only, so that no value can be a line of its own."""
    accuracy, (drop, _) = evaluated["accuracy"], lost(evaluated)
    if accuracy is not None:
        yield from zip(("float", "quantized"), map("{:.4f}".format, accuracy["top1"]), strict=True)
    if drop is not None:
        yield "drop", f"{drop:.4f}"


def summary(
    quantized: dict[str, Any], evaluated: dict[str, Any], verdict: str, *, failed: bool
) -> str:
    """Return a page for the summary of the job, in Markdown with all names escaped."""
    lines = [f"### intact: {'failed' if failed else 'passed'}", "", verdict, ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(value)} |" for name, value in rows(quantized, evaluated)]
    return "\n".join([*lines, "", ""])


def rows(quantized: dict[str, Any], evaluated: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table."""
    yield "target", quantized["target"]
    yield "planned as integer", f"{quantized['quantized_nodes']} of {quantized['nodes']} nodes"
    yield "samples", str(evaluated["samples"])
    accuracy = evaluated["accuracy"]
    if accuracy is not None:
        before, after = accuracy["top1"]
        change, low, high = accuracy["difference"]
        yield "top-1", f"{before:.2f} % to {after:.2f} %"
        yield "change, 95 % interval", f"{change:+.2f} [{low:+.2f}, {high:+.2f}]"
    if evaluated["agreement"] is not None:
        yield "same answer", f"{evaluated['agreement']:.2f} %"
    sqnr = evaluated["sqnr_db"]
    yield "signal to noise", "identical or not defined" if sqnr is None else f"{sqnr:.1f} dB"
    for name, (before, after) in evaluated["metrics"].items():
        yield escaped(name), f"{before} to {after}"
    before, after = evaluated["bytes"]
    yield "size", f"{before / 1e6:.2f} MB to {after / 1e6:.2f} MB"
    if evaluated["speedup"] is not None:
        yield "latency on this runner", f"{evaluated['speedup']:.2f} x as fast"
    yield "runtime", evaluated["runtime"]
    for warning in evaluated["warnings"]:
        yield "warning", warning


def escaped(text: str) -> str:
    """Return text that Markdown and HTML show as it is, in a cell of a table."""
    line = html.escape(" ".join(text.split()))
    return "".join(f"\\{char}" if char in "\\`*_[]|~#" else char for char in line)


def append(variable: str, text: str) -> None:
    """Append to the file that an environment variable names, if it does."""
    name = os.environ.get(variable)
    if name:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    sys.exit(main())
