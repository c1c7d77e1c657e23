"""The choice of widths as an integer program, solved by HiGHS.

One binary variable for each choice of a group, of which one is taken: a multiple-choice knapsack.
The damage of a candidate is taken as the sum of what its choices do alone. Its cost is a sum of
tables; one over several groups (a product of two widths) gets a variable for each of its entries,
whose sums along each axis are the variables of the groups. With whole choices these are whole too,
and the relaxation is tight, as that of the local polytope in graphical models.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from intact.search.cost import CostModel, Term
from intact.search.space import Candidate

_STDOUT = 1


@contextmanager
def nothing_printed() -> Iterator[None]:
    """Send what compiled code prints to stdout nowhere while the block runs.

    HiGHS prints lines of its own although its output is switched off (scipy 1.17); between a
    program's own output they would break the JSON that scripts read.
    """
    try:
        sys.stdout.flush()
        kept = os.dup(_STDOUT)
    except (AttributeError, OSError, ValueError):  # there is no stdout
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  it is no path of anybody's
            os.dup2(nowhere.fileno(), _STDOUT)
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


Floats: TypeAlias = npt.NDArray[np.float64]

_COST_GAP, _DAMAGE_GAP = 2e-3, 5e-3

"""Relative to the best bound: most of the time goes into proving that a good candidate is the best.

The damage is not known to one part in a hundred; costs are, and differ by small steps."""

_NODES = 2000

"""A limit that does not depend on the machine, as one in seconds would."""

_SECONDS = 60.0

"""Never reached by what the search asks; a solver that does not end would hold it up for good."""

_SLACK = 1e-6

"""By what HiGHS may miss a limit, relative to it."""


@dataclass(frozen=True)
class Program:
    """The integer program of a space.

    Attributes:
        cost: On the space.
        damage: For each group, what each of its choices adds to the damage; ``inf`` forbids one.
    """

    cost: CostModel
    damage: Sequence[Floats]

    def total(self, candidate: Candidate) -> float:
        """Return the damage of a candidate."""
        places = zip(self.damage, self.cost.choices, candidate, strict=True)
        return float(sum(damage[choices.index(bits)] for damage, choices, bits in places))

    def cheapest(self, damage: float) -> Candidate | None:
        """Return the cheapest candidate whose damage is within a limit; None if there is none."""
        return self._solve(self._prices, self._harm, damage, _COST_GAP)

    def mildest(self, cost: float) -> Candidate | None:
        """Return the candidate of the least damage within a cost; None if there is none."""
        return self._solve(self._harm, self._prices, cost - self.cost.constant, _DAMAGE_GAP)

    @cached_property
    def _starts(self) -> npt.NDArray[np.intp]:
        """Where the variables of each group begin, and where those of the tables do."""
        sizes = [len(choices) for choices in self.cost.choices]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)

    @cached_property
    def _wide(self) -> list[Term]:
        return [term for term in self.cost.terms if len(term.groups) > 1]

    @cached_property
    def _harm(self) -> Floats:
        extra = sum(term.values.size for term in self._wide)
        harm = np.concatenate([*self.damage, np.zeros(extra)])
        return np.where(np.isfinite(harm), harm, 0.0)

    @cached_property
    def _prices(self) -> Floats:
        prices = np.zeros(self._starts[-1])
        for term in self.cost.terms:
            if len(term.groups) == 1:
                start = self._starts[term.groups[0]]
                prices[start : start + term.values.size] += term.values
        return np.concatenate([prices, *(term.values.ravel() for term in self._wide)])

    @cached_property
    def _structure(self) -> LinearConstraint:
        """One choice for each group; the entries of each table agree with the choices."""
        groups = len(self.cost.choices)
        choices = np.arange(self._starts[-1])
        rows = [np.repeat(np.arange(groups), np.diff(self._starts))]
        columns, values, row, column = [choices], [np.ones(choices.size)], groups, choices.size
        for term in self._wide:
            entries = column + np.arange(term.values.size)
            places = np.unravel_index(np.arange(term.values.size), term.values.shape)
            for axis, group in enumerate(term.groups):
                size = term.values.shape[axis]
                rows += [row + places[axis], row + np.arange(size)]
                columns += [entries, self._starts[group] + np.arange(size)]
                values += [np.ones(entries.size), -np.ones(size)]
                row += size
            column += term.values.size
        entries_of = (np.concatenate(rows), np.concatenate(columns))
        matrix = coo_array((np.concatenate(values), entries_of), shape=(row, column)).tocsc()
        right = (np.arange(row) < groups).astype(np.float64)
        return LinearConstraint(matrix, right, right)

    @cached_property
    def _bounds(self) -> Bounds:
        harm = np.concatenate([*self.damage, np.zeros(self._harm.size - self._starts[-1])])
        return Bounds(0.0, np.where(np.isfinite(harm), 1.0, 0.0))

    def _solve(
        self, objective: Floats, limited: Floats, limit: float, gap: float
    ) -> Candidate | None:
        """Minimize one sum under a limit of the other; numbers are brought near 1 for HiGHS."""
        far = abs(limit) if math.isfinite(limit) else 0.0
        span = max(float(np.abs(limited).max()), far) or 1.0
        scale = float(np.abs(objective).max()) or 1.0
        count = int(self._starts[-1])
        integrality = (np.arange(objective.size) < count).astype(np.uint8)
        for slack in (0.0, _SLACK):  # a second time where the first missed the limit by a hair
            row = coo_array(limited[np.newaxis] / span).tocsc()
            bound = limit / span - slack * far / span
            with nothing_printed():
                solved = milp(
                    objective / scale,
                    integrality=integrality,
                    bounds=self._bounds,
                    constraints=[self._structure, LinearConstraint(row, -np.inf, bound)],
                    options={"mip_rel_gap": gap, "node_limit": _NODES, "time_limit": _SECONDS},
                )
            if solved.x is None:
                return None
            candidate = self._candidate(solved.x[:count])
            if self._sum(limited, candidate) <= limit:
                return candidate
        return None

    def _candidate(self, variables: Floats) -> Candidate:
        parts = np.split(variables, self._starts[1:-1])
        pairs = zip(self.cost.choices, parts, strict=True)
        return tuple(choices[int(part.argmax())] for choices, part in pairs)

    def _sum(self, limited: Floats, candidate: Candidate) -> float:
        if limited is self._harm:
            return self.total(candidate)
        return self.cost.estimate(candidate) - self.cost.constant
