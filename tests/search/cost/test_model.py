"""Sums of tables: adding, restricting, pruning; and costs that are measured."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from intact.errors import UsageError
from intact.search.cost import CostModel, Term, make_cost, prune, tabulate
from intact.search.cost.model import sum_terms
from intact.search.space import FLOAT, Candidate, Space
from tests.search.samplers.landscapes import space_of

SPACE = space_of((FLOAT, 8, 4), (8, 7, 4), (8,))


def model_of(space: Space, *terms: Term, constant: float = 0.0) -> CostModel:
    offset, found = sum_terms(terms)
    choices = tuple(group.choices for group in space.groups)
    return CostModel("made up", "units", constant + offset, found, choices)


def singles(*rows: tuple[int, list[float]]) -> list[Term]:
    return [Term((group,), np.array(values, np.float64)) for group, values in rows]


def every(space: Space) -> list[Candidate]:
    return list(product(*(group.choices for group in space.groups)))


class Products:
    """A cost without tables: a sum of a product for each group."""

    def of(self, candidate: Candidate) -> float:
        return float(sum((index + 3) * bits for index, bits in enumerate(candidate)))


PAIR = Term((0, 1), np.arange(9, dtype=np.float64).reshape(3, 3))
MODEL = model_of(SPACE, *singles((0, [5, 2, 1]), (2, [7])), PAIR, constant=3.0)


def test_a_cost_is_the_sum_of_its_tables() -> None:
    assert MODEL.of((8, 4, 8)) == 3 + 2 + 7 + 5
    assert MODEL.of((FLOAT, 8, 8)) == 3 + 5 + 7 + 0


def test_many_are_what_each_is_alone() -> None:
    candidates = every(SPACE)
    assert MODEL.of_many(candidates).tolist() == [MODEL.of(each) for each in candidates]
    assert MODEL.of_many([]).tolist() == []


def test_terms_are_joined_and_what_never_varies_is_a_constant() -> None:
    flat = Term((0, 1), np.array([[1.0, 2.0], [1.0, 2.0]]))
    constant, terms = sum_terms([flat, *singles((1, [10, 20]), (0, [4, 4]))])
    assert constant == 4
    assert [(term.groups, term.values.tolist()) for term in terms] == [((1,), [11.0, 22.0])]


def test_a_restricted_space_has_the_same_costs() -> None:
    fewer = SPACE.restricted({0: (4, FLOAT), 1: (7,)})
    model = MODEL.on(fewer)
    assert [model.of(each) for each in every(fewer)] == [MODEL.of(each) for each in every(fewer)]
    assert model.choices == ((4, FLOAT), (7,), (8,))


def test_the_same_space_has_the_same_model() -> None:
    assert MODEL.on(SPACE) is MODEL


def test_large_integers_are_added_without_rounding() -> None:
    big = 2.0**52 + 1
    model = model_of(space_of((8, 4), (8, 4)), *singles((0, [big, 0]), (1, [2, 1])))
    assert model.of((8, 4)) == 2**52 + 2


@pytest.mark.parametrize("candidate", [(8, 8), (8, 8, 8, 8), (16, 8, 8), ()])
def test_what_is_no_candidate_is_refused(candidate: Candidate) -> None:
    with pytest.raises(UsageError):
        MODEL.of(candidate)


def test_a_space_with_other_choices_is_refused() -> None:
    with pytest.raises(UsageError, match="no choice of 6 bits"):
        MODEL.on(SPACE.restricted({1: (6,)}))
    with pytest.raises(UsageError, match="3 groups for 1"):
        MODEL.on(space_of((8,)))


def test_the_lowest_is_a_bound() -> None:
    assert MODEL.lowest() <= min(MODEL.of(each) for each in every(SPACE))


def test_choices_that_cost_as_much_as_wider_ones_are_dropped() -> None:
    space = space_of((FLOAT, 8, 6, 5, 4), (8, 5, 4))
    cost = model_of(space, *singles((0, [4, 2, 2, 1, 1]), (1, [1, 1, 1])))
    kept = [group.choices for group in prune(space, cost).groups]
    assert kept == [(FLOAT, 8, 5), (8,)]


def test_choices_that_differ_in_one_entry_of_a_pair_stay() -> None:
    space = space_of((8, 4), (8, 4))
    cost = model_of(space, Term((0, 1), np.array([[2.0, 2.0], [2.0, 1.0]])))
    assert prune(space, cost) == space


def test_integers_are_not_dropped_for_floats_that_cost_nothing() -> None:
    space = space_of((FLOAT, 8, 4))
    cost = model_of(space, *singles((0, [1, 1, 1])))
    assert prune(space, cost).groups[0].choices == (8,)
    assert prune(space, cost, free_floats=True).groups[0].choices == (FLOAT, 8)


def test_only_floats_stay() -> None:
    space = space_of((FLOAT,))
    assert prune(space, model_of(space)).groups[0].choices == (FLOAT,)


def test_pruning_loses_no_cost() -> None:
    space = space_of((FLOAT, 8, 7, 4), (8, 7, 6, 4))
    values = np.repeat(np.array([[4.0, 1.0], [2.0, 1.0]]), 2, axis=0).repeat(2, axis=1)
    cost = model_of(space, Term((0, 1), values))
    left = {cost.of(each) for each in every(prune(space, cost, free_floats=True))}
    assert left == {cost.of(each) for each in every(space)}


def test_a_measured_cost_is_measured_once() -> None:
    measured: list[Candidate] = []

    def measure(candidate: Candidate) -> float:
        measured.append(candidate)
        return 0.25

    model = CostModel("latency", "s", MODEL.constant, MODEL.terms, MODEL.choices, measure)
    assert [model.of((8, 8, 8)), model.of((8, 8, 8))] == [0.25, 0.25]
    assert model.of_many([(8, 8, 8), (4, 4, 8)]).tolist() == [0.25, 0.25]
    assert measured == [(8, 8, 8), (4, 4, 8)]
    assert model.estimate((8, 8, 8)) == MODEL.of((8, 8, 8))


def test_what_a_log_knows_is_not_measured_again() -> None:
    def refuse(candidate: Candidate) -> float:
        raise AssertionError(candidate)

    model = CostModel("latency", "s", 0.0, (), MODEL.choices, refuse)
    model.known[(8, 8, 8)] = 0.5
    fewer = model.on(SPACE.restricted({0: (8, 4)}))
    assert model.of((8, 8, 8)) == fewer.of((8, 8, 8)) == 0.5


def test_any_sum_over_groups_can_be_tabulated() -> None:
    cost = Products()
    model = tabulate(SPACE, cost)
    assert [model.of(each) for each in every(SPACE)] == [cost.of(each) for each in every(SPACE)]


def test_unknown_kinds_and_missing_measures_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown cost 'byte'; did you mean 'bytes'"):
        make_cost("byte", SPACE)
    with pytest.raises(UsageError, match="'latency' is measured"):
        make_cost("latency", SPACE)
