"""Searches from Python, from a model to a result that holds what was asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intact
from intact import api, demo
from intact.errors import IntactError, OutputError, SearchError, UsageError
from intact.flow.search import FoundStrategy
from intact.plan import Overrides
from intact.results.result import Result
from intact.search.logs.log import read_log
from intact.search.space import FLOAT
from intact.search.trial import Executor, State
from tests.models import ModelBuilder, depthwise_net

SAMPLES = 64


def data(count: int = SAMPLES) -> dict[str, Any]:
    """Images and labels of the demo."""
    with np.load(demo.test_path()) as arrays:
        return {name: arrays[name][:count] for name in arrays.files}


def images(count: int = SAMPLES) -> dict[str, Any]:
    return {"image": data(count)["image"]}


def found(source: Any = None, **options: Any) -> FoundStrategy:
    given: dict[str, Any] = {"budget": "6trials", "sampler": "greedy", "threads": 1}
    source = data() if source is None else source
    return api.search_strategy(demo.model_path(), source, **(given | options))


def timeless(log: Path) -> list[dict[str, Any]]:
    """The lines of a log without the seconds."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        del line["results"]["seconds"]
    return lines


def agreement(outputs: Any, references: Any) -> float:
    """A metric of a user's: points."""
    (scores,) = outputs.values()
    return float(np.mean(scores.argmax(1) == references["labels"]) * 100)


def mistakes(outputs: Any, references: Any) -> dict[str, float]:
    """Several figures, of which the second counts mistakes."""
    right = agreement(outputs, references)
    return {"right": right, "wrong": 100 - right}


def constant(_: Any, __: Any) -> float:
    return 1.0


def nothing(_: Any, __: Any) -> float:
    return math.nan


