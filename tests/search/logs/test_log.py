"""The log: what is written is read again, and what is no log of this search is refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from intact.errors import DataError, OutputError, SearchError, UsageError
from intact.graph import normalize
from intact.plan import Overrides
from intact.search.logs.log import Log, LogSettings, read_log
from intact.search.logs.settings import DIFFERENCES, groups_hash
from intact.search.space import Space
from intact.search.trial import Goal, State
from intact.targets import load_target
from tests.models import depthwise_net, residual_net
from tests.search.logs.lines import (
    PLAN,
    SCHEMA,
    SPACE,
    STRATEGY,
    VALIDATOR,
    resumed,
    settings,
    trial,
    written,
)

IMPORTS = """
from pathlib import Path
from intact.errors import OutputError
from intact.search.logs.log import Log
from tests.search.logs.lines import STRATEGY, settings, trial
"""
"""Of the programs that other processes run."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "search.jsonl"


class TestWriting:
    @pytest.mark.parametrize("there", [True, False])
    @pytest.mark.parametrize("resume", [True, False])
    def test_a_link_is_not_followed(self, path: Path, there: bool, resume: bool) -> None:
        victim = path.parent.parent / "victim"
        if there:
            victim.write_bytes(b'{"version":')  # as if a kill had cut the first line
        path.parent.mkdir()
        path.symlink_to(victim)
        with pytest.raises(OutputError, match=r"is a link; name the file itself"):
            Log.refuse_early(path, resume=resume)
        with pytest.raises((OutputError, UsageError)):
            (Log.resume if resume else Log.create)(path, settings())
        assert victim.exists() is there
        assert not there or victim.read_bytes() == b'{"version":'

    def test_lines_hold_the_schema(self, path: Path) -> None:
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
        failed = trial(1, math.nan, state=State.FAILED, noise=math.nan, reason="a\nb\x1b\u2028")
        with Log.create(path, settings(options={"b": "1", "a": "2"})) as log:
            log.append(trial(0), STRATEGY)
            log.append(failed, None)
            log.append(trial(2, math.inf, noise=0.0), STRATEGY)
            log.confirm(trial(0, 0.5), STRATEGY)
        lines = path.read_bytes().split(b"\n")
        assert lines.pop() == b""
        documents = [json.loads(line, parse_constant=pytest.fail) for line in lines]
        for document in documents:
            VALIDATOR.validate(document)
        assert documents[1]["strategy"] is None
        assert documents[1]["results"]["sim_acc"] is None
        assert documents[3]["search"]["confirms"] is True
        assert all("confirms" not in each["search"] for each in documents[:3])
        assert list(documents[0]) == ["version", "strategy", "results", "search"]

    def test_the_schema_refuses(self, path: Path) -> None:
        """It would be worth nothing if it took everything."""
        document = json.loads(written(path, trial(0)))
        VALIDATOR.validate(document)
        for place, odd in (
            (("version",), 4),
            (("strategy", "bits", "odd"), 8),
            (("strategy", "topology", "node_conds", "a"), 1),
            (("strategy", "thresholds", "a.input[0]"), -1),
            (("strategy", "scales", "a.input[0]"), 0),
            (("results", "state"), "done"),
            (("search", "candidate"), [1]),
            (("search", "settings", "more"), 1),
        ):
            changed = json.loads(json.dumps(document))
            holder = changed
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = odd
            assert not VALIDATOR.is_valid(changed), place

    def test_every_number_comes_back(self, path: Path) -> None:
        odd = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1]
        trials = [
            trial(number, score, cost=cost, noise=noise, samples=number, seconds=noise)
            for number, (score, cost, noise) in enumerate(
                zip(odd, odd[1:] + odd[:1], odd[2:] + odd[:2], strict=True)
            )
        ]
        written(path, *trials)
        assert repr(resumed(path)) == repr(trials)
        assert repr([entry.trial for entry in read_log(path)]) == repr(trials)

    def test_strategy_comes_back(self, path: Path) -> None:
        written(path, trial(0))
        (entry,) = read_log(path)
        assert entry.strategy == STRATEGY
        assert entry.settings == settings()
        assert entry.settings.goal == Goal(min_score=0.5)

    def test_each_trial_is_durable(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
        with Log.create(path, settings()) as log:
            synced.clear()
            for number in range(3):
                log.append(trial(number), STRATEGY)
                assert synced[-1] == path.stat().st_size  # nothing is left in a buffer
                assert len(synced) == number + 1
                assert len(list(read_log(path))) == number + 1

    def test_same_trials_same_bytes(self, tmp_path: Path) -> None:
        first = written(tmp_path / "a", trial(0), trial(1))
        assert written(tmp_path / "b", trial(0), trial(1)) == first

    def test_there_is_one_already(self, path: Path) -> None:
        written(path, trial(0))
        before = path.read_bytes()
        with pytest.raises(UsageError, match=r"log already; give resume or log FILE"):
            Log.create(path, settings())
        assert path.read_bytes() == before

    def test_another_process_writes_it(self, path: Path) -> None:
        code = (
            f"import sys\n{IMPORTS}"
            "try: Log.resume(Path(sys.argv[1]), settings())\n"
            "except OutputError as error: print(error)"
        )
        with Log.create(path, settings()) as log:
            log.append(trial(0), STRATEGY)
            command = [sys.executable, "-c", code, str(path)]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "another search is writing this log" in told

    def test_a_seed_of_more_bits(self) -> None:
        assert settings(seed=-(2**63)).seed == -(2**63)
        with pytest.raises(UsageError, match="seed"):
            settings(seed=2**63)

    def test_limits_that_are_none(self) -> None:
        made = settings(goal=Goal(-math.inf, math.inf))
        assert (made.min_score, made.max_cost) == (None, None)


class TestDisk:
    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="cannot write the log"):
            Log.create(tmp_path, settings())

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
    def test_full(self) -> None:
        with (
            Log.create("/dev/full", settings()) as log,
            pytest.raises(OutputError, match="No space left"),
        ):
            log.append(trial(0), STRATEGY)

    def test_full_in_the_middle_of_a_line(self, path: Path) -> None:
        """What a limit on the file's size lets through is taken back; the rest can be resumed."""
        code = (
            f"import resource, signal, sys\n{IMPORTS}"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "log = Log.create(Path(sys.argv[1]), settings())\n"
            "log.append(trial(0), STRATEGY)\n"
            "size = Path(sys.argv[1]).stat().st_size\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))\n"
            "try: log.append(trial(1), STRATEGY)\n"
            "except OutputError as error: print(error)\n"
            "print(Path(sys.argv[1]).stat().st_size == size)"
        )
        command = [sys.executable, "-c", code, str(path)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "cannot write the log" in told
        assert told.endswith("True\n")
        assert resumed(path) == [trial(0)]


class TestResume:
    def test_goes_on(self, path: Path) -> None:
        whole = written(path, trial(0), trial(1), trial(2))
        other = path.with_name("other")
        written(other, trial(0), trial(1))
        with Log.resume(other, settings()) as log:
            assert log.trials == [trial(0), trial(1)]
            log.append(trial(2), STRATEGY)
        assert other.read_bytes() == whole

    def test_cut_off_at_every_byte(self, path: Path) -> None:
        whole = written(path, trial(0), trial(1))
        first = whole.index(b"\n") + 1
        for end in (*range(40), *range(40, len(whole), 97), first - 1, first, first + 1):
            path.write_bytes(whole[:end])
            kept = len(list(read_log(path)))
            assert resumed(path) == [trial(0), trial(1)][:kept]
            assert path.read_bytes() == (whole[:first] if end >= first else b"")

    @pytest.mark.parametrize("tail", [b"\0\0\0\n", b'{"version":1,\n', b"\xff\n", b"\0" * 5000])
    def test_a_torn_line_of_another_kind(self, path: Path, tail: bytes) -> None:
        whole = written(path, trial(0))
        path.write_bytes(whole + tail)
        assert resumed(path) == [trial(0)]
        assert path.read_bytes() == whole

    def test_confirmations_are_no_trials(self, path: Path) -> None:
        with Log.create(path, settings()) as log:
            log.append(trial(0), STRATEGY)
            log.append(trial(1), STRATEGY)
            log.confirm(trial(1, 0.7), STRATEGY)
        with Log.resume(path, settings()) as log:
            assert log.trials == [trial(0), trial(1)]
            assert log.confirmed == {1: trial(1, 0.7)}
            log.append(trial(2), STRATEGY)
        assert len(resumed(path)) == 3

    def test_nothing_yet(self, path: Path) -> None:
        with pytest.raises(UsageError, match="no log to resume"):
            Log.resume(path, settings())
        written(path)
        assert resumed(path) == []

    @pytest.mark.parametrize(
        "text", [b"hello\n", b"hello", b"{}", b"{}\n", b"[1]\n", b'{"a": 1}', b'{"version":1}\n']
    )
    def test_files_of_others_are_left_alone(self, tmp_path: Path, text: bytes) -> None:
        path = tmp_path / "notes"
        path.write_bytes(text)
        with pytest.raises(DataError, match="line 1"):
            Log.resume(path, settings())
        with pytest.raises(DataError, match="line 1"):
            list(read_log(path))
        assert path.read_bytes() == text

    def test_damage_elsewhere(self, path: Path) -> None:
        lines = written(path, trial(0), trial(1), trial(2)).splitlines(keepends=True)
        for number, damaged in enumerate(
            ([b"{\n", *lines[1:]], [lines[0], lines[1][:90] + b"\n", lines[2]]), 1
        ):
            path.write_bytes(b"".join(damaged))
            with pytest.raises(DataError, match=f"line {number} is damaged"):
                Log.resume(path, settings())
            assert path.read_bytes() == b"".join(damaged)

    def test_lines_that_are_missing_or_twice(self, path: Path) -> None:
        lines = written(path, trial(0), trial(1), trial(2)).splitlines(keepends=True)
        for order in ([0, 2], [0, 0], [1]):
            path.write_bytes(b"".join(lines[number] for number in order))
            with pytest.raises(DataError, match="is expected"):
                Log.resume(path, settings())

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"sampler": "random"}, "the sampler is greedy there, random here"),
            ({"seed": 4}, "the seed is 3 there, 4 here"),
            ({"objective": "kl"}, "the objective is top1 there, kl here"),
            ({"minimize": "bitops"}, "the cost is bytes there, bitops here"),
            ({"goal": Goal(0.25)}, "the lowest score is 0.5 there, 0.25 here"),
            ({"goal": Goal(0.5, 9.0)}, "the highest cost is none there, 9.0 here"),
            ({"samples": 65}, "the number of samples is 64 there, 65 here"),
            ({"samples_hash": "6" * 64}, "the samples' content is 555555555555 there"),
            ({"method": "kl"}, "the calibration method is mse there, kl here"),
            ({"options": {"a": "1"}}, "an option is none there, a 1 here"),
        ],
    )
    def test_another_search(self, path: Path, changes: dict[str, Any], told: str) -> None:
        whole = written(path, trial(0)) + b"torn"
        path.write_bytes(whole)
        with pytest.raises(SearchError) as caught:
            Log.resume(path, settings(**changes))
        assert told in str(caught.value)
        assert "or another log file" in str(caught.value)
        assert path.read_bytes() == whole  # nothing is cut off from the log of another search

    @pytest.mark.parametrize(
        ("field", "told"),
        [
            ("intact", "intact's version"),
            ("model", "the model is"),
            ("target", "the target is"),
            ("target_hash", "the target's description"),
            ("groups", "the search space"),
        ],
    )
    def test_another_world(self, path: Path, field: str, told: str) -> None:
        written(path, trial(0))
        with pytest.raises(SearchError, match=told):
            Log.resume(path, msgspec.structs.replace(settings(), **{field: "0"}))

    def test_a_second_search_in_one_file(self, path: Path) -> None:
        first = written(path, trial(0))
        other = written(path.with_name("other"), trial(1), options=settings(seed=9))
        path.write_bytes(first + other)
        with pytest.raises(SearchError, match="line 2: the log belongs to another search"):
            Log.resume(path, settings())

    def test_every_setting_is_compared(self) -> None:
        assert set(DIFFERENCES) == set(LogSettings.__struct_fields__)


