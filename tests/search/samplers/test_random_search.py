"""Random search draws uniformly, among what may still win."""

from __future__ import annotations

from collections import Counter

import numpy as np

from intact.search.samplers.random_search import RandomSearch, allowed_choices, draw
from intact.search.trial import Goal
from tests.search.samplers.landscapes import additive, mixed, search, space_of


def test_choices_are_alike_likely_and_independent() -> None:
    space = space_of((32, 8, 4), (8, 7, 6, 5), (6,))
    generator = np.random.default_rng(0)
    count = 12_000
    seen = Counter(draw(allowed_choices(space, 32), generator) for _ in range(count))
    assert len(seen) == 12
    expected = count / 12
    chi_squared = sum((each - expected) ** 2 / expected for each in seen.values())
    assert chi_squared < 31.3  # 11 degrees of freedom, 0.1 %


def test_choices_above_a_width_are_left_out() -> None:
    space = space_of((32, 8, 4), (8, 7), (6,))
    assert allowed_choices(space, 6) == [(4,), (7,), (6,)]
    assert allowed_choices(space, 8) == [(8, 4), (8, 7), (6,)]


def test_a_small_space_is_tried_whole() -> None:
    landscape = additive(space_of(*[(8, 4)] * 4), [0.1] * 4, [1] * 4)
    sampler = RandomSearch(landscape.space, Goal(), landscape.cost, 0)
    assert len(search(sampler, landscape, 100)) == 16


def test_no_trial_is_spent_on_what_is_too_dear() -> None:
    landscape = mixed(8, 4)
    limit = 0.8 * landscape.cost.of(landscape.space.default)
    sampler = RandomSearch(landscape.space, Goal(max_cost=limit), landscape.cost, 0)
    trials = search(sampler, landscape, 50)
    assert len(trials) == 50
    assert all(trial.cost <= limit for trial in trials[1:])


def test_seeds_differ() -> None:
    landscape = mixed(8, 4)
    searches = [
        [trial.candidate for trial in search(sampler, landscape, 20)]
        for seed in (0, 1)
        for sampler in [RandomSearch(landscape.space, Goal(), landscape.cost, seed)]
    ]
    assert searches[0] != searches[1]
