"""Single changes of a candidate, and what each loses for what it saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from intact.search.space import Candidate, Space
from intact.search.trial import Trial

Costing = Callable[[Candidate], float]


def narrower(space: Space, cost: Costing, candidate: Candidate, index: int) -> Candidate | None:
    """Return the candidate with one group narrower; None where no narrower choice is cheaper.

    Choices that are narrower but cost the same (bits that a stored byte has anyway, activations
    where the cost is the model's bytes) are passed over: they can only lose.
    """
    choices = space.groups[index].choices
    present = cost(candidate)
    for bits in choices[choices.index(candidate[index]) + 1 :]:
        changed = space.with_choice(candidate, index, bits)
        if cost(changed) < present:
            return changed
    return None


def wider(space: Space, candidate: Candidate, index: int) -> Candidate | None:
    """Return the candidate with one group at its next wider choice; None where there is none."""
    choices = space.groups[index].choices
    place = choices.index(candidate[index])
    return space.with_choice(candidate, index, choices[place - 1]) if place else None


def together(base: Candidate, changes: Sequence[Candidate]) -> Candidate:
    """Return a candidate with several single changes of it at once."""
    merged = list(base)
    for change in changes:
        for index, bits in enumerate(change):
            if bits != base[index]:
                merged[index] = bits
    return tuple(merged)


def prefix_sizes(count: int) -> Iterator[int]:
    """Yield 2, 4, 8, ... and the count itself: how many changes to try together.

    >>> list(prefix_sizes(11))
    [2, 4, 8, 11]
    >>> list(prefix_sizes(1))
    []
    """
    size = 2
    while size < count:
        yield size
        size *= 2
    if count > 1:
        yield count


def loss_ratio(loss: float, saved: float) -> float:
    """Return the score lost per unit of cost saved; ``inf`` where nothing is saved or all is lost.

    >>> loss_ratio(0.5, 2.0), loss_ratio(-0.5, 0.0)
    (0.25, inf)
    """
    if not saved > 0 or math.isnan(loss):
        return math.inf
    return loss / saved


def added_noise(base: Trial, trial: Trial) -> float:
    """Return the noise that a change adds: decides where scores are equal."""
    added = trial.measured.noise - base.measured.noise
    return math.inf if math.isnan(added) else added
