"""What a search shows: where it stands while it runs, and what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from intact.cli import show
from intact.cli.printing import console, new_table, print_json, say

if TYPE_CHECKING:
    from intact.api.searching import FoundStrategy
    from intact.search.loop import Report, Standing
    from intact.search.space import Space
    from intact.search.trial import Trial

_SHOWN = 8
"""Rows of the front."""


@contextmanager
def live(*, quiet: bool) -> Iterator[Report]:
    """Show how a search stands on stderr while the block runs, if that is a terminal."""
    screen = Console(stderr=True)
    if quiet or not screen.is_terminal:
        yield _say_nothing
        return
    with Live(console=screen, transient=True, refresh_per_second=4) as shown:

        def report(standing: Standing) -> None:
            shown.update(Group(Text(_pace(standing)), _front_table(standing)))

        yield report


def _say_nothing(_: Standing) -> None:
    """Report to nobody."""


def _pace(standing: Standing) -> str:
    parts = [f"{len(standing.trials)} trials", f"{standing.evaluations:.1f} full evaluations"]
    limit = standing.budget.trials
    if limit is not None:
        parts[0] = f"{len(standing.trials)} of {limit} trials"
    left = standing.seconds_left
    parts.append(f"{standing.seconds:.0f} s")
    if left is not None:
        parts.append(f"at most {left:.0f} s left")
    return ", ".join(parts) + "; Ctrl-C keeps the best"


def _front_table(standing: Standing) -> Table:
    table = new_table(
        "best so far, and what nothing beats in both", ["", "trial"], ["score", "cost"]
    )
    best = standing.best
    for trial in _thinned(standing.front, best):
        mark = "best" if best is not None and trial.number == best.number else ""
        table.add_row(mark, str(trial.number), f"{trial.score:.6g}", f"{trial.cost:.6g}")
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
        print_json({**_as_json(found), "seconds": seconds})
        return
    objective, cost = found.objective, found.cost

    def row(trial: Trial) -> tuple[str, str]:
        return objective.format(trial.score), _cost(trial, cost.unit, found.base)

    table = new_table(None, [""], [objective.name, cost.name])
    table.add_row("float model", objective.format(found.float_score), "")
    if found.base is not None:
        table.add_row("widest integers", *row(found.base))
    table.add_row(f"[bold]trial {found.best.number}[/]", *row(found.best))
    console().print(table)
    say(escape(_widths(found.space, found.best)))
    front = found.standing.front
    if len(front) > 1:
        shown = new_table("what nothing beats in both", ["trial"], ["score", "cost"])
        for trial in _thinned(front, found.best):
            shown.add_row(str(trial.number), *row(trial))
        console().print(shown)
    standing = found.standing
    ended = "stopped after " if found.was_stopped else ""
    log = f"; log: {found.log}" if found.log is not None else ""
    pace = f"{len(standing.trials)} trials, {standing.evaluations:.1f} full evaluations"
    say(escape(f"{ended}{pace}{log}"))
    show.result(found.result, seconds=seconds, as_json=False)


def _as_json(found: FoundStrategy) -> dict[str, object]:
    return {
        "folder": str(found.result.folder) if found.result.folder else None,
        "log": None if found.log is None else str(found.log),
        "stopped": found.was_stopped,
        "objective": found.objective.name,
        "cost": found.cost.name,
        "cost_unit": found.cost.unit,
        "float_score": found.float_score,
        "best": _row(found.best),
        "widest": None if found.base is None else _row(found.base),
        "front": [_row(trial) for trial in found.standing.front],
        "trials": len(found.standing.trials),
        "evaluations": found.standing.evaluations,
    }


def _row(trial: Trial) -> dict[str, object]:
    return {"trial": trial.number, "score": trial.score, "cost": trial.cost}


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
