"""The integer program against trying everything."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from intact.search.cost import CostModel, Term
from intact.search.samplers.integer_program import IntegerProgram
from intact.search.space import FLOAT, Candidate

CHOICES = ((FLOAT, 8, 6, 4), (8, 5, 4), (8, 4), (FLOAT, 8), (7,))
PAIRS = [(0, 1), (1, 2), (0, 2, 3)]
Floats = npt.NDArray[np.float64]


def program(seed: int, *, pairs: bool) -> IntegerProgram:
    """Random integers as costs, which rise with the width; random noises, which fall."""
    generator = np.random.default_rng(seed)
    groups = [(index,) for index in range(len(CHOICES))] + (PAIRS if pairs else [])
    terms = []
    for term in groups:
        shape = [len(CHOICES[group]) for group in term]
        values = generator.integers(0, 50, shape).astype(np.float64)
        for axis in range(len(shape)):
            values = np.flip(np.sort(values, axis), axis)
        terms.append(Term(term, values))
    noise = [np.sort(generator.exponential(1.0, len(each))) for each in CHOICES]
    return IntegerProgram(CostModel("made up", "", 7.0, tuple(terms), CHOICES), noise)


def every(limited: IntegerProgram) -> list[Candidate]:
    found = product(*limited.cost.choices)
    return [each for each in found if math.isfinite(limited.total(each))]


seeds = pytest.mark.parametrize("seed", range(6))
kinds = pytest.mark.parametrize("pairs", [False, True])


@seeds
@kinds
def test_the_cheapest_within_a_damage(seed: int, pairs: bool) -> None:
    made = program(seed, pairs=pairs)
    noises = sorted(made.total(each) for each in every(made))
    for limit in (noises[0], noises[len(noises) // 3], noises[-1], math.inf):
        found = made.cheapest(limit)
        assert found is not None
        assert made.total(found) <= limit
        best = min(made.cost.of(each) for each in every(made) if made.total(each) <= limit)
        assert made.cost.of(found) <= best * (1 + 1e-3)


@seeds
@kinds
def test_the_mildest_within_a_cost(seed: int, pairs: bool) -> None:
    made = program(seed, pairs=pairs)
    costs = sorted(made.cost.of(each) for each in every(made))
    for limit in (costs[0], costs[len(costs) // 3], costs[-1], math.inf):
        found = made.least_noise(limit)
        assert found is not None
        assert made.cost.of(found) <= limit
        best = min(made.total(each) for each in every(made) if made.cost.of(each) <= limit)
        assert made.total(found) <= best * (1 + 1e-3)


@kinds
def test_impossible_limits_have_no_solution(pairs: bool) -> None:
    made = program(0, pairs=pairs)
    lowest = min(made.cost.of(each) for each in every(made))
    assert made.least_noise(lowest - 1) is None
    assert made.cheapest(min(made.total(each) for each in every(made)) - 0.01) is None


@kinds
def test_forbidden_choices_are_not_taken(pairs: bool) -> None:
    made = program(1, pairs=pairs)
    noise = [np.array(each) for each in made.noise]
    noise[0][-1] = noise[1][1:] = math.inf
    found = IntegerProgram(made.cost, noise).cheapest(math.inf)
    assert found is not None
    assert (found[0] != 4, found[1]) == (True, 8)


def test_limits_of_any_magnitude_hold() -> None:
    costs = [Term((group,), np.array([3e15, 1e15, 2.0])) for group in range(3)]
    noise = [np.array([0.0, 1e-9, 1e-7])] * 3
    made = IntegerProgram(CostModel("made up", "", 0.0, tuple(costs), ((8, 6, 4),) * 3), noise)
    assert sorted(made.cheapest(2.5e-9) or ()) == [6, 6, 8]
    assert sorted(made.least_noise(5e15) or ()) == [6, 6, 8]


def test_the_same_program_has_the_same_solution() -> None:
    assert program(3, pairs=True).least_noise(200.0) == program(3, pairs=True).least_noise(200.0)


def test_a_hundred_and_fifty_groups_hold_their_limit() -> None:
    generator = np.random.default_rng(0)
    choices = ((8, 7, 6, 5, 4),) * 150
    bits = np.array(choices[0], np.float64)
    weights = generator.integers(1, 1000, 75)
    terms = tuple(
        Term((2 * k, 2 * k + 1), weight * np.outer(bits, bits)) for k, weight in enumerate(weights)
    )
    units = generator.exponential(1.0, 150)
    steps = np.array([0.0 if each == FLOAT else 4.0**-each for each in choices[0]])
    made = IntegerProgram(
        CostModel("bitops", "", 0.0, terms, choices), [unit * steps for unit in units]
    )
    limit = made.cost.of((6,) * 150)
    found = made.least_noise(limit)
    assert found is not None
    assert made.cost.of(found) <= limit
    assert made.total(found) < 0.8 * made.total((6,) * 150)
