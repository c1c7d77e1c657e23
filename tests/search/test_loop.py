"""The loop: what is measured, written down and told, in which order, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from intact.errors import SearchError
from intact.recipe.kinds import Budget
from intact.search.loop import Search, SearchProgress
from intact.search.space import Candidate
from intact.search.trial import Ask, Goal, State, Trial, TrialResult

SAMPLES = 100


def complete(score: float) -> TrialResult:
    return TrialResult(State.COMPLETE, score, 0.1, SAMPLES)


@dataclass
class Counting:
    """Asks batches of one group with ever fewer bits; remembers what it was told."""

    name: str = "counting"
    batches: list[list[int]] = field(default_factory=lambda: [[8], [7, 6], [5, 4, 3]])
    told: list[list[Trial]] = field(default_factory=list)

    def ask(self) -> Sequence[Ask]:
        if len(self.told) == len(self.batches):
            return []
        return [Ask((bits,)) for bits in self.batches[len(self.told)]]

    def tell(self, trials: Sequence[Trial]) -> None:
        self.told.append(list(trials))


@dataclass
class Exact:
    """A pool whose scores are ten times the bits; what confirming gives may differ."""

    journal: list[str] = field(default_factory=list)
    integers: dict[int, float] = field(default_factory=dict)
    foresees: bool = False

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[TrialResult]:
        for ask in asks:
            self.journal.append(f"measure {ask.candidate[0]}")
            score = 10.0 * ask.candidate[0]
            is_part = self.foresees and ask.candidate != (8,)
            yield TrialResult(State.REACHED, score, 0.1, 10) if is_part else complete(score)

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[TrialResult]:
        for (bits,) in candidates:
            self.journal.append(f"confirm {bits}")
            yield complete(self.integers.get(bits, 10.0 * bits))


@dataclass
class Bits:
    def of(self, candidate: Candidate) -> float:
        return float(sum(candidate))

    def estimate(self, candidate: Candidate) -> float:
        return self.of(candidate)


@dataclass
class Memory:
    journal: list[str]
    trials: list[Trial] = field(default_factory=list)
    confirmed: dict[int, Trial] = field(default_factory=dict)

    def append(self, trial: Trial) -> None:
        self.journal.append(f"write {trial.candidate[0]}")

    def confirm(self, trial: Trial) -> None:
        self.journal.append(f"write again {trial.candidate[0]}: {trial.score:g}")


def search(
    budget: Budget | None = None, goal: Goal | None = None, logged: Sequence[Trial] = ()
) -> tuple[Search, Exact, Counting]:
    pool, sampler = Exact(), Counting()
    progress = SearchProgress(goal or Goal(), SAMPLES, budget or Budget(trials=100))
    return (
        Search(sampler, pool, Bits(), Memory(pool.journal, list(logged)), progress),
        pool,
        sampler,
    )


def test_each_trial_is_written_before_the_next_begins() -> None:
    made, pool, sampler = search()
    made.run()
    assert pool.journal == [
        f"{verb} {bits}" for bits in (8, 7, 6, 5, 4, 3) for verb in ("measure", "write")
    ]
    assert [[trial.candidate[0] for trial in told] for told in sampler.told] == sampler.batches
    assert [trial.number for trial in made.progress.trials] == list(range(6))


@pytest.mark.parametrize("trials", [1, 2, 3, 4, 5, 6, 7])
def test_no_more_trials_than_the_budget(trials: int) -> None:
    made, _, sampler = search(Budget(trials))
    made.run()
    assert len(made.progress.trials) == min(trials, 6)
    whole = [1, 3, 6]
    assert len(sampler.told) == sum(done <= trials for done in whole)


def test_time_ends_a_search_between_two_trials() -> None:
    made, pool, _ = search(Budget(seconds=2.5))
    ticks = iter(range(100))
    made.clock = lambda: float(next(ticks))
    made.run()
    assert 1 <= len(made.progress.trials) < 6
    assert pool.journal[-1].startswith("write")


@pytest.mark.parametrize("known", [0, 1, 2, 3, 5, 6])
def test_a_resumed_search_goes_on_as_if_it_had_not_ended(known: int) -> None:
    whole, _, told = search()
    whole.run()
    again, pool, sampler = search(logged=whole.progress.trials[:known])
    again.run()
    assert again.progress.trials == whole.progress.trials
    assert sampler.told == told.told
    assert len(pool.journal) == 2 * (6 - known)


def test_a_log_of_other_candidates_is_refused() -> None:
    wrong = Trial(0, (5,), 5.0, complete(50.0))
    made, _, _ = search(logged=[wrong])
    with pytest.raises(SearchError, match="trial 0 of the log is not what the sampler asks"):
        made.run()


def test_the_cheapest_that_holds_the_limit_is_confirmed() -> None:
    made, pool, _ = search(goal=Goal(min_score=45.0))
    made.run()
    assert made.confirm_best().candidate == (5,)
    assert pool.journal[-2:] == ["confirm 5", "write again 5: 50"]


def test_a_winner_that_integers_do_not_confirm_gives_way_to_the_next() -> None:
    made, pool, _ = search(goal=Goal(min_score=45.0))
    pool.integers = {5: 44.0}
    made.run()
    best = made.confirm_best()
    assert (best.candidate, best.score) == ((6,), 60.0)


@pytest.mark.parametrize(("least", "confirmed"), [(25.0, 3), (35.0, 4), (45.0, 6), (75.0, 8)])
def test_where_the_budget_ends_what_was_foreseen_is_confirmed(least: float, confirmed: int) -> None:
    """The cheapest first, then twice as far from it each time; at last what ran all samples."""
    made, pool, _ = search(Budget(trials=6), goal=Goal(min_score=least))
    pool.foresees = True
    made.run()
    assert made.confirm_best().candidate == (confirmed,)
    tried = [int(line.split()[1]) for line in pool.journal if line.startswith("confirm")]
    assert tried == [bits for bits in (3, 4, 6, 8) if bits <= confirmed]


def test_a_search_that_came_to_its_end_does_not_confirm_what_was_foreseen() -> None:
    made, pool, _ = search(goal=Goal(min_score=25.0))
    pool.foresees = True
    made.run()
    assert made.confirm_best().candidate == (8,)


def test_an_impossible_score_says_how_near_it_came() -> None:
    made, _, _ = search(goal=Goal(min_score=81.0))
    made.run()
    with pytest.raises(SearchError, match="best of 6 that were run on all samples has 80 at a co"):
        made.confirm_best()


def test_an_impossible_cost_says_how_near_it_came() -> None:
    made, _, _ = search(goal=Goal(max_cost=2.0))
    made.run()
    with pytest.raises(SearchError, match="the cheapest of 6 that were run on all samples costs 3"):
        made.confirm_best()


def test_limits_that_only_go_one_by_one_say_what_each_costs() -> None:
    made, _, _ = search(goal=Goal(min_score=75.0, max_cost=5.0))
    made.run()
    with pytest.raises(SearchError, match="has 50 at a cost of 5; it is reached at a cost of 8"):
        made.confirm_best()


LIMITS = [
    (Goal(min_score=81.0), "no strategy{} reaches a score of 81{}: the best of "),
    (Goal(max_cost=2.0), "no strategy{} costs 2 or less{}: the cheapest of "),
    (Goal(min_score=81.0, max_cost=5.0), "no strategy{} reaches a score of 81 within a cost of 5"),
]


@pytest.mark.parametrize(("goal", "message"), LIMITS)
def test_a_search_that_its_budget_ended_says_so_far_and_after_how_many(
    goal: Goal, message: str
) -> None:
    made, _, _ = search(Budget(seconds=14.0), goal)
    ticks = iter(range(0, 1000, 4))
    made.clock = lambda: float(next(ticks))
    made.run()
    trials = len(made.progress.trials)
    assert 1 <= trials < 6
    ended = f", after {trials} trials in 16 s"
    with pytest.raises(SearchError) as caught:
        made.confirm_best()
    if goal.max_cost != 5.0:  # nothing that cheap was tried yet
        assert str(caught.value).startswith(message.format(" so far", ended))
    assert f"so far costs 5 or less{ended}" in str(caught.value) or goal.max_cost != 5.0
    assert "allow more budget" in str(caught.value)
    made, _, _ = search(goal=goal)
    made.run()
    with pytest.raises(SearchError) as caught:
        made.confirm_best()
    assert str(caught.value).startswith(message.format("", ""))
    assert "so far" not in str(caught.value)
    assert "budget" not in str(caught.value)


def test_nothing_but_failures_tells_the_reason() -> None:
    made, pool, _ = search()
    failure = TrialResult(State.FAILED, math.nan, math.nan, 0, reason="metric m: raises KeyError")
    pool.evaluate = lambda asks: iter([failure] * len(asks))  # type: ignore[method-assign]
    made.run()
    assert len(made.progress.trials) == 6
    with pytest.raises(SearchError, match="metric m: raises KeyError"):
        made.confirm_best()


def test_what_was_found_until_it_was_interrupted_is_kept() -> None:
    made, pool, _ = search()
    measure = pool.evaluate

    def interrupted(asks: Sequence[Ask]) -> Iterator[TrialResult]:
        for measured in measure(asks):
            if len(made.progress.trials) == 4:
                raise KeyboardInterrupt
            yield measured

    pool.evaluate = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert len(made.progress.trials) == 4
    assert made.confirm_best().candidate == (8,)


def test_evaluations_count_the_samples_that_were_run() -> None:
    progress = SearchProgress(Goal(), SAMPLES, Budget(10))
    progress.trials = [
        Trial(0, (8,), 8.0, complete(80.0)),
        Trial(1, (7,), 7.0, TrialResult(State.STOPPED, 20.0, 0.1, 25)),
    ]
    assert progress.evaluations == 1.25
    assert [trial.number for trial in progress.front] == [0]


def test_a_trial_on_some_samples_spends_that_part_of_one() -> None:
    few = TrialResult(State.COMPLETE, 50.0, 0.1, SAMPLES // 4)
    made, pool, sampler = search(Budget(trials=2))
    sampler.batches = [[8], [7, 6, 5], [4, 3, 2]]
    ask = sampler.ask

    def partial() -> Sequence[Ask]:
        return [
            Ask(each.candidate, None if each.candidate == (8,) else SAMPLES // 4) for each in ask()
        ]

    sampler.ask = partial  # type: ignore[method-assign]
    measure = pool.evaluate
    pool.evaluate = lambda asks: (  # type: ignore[method-assign]
        few if asked.samples else measured
        for asked, measured in zip(asks, measure(asks), strict=True)
    )
    made.run()
    assert [trial.candidate[0] for trial in made.progress.trials] == [8, 7, 6, 5, 4]
    assert made.progress.spent == 2.0


def test_a_trial_that_was_stopped_or_failed_spends_a_whole_one() -> None:
    progress = SearchProgress(Goal(), SAMPLES, Budget(10))
    progress.trials = [
        Trial(0, (7,), 7.0, TrialResult(State.STOPPED, 20.0, 0.1, 25)),
        Trial(1, (6,), 6.0, TrialResult(State.FAILED, math.nan, math.nan, 0, reason="x")),
        Trial(2, (5,), 5.0, TrialResult(State.COMPLETE, 20.0, 0.1, 25)),
    ]
    assert progress.spent == 2.25


def test_winners_that_only_the_simulation_accepts_are_told_apart() -> None:
    made, pool, _ = search(goal=Goal(min_score=75.0))
    pool.integers = {8: 74.0}
    made.run()
    with pytest.raises(SearchError, match="has by its integers 74 at a cost of 8"):
        made.confirm_best()
