"""Writes what commands say: tables and lines for people, JSON for scripts, progress on stderr.

Lines are in the markup of rich. It takes 0.05 s to load, so that it is left out where it would show
nothing: for lines and progress that do not go to a terminal.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from intact.cli.markup import without_tags
from intact.cli.phases import OTHER, Phases, current, is_quiet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from intact.cli.tables import Table
    from intact.data.progress import Progress as Report

_ASKING = frozenset(["FORCE_COLOR", "TTY_COMPATIBLE"])
"""Variables of the environment that rich reads."""
SILENT = 5.0
"""Seconds after which a command that does not write to a terminal tells what it does."""
_SELDOM = 60.0
"""Seconds between lines of one phase."""
_NO_TERMINAL = 1000  # columns: other programs get each row whole, on one line


@contextmanager
def progress(what: str, *, quiet: bool, at_most: int | None = None) -> Iterator[Report]:
    """Show samples done and time left on stderr while the block runs.

    Where that is no terminal, what takes long writes a line for each phase. The time of the block
    is that of its phases; what follows is the phase ``other``.

    Args:
        what: What is being done first.
        quiet: Show nothing; so does ``--quiet``.
        at_most: Samples that there can be, where their number is not known.
    """
    # Lines that a function of the user's prints are not part of the result.
    aside = redirect_stdout(sys.stderr)
    phases = current()
    phases.begin(what)
    quiet = quiet or is_quiet()
    if quiet or not is_styled(sys.stderr):
        with aside, Lines(phases, what, quiet=quiet) as lines:
            yield lines
        phases.begin(OTHER)
        return
    from rich.console import Console

    screen = Console(stderr=True)
    with aside, observing(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        yield _Report(bar, task, at_most, phases)
    phases.begin(OTHER)


class Lines:
    """Writes a line on stderr for each phase, from a time on; measures phases.

    Quick commands write none: logs of scripts stay empty. The phase that runs when the time has
    come is told then, by a timer, because nothing else may happen in it for long.

    Args:
        phases: Take the times.
        what: The first phase.
        quiet: Write nothing.
    """

    def __init__(self, phases: Phases, what: str, *, quiet: bool) -> None:
        self._phases, self._what, self._quiet = phases, what, quiet
        self._is_late, self._told = False, 0.0
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Lines:
        """Wait for the time from which on lines are written."""
        if not self._quiet:
            # The process may be older already than the time from which on lines are written.
            wait = min(max(0.0, SILENT - self._phases.elapsed), threading.TIMEOUT_MAX)
            self._timer = threading.Timer(wait, self._begin)
            # An error ends the process at once, and does not wait for the timer.
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write no more."""
        if self._timer is not None:
            self._timer.cancel()

    def __call__(self, done: int, total: int | None) -> None:
        """Take the samples done."""

    def phase(self, what: str) -> None:
        """Begin a phase."""
        with self._lock:
            self._phases.begin(what)
            self._what = what
            if self._is_late:
                self._write()

    def stand(self, what: str) -> None:
        """Tell how far something is that takes very long; it may be called often."""
        with self._lock:
            self._what = what
            if self._is_late and self._phases.elapsed - self._told >= _SELDOM:
                self._write()

    def _begin(self) -> None:
        with self._lock:
            self._is_late = True
            self._write()

    def _write(self) -> None:
        self._told = self._phases.elapsed
        with suppress(OSError, ValueError):  # nobody reads it, or it is closed
            sys.stderr.write(f"{self._phases.elapsed:.0f} s: {self._what}\n")
            sys.stderr.flush()


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
    if is_quiet() or not is_styled(sys.stderr):
        return
    from rich.console import Console

    Console(stderr=True).print(text, style="dim", soft_wrap=True, highlight=False, markup=False)


def is_styled(stream: TextIO) -> bool:
    """Tell whether colours may be shown: on terminals, and where the environment asks for them."""
    return stream.isatty() or not _ASKING.isdisjoint(os.environ)


def console() -> Console:
    """Return the console, as wide as the terminal, or as any table where there is none."""
    from rich.console import Console

    # Names of nodes may contain what looks like the code of an emoji (`:x:`).
    return Console(width=None if sys.stdout.isatty() else _NO_TERMINAL, emoji=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    if not text.isascii() and codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8":
        text = json.dumps(json.loads(text), indent=2)  # which escapes what is not ASCII
    print(text)  # noqa: T201
