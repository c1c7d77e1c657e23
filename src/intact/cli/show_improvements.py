"""What ``--explain`` prints: what each improvement pass gained, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact.cli.markup import escape
from intact.cli.printing import new_table, say, show_table

if TYPE_CHECKING:
    from intact.plan.gains import Improvement
    from intact.results.result import Result, Tried

_SHOWN = 5
"""Layers of a pass that are shown, those that gained most."""


def json_of(found: Result) -> list[dict[str, object]]:
    """Return what each pass gained and cost."""
    return [
        {
            "name": each.improvement.name,
            "kept": each.improvement.kept,
            "before_db": each.improvement.before,
            "after_db": each.improvement.after,
            "tried": len(each.improvement.gains),
            "helped": sum(gain.kept for gain in each.improvement.gains),
            "seconds": each.seconds,
        }
        for each in found.improvements
    ]


def in_short(found: Result) -> None:
    """Print a line for each pass."""
    for each in found.improvements:
        say(escape(_line(each)))


def explained(found: Result) -> None:
    """Print a table of the passes, and of the layers that gained most by each."""
    if not found.improvements:
        say("no improvement pass was run: plain calibration (see --preset and --improve)")
        return
    table = new_table(
        "improvement passes", ("pass", "is"), ("before dB", "after dB", "layers", "helped", "s")
    )
    for tried in found.improvements:
        improvement = tried.improvement
        table.add_row(
            escape(improvement.name),
            "kept" if improvement.kept else "rolled back",
            f"{improvement.before:.1f}",
            f"{improvement.after:.1f}",
            str(len(improvement.gains)) if improvement.gains else "",
            str(sum(each.kept for each in improvement.gains)) if improvement.gains else "",
            f"{tried.seconds:.1f}",
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


def _line(tried: Tried) -> str:
    improvement = tried.improvement
    what = f"{improvement.before:.1f} -> {improvement.after:.1f} dB"
    rolled = "" if improvement.kept else ", rolled back"
    return f"{improvement.name}: {what}{rolled}, {tried.seconds:.1f} s"
