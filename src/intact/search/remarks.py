"""What a user should know of a search's outcome, beside its figures."""

from __future__ import annotations

from collections.abc import Iterator

from intact.search.loop import Standing
from intact.search.measuring.kinds import KINDS
from intact.search.trial import State, Trial


def remarks(
    standing: Standing, best: Trial, base: Trial | None, kind: str, max_drop: float | None
) -> Iterator[str]:
    """Yield one line for each thing that may surprise.

    Args:
        standing: The search when it ended.
        best: What it found, confirmed.
        base: The trial of the widest integers everywhere.
        kind: Of the objective, by its name in ``KINDS``.
        max_drop: What the user allows to be lost.
    """
    row = KINDS[kind]
    step = row.highest / standing.samples
    if row.is_count and max_drop is not None and max_drop < 2 * step:
        yield (
            f"one of the {standing.samples} samples is {step:.2g} points: a drop of {max_drop:g} "
            "hangs on single samples; give more --samples, or an objective like kl"
        )
    if base is not None and not standing.goal.accepts(base):
        yield "the widest integers alone do not hold the limits"
    if base is not None and best.cost >= base.cost and standing.goal.max_cost is None:
        yield "nothing that is cheaper than the widest integers holds the limits"
    lost = [trial for trial in standing.trials if trial.measured.state is State.FAILED]
    if lost:
        yield f"{len(lost)} trial(s) failed, the first: {lost[0].measured.reason}"