class TestSpaces:
    def test_what_the_choice_space_depends_on(self) -> None:
        graph, target = PLAN.graph, PLAN.target
        narrow = Space.of(graph, target, widths=[4, 8])
        asked = Space.of(graph, target, Overrides(keep_float=("Gemm",)))
        restricted = SPACE.restricted({0: (8,)})
        known = {groups_hash(space) for space in (SPACE, narrow, asked, restricted)}
        assert len(known) == 4
        assert groups_hash(Space.of(normalize(residual_net()), target)) == groups_hash(SPACE)

    def test_targets_of_one_name(self) -> None:
        other = Space.of(PLAN.graph, load_target("tensorrt"))
        made = LogSettings.of(
            other,
            sampler="",
            seed=0,
            objective="",
            minimize="",
            goal=Goal(),
            samples=1,
            samples_hash="",
            method="",
        )
        assert made.target_hash != settings().target_hash
        assert made.model == settings().model
        made.refuse_other(PLAN.graph, load_target("tensorrt"), "log")
        with pytest.raises(SearchError, match=r"log: .*the target is tensorrt there, onnxruntime"):
            made.refuse_other(PLAN.graph, PLAN.target, "log")
        same_name = msgspec.structs.replace(load_target("tensorrt"), formats=())
        with pytest.raises(SearchError, match="the target's description is"):
            made.refuse_other(PLAN.graph, same_name, "log")
        with pytest.raises(SearchError, match=r"the model is .*; give the model and the target"):
            made.refuse_other(normalize(depthwise_net()), PLAN.target, "log")
