"""What ``--explain`` prints: what each improvement pass gained, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact.cli.markup import escape
from intact.cli.printing import new_table, say, show_table

if TYPE_CHECKING:
    from intact.plan.gains import Improvement
    from intact.results.result import Result

_SHOWN = 5
"""Layers of a pass that are shown, those that gained most."""


def improvements(found: Result, *, explain: bool) -> None:
    """Print what each pass did, in a line or in tables."""
    if explain:
        _explained(found)
        return
    for each in found.figures().improvements:
        say(escape(str(each)))


def _explained(found: Result) -> None:
    """Print a table of the passes, and of the layers that gained most by each."""
    if not found.improvements:
        say("no improvement pass was run: plain calibration (see --preset and --improve)")
        return
    table = new_table(
        "improvement passes", ("pass", "is"), ("before dB", "after dB", "layers", "helped", "s")
    )
    for each in found.figures().improvements:
        table.add_row(
            escape(each.name),
            "kept" if each.kept else "rolled back",
            f"{each.before_db:.1f}",
            f"{each.after_db:.1f}",
            str(each.tried or ""),
            str(each.helped) if each.tried else "",
            f"{each.seconds:.1f}",
        )
    show_table(table)
    for tried in found.improvements:
        _layers(tried.improvement)
    say("dB: signal to quantization noise, of the outputs on calibration samples and of layers on")
    say("samples that the pass did not fit")


def _layers(improvement: Improvement) -> None:
    kept = [each for each in improvement.gains if each.kept]
    if not kept:
        return
    table = new_table(
        escape(f"{improvement.name}: what gained most"), ("layer",), ("before dB", "after dB")
    )
    for each in sorted(kept, key=lambda each: each.before - each.after)[:_SHOWN]:
        table.add_row(escape(each.node), f"{each.before:.1f}", f"{each.after:.1f}")
    show_table(table)
