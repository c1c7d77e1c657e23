"""Reading logs: hostile ones, choosing a trial, and what the documentation shows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import intact.search.logs.log as log_module
from intact.errors import DataError, IntactError, OutputError, SearchError, UsageError
from intact.plan import TensorEnd
from intact.search.logs import line as reading
from intact.search.logs.log import Entry, Log, choose, read_log
from intact.search.trial import Goal, State, Trial
from tests.search.logs.lines import (
    PLAN,
    STRATEGY,
    VALIDATOR,
    resumed,
    settings,
    trial,
    written,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "search-log.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "search.jsonl"


class TestHostile:
    @pytest.fixture
    def line(self, path: Path) -> Any:
        return json.loads(written(path, trial(0)))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"sim_acc": 0.75', '"sim_acc": NaN'),
            ('"sim_acc": 0.75', '"sim_acc": 1e999'),
            ('"sim_acc": 0.75', '"sim_acc": ' + "[" * 100_000),
            ('"samples": 64', '"samples": -1'),
            ('"samples": 64', '"samples": ' + "9" * 5000),
            ('"seed": 3', '"seed": 1e400'),
            ('"version": 3', '"version": 4'),
            ('"version": 3', '"version": 0'),
            ('"version": 3', '"version": "1"'),
            ('"state": "complete"', '"state": "__class__"'),
            ('"trial": 0', '"trial": 0.5'),
            ('"candidate": [', '"candidate": [1000000000000, '),
            ('"greedy"', '"\\ud800"'),
        ],
    )
    def test_odd_values(self, path: Path, line: Any, old: str, new: str) -> None:
        text = json.dumps(line)
        assert old in text
        path.write_text(text.replace(old, new, 1) + "\n" + json.dumps(line) + "\n")
        for read in (lambda: list(read_log(path)), lambda: resumed(path)):
            with pytest.raises(IntactError, match="line 1") as caught:
                read()
            assert str(caught.value).isprintable()

    def test_names_with_control_characters(self, path: Path, line: Any) -> None:
        line["search"]["settings"]["target"] = "\x1b[31m\n\u202e" * 1000
        path.write_text(json.dumps(line) + "\n")
        with pytest.raises(SearchError, match="the target is") as caught:
            Log.resume(path, settings())
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000

    def test_a_line_without_an_end(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "LONGEST_LINE", 10_000)
        monkeypatch.setattr(log_module, "LONGEST_LINE", 10_000)
        whole = written(path, trial(0))
        path.write_bytes(whole + b'{"version":' + b"1" * 10_000)
        for read in (lambda: list(read_log(path)), lambda: resumed(path)):
            with pytest.raises(DataError, match="line 2 is longer"):
                read()
        with (
            Log.create(path.with_name("other"), settings()) as log,
            pytest.raises(OutputError, match="the limit is 0"),
        ):
            log.append(trial(0, state=State.FAILED, reason="x" * 10_000), STRATEGY)
        assert path.with_name("other").read_bytes() == b""

    def test_no_file(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "none"):
            with pytest.raises(DataError, match="cannot be read"):
                list(read_log(path))


def entries(*trials: Trial, confirmed: tuple[Trial, ...] = (), **changes: Any) -> Iterator[Entry]:
    options = settings(**changes)
    for each in trials:
        yield Entry.of(each, STRATEGY, options)
    for each in confirmed:
        yield Entry.of(each, STRATEGY, options, confirms=True)


class TestChoose:
    def test_best_with_a_lowest_score(self) -> None:
        trials = (
            trial(0, 0.9, 100),
            trial(1, 0.4, 10),  # below the limit
            trial(2, 0.6, 50),
            trial(3, 0.6, 50),  # the same, later
            trial(4, 0.7, 20, samples=32),  # not on all samples
            trial(5, 0.7, 20, state=State.STOPPED),
            trial(6, math.nan, 1, state=State.FAILED),
        )
        assert choose(entries(*trials), "best").search.trial == 2
        assert choose(entries(*trials, goal=Goal()), "best").search.trial == 0
        assert choose(entries(*trials, goal=Goal(None, 60)), "best").search.trial == 2

    def test_confirmed_ones_come_first(self) -> None:
        trials = (trial(0, 0.9, 100), trial(1, 0.9, 50), trial(2, 0.9, 70))
        ran = (trial(1, 0.3, 50), trial(2, 0.8, 70))
        best = choose(entries(*trials, confirmed=ran), "best")
        assert best.trial == ran[1]
        assert best.is_confirmation
        assert choose(entries(*trials, confirmed=ran), 1).trial == ran[0]
        assert choose(entries(*trials, confirmed=ran), "0").trial == trials[0]

    def test_the_last_confirmation_is_what_the_search_ended_with(self) -> None:
        trials = (trial(0, 0.9, 100), trial(1, 0.9, 50), trial(2, 0.9, 40))
        ran = (trial(1, 0.8, 50), trial(0, 0.8, 100), trial(2, 0.3, 40))  # the last is too low
        assert choose(entries(*trials, confirmed=ran), "best").trial == ran[1]

    def test_none(self) -> None:
        with pytest.raises(SearchError, match=r"none of the 1 line.*highest score: 0.4"):
            choose(entries(trial(0, 0.4)), "best")
        with pytest.raises(SearchError, match="none of the 0 line"):
            choose(iter(()), "best")
        with pytest.raises(UsageError, match="number up to 0"):
            choose(entries(trial(0)), 1)
        for odd in ("first", "-1", "", "1.0", "²", "9" * 30, -1):
            with pytest.raises(UsageError, match="trial"):
                choose(entries(trial(0)), odd)

    def test_a_trial_without_a_plan(self) -> None:
        failed = trial(0, math.nan, state=State.FAILED, reason="out of memory")
        line = Entry.of(failed, None, settings())
        with pytest.raises(UsageError, match="no strategy: out of memory"):
            choose(iter([line]), 0)


class TestDocument:
    def test_its_line_is_one(self) -> None:
        text = DOCUMENT.read_text(encoding="utf-8")
        shown = json.loads(text.split("```json\n")[1].split("```")[0])
        VALIDATOR.validate(shown)
        msgspec.convert(shown, Entry)

    def test_its_program_reads_scales(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        failed = trial(1, math.nan, state=State.FAILED, noise=math.nan)
        with Log.create("out.search.jsonl", settings()) as log:
            log.append(trial(0), STRATEGY)
            log.append(failed, None)
        program = DOCUMENT.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
        names: dict[str, Any] = {}
        exec(compile(program, "search-log.md", "exec"), names)
        assert {place for _, place in names["scales"]} == set(STRATEGY.scales)
        for (number, place), scales in names["scales"].items():
            config = PLAN.configs[TensorEnd.parse(place)]
            assert config.scale is not None
            assert number == 0
            assert scales == [float(scale) for scale in config.scale.flat]
