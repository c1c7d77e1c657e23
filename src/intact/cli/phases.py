"""Measures where the time of a command goes, by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

START, LOADING, OTHER = "start", "loading packages", "other"
QUIET = "intact.quiet"
"""Says in a context that only errors, and what was asked for, are printed."""
_MOST_START = 30.0
"""Seconds that starting may take; a process that is older was another program before (exec)."""
_SHOWN = 0.05
"""Seconds from which on a phase is shown to people."""


class Phases:
    """Measures phases, which follow one another: each lasts until the next begins.

    Args:
        began: When the first began, as the clock has it: the time until the first call of `begin`
            is that of `START`.
        clock: Gives the time in seconds.
        loaded: Called when a phase follows `LOADING` for the first time.
    """

    def __init__(
        self,
        began: float,
        clock: Callable[[], float] = time.perf_counter,
        loaded: Callable[[], object] | None = None,
    ) -> None:
        self._began = self._since = began
        self._clock = clock
        self._loaded = loaded
        self._name = START
        self._seconds: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """End a phase, and begin another, or go on with one that was there before.

        Args:
            name: What begins; what stands in parentheses behind it, say a file, does not count.
        """
        if self._name == LOADING and self._loaded is not None:
            self._loaded()
            self._loaded = None
        now = self._clock()
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name.partition(" (")[0], now

    @property
    def elapsed(self) -> float:
        """Seconds since the first began."""
        return self._clock() - self._began

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far; their sum is the wall time."""
        # To begin the running phase again counts its time up to now.
        self.begin(self._name)
        return dict(self._seconds)

    def to_json(self) -> list[dict[str, str | float]]:
        """Return what a script wants to know."""
        return [{"name": name, "seconds": value} for name, value in self.seconds().items()]

    def __str__(self) -> str:
        """Write the whole time, and the phases that took a part of it."""
        seconds = self.seconds()
        # The longest phase is told even where all are short.
        least = min(_SHOWN, max(seconds.values()))
        told = [f"{name} {value:.1f}" for name, value in seconds.items() if value >= least]
        return f"{sum(seconds.values()):.1f} s: {', '.join(told)}"


def current() -> Phases:
    """Return the phases of the command line that runs; new ones where none does."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_object(Phases)
    return Phases(time.perf_counter()) if found is None else found


def is_quiet() -> bool:
    """Tell whether ``--quiet`` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def with_phases(value: Mapping[str, Any]) -> dict[str, Any]:
    """Add the phases so far to what a command prints as JSON."""
    return {**value, "phases": current().to_json()}


def process_began(stat: Path = Path("/proc/self/stat")) -> float | None:
    """Return when the process began, by the clock of `time.perf_counter`.

    Args:
        stat: What Linux tells of the process.

    Returns:
        None where the system does not say, or says what cannot be.
    """
    try:
        # Behind the last parenthesis, because the program's name in front may hold spaces and
        # parentheses. Field 22 of the line (proc(5), starttime) is the twentieth of the rest.
        ticks = int(stat.read_text("ascii").rpartition(")")[2].split()[19])
        # Both count from the boot of the machine, and go on while it sleeps.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.perf_counter() - age if 0 <= age <= _MOST_START else None
