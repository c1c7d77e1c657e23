"""Prints a training: a line an epoch, and what was kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intact.cli import printing, show
from intact.cli.markup import escape
from intact.cli.phases import current, is_quiet
from intact.cli.printing import is_styled, new_table, print_json, say, show_table

if TYPE_CHECKING:
    from intact.improve.trained import Epoch, Trained
    from intact.results.result import Result


def reporting(*, quiet: bool) -> Callable[[Epoch], None] | None:
    """Return what prints a line for each epoch on stderr; on no terminal if it takes long."""
    return None if quiet or is_quiet() else _say_epoch


def _say_epoch(epoch: Epoch) -> None:
    if is_styled(sys.stderr) or current().elapsed >= printing.SILENT:
        sys.stderr.write(f"{epoch}\n")


def trained(result: Result, *, seconds: float, as_json: bool) -> None:
    """Print what training came to."""
    found = result.trained
    if as_json:
        told = {
            **result.figures().to_json(),
            "training": msgspec.to_builtins(found),
            "seconds": seconds,
        }
        print_json(told)
        return
    if is_quiet():
        return
    show.say_made(result.figures())
    if found is not None:
        _say_curve(found)
    say(f"{seconds:.1f} s")
    where = escape(show.to_paste(result.folder or Path()))
    say(f"[dim]next: intact evaluate {where} --data FILE{escape(show.reading(result))}[/]")


def _say_curve(found: Trained) -> None:
    """Print the loss curve, and which epoch was kept."""
    table = new_table("loss", ("epoch",), ("training", "held out", "right", "s"))
    for epoch in found.epochs:
        name = str(epoch.number) if epoch.number else "before"
        table.add_row(
            f"{name}, kept" if epoch.number == found.best else name,
            "" if epoch.loss is None else f"{epoch.loss:.5f}",
            f"{epoch.held_out:.5f}",
            "" if epoch.accuracy is None else f"{epoch.accuracy:.2f} %",
            f"{epoch.seconds:.0f}" if epoch.number else "",
        )
    show_table(table)
    if found.stopped:
        say(escape(f"stopped: {found.stopped}"))
    if found.best == 0:
        say("[yellow]warning[/] no epoch lost less than the plan before training, which is kept")
