"""What ``train`` prints: a line an epoch, and what was kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intact.cli import show
from intact.cli.printing import escape, print_json, say

if TYPE_CHECKING:
    from intact.flow.result import Result
    from intact.improve.trained import Epoch


def reporting(*, quiet: bool) -> Callable[[Epoch], None] | None:
    """Return what prints a line for each epoch on stderr."""
    return None if quiet else _say_epoch


def _say_epoch(epoch: Epoch) -> None:
    sys.stderr.write(f"{epoch}\n")


def trained(result: Result, *, seconds: float, as_json: bool) -> None:
    """Print what training came to."""
    found = result.trained
    if as_json:
        told = {**show.json_of(result), "training": msgspec.to_builtins(found), "seconds": seconds}
        print_json(told)
        return
    show.say_made(result)
    if found is not None:
        before, best = found.epochs[0], found.epochs[found.best]
        if found.stopped:
            say(escape(f"stopped: {found.stopped}"))
        if found.best == 0:
            say(
                "[yellow]warning[/] no epoch lost less than the plan before training, which is kept"
            )
        else:
            say(escape(f"loss on what is held out {before.held_out:.5f} -> {best.held_out:.5f}"))
    say(f"{seconds:.1f} s")
    where = escape(show.to_paste(result.folder or Path()))
    say(f"[dim]next: intact evaluate {where} --data FILE[/]")
