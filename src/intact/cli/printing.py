"""How the commands write: tables and lines for people, JSON for scripts, progress on terminals.

Lines are in the markup of rich. It takes 0.05 s to load, so that it is left out where it would show
nothing: for lines and progress that do not go to a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from intact.cli.markup import without_tags
from intact.cli.phases import OTHER, Phases, current

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from intact.cli.tables import Table
    from intact.data.progress import Progress as Report

_ASKING = frozenset(["FORCE_COLOR", "TTY_COMPATIBLE"])
"""Variables of the environment that rich reads."""
_NO_TERMINAL = 1000  # columns: other programs get each row whole, on one line


@contextmanager
def progress(what: str, *, quiet: bool, at_most: int | None = None) -> Iterator[Report]:
    """Show samples done and time left on stderr while the block runs, if that is a terminal.

    The time of the block is that of its phases; what follows is the phase ``other``.

    Args:
        what: What is being done first.
        quiet: Show nothing.
        at_most: Samples that there can be, where their number is not known.
    """
    # Lines that a function of the user's prints are not part of the result.
    aside = redirect_stdout(sys.stderr)
    phases = current()
    phases.begin(what)
    if quiet or not is_styled(sys.stderr):
        with aside:
            yield Unseen(phases)
        phases.begin(OTHER)
        return
    from rich.console import Console

    screen = Console(stderr=True)
    with aside, observing(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        yield _Report(bar, task, at_most, phases)
    phases.begin(OTHER)


class Unseen:
    """Shows nothing, and measures phases."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def __call__(self, done: int, total: int | None) -> None:
        """Take the samples done."""

    def phase(self, what: str) -> None:
        """Begin a phase."""
        self._phases.begin(what)


class _Report:
    """Shows samples done on a bar, under the name of the phase that they are of."""

    def __init__(self, bar: Progress, task: TaskID, at_most: int | None, phases: Phases) -> None:
        self._bar, self._task, self._at_most, self._phases = bar, task, at_most, phases

    def __call__(self, done: int, total: int | None) -> None:
        known = self._at_most if total is None else total
        self._bar.update(self._task, completed=done, total=known)

    def phase(self, what: str) -> None:
        """Begin anew: until samples are counted, the bar only moves."""
        self._phases.begin(what)
        self._task = begun(self._bar, self._task, what)


def observing(**options: Any) -> Progress:
    """Return a bar of samples done and time left, which is not shown yet."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        **options,
    )


def begun(bar: Progress, task: TaskID, what: str) -> TaskID:
    """Put another task in the place of one; a reset would keep its total."""
    bar.remove_task(task)
    return bar.add_task(what, total=None)


def new_table(title: str | None, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return an empty table of texts and numbers."""
    from intact.cli.tables import Table

    return Table(title, texts, numbers)


def show_table(table: Table) -> None:
    """Print a table: for people as rich draws it, for other programs each row on a line."""
    lines = None if is_styled(sys.stdout) else table.plain(_NO_TERMINAL)
    if lines is None:
        console().print(table)
        return
    for line in lines:
        print(line)  # noqa: T201


def say(text: str) -> None:
    """Print one line of markup, however narrow the terminal: paths and names stay whole."""
    if not is_styled(sys.stdout):
        print(without_tags(text))  # noqa: T201
        return
    console().print(text, soft_wrap=True, highlight=False)


def say_aside(text: str) -> None:
    """Print a dim line where progress is shown: on stderr, if that is a terminal."""
    if not is_styled(sys.stderr):
        return
    from rich.console import Console

    Console(stderr=True).print(text, style="dim", soft_wrap=True, highlight=False, markup=False)


def is_styled(stream: TextIO) -> bool:
    """Tell whether colours may be shown: on terminals, and where the environment asks for them."""
    return stream.isatty() or not _ASKING.isdisjoint(os.environ)


def console() -> Console:
    """Return the console, as wide as the terminal, or as any table where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _NO_TERMINAL, emoji=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())  # noqa: T201
