"""The improvement passes by name.

Rewrites change the float model before calibration, refinements a plan with scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

from intact.data.progress import begin
from intact.data.stream import Samples
from intact.errors import UsageError, nearest
from intact.graph import Graph
from intact.plan import Note, NoteKind, QuantizedGraph


def _equalize(graph: Graph) -> Graph:
    from intact.improve.rewrite.equalize import equalize

    return equalize(graph)


def _equalize_notes(graph: Graph) -> tuple[str, ...]:
    from intact.improve.rewrite.equalize import notes

    return notes(graph)


def _weight_scales(plan: QuantizedGraph, samples: Samples) -> QuantizedGraph:
    from intact.improve.refine.weight_scales import refine_weight_scales

    return refine_weight_scales(plan, samples)


def _rounding(plan: QuantizedGraph, samples: Samples) -> QuantizedGraph:
    from intact.improve.refine.rounding import refine_rounding

    return refine_rounding(plan, samples)


REWRITES: Mapping[str, Callable[[Graph], Graph]] = MappingProxyType({"equalize": _equalize})
"""Passes over float models, by name. A rewrite returns another graph with the same nodes and does
not change its input. Its module is imported when it runs: plain quantizing needs none."""

NOTES: Mapping[str, Callable[[Graph], tuple[str, ...]]] = MappingProxyType(
    {"equalize": _equalize_notes}
)
"""For each rewrite a function that lists parts of a graph that it cannot change."""

REFINEMENTS: Mapping[str, Callable[[QuantizedGraph, Samples], QuantizedGraph]] = MappingProxyType(
    {"weight-scales": _weight_scales, "rounding": _rounding}
)
"""Passes over plans with scales, by name. A refinement returns another plan and does not change its
input. Its module is imported when it runs: plain quantizing needs none."""


class Improvements(msgspec.Struct, frozen=True):
    """The passes that a user chose.

    Attributes:
        rewrites: Names of passes before calibration.
        refinements: Names of passes after calibration; they run some of the samples again.
    """

    rewrites: tuple[str, ...] = ()
    refinements: tuple[str, ...] = ()

    @staticmethod
    def of(names: Iterable[str]) -> Improvements:
        """Make the passes by their names; the order within each kind is kept.

        Raises:
            UsageError: A name is unknown.
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
        """Apply the rewrites to a float model; its results do not change."""
        for name in self.rewrites:
            graph = REWRITES[name](graph)
        return graph

    def notes(self, graph: Graph) -> tuple[Note, ...]:
        """List parts of a graph that the rewrites cannot change."""
        return tuple(
            Note(NoteKind.REWRITE, "", line)
            for name in self.rewrites
            for line in NOTES[name](graph)
        )

    def refine(self, plan: QuantizedGraph, samples: Samples) -> QuantizedGraph:
        """Apply the refinements to a plan with scales; the samples' progress tells of them."""
        for name in self.refinements:
            begin(samples.progress, f"improving weights: {name}")
            plan = REFINEMENTS[name](plan, samples)
        return plan

    def named_in(self, plan: QuantizedGraph) -> QuantizedGraph:
        """Return the plan with the names of the passes."""
        names = (*self.rewrites, *self.refinements)
        if not names:
            return plan
        return replace(plan, provenance=plan.provenance.improved(names))
