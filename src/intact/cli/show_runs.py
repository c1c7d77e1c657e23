"""Prints what ``run`` computed, and what it has in common with ``verify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from intact.cli.markup import escape
from intact.cli.phases import is_quiet
from intact.cli.printing import new_table, print_json, say, show_table
from intact.results.execution import Run


def run(found: Run, path: Path, *, as_json: bool) -> None:
    """Print what ``run`` wrote."""
    if as_json:
        print_json(
            {
                "file": str(path),
                "samples": found.samples,
                "codes": found.codes,
                "arrays": {
                    name: {"dtype": str(array.dtype), "shape": array.shape}
                    for name, array in {**found.tensors, **found.outputs}.items()
                },
                "in_float": dict(found.in_float),
                "overflows": {
                    name: dict(zip(_OVERFLOW, numbers, strict=True))
                    for name, numbers in found.overflows.items()
                },
            }
        )
        return
    if is_quiet():
        return
    say(f"[bold]{escape(str(path))}[/]")
    for name, array in found.outputs.items():
        say(f"{escape(name)}: {array.dtype} {list(array.shape)}")
    for line in found.warnings:
        say(f"[yellow]warning[/] {escape(line)}")
    if found.tensors:
        say(f"and {len(found.tensors)} tensors between")
    if found.codes:
        say(f"[dim]{escape(', '.join(found.codes))}: taken as codes, so outputs are codes[/]")
    for name, reason in found.in_float.items():
        say(f"[yellow]in float[/] {escape(name)}: {escape(reason)}")
    overflows(found.overflows)


SHOWN = 4
"""Samples whose classes are shown."""
_BEST = 5


def classes(found: Mapping[str, Run], *, as_json: bool) -> None:
    """Print the likeliest classes of some samples, by what computed them; or what outputs are.

    Args:
        found: Runs on the same samples, float first.
        as_json: Print JSON.
    """
    ranked = {name: _ranked(each) for name, each in found.items()}
    if as_json:
        print_json(
            {
                "classes": {
                    name: [[{"class": c, "score": s} for c, s in row] for row in rows]
                    for name, rows in ranked.items()
                }
            }
        )
        return
    last = list(found.values())[-1]
    for line in last.warnings:
        say(f"[yellow]warning[/] {escape(line)}")
    if not all(ranked.values()):
        for name, array in last.outputs.items():
            span = f"from {array.min()} to {array.max()}"
            say(f"{escape(name)}: {array.dtype} {list(array.shape)}, {span}")
        say("[dim]no classes: --output FILE.npz writes the outputs[/]")
        return
    for sample in range(last.samples):
        columns = [f"{name} {what}" for name in ranked for what in ("class", "score")]
        table = new_table(f"sample {sample}", ("",), numbers=columns)
        rows = zip(*(each[sample] for each in ranked.values()), strict=True)
        for place, row in enumerate(rows, 1):
            cells = (text for number, score in row for text in (str(number), f"{score:.4g}"))
            table.add_row(str(place), *cells)
        show_table(table)


def _ranked(found: Run) -> list[list[tuple[int, float]]]:
    """List the best classes and their scores of each sample; none where no output has classes."""
    scores = next(iter(found.outputs.values()))
    if scores.ndim == 3 and len(found.outputs) > 1:  # of a detector: one score for each place
        return []
    while scores.ndim > 2 and scores.shape[-1] == 1:  # of global pooling
        scores = scores[..., 0]
    if scores.ndim != 2 or scores.shape[1] < 2 or scores.dtype.kind not in "fiu":
        return []
    # In floats, because the negative of unsigned codes wraps; a stable sort keeps ties in the order
    # of the classes, so that float and integers rank them alike.
    best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, :_BEST]
    return [
        [(int(c), float(row[c])) for c in order] for row, order in zip(scores, best, strict=True)
    ]


_OVERFLOW = ("overflows", "sums", "largest", "limit")


def overflows(found: Mapping[str, Sequence[int]]) -> None:
    """Say where sums left their accumulators, and by how much."""
    for name, (count, sums, largest, limit) in found.items():
        say(
            f"[yellow]overflow[/] {escape(name)}: {count:,} of {sums:,} sums left the "
            f"accumulator, the largest by a factor of {largest / limit:.3g} "
            f"({largest:,} where it holds {limit:,})"
        )
