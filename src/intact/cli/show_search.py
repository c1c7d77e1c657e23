"""Prints a search: where it stands while it runs, and what it found."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from intact.cli import show
from intact.cli.markup import escape
from intact.cli.phases import LOADING, OTHER, Phases, current, is_quiet, with_phases
from intact.cli.printing import Lines, begun, new_table, observing, print_json, say, show_table

if TYPE_CHECKING:
    from intact.cli.tables import Table
    from intact.data.progress import Progress
    from intact.flow.search import FoundStrategy
    from intact.search.loop import Report, SearchProgress
    from intact.search.space import Space
    from intact.search.trial import Trial

_SHOWN = 8
"""Rows of the front."""


class Screen:
    """What a terminal shows of a search: samples observed, then the trials and the time.

    One display, not two: there can be only one at a time. It is drawn anew while nothing is told,
    so that the time goes on in long trials.
    """

    def __init__(self) -> None:
        self._bar = observing()
        self._task = self._bar.add_task("observing", total=None)
        self._progress: SearchProgress | None = None
        self._told = time.monotonic()
        self._is_after = False

    def observed(self, done: int, total: int | None) -> None:
        """Tell the samples that the float model was run on."""
        self._bar.update(self._task, completed=done, total=total)
        self._told = time.monotonic()

    def named(self, what: str) -> None:
        """Show what is done now: alone before the first trial, below the trials after the last."""
        self._task = begun(self._bar, self._task, what)
        self._is_after, self._told = True, time.monotonic()

    def tried(self, progress: SearchProgress) -> None:
        """Tell how the search stands."""
        self._progress, self._told = progress, time.monotonic()
        self._is_after = False

    def __rich__(self) -> RenderableType:
        """Return what is shown now."""
        since = time.monotonic() - self._told
        if self._progress is None:
            is_done = self._bar.finished and self._bar.tasks[0].total is not None
            return Text(f"preparing the trials, {since:.0f} s") if is_done else self._bar
        below = [self._bar] if self._is_after else []
        return Group(Text(_pace(self._progress, since)), _front_table(self._progress), *below)


@contextmanager
def live(*, quiet: bool, at_most: int | None) -> Iterator[tuple[Progress, Report]]:
    """Show how a search stands on stderr while the block runs, if that is a terminal.

    Args:
        quiet: Show nothing.
        at_most: Samples that there can be, where their number is not known.
    """
    console = Console(stderr=True)
    screen = Screen()
    phases = current()
    phases.begin(LOADING)
    screen.named(LOADING)
    # What a function of the user's prints is not part of the result.
    with redirect_stdout(sys.stderr):
        quiet = quiet or is_quiet()
        if quiet or not console.is_terminal:
            with Lines(phases, LOADING, quiet=quiet) as lines:
                yield lines, _Trials(lines)
        else:
            with Live(screen, console=console, transient=True, refresh_per_second=4):
                yield _Observed(phases, screen, at_most), screen.tried
    phases.begin(OTHER)


class _Observed:
    """Shows what is done before the first trial and after the last."""

    def __init__(self, phases: Phases, screen: Screen, at_most: int | None) -> None:
        self._phases, self._screen, self._at_most = phases, screen, at_most

    def __call__(self, done: int, total: int | None) -> None:
        self._screen.observed(done, self._at_most if total is None else total)

    def phase(self, what: str) -> None:
        self._phases.begin(what)
        self._screen.named(what)


class _Trials:
    """Tells how a search stands where there is no terminal, now and then."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __call__(self, progress: SearchProgress) -> None:
        self._lines.stand(_pace(progress))


def _pace(progress: SearchProgress, since: float = 0.0) -> str:
    """Say how far a search is, so many seconds after it was told last."""
    parts = [f"{len(progress.trials)} trials", f"{progress.evaluations:.1f} full evaluations"]
    limit = progress.budget.trials
    if limit is not None:
        parts[0] = f"{progress.spent:.1f}".removesuffix(".0") + f" of {limit} trials"
    left = progress.seconds_left
    parts.append(f"{progress.seconds + since:.0f} s")
    if left is not None:
        parts.append(f"at most {max(0.0, left - since):.0f} s left")
    # The time is over, but the best is still run on the target's integers.
    if left == 0:
        return ", ".join(parts[:-1]) + "; confirming the best"
    return ", ".join(parts) + "; Ctrl-C keeps the best"