class TestGoals:
    def test_the_cheapest_within_a_drop(self) -> None:
        best = found(max_drop=1.0)
        assert best.score >= best.float_score - 1.0
        assert best.base is not None
        assert best.best.cost < best.base.cost
        accepted = [
            trial.cost
            for trial in best.standing.trials
            if trial.counts(SAMPLES) and trial.score >= best.float_score - 1.0
        ]
        assert best.best.cost <= min(accepted)  # a foreseen one is confirmed in the end

    def test_the_cheapest_that_reaches_a_score(self) -> None:
        best = found(min_score=90.0)
        assert best.score >= 90.0
        assert best.standing.goal.min_score == 90.0

    def test_the_best_at_a_part_of_the_cost(self) -> None:
        best = found(max_cost="80%", sampler="random", budget="8trials", objective="sqnr")
        widest = best.cost.of(best.space.default)
        assert best.best.cost <= 0.8 * widest
        scores = [
            trial.score
            for trial in best.standing.trials
            if trial.cost <= 0.8 * widest and trial.counts(SAMPLES)
        ]
        assert best.best.score == pytest.approx(max(scores), rel=1e-3)  # by the integers

    def test_the_highest_score_without_a_limit(self) -> None:
        best = found(images(), objective="sqnr", sampler="random")
        simulated = {trial.number: trial.score for trial in best.standing.trials}
        assert simulated[best.best.number] == max(simulated.values())
        assert best.float_score == math.inf

    def test_an_impossible_score_says_how_near_it_came(self, tmp_path: Path) -> None:
        near = r"reaches a score of 100(, after \d+ trials in .*)?: the best of \d+ .* at a cost of"
        with pytest.raises(SearchError, match=near):
            found(output=tmp_path / "out", sampler="random", min_score=100.0)
        assert not (tmp_path / "out").exists()
        assert (tmp_path / "out.search.jsonl").exists()

    def test_an_impossible_cost_says_what_the_least_is(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"costs less than \d+ \("):
            found(output=tmp_path / "out", max_cost=1.0)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"budget": "0trials"}, "a budget of zero"),
            ({"budget": "0s"}, "a budget of zero"),
            ({"max_drop": -1.0}, "max_drop -1"),
            ({"max_drop": 1.0, "min_score": 3.0}, "max_drop and min_score"),
            ({"max_cost": "many"}, "max_cost 'many'"),
            ({"sampler": "gready"}, "no sampler 'gready'.*greedy"),
            ({"minimize": "byte"}, "no cost 'byte'.*bytes"),
            ({"objective": "sqr"}, "objective 'sqr'.*sqnr"),
            ({"objective": "sqnr", "lower_is_better": True}, "metric of your own"),
            ({"figure": "wrong"}, "metric of yours"),
            ({"resume": True}, "there is no log to resume"),
            ({"widths": [3], "allow_float": False}, "widths 3|leave no choice|width"),
            ({"target": "tensorrt", "allow_float": False}, "leave no choice"),
            ({"improve": ["weight-scales"]}, "follows after the scales"),
        ],
    )
    def test_what_makes_no_sense_is_refused_before_anything_is_run(
        self, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(*_: Any, **__: Any) -> None:
            pytest.fail("the float model was run")

        monkeypatch.setattr("intact.flow.calibration.collect", run)
        with pytest.raises(IntactError, match=message):
            found(**options)

    def test_data_that_can_be_read_once_is_refused(self) -> None:
        with pytest.raises(UsageError, match="samples are read twice"):
            found(iter([images(4)]))

    def test_a_quantized_model_is_refused(self, tmp_path: Path) -> None:
        api.quantize(demo.model_path(), images(8), output=tmp_path / "out")
        with pytest.raises(UsageError, match="quantized already"):
            api.search_strategy(tmp_path / "out" / "model.int8.onnx", images(8))


class TestResult:
    def test_a_folder_like_that_of_quantize(self, tmp_path: Path) -> None:
        best = found(output=tmp_path / "out", max_drop=1.0, minimize="bytes")
        loaded = Result.load(tmp_path / "out")
        assert loaded.plan.graph.hash == best.result.plan.graph.hash
        told = loaded.plan.provenance.search
        assert told.startswith(f"greedy, seed 0, trial {best.best.number}: accuracy ")
        assert f"bytes {best.best.cost!r}" in told
        evaluated = intact.evaluate(tmp_path / "out", data())
        assert evaluated.accuracy is not None
        assert evaluated.samples == SAMPLES
        assert intact.verify(tmp_path / "out", samples=4).samples == 4

    def test_a_logged_strategy_is_the_same_plan_without_data(self, tmp_path: Path) -> None:
        best = found(output=tmp_path / "out", max_drop=1.0, minimize="bytes")
        assert best.log is not None
        again = api.replay_strategy(demo.model_path(), best.log, output=tmp_path / "again")
        for end, config in best.result.plan.configs.items():
            other = again.plan.configs[end]
            assert config.bits == other.bits
            assert config.state == other.state
            if config.params is None:
                assert other.params is None
            else:
                assert other.params is not None
                assert config.params.scale.tobytes() == other.params.scale.tobytes()
                assert config.params.zero_point.tobytes() == other.params.zero_point.tobytes()
        model = "model.int8.onnx"
        assert (tmp_path / "again" / model).read_bytes() == (tmp_path / "out" / model).read_bytes()
        assert again.plan.provenance.search == (f"trial {best.best.number} of out.search.jsonl")
        widest = api.replay_strategy(demo.model_path(), best.log, trial=0)
        bits = {str(end): config.bits for end, config in widest.plan.configs.items()}
        assert bits != {str(e): c.bits for e, c in best.result.plan.configs.items()}

    def test_a_log_of_another_model_is_not_replayed(self, tmp_path: Path) -> None:
        found(log=tmp_path / "log", budget="1trials")
        others: tuple[dict[str, Any], ...] = ({"target": "tflite"}, {"model": depthwise_net()})
        for options in others:
            given: dict[str, Any] = {"model": demo.model_path(), **options}
            with pytest.raises(SearchError, match="the log belongs to another search"):
                api.replay_strategy(given.pop("model"), tmp_path / "log", **given)

    def test_nothing_is_written_without_an_output(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        best = found()
        assert best.log is None
        assert best.result.folder is None
        assert list(tmp_path.iterdir()) == []

    def test_the_strategy_is_that_of_the_log(self, tmp_path: Path) -> None:
        best = found(log=tmp_path / "log", max_drop=1.0)
        last = list(read_log(tmp_path / "log"))[-1]
        assert last.is_confirmation
        assert last.trial == best.best
        assert last.strategy is not None
        assert last.strategy.bits == best.strategy.bits
        assert last.strategy.thresholds == best.strategy.thresholds

    @pytest.mark.parametrize("place", ["out/search.jsonl", "out/deep/search.jsonl", "out"])
    def test_a_log_within_the_result_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match="lies in the result's folder"):
            found(output=tmp_path / "out", log=place)
        assert list(tmp_path.iterdir()) == []

    def test_a_log_is_made_with_its_folder(self, tmp_path: Path) -> None:
        found(log=tmp_path / "no" / "such" / "log", budget="1trials")
        assert (tmp_path / "no" / "such" / "log").is_file()

    def test_paths_that_cannot_be_written_are_refused_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "letter.txt").write_text("dear")
        with pytest.raises(OutputError, match="did not write"):
            found(output=tmp_path / "mine")
        with pytest.raises(OutputError, match="is a folder"):
            found(log=tmp_path / "mine")
        (tmp_path / "log").write_text("mine")
        with pytest.raises(UsageError, match="there is a log already"):
            found(log=tmp_path / "log")
        assert (tmp_path / "log").read_text() == "mine"


