"""The improvement passes that a user asks for, by name, each in its place.

Rewrites change the float model before it is observed, refinements a plan with scales.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from intact.data.stream import Samples
from intact.errors import UsageError, nearest
from intact.graph import Graph
from intact.improve.refine import REFINEMENTS
from intact.improve.rewrite import NOTES, REWRITES
from intact.plan import Note, NoteKind, QuantizedGraph


@dataclass(frozen=True)
class Improvements:
    """What is done to the weights to lose less.

    Attributes:
        rewrites: Before the samples are run.
        refinements: Afterwards; they run some of the samples again.
    """

    rewrites: tuple[str, ...] = ()
    refinements: tuple[str, ...] = ()

    @staticmethod
    def of(names: Iterable[str]) -> Improvements:
        """Return passes by their names; of each kind in the order given.

        Raises:
            UsageError: There is no such pass.
        """
        asked = tuple(dict.fromkeys(names))
        for name in asked:
            if name not in REWRITES and name not in REFINEMENTS:
                raise UsageError(
                    f"--improve {name!r}", remedy=nearest(name, [*REWRITES, *REFINEMENTS])
                )
        return Improvements(
            tuple(name for name in asked if name in REWRITES),
            tuple(name for name in asked if name in REFINEMENTS),
        )

    def rewrite(self, graph: Graph) -> Graph:
        """Return a float model that computes the same, ready for being observed."""
        for name in self.rewrites:
            graph = REWRITES[name](graph)
        return graph

    def notes(self, graph: Graph) -> tuple[Note, ...]:
        """List parts of a graph that the rewrites leave alone unexpectedly."""
        return tuple(
            Note(NoteKind.REWRITE, "", line)
            for name in self.rewrites
            for line in NOTES[name](graph)
        )

    def refine(self, plan: QuantizedGraph, samples: Samples) -> QuantizedGraph:
        """Return a better plan with scales."""
        for name in self.refinements:
            plan = REFINEMENTS[name](plan, samples)
        return plan

    def named_in(self, plan: QuantizedGraph) -> QuantizedGraph:
        """Return the plan with the names of the passes."""
        names = (*self.rewrites, *self.refinements)
        if not names:
            return plan
        return replace(plan, provenance=plan.provenance.improved(names))