def _front_table(progress: SearchProgress) -> Table:
    title = "the best so far; no trial was better and cheaper than these"
    table = new_table(title, ["", "trial"], ["score", "cost"])
    best = progress.best
    for trial in _thinned(progress.front, best):
        mark = "best" if best is not None and trial.number == best.number else ""
        table.add_row(
            mark, str(trial.number), f"{progress.shown(trial.score):.6g}", f"{trial.cost:.6g}"
        )
    return table


def _thinned(trials: Sequence[Trial], best: Trial | None) -> list[Trial]:
    """Return at most a screenful, spread evenly, the best among them."""
    if len(trials) <= _SHOWN:
        return list(trials)
    step = (len(trials) - 1) / (_SHOWN - 1)
    kept = {round(step * index) for index in range(_SHOWN)}
    numbers = set() if best is None else {best.number}
    return [t for index, t in enumerate(trials) if index in kept or t.number in numbers]


def found(found: FoundStrategy, *, seconds: float, as_json: bool) -> None:
    """Print what a search found, how long it took and what may come next."""
    if as_json:
        print_json(with_phases({**_as_json(found), "seconds": seconds}))
        return
    if is_quiet():
        return
    objective, cost = found.objective, found.cost

    def row(trial: Trial) -> tuple[str, str]:
        return objective.format(trial.score), _cost(trial, cost.unit, found.base)

    table = new_table(None, [""], [objective.name, cost.name])
    float_score = objective.shown(found.float_score)  # as in trials: higher is better
    table.add_row("float model", objective.format(float_score), "")
    if found.base is not None:
        table.add_row("widest integers", *row(found.base))
    table.add_row(f"[bold]trial {found.best.number}[/]", *row(found.best))
    show_table(table)
    say(escape(_widths(found.space, found.best)))
    front = found.standing.front
    if len(front) > 1:
        title = "no trial was better and cheaper than these (simulated)"
        shown = new_table(title, ["", "trial"], ["score", "cost"])
        for trial in _thinned(front, found.best):
            mark = "best" if trial.number == found.best.number else _broken(found, trial)
            shown.add_row(mark, str(trial.number), *row(trial))
        show_table(shown)
    # Trials are simulated; the best has been run on the target's integers since.
    tried = found.standing.trials[found.best.number]
    if tried.counts(found.standing.samples) and tried.score != found.best.score:
        say(
            f"trial {found.best.number} simulated: {escape(objective.format(tried.score))}; the "
            f"integers of the target: {escape(objective.format(found.best.score))}"
        )
    for remark in found.remarks:
        say(f"[yellow]note[/] {escape(remark)}")
    progress = found.standing
    ended = "stopped after " if found.was_stopped else ""
    log = f"; log: {found.log}" if found.log is not None else ""
    pace = f"{len(progress.trials)} trials, {progress.evaluations:.1f} full evaluations"
    say(escape(f"{ended}{pace}{log}"))
    show.result(found.result, seconds=seconds, as_json=False)


def _broken(found: FoundStrategy, trial: Trial) -> str:
    return "" if found.standing.goal.accepts(trial) else "beyond the limits"


def _as_json(found: FoundStrategy) -> dict[str, object]:
    def row(trial: Trial) -> dict[str, object]:
        score = found.objective.shown(trial.score)
        return {"trial": trial.number, "score": score, "cost": trial.cost}

    return {
        "folder": str(found.result.folder) if found.result.folder else None,
        "log": None if found.log is None else str(found.log),
        "stopped": found.was_stopped,
        "objective": found.objective.name,
        "cost": found.cost.name,
        "cost_unit": found.cost.unit,
        "float_score": found.float_score,
        "best": row(found.best),
        "widest": None if found.base is None else row(found.base),
        "front": [row(trial) for trial in found.standing.front],
        "remarks": list(found.remarks),
        "trials": len(found.standing.trials),
        "evaluations": found.standing.evaluations,
    }


def _cost(trial: Trial, unit: str, base: Trial | None) -> str:
    part = f" ({100 * trial.cost / base.cost:.0f} %)" if base is not None and base.cost else ""
    return f"{trial.cost:,.6g} {unit}{part}"


def _widths(space: Space, trial: Trial) -> str:
    """Say how many groups of weights and activations have which width."""
    lines = []
    for kind in ("weight", "activation"):
        counts = Counter(
            bits
            for group, bits in zip(space.groups, trial.candidate, strict=True)
            if group.kind == kind
        )
        names = {32: "float"}
        told = [
            f"{count} x {names.get(bits, f'{bits} bits')}" for bits, count in sorted(counts.items())
        ]
        if told:
            lines.append(f"{kind}s: {', '.join(told)}")
    return "; ".join(lines)
