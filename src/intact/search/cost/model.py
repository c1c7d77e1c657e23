"""What a candidate costs: a sum of tables, each over the choices of a few groups.

Samplers read the tables, because an integer program needs to know what a choice costs before it
is tried. Where the cost is measured, the tables stand for it and are no more than a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from intact.errors import UsageError
from intact.search.space import FLOAT, Candidate, Space

Measure = Callable[[Candidate], float]
"""Measures what a candidate costs, in the unit of the model."""


@dataclass(frozen=True, eq=False)
class Term:
    """A summand: what the choices of some groups cost together.

    Attributes:
        groups: Indices of the groups, ascending.
        values: float64, one axis a group, indexed by position in the group's choices.
    """

    groups: tuple[int, ...]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostModel:
    """The cost of every candidate of a space; lower is better.

    Attributes:
        name: Of its kind: a key of ``COSTS``.
        unit: What it counts.
        constant: What every candidate costs.
        terms: The summands. Integers below 2**53 are added without rounding.
        choices: Of each group, in the order of the tables.
        measure: Where the cost is not the sum but measured.
        known: What was measured; may be filled from a log.
    """

    name: str
    unit: str
    constant: float
    terms: tuple[Term, ...]
    choices: tuple[tuple[int, ...], ...]
    measure: Measure | None = None
    known: dict[Candidate, float] = field(default_factory=dict)

    def of(self, candidate: Candidate) -> float:
        """Compute a candidate's cost; a measured cost is measured once.

        Raises:
            UsageError: It is no candidate of the space.
        """
        if self.measure is None:
            return self.estimate(candidate)
        if candidate not in self.known:
            self.known[candidate] = float(self.measure(candidate))
        return self.known[candidate]

    def estimate(self, candidate: Candidate) -> float:
        """Return the sum of the tables, of a measured cost too."""
        places = self._places(candidate)
        total = self.constant
        for term in self.terms:
            total += float(term.values[tuple(places[group] for group in term.groups)])
        return total

    def of_many(self, candidates: Iterable[Candidate]) -> npt.NDArray[np.float64]:
        """Return the costs of several candidates, float64 [n]."""
        listed = list(candidates)
        if self.measure is not None:
            return np.array([self.of(each) for each in listed], np.float64)
        places = np.array([self._places(each) for each in listed], np.intp)
        places = places.reshape(len(listed), len(self.choices))
        totals = np.full(len(listed), self.constant)
        for term in self.terms:
            totals += term.values[tuple(places[:, group] for group in term.groups)]
        return totals

    def on(self, space: Space) -> CostModel:
        """Return the model for a space with fewer choices; the order of the choices may differ.

        Raises:
            UsageError: The space has a choice, or a number of groups, that this model has not.
        """
        wanted = tuple(group.choices for group in space.groups)
        if wanted == self.choices:
            return self
        if len(wanted) != len(self.choices):
            raise UsageError(f"a cost of {len(self.choices)} groups for {len(wanted)}")
        places = [
            [self._place(group, bits) for bits in choices] for group, choices in enumerate(wanted)
        ]
        terms = tuple(
            Term(term.groups, term.values[np.ix_(*(places[group] for group in term.groups))])
            for term in self.terms
        )
        constant, fewer = summed(terms)
        return replace(self, constant=self.constant + constant, terms=fewer, choices=wanted)

    def lowest(self) -> float:
        """Return a bound that no sum of the tables is below."""
        return self.constant + sum(float(term.values.min()) for term in self.terms)

    @cached_property
    def _place_of(self) -> tuple[dict[int, int], ...]:
        return tuple({bits: k for k, bits in enumerate(choices)} for choices in self.choices)

    def _places(self, candidate: Candidate) -> list[int]:
        if len(candidate) != len(self.choices):
            raise UsageError(f"{len(candidate)} choices for {len(self.choices)} groups")
        return [self._place(group, bits) for group, bits in enumerate(candidate)]

    def _place(self, group: int, bits: int) -> int:
        try:
            return self._place_of[group][bits]
        except KeyError:
            raise UsageError(f"group {group} has no choice of {bits} bits") from None


def summed(terms: Iterable[Term]) -> tuple[float, tuple[Term, ...]]:
    """Return a constant and the fewest terms: one for each set of groups, none that never varies.

    A group along whose axis nothing changes is left out of a term.
    """
    constant, found = 0.0, dict[tuple[int, ...], npt.NDArray[np.float64]]()
    for term in terms:
        groups, values = term.groups, term.values
        for axis in reversed(range(values.ndim)):
            first = values.take([0], axis)
            if (values == first).all():
                values = first.squeeze(axis)
                groups = (*groups[:axis], *groups[axis + 1 :])
        if groups:
            found[groups] = found[groups] + values if groups in found else values
        else:
            constant += float(values)
    return constant, tuple(Term(groups, found[groups]) for groups in sorted(found))


def pruned(space: Space, cost: CostModel, *, free_floats: bool = False) -> Space:
    """Drop choices that can never be better: those that cost as much as a wider one.

    Args:
        space: Has the groups of the cost.
        cost: In which nothing but its tables is looked at.
        free_floats: Keep the choice of staying float where it costs nothing. It is dropped
            otherwise if the widest integers cost as much: nothing would hold a search back from
            it, on a target that was chosen for its integers.

    Returns:
        The space with choices still widest first. Integers are never dropped for floats.
    """
    cost = cost.on(space)
    kept = {}
    for index, group in enumerate(space.groups):
        columns = dict(zip(group.choices, _columns(cost, index, len(group.choices)), strict=True))
        integers: dict[bytes, int] = {}
        for bits, column in columns.items():
            if bits != FLOAT:
                integers.setdefault(column, bits)
        is_free = columns.get(FLOAT) in integers and not free_floats
        floats = (FLOAT,) if FLOAT in columns and not is_free else ()
        kept[index] = (*floats, *integers.values())
    return space.restricted(kept)


class AnyCost(Protocol):
    """What candidates cost."""

    def of(self, candidate: Candidate) -> float:
        """Return the cost of a candidate; lower is better."""


def tabulated(space: Space, cost: AnyCost) -> CostModel:
    """Return a cost as tables, by changing one group of the default at a time.

    They are exact where the cost is a sum over groups.
    """
    default = space.default
    constant = cost.of(default)
    terms = []
    for index, group in enumerate(space.groups):
        changed = [cost.of(space.with_choice(default, index, bits)) for bits in group.choices]
        terms.append(Term((index,), np.array(changed, np.float64) - constant))
    offset, found = summed(terms)
    choices = tuple(group.choices for group in space.groups)
    return CostModel("", "", constant + offset, found, choices)


def _columns(cost: CostModel, group: int, choices: int) -> Iterator[bytes]:
    """Yield for each choice of a group all that it adds to terms, for comparing."""
    concerned = [
        (term.groups.index(group), term.values) for term in cost.terms if group in term.groups
    ]
    for choice in range(choices):
        yield b"".join(
            np.ascontiguousarray(values.take(choice, axis)).tobytes() for axis, values in concerned
        )


Choice = Mapping[int, int]
"""Bits by index of a group."""