class TestChoices:
    def test_only_the_widths_that_are_allowed(self) -> None:
        best = found(widths=(4, 8), allow_float=False, sampler="random")
        used = {bits for trial in best.standing.trials for bits in trial.candidate}
        assert used <= {4, 8}
        assert 4 in used

    def test_what_the_user_settled_is_no_choice(self) -> None:
        overrides = Overrides(keep_float=("stem/Conv",))
        best = found(overrides=overrides, sampler="random", max_cost="90%")
        settled = [group for group in best.space.groups if "stem/Conv" in group.owners]
        assert all(group.choices == (FLOAT,) for group in settled)
        assert not best.result.plan.decisions["stem/Conv"].quantized

    def test_latency_is_measured_and_kept_for_a_resumed_search(self, tmp_path: Path) -> None:
        b = ModelBuilder()
        x = b.input("x", ("N", 16))
        y = b.node("MatMul", x, b.constant(np.eye(16, dtype=np.float32)), name="dense")
        b.output(b.node("Relu", y, name="relu"), ("N", 16))
        feeds = {"x": np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)}
        options: dict[str, Any] = {
            "minimize": "latency",
            "sampler": "random",
            "log": tmp_path / "log",
            "threads": 1,
        }
        first = api.search_strategy(b.build(), feeds, budget="2trials", **options)
        assert first.cost.unit == "ms"
        assert first.best.cost > 0
        again = api.search_strategy(b.build(), feeds, budget="3trials", resume=True, **options)
        assert again.standing.trials[:2] == first.standing.trials
        assert all(again.cost.of(t.candidate) == t.cost for t in first.standing.trials)
        assert again.best.cost in {trial.cost for trial in again.standing.trials}


