"""How the commands write: tables and lines for people, JSON for scripts, progress on terminals."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from intact.calibrate.collect import Progress as Report

_NO_TERMINAL = 1000  # columns: other programs get each row whole, on one line


@contextmanager
def progress(what: str, *, quiet: bool, at_most: int | None = None) -> Iterator[Report]:
    """Show samples done and time left on stderr while the block runs, if that is a terminal.

    Args:
        what: What is being done.
        quiet: Show nothing.
        at_most: Samples that there can be, where their number is not known.
    """
    screen = Console(stderr=True)
    hidden = quiet or not screen.is_terminal
    # What a function of the user's prints is not part of the result.
    aside = redirect_stdout(sys.stderr)
    with aside, observing(console=screen, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=at_most if total is None else total)

        yield report


def observing(**options: Any) -> Progress:
    """Return a bar of samples done and time left, which is not shown yet."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        **options,
    )


def new_table(title: str | None, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return an empty table that stays readable on narrow terminals: texts fold, numbers do not."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in texts:
        table.add_column(heading, overflow="fold", no_wrap=not heading)
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def say(text: str) -> None:
    """Print one line of markup, however narrow the terminal: paths and names stay whole."""
    console().print(text, soft_wrap=True, highlight=False)


def console() -> Console:
    """Return the console, as wide as the terminal, or as any table where there is none."""
    return Console(width=None if sys.stdout.isatty() else _NO_TERMINAL)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())  # noqa: T201
