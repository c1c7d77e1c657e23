"""Sums the cost of a candidate from tables, each over the choices of a few groups.

Samplers read the tables, because an integer program needs the cost of each choice beforehand. For a
measured cost the tables are only an estimate.
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
"""Measures the cost of a candidate, in the unit of the model."""


@dataclass(frozen=True, eq=False)
class Term:
    """A summand: the cost of the choices of some groups together.

    Attributes:
        groups: Indices of the groups, ascending.
        values: float64, one axis per group, indexed by position in the group's choices.
    """

    groups: tuple[int, ...]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostModel:
    """The cost of every candidate of a space; lower is better.

    Attributes:
        name: Name of its kind: a key of ``COSTS``.
        unit: Unit of the cost.
        constant: The part that all candidates have in common.
        terms: The summands. Integers below 2**53 are added without rounding.
        choices: Choices of each group, in the order of the tables.
        measure: Measures the cost; None where it is the sum.
        known: The measured costs; may be filled from a log.
    """

    name: str
    unit: str
    constant: float
    terms: tuple[Term, ...]
    choices: tuple[tuple[int, ...], ...]
    measure: Measure | None = None
    known: dict[Candidate, float] = field(default_factory=dict)

    def of(self, candidate: Candidate) -> float:
        """Compute the cost of a candidate; a measured one is measured once.

        Raises:
            UsageError: The candidate does not belong to the space.
        """
        if self.measure is None:
            return self.estimate(candidate)
        # Kept, because two measurements of one candidate differ and a trial has one cost.
        if candidate not in self.known:
            self.known[candidate] = float(self.measure(candidate))
        return self.known[candidate]

    def estimate(self, candidate: Candidate) -> float:
        """Compute the sum of the tables, also for a measured cost."""
        places = self._places(candidate)
        total = self.constant
        for term in self.terms:
            total += float(term.values[tuple(places[group] for group in term.groups)])
        return total

    def of_many(self, candidates: Iterable[Candidate]) -> npt.NDArray[np.float64]:
        """Compute the costs of several candidates, float64 ``[n]``."""
        listed = list(candidates)
        if self.measure is not None:
            return np.array([self.of(each) for each in listed], np.float64)
        places = np.array([self._places(each) for each in listed], np.intp)
        # An empty list has no second axis.
        places = places.reshape(len(listed), len(self.choices))
        totals = np.full(len(listed), self.constant)
        for term in self.terms:
            totals += term.values[tuple(places[:, group] for group in term.groups)]
        return totals

    def on(self, space: Space) -> CostModel:
        """Convert the model to a space with fewer choices; their order may differ.

        Raises:
            UsageError: The space has other groups, or a choice that this model does not have.
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
        # With fewer choices a table may have become constant along an axis.
        constant, fewer = sum_terms(terms)
        return replace(self, constant=self.constant + constant, terms=fewer, choices=wanted)

    def lowest(self) -> float:
        """Compute a lower bound of the sum of the tables."""
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


def sum_terms(terms: Iterable[Term]) -> tuple[float, tuple[Term, ...]]:
    """Add terms with the same groups; return the constant part and the other terms.

    A group along whose axis a table is constant is removed from the term.
    """
    constant, found = 0.0, dict[tuple[int, ...], npt.NDArray[np.float64]]()
    for term in terms:
        groups, values = term.groups, term.values
        # From the last on, so that axes that are still to come keep their number.
        for axis in reversed(range(values.ndim)):
            first = values.take([0], axis)
            # Exact equality: a small difference is a cost all the same.
            if (values == first).all():
                values = first.squeeze(axis)
                groups = (*groups[:axis], *groups[axis + 1 :])
        if groups:
            found[groups] = found[groups] + values if groups in found else values
        else:
            constant += float(values)
    return constant, tuple(Term(groups, found[groups]) for groups in sorted(found))


def prune(space: Space, cost: CostModel, *, free_floats: bool = False) -> Space:
    """Drop choices that cost as much as a wider one: they can never be better.

    Args:
        space: The space, with the groups of the cost.
        cost: The cost; only its tables are used.
        free_floats: Keep the choice of float where the widest integers cost as much. By default
            it is dropped: a search would choose it everywhere, on a target for integers.

    Returns:
        The space. Choices stay in order, widest first. Integers are never dropped in favour of
        float.
    """
    cost = cost.on(space)
    kept = {}
    for index, group in enumerate(space.groups):
        columns = dict(zip(group.choices, _columns(cost, index, len(group.choices)), strict=True))
        integers: dict[bytes, int] = {}
        for bits, column in columns.items():
            if bits != FLOAT:
                integers.setdefault(column, bits)
        # `get` gives None where there is no float, which is no key either.
        is_free = columns.get(FLOAT) in integers and not free_floats
        floats = (FLOAT,) if FLOAT in columns and not is_free else ()
        kept[index] = (*floats, *integers.values())
    return space.restricted(kept)


class AnyCost(Protocol):
    """The cost of candidates."""

    def of(self, candidate: Candidate) -> float:
        """Return the cost of a candidate; lower is better."""


def tabulate(space: Space, cost: AnyCost) -> CostModel:
    """Convert a cost to tables, by changing one group of the default candidate at a time.

    The tables are exact where the cost is a sum over groups.
    """
    default = space.default
    constant = cost.of(default)
    terms = []
    for index, group in enumerate(space.groups):
        changed = [cost.of(space.with_choice(default, index, bits)) for bits in group.choices]
        terms.append(Term((index,), np.array(changed, np.float64) - constant))
    offset, found = sum_terms(terms)
    choices = tuple(group.choices for group in space.groups)
    return CostModel("", "", constant + offset, found, choices)


def _columns(cost: CostModel, group: int, choices: int) -> Iterator[bytes]:
    """Yield for each choice of a group its table entries as bytes, for comparison."""
    concerned = [
        (term.groups.index(group), term.values) for term in cost.terms if group in term.groups
    ]
    for choice in range(choices):
        yield b"".join(
            np.ascontiguousarray(values.take(choice, axis)).tobytes() for axis, values in concerned
        )


Choice = Mapping[int, int]
"""Bits by group index."""