class TestObjectives:
    def test_labels_decide_what_is_scored(self) -> None:
        assert found(budget="1").objective.name == "accuracy"
        assert found(images(), budget="1").objective.name == "agreement"

    def test_several_outputs(self) -> None:
        b = ModelBuilder()
        x = b.input("x", ("N", 3, 6, 6))
        weight = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
        y = b.node("Conv", x, b.constant(weight), name="conv")
        b.output(b.node("Relu", y, name="relu"), ("N", 4, 4, 4))
        b.output(b.node("Sigmoid", y, name="sigmoid"), ("N", 4, 4, 4))
        feeds = {"x": np.random.default_rng(0).normal(size=(8, 3, 6, 6)).astype(np.float32)}
        best = api.search_strategy(b.build(), feeds, budget="3", sampler="random", threads=1)
        assert best.objective.name == "sqnr"
        assert len(best.result.plan.graph.outputs) == 2

    @pytest.mark.parametrize("given", [agreement, f"{__name__}:agreement"])
    def test_a_function_of_the_users_is_accuracy_if_it_says_so(
        self, given: str | Callable[..., float]
    ) -> None:
        own, ours = found(objective=given, max_drop=1.0), found(max_drop=1.0)
        assert own.objective.name.endswith("agreement")
        assert [t.candidate for t in own.standing.trials] == [
            t.candidate for t in ours.standing.trials
        ]
        assert own.score == ours.score

    def test_a_figure_that_counts_mistakes(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"objective": mistakes, "minimize": "bytes"}
        turned = found(
            figure="wrong", lower_is_better=True, max_drop=1.0, log=tmp_path / "log", **options
        )
        plain = found(figure="right", max_drop=1.0, **options)
        assert turned.objective.name == "wrong"
        assert turned.best.candidate == plain.best.candidate
        assert turned.score == pytest.approx(100 - plain.score)
        assert turned.float_score == pytest.approx(100 - plain.float_score)
        assert turned.score <= turned.float_score + 1.0
        most = found(figure="wrong", lower_is_better=True, min_score=50.0, **options)
        assert most.standing.goal.min_score == -50.0
        with pytest.raises(SearchError, match=r"reaches a score of 0\.5.*: the best .* has 100 "):
            found(
                data(8) | {"labels": np.full(8, 11)},
                objective=mistakes,
                figure="wrong",
                lower_is_better=True,
                min_score=0.5,
                budget="2",
            )
        with pytest.raises(
            SearchError,
            match=r"an option is lower_is_better yes, metric mistakes, rounding [0-9a-f]+ there",
        ):
            found(figure="wrong", log=tmp_path / "log", resume=True, **options)

    def test_a_function_that_raises_fails_its_trials_only(self, tmp_path: Path) -> None:
        calls = []

        def moody(outputs: Any, references: Any) -> float:
            calls.append(1)
            if len(calls) % 3 == 0:
                raise KeyError("boxes")
            return agreement(outputs, references)

        best = found(objective=moody, sampler="random", log=tmp_path / "log", budget="6trials")
        states = [trial.measured.state for trial in best.standing.trials]
        assert State.FAILED in states
        assert len(states) == 6
        reasons = {t.measured.reason for t in best.standing.trials if t.measured.reason}
        assert any("raises KeyError" in reason and "boxes" in reason for reason in reasons)
        assert best.best.measured.state is State.COMPLETE
        failed = states.index(State.FAILED)
        replayed = api.replay_strategy(demo.model_path(), tmp_path / "log", trial=failed)
        assert replayed.plan.provenance.search.startswith(f"trial {failed} of")

    def test_a_function_of_nan_fails_at_the_float_model(self) -> None:
        with pytest.raises(IntactError, match="metric nothing: 'nothing' is NaN"):
            found(objective=nothing)

    def test_a_function_of_nan_behind_the_float_model_leaves_nothing(self) -> None:
        calls = []

        def late(_: Any, __: Any) -> float:
            calls.append(1)
            return 1.0 if len(calls) == 1 else math.nan

        with pytest.raises(SearchError, match=r"no trial was run on all samples.*: metric late"):
            found(objective=late)

    def test_a_constant_takes_the_cheapest(self) -> None:
        best = found(objective=constant, sampler="random", budget="8")
        assert best.best.cost == min(t.cost for t in best.standing.trials)
        assert best.score == 1.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that was not cut off."""
    folder = tmp_path_factory.mktemp("whole")
    found(output=folder / "out", **TestResuming.OPTIONS)
    return folder


class TestResuming:
    OPTIONS: dict[str, Any] = {  # noqa: RUF012 - never changed
        "max_drop": 1.0,
        "minimize": "bytes",
        "sampler": "sensitivity",
        "budget": "14trials",
    }

    @pytest.mark.parametrize(
        ("lines", "torn"), [(0, 0.0), (0, 0.5), (1, 0.0), (5, 0.9), (13, 0.0), (14, 0.3), (99, 0.0)]
    )
    def test_wherever_it_was_cut_off_it_ends_the_same(
        self, whole: Path, tmp_path: Path, lines: int, torn: float
    ) -> None:
        content = (whole / "out.search.jsonl").read_bytes().splitlines(keepends=True)
        rest = content[lines] if lines < len(content) else b""
        cut = b"".join(content[:lines]) + rest[: int(torn * len(rest))]
        (tmp_path / "out.search.jsonl").write_bytes(cut)
        found(output=tmp_path / "out", resume=True, **self.OPTIONS)
        assert timeless(tmp_path / "out.search.jsonl") == timeless(whole / "out.search.jsonl")
        for path in (whole / "out").iterdir():
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"sampler": "greedy"}, "the sampler is sensitivity there, greedy here"),
            ({"seed": 1}, "the seed is 0 there, 1 here"),
            ({"target": "tflite"}, "the target is onnxruntime there, tflite here"),
            ({"samples": 32}, "the number of samples is 64 there, 32 here"),
            ({"minimize": "bits"}, "the cost is bytes there, bits here"),
            ({"max_drop": 2.0}, "the lowest score is"),
            ({"method": "minmax"}, "the calibration method is"),
            ({"overrides": Overrides(keep_float=("stem/Conv",))}, "the search space is"),
            ({"objective": "agreement"}, "the objective is accuracy there, agreement here"),
        ],
    )
    def test_the_log_of_another_search_is_refused(
        self, whole: Path, other: dict[str, Any], message: str
    ) -> None:
        log = whole / "out.search.jsonl"
        before = log.read_bytes()
        with pytest.raises(SearchError, match=message):
            found(log=log, resume=True, **(self.OPTIONS | other))
        assert log.read_bytes() == before

    def test_other_contents_of_the_samples_are_refused(self, whole: Path) -> None:
        other = data()
        other["image"] = other["image"].copy()
        other["image"][0, 0, 0, 0] += 1
        with pytest.raises(SearchError, match="the samples' content is"):
            found(other, log=whole / "out.search.jsonl", resume=True, **self.OPTIONS)

    def test_a_larger_budget_goes_on(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        options: dict[str, Any] = {"max_cost": "70%", "sampler": "random", "log": log}
        found(budget="5trials", **options)
        more = found(budget="12trials", resume=True, **options)
        assert [trial.number for trial in more.standing.trials] == list(range(12))
        best = [entry for entry in read_log(log) if entry.is_confirmation][-1]
        assert best.search.trial == more.best.number


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_drop": 1.0, "budget": "8", "sampler": "random"}
    found(output=tmp_path / "one", **options)
    found(output=tmp_path / "two", workers=2, threads=2, **options)
    assert timeless(tmp_path / "one.search.jsonl") == timeless(tmp_path / "two.search.jsonl")
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


def test_the_report_follows_every_trial() -> None:
    seen: list[tuple[int, float | None]] = []
    found(report=lambda standing: seen.append((len(standing.trials), standing.seconds_left)))
    assert [count for count, _ in seen] == list(range(1, 7))
    assert seen[-1][1] == 0.0


def test_what_is_confirmed_by_integers_says_so(tmp_path: Path) -> None:
    best = found(target="tflite", log=tmp_path / "log", budget="1")
    entry = list(read_log(tmp_path / "log"))[-1]
    assert entry.is_confirmation
    assert entry.results.executor is Executor.INTEGER is best.best.measured.executor


@pytest.fixture(autouse=True)
def _quiet(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []
