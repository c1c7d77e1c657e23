"""Random search: each group draws one of its choices, all alike likely.

Source: [tvm], "Search". Candidates whose cost already rules them out are drawn again,
which costs no trial. Where nearly all are ruled out (when one group in six stays float, all is
dearer than the default), choices are drawn up to a width that is drawn first.
"""

from __future__ import annotations

import numpy as np

from intact.search.samplers.base import Walk, WalkingSampler
from intact.search.space import Candidate, Space
from intact.search.trial import Trial

BATCH = 8
DRAWS = 100
"""Draws for a batch, of each sort. When none is new and may win, the search is exhausted."""


class RandomDraws(WalkingSampler):
    """Draws candidates uniformly and independently."""

    name = "random"

    def search(self, base: Trial) -> Walk:  # noqa: ARG002
        """Draw until nothing new is drawn."""
        generator = np.random.default_rng(self.seed)
        while batch := self._drawn(generator):
            yield from self.measure(batch, self.stops_below)

    def _drawn(self, generator: np.random.Generator) -> list[Candidate]:
        found: dict[Candidate, None] = {}
        dearer: dict[Candidate, float] = {}
        widths = sorted({bits for group in self.space.groups for bits in group.choices})
        choices = {widest: allowed(self.space, widest) for widest in widths}
        for count in range(2 * DRAWS):
            if found and count >= DRAWS:
                break
            widest = widths[-1] if count < DRAWS else widths[generator.integers(len(widths))]
            candidate = drawn(choices[widest], generator)
            if not self.is_new(candidate):
                continue
            if not self.may_win(candidate):
                dearer[candidate] = self.guess(candidate)
                continue
            found[candidate] = None
            if len(found) == BATCH:
                break
        if not found and self.best is None:  # so that it can be said how near it came
            return sorted(dearer, key=dearer.__getitem__)[:BATCH]
        return list(found)


def allowed(space: Space, widest: int) -> list[tuple[int, ...]]:
    """Return the choices of each group up to a width; the narrowest where all are wider."""
    return [
        tuple(bits for bits in group.choices if bits <= widest) or group.choices[-1:]
        for group in space.groups
    ]


def drawn(choices: list[tuple[int, ...]], generator: np.random.Generator) -> Candidate:
    """Return a candidate with one choice for each group, all alike likely."""
    places = generator.integers(0, [len(each) for each in choices])
    return tuple(each[place] for each, place in zip(choices, places, strict=True))
