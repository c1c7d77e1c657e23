"""Measuring candidates: the right score, early stops, failures with a reason, one result always."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from intact.data.metric import Metric
from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.errors import DataError, PlanError, UsageError
from intact.numerics.error_sums import ErrorSums
from intact.numerics.metrics import top_k
from intact.plan import QuantizedGraph
from intact.plan.overflows import Overflows
from intact.program.lower import lower
from intact.search.measuring import evaluator as evaluating
from intact.search.measuring.evaluator import Evaluator, Scoring, float_score
from intact.search.measuring.objective import Objective
from intact.search.measuring.trial_data import TrialData
from intact.search.trial import Ask, State, TrialResult
from tests.models import ModelBuilder, depthwise_net, random_inputs, residual_net
from tests.search.trial_data import some_samples, trial_data_of

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def trial_data() -> TrialData:
    return trial_data_of()


def untimed(measured: TrialResult) -> TrialResult:
    return replace(measured, seconds=0.0)


def outputs_of(trial_data: TrialData, plan: QuantizedGraph, samples: int) -> tuple[Arrays, Arrays]:
    """What the model and a plan give for the first samples, without chunks."""
    simulator, float_parts, parts = Simulator(plan, threads=1), [], []
    for chunk in trial_data.chunks:
        parts.append(simulator.run(dict(chunk.feeds))[0]["logits"][: chunk.count])
        float_parts.append(chunk.outputs["logits"])
    return (
        {"logits": np.concatenate(float_parts)[:samples]},
        {"logits": np.concatenate(parts)[:samples]},
    )


@pytest.mark.crossed
@pytest.mark.parametrize("samples", [None, 1, 16, 37, 100, 1000])
@pytest.mark.parametrize("bits", [8, 4])
def test_scores_are_those_of_the_plan(
    trial_data: TrialData, bits: int, samples: int | None
) -> None:
    evaluator = Evaluator(trial_data, threads=1)
    candidate = trial_data.space.uniform(bits)
    count = min(samples or 100, 100)
    found = evaluator.measure(Ask(candidate, samples))
    want, have = outputs_of(trial_data, evaluator.planner.plan(candidate), count)
    labels = np.concatenate([c.labels for c in trial_data.chunks if c.labels is not None])[:count]
    assert found.state is State.COMPLETE
    assert found.samples == count
    assert found.score == pytest.approx(100 * top_k(have["logits"], labels))
    sums = ErrorSums()
    sums.add(want["logits"], have["logits"])
    assert -10 * math.log10(found.noise) == pytest.approx(sums.sqnr_db)
    assert found.seconds > 0


def test_the_order_of_the_samples_is_fixed_and_mixed() -> None:
    data = some_samples(residual_net(), 40)
    data["image"][:, 0, 0, 0] = np.arange(40)
    chunks = [trial_data_of(data=data, chunk=size).chunks for size in (8, 40)]
    orders = [
        np.concatenate([chunk.feeds["image"][: chunk.count, 0, 0, 0] for chunk in each])
        for each in chunks
    ]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert sorted(orders[0]) == list(range(40))
    assert list(orders[0]) != list(range(40))
    labels = np.concatenate([c.labels for c in chunks[0] if c.labels is not None])
    np.testing.assert_array_equal(labels, data["labels"][orders[0].astype(int)])


def test_nothing_depends_on_threads_or_on_what_ran_before(trial_data: TrialData) -> None:
    asks = [
        Ask(trial_data.space.uniform(bits), bar=bar)
        for bits in (8, 4, 2)
        for bar in (None, 80.0, 99.0)
    ]
    alone = [untimed(Evaluator(trial_data, threads=1).measure(ask)) for ask in asks]
    warm = Evaluator(trial_data, threads=4)
    assert [untimed(warm.measure(ask)) for ask in reversed(asks)] == alone[::-1]


def test_all_looks_share_one_error(trial_data: TrialData, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def listen(scoring: Scoring, bar: float, signal: object, *, share: float) -> bool:
        del bar, signal
        assert scoring.done < scoring.population
        shares.append(share)
        return True

    monkeypatch.setattr(Scoring, "can_reach", listen)
    assert (
        Evaluator(trial_data, threads=1).measure(Ask(trial_data.space.default, bar=50.0)).samples
        == 100
    )
    assert len(shares) == 2
    assert shares == sorted(shares)
    assert sum(shares) == pytest.approx(1.0)


def test_a_trial_that_cannot_reach_the_bar_is_stopped(trial_data: TrialData) -> None:
    evaluator = Evaluator(trial_data, threads=1)
    candidate = trial_data.space.uniform(8)
    whole = evaluator.measure(Ask(candidate))
    found = evaluator.measure(Ask(candidate, bar=math.inf))
    assert (found.state, found.samples) == (State.STOPPED, 32)
    assert untimed(evaluator.measure(Ask(candidate, 32))).score == found.score
    for bar in (None, -math.inf, 0.0, whole.score):
        again = evaluator.measure(Ask(candidate, bar=bar))
        assert untimed(again) == untimed(whole)


@pytest.mark.parametrize("kind", ["accuracy", "agreement", "kl", "sqnr", "cosine"])
def test_what_reaches_the_bar_certainly_is_never_stopped(trial_data: TrialData, kind: str) -> None:
    own = replace(trial_data, objective=Objective.of(kind), error=0.0)
    evaluator = Evaluator(own, threads=1)
    for bits in (8, 4):
        whole = evaluator.measure(Ask(own.space.uniform(bits)))
        again = evaluator.measure(Ask(own.space.uniform(bits), bar=whole.score))
        assert untimed(again) == untimed(whole)


@pytest.mark.parametrize("kind", ["kl", "sqnr", "cosine"])
def test_noisy_candidates_are_stopped_early(kind: str) -> None:
    own = trial_data_of(objective=Objective.of(kind), count=200)
    evaluator = Evaluator(own, threads=1)
    good = evaluator.measure(Ask(own.space.uniform(8)))
    bad = evaluator.measure(Ask(own.space.uniform(4), bar=good.score))
    assert bad.state is State.STOPPED
    assert bad.samples < 200
    assert bad.score < good.score


def test_sqnr_and_noise_are_one_figure(trial_data: TrialData) -> None:
    own = replace(trial_data, objective=Objective.of("sqnr"))
    found = Evaluator(own, threads=1).measure(Ask(own.space.uniform(6)))
    assert found.score == pytest.approx(-10 * math.log10(found.noise))


def test_the_float_score_is_the_float_models(trial_data: TrialData) -> None:
    expected = {"agreement": 100.0, "kl": 0.0, "sqnr": math.inf, "cosine": 1.0}
    for kind, score in expected.items():
        own = replace(trial_data, objective=Objective.of(kind))
        assert float_score(own) == pytest.approx(score)
    want, _ = outputs_of(
        trial_data, Evaluator(trial_data).planner.plan(trial_data.space.default), 100
    )
    labels = np.concatenate([c.labels for c in trial_data.chunks if c.labels is not None])
    score = 100 * top_k(want["logits"], labels)
    assert float_score(trial_data) == pytest.approx(score)


def kept_for(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> float:
    """A metric that says whether it was given what belongs together."""
    assert len(outputs["logits"]) == len(references["labels"]) == len(references["labels.text"])
    right = outputs["logits"].argmax(axis=1) == references["labels"]
    texts = [int(text[1:]) for text in references["labels.text"]]
    return float(np.mean(right)) if texts == list(references["labels"]) else -1.0


def with_texts() -> Arrays:
    data = some_samples(residual_net(), 40)
    return {**data, "labels.text": np.array([f"n{label}" for label in data["labels"]])}


@pytest.mark.parametrize("samples", [None, 20])
def test_a_metric_gets_what_belongs_to_its_samples(samples: int | None) -> None:
    own = trial_data_of(data=with_texts(), objective=Objective.of("metric", Metric.of(kept_for)))
    plain = trial_data_of(data=some_samples(residual_net(), 40))
    ask = Ask(own.space.uniform(8), samples)
    found = Evaluator(own, threads=2).measure(replace(ask, bar=math.inf))
    assert found.state is State.COMPLETE  # a metric of all samples is not stopped
    assert 100 * found.score == pytest.approx(Evaluator(plain).measure(ask).score)


def raising(outputs: object, references: object) -> float:
    raise ValueError("no\nsuch box")


def not_a_number(outputs: object, references: object) -> float:
    return math.nan


def a_text(outputs: object, references: object) -> Any:
    return "good"


@pytest.mark.parametrize(
    ("function", "reason"),
    [(raising, "no such box"), (not_a_number, "NaN"), (a_text, "returns str")],
)
def test_a_metric_that_fails_fails_the_trial(function: Any, reason: str) -> None:
    own = trial_data_of(objective=Objective.of("metric", Metric.of(function)), count=20)
    evaluator = Evaluator(own, threads=1)
    for found in (
        evaluator.measure(Ask(own.space.default)),
        evaluator.confirm(own.space.default),
    ):
        assert found.state is State.FAILED
        assert math.isnan(found.score)
        assert math.isnan(found.noise)
        assert reason in found.reason
        assert "\n" not in found.reason
    with pytest.raises(DataError, match=reason.rsplit(maxsplit=1)[-1]):
        float_score(own)


def test_a_constant_metric_is_a_score() -> None:
    metric = Metric("same", lambda *_: 1)
    own = trial_data_of(objective=Objective.of("metric", metric), count=20)
    assert Evaluator(own).measure(Ask(own.space.default, bar=0.5)).score == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_no_numbers_fail_the_trial(
    trial_data: TrialData, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = Evaluator(trial_data, threads=1)

    def run(prepared: object, chunk: int, feeds: Arrays) -> Arrays:
        del prepared
        outputs = np.zeros((len(feeds["image"]), 5), np.float32)
        outputs[0, 3] = bad if chunk == 3 else 0.0
        return {"logits": outputs}

    monkeypatch.setattr(evaluator._simulator, "run", run)
    found = evaluator.measure(Ask(trial_data.space.default))
    assert found.state is State.FAILED
    assert found.reason == "output 'logits' holds NaN or infinity"
    assert evaluator.measure(Ask(trial_data.space.default, 32)).state is State.COMPLETE


def test_confirming_runs_the_integers_of_the_target() -> None:
    own = trial_data_of(target="tflite", count=40, objective=Objective.of("sqnr"))
    evaluator = Evaluator(own, threads=1)
    candidate = own.space.uniform(8)
    engine = IntegerEngine(lower(evaluator.planner.plan(candidate)))
    sums = ErrorSums()
    for chunk in own.chunks:
        have = engine.run(chunk.feeds).outputs["logits"][: chunk.count]
        sums.add(chunk.outputs["logits"], have)
    found = evaluator.confirm(candidate)
    assert found.score == pytest.approx(sums.sqnr_db)
    assert (found.reason, found.samples) == ("", 40)
    assert found.score != evaluator.measure(Ask(candidate)).score


def test_what_has_no_integer_program_is_simulated_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(plan: QuantizedGraph, *, threads: int) -> None:
        raise PlanError("levels without integer arithmetic")

    own = trial_data_of(target="tflite", count=40)
    evaluator = Evaluator(own, threads=1)
    simulated = evaluator.measure(Ask(own.space.default))
    monkeypatch.setattr(evaluating, "integer_run", refuse)
    found = evaluator.confirm(own.space.default)
    assert found.state is State.COMPLETE
    assert found.score == simulated.score
    assert "levels without integer arithmetic" in found.reason


def test_where_float32_cannot_follow_the_engine_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    own = trial_data_of(target="tflite", count=40, objective=Objective.of("sqnr"))
    evaluator = Evaluator(own, threads=2)
    monkeypatch.setattr(Overflows, "need_integers", True)
    exact = evaluator.measure(Ask(own.space.default))
    assert untimed(exact) == untimed(evaluator.confirm(own.space.default))


def test_a_model_of_fixed_batch_runs_whole_batches() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", [4, 3, 8, 8]), 3, 8)
    b.node("Gemm", b.mean(x, [2, 3], keepdims=0), b.weight(5, 8), out="logits", transB=1)
    b.output("logits")
    model = b.build()
    data = {"image": np.random.default_rng(0).normal(size=(10, 3, 8, 8)).astype(np.float32)}
    own = trial_data_of(model, data=data)
    assert [(chunk.size, chunk.count) for chunk in own.chunks] == [(4, 4), (4, 4), (4, 2)]
    assert own.objective.kind == "agreement"
    found = Evaluator(own, threads=1).measure(Ask(own.space.default, 9))
    assert (found.state, found.samples) == (State.COMPLETE, 9)


def test_outputs_that_are_no_classes_are_scored_by_their_noise() -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 2))
    model = b.build()
    own = trial_data_of(model, data=dict(random_inputs(model, batch=20)))
    assert own.objective.kind == "sqnr"
    with pytest.raises(UsageError, match="no classes"):
        trial_data_of(
            model, data=dict(random_inputs(model, batch=20)), objective=Objective.of("agreement")
        )


def test_mistakes_are_refused(trial_data: TrialData) -> None:
    data = some_samples(depthwise_net(), 20)
    with pytest.raises(DataError, match="classes"):
        trial_data_of(depthwise_net(), data={**data, "labels": data["labels"] + 3})
    with pytest.raises(DataError, match="MiB"):
        trial_data_of(max_bytes=1000)
    unlabelled = {"image": data["image"]}
    with pytest.raises(UsageError, match="no labels"):
        trial_data_of(depthwise_net(), data=unlabelled, objective=Objective.of("accuracy"))
    with pytest.raises(UsageError, match="chunks"):
        trial_data_of(chunk=0)
    evaluator = Evaluator(trial_data)
    with pytest.raises(UsageError, match="NaN"):
        evaluator.measure(Ask(trial_data.space.default, bar=math.nan))
    with pytest.raises(UsageError, match="choice"):
        evaluator.measure(Ask((3,) * len(trial_data.space.groups)))


def test_a_float_model_without_numbers_is_refused() -> None:
    b = ModelBuilder()
    x = b.node("Gemm", b.input("x", ["batch", 4]), b.weight(4, 3))
    b.output(b.node("Log", b.node("Relu", x)))
    model = b.build()
    with pytest.raises(DataError, match="float model holds NaN or infinity"):
        trial_data_of(model, data=dict(random_inputs(model, batch=20)))


class TestEnough:
    """Where reaching the bar is all that is asked."""

    @pytest.mark.parametrize("kind", ["accuracy", "agreement", "kl", "sqnr"])
    def test_a_result_is_foreseen_on_a_part_of_the_samples(self, kind: str) -> None:
        data = trial_data_of(objective=Objective.of(kind), data=some_samples(residual_net(), 400))
        evaluator = Evaluator(data, threads=1)
        candidate = data.space.uniform(8)
        whole = evaluator.measure(Ask(candidate))
        slack = 10.0 if data.objective.row.is_count else 3 * abs(whole.score)
        low, high = whole.score - slack, whole.score + slack
        reached = evaluator.measure(Ask(candidate, bar=low, is_enough=True))
        assert reached.state is State.REACHED
        assert reached.samples <= 128
        if high < data.objective.row.highest or kind in ("kl", "sqnr"):
            missed = evaluator.measure(Ask(candidate, bar=high, is_enough=True))
            assert missed.state is State.STOPPED
            assert missed.samples <= 128
        assert evaluator.measure(Ask(candidate, bar=low)).state is State.COMPLETE

    def test_nothing_is_guessed_where_no_error_is_allowed(self) -> None:
        data = trial_data_of(objective=Objective.of("kl"), error=0.0)
        candidate = data.space.uniform(8)
        found = Evaluator(data, threads=1).measure(Ask(candidate, bar=-99.0, is_enough=True))
        assert found.state is State.COMPLETE

    def test_a_users_metric_needs_all_samples(self) -> None:
        metric = Metric("constant", lambda *_: 1.0)
        data = trial_data_of(objective=Objective.of(metric=metric))
        found = Evaluator(data, threads=1).measure(
            Ask(data.space.uniform(8), bar=0.5, is_enough=True)
        )
        assert found.state is State.COMPLETE
