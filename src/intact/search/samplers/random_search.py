"""Searches at random: a uniformly random choice for each group.

Source: [tvm], "Search". A candidate that its cost rules out is drawn again, without a trial. Where
    nearly all are ruled out (with every sixth group float, a candidate costs more than the
    default), a random maximum width is drawn first.
"""

from __future__ import annotations

import numpy as np

from intact.search.samplers.base import GeneratorSampler, SearchGenerator
from intact.search.space import Candidate, Space
from intact.search.trial import Trial

BATCH = 8
DRAWS = 100
"""Draws for a batch, with and without a maximum width. The search ends when none gives a
candidate.
"""


class RandomSearch(GeneratorSampler):
    """Draws candidates uniformly and independently."""

    name = "random"

    def search(self, base: Trial) -> SearchGenerator:  # noqa: ARG002
        """Draw until there is no new candidate."""
        generator = np.random.default_rng(self.seed)
        while batch := self._draw(generator):
            yield from self.measure(batch, self.stops_below)

    def _draw(self, generator: np.random.Generator) -> list[Candidate]:
        found: dict[Candidate, None] = {}
        dearer: dict[Candidate, float] = {}
        widths = sorted({bits for group in self.space.groups for bits in group.choices})
        choices = {widest: allowed_choices(self.space, widest) for widest in widths}
        for count in range(2 * DRAWS):
            # The second half, with a maximum width, is only for where nothing was found: it favours
            # narrow candidates.
            if found and count >= DRAWS:
                break
            widest = widths[-1] if count < DRAWS else widths[generator.integers(len(widths))]
            candidate = draw(choices[widest], generator)
            if not self.is_new(candidate):
                continue
            if not self.may_win(candidate):
                dearer[candidate] = self.guess(candidate)
                continue
            found[candidate] = None
            if len(found) == BATCH:
                break
        if not found and self.best is None:  # so that the error can name the nearest trial
            return sorted(dearer, key=dearer.__getitem__)[:BATCH]
        return list(found)


def allowed_choices(space: Space, widest: int) -> list[tuple[int, ...]]:
    """List the choices of each group up to a width; the narrowest one where all are wider."""
    return [
        tuple(bits for bits in group.choices if bits <= widest) or group.choices[-1:]
        for group in space.groups
    ]


def draw(choices: list[tuple[int, ...]], generator: np.random.Generator) -> Candidate:
    """Draw a uniformly random candidate."""
    places = generator.integers(0, [len(each) for each in choices])
    return tuple(each[place] for each, place in zip(choices, places, strict=True))
