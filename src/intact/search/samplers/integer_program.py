"""Solves the choice of widths as an integer program, by HiGHS.

There is one binary variable for each choice of a group, and each group takes one choice: a
multiple-choice knapsack. The noise of a candidate is taken as the sum of the noises that its
choices add alone. Its cost is a sum of tables. A table over several groups (a product of two
widths) gets a variable for each entry, and their sums along each axis are the variables of the
groups. For integer choices these are integers too, and the relaxation is tight: it is the local
polytope of graphical models.
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
def discard_stdout() -> Iterator[None]:
    """Discard what compiled code prints to stdout while the block runs.

    HiGHS prints lines although its output is switched off (scipy 1.17). They would break JSON on
    stdout.
    """
    try:
        # What Python has buffered would come out behind the swap, and be lost.
        sys.stdout.flush()
        kept = os.dup(_STDOUT)
    except (AttributeError, OSError, ValueError):  # there is no stdout
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  not a user's path
            # Compiled code writes to the descriptor; replacing `sys.stdout` would not reach it.
            os.dup2(nowhere.fileno(), _STDOUT)
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


Floats: TypeAlias = npt.NDArray[np.float64]

_COST_GAP, _NOISE_GAP = 2e-3, 5e-3

"""Gaps relative to the best bound: most of the time is spent on proving that a good candidate is
the best. The noise is not known to one percent; costs are exact, and differ by small steps.
"""

_NODES = 2000

"""A limit that does not depend on the speed of the machine."""

_SECONDS = 60.0

"""Not reached in a search; it ends a solver that would not terminate."""

_SLACK = 1e-6

"""Relative tolerance within which HiGHS may exceed a limit."""


@dataclass(frozen=True)
class IntegerProgram:
    """The integer program of a space.

    Attributes:
        cost: The cost of the space.
        noise: For each group, the noise that each of its choices adds; ``inf`` excludes a choice.
    """

    cost: CostModel
    noise: Sequence[Floats]

    def total(self, candidate: Candidate) -> float:
        """Compute the noise of a candidate."""
        places = zip(self.noise, self.cost.choices, candidate, strict=True)
        return float(sum(row[choices.index(bits)] for row, choices, bits in places))

    def cheapest(self, most_noise: float) -> Candidate | None:
        """Find the cheapest candidate whose noise is within a limit; None if there is none."""
        return self._solve(self._prices, self._noises, most_noise, _COST_GAP)

    def least_noise(self, most_cost: float) -> Candidate | None:
        """Find the candidate with the least noise within a cost; None if there is none."""
        return self._solve(self._noises, self._prices, most_cost - self.cost.constant, _NOISE_GAP)

    @cached_property
    def _starts(self) -> npt.NDArray[np.intp]:
        """Index of the first variable of each group, and of the tables."""
        sizes = [len(choices) for choices in self.cost.choices]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)

    @cached_property
    def _wide(self) -> list[Term]:
        return [term for term in self.cost.terms if len(term.groups) > 1]

    @cached_property
    def _noises(self) -> Floats:
        extra = sum(term.values.size for term in self._wide)
        noises = np.concatenate([*self.noise, np.zeros(extra)])
        # Excluded choices have the upper bound 0 instead: a solver takes no infinite coefficients.
        return np.where(np.isfinite(noises), noises, 0.0)

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
                # The sum of the entries with one choice of this axis is the variable of that
                # choice.
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
        noises = np.concatenate([*self.noise, np.zeros(self._noises.size - self._starts[-1])])
        return Bounds(0.0, np.where(np.isfinite(noises), 1.0, 0.0))

    def _solve(
        self, objective: Floats, limited: Floats, limit: float, gap: float
    ) -> Candidate | None:
        """Minimize one sum under a limit on the other; numbers are scaled to about 1 for HiGHS."""
        far = abs(limit) if math.isfinite(limit) else 0.0
        span = max(float(np.abs(limited).max()), far) or 1.0
        scale = float(np.abs(objective).max()) or 1.0
        # Only the choices are declared as integers: entries of tables follow from them, and fewer
        # integer variables are solved faster.
        count = int(self._starts[-1])
        integrality = (np.arange(objective.size) < count).astype(np.uint8)
        for slack in (0.0, _SLACK):  # again where the first solution just exceeds the limit
            row = coo_array(limited[np.newaxis] / span).tocsc()
            bound = limit / span - slack * far / span
            with discard_stdout():
                solved = milp(
                    objective / scale,
                    integrality=integrality,
                    bounds=self._bounds,
                    constraints=[self._structure, LinearConstraint(row, -np.inf, bound)],
                    options={"mip_rel_gap": gap, "node_limit": _NODES, "time_limit": _SECONDS},
                )
            if solved.x is None:
                return None
            # Judged again by its exact sums, since the solver's variables are integers within a
            # tolerance.
            candidate = self._candidate(solved.x[:count])
            if self._sum(limited, candidate) <= limit:
                return candidate
        return None

    def _candidate(self, variables: Floats) -> Candidate:
        parts = np.split(variables, self._starts[1:-1])
        pairs = zip(self.cost.choices, parts, strict=True)
        # The largest and not "equal to 1", because solutions are rounded.
        return tuple(choices[int(part.argmax())] for choices, part in pairs)

    def _sum(self, limited: Floats, candidate: Candidate) -> float:
        if limited is self._noises:
            return self.total(candidate)
        return self.cost.estimate(candidate) - self.cost.constant
