"""`intact search` as people use it: its commands, Ctrl-C, kill, resume and replay."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from intact.cli import show_search
from intact.recipe.kinds import Budget
from intact.search.loop import SearchProgress
from intact.search.trial import Goal, State, Trial, TrialResult

SLOW = """
import time
import numpy as np

calls = 0

def score(outputs, references):
    global calls
    calls += 1
    time.sleep(0.05 if calls < 4 else SECONDS)
    right = np.concatenate([next(iter(outputs.values())).argmax(1) == references["labels"]])
    return float(np.mean(right) * 100)
"""
QUICK = ("--samples", "48", "--threads", "1", "--sampler", "random", "--seed", "3")


def search(*options: str, output: str = "out") -> tuple[str, ...]:
    return ("search", "model.onnx", "-d", "test.npz", "-o", output, *QUICK, *options)


def process(here: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "intact", *arguments]
    return subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_lines(log: Path, count: int) -> None:
    for _ in range(1200):
        if log.exists() and log.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    pytest.fail("the search wrote nothing")


def timeless(log: Path) -> list[bytes]:
    return [
        re.sub(rb'"seconds":[^,}]+', b'"seconds":0', line) for line in log.read_bytes().splitlines()
    ]


def test_a_replayed_strategy_gives_the_same_plan(here: Path, say: Any) -> None:
    replay = ("search", "model.onnx", "--replay", "out.search.jsonl", "--trial", "best")
    for words in (search("--budget", "5"), (*replay, "--output", "again")):
        assert "next: intact evaluate" in say(*words)
    plans = [json.loads((here / name / "plan.json").read_text()) for name in ("out", "again")]
    assert (
        plans[0]["configs" if "configs" in plans[0] else "tensors"]
        == (plans[1]["configs" if "configs" in plans[1] else "tensors"])
    )


def test_json_has_all_that_was_found(here: Path, say: Any) -> None:
    printed = say(*search("--budget", "5", "--json", "--max-drop", "5", "--minimize", "bytes"))
    found = json.loads(printed, parse_constant=pytest.fail)
    assert found["folder"] == "out"
    assert found["log"] == "out.search.jsonl"
    assert found["stopped"] is False
    assert (found["objective"], found["cost"], found["trials"]) == ("accuracy", "bytes", 5)
    assert found["best"]["score"] >= found["float_score"] - 5
    assert found["widest"]["trial"] == 0
    costs = [each["cost"] for each in found["front"]]
    assert costs == sorted(costs)


def test_scores_are_shown_as_the_metric_has_them(here: Path, say: Any) -> None:
    (here / "count.py").write_text(
        "import numpy as np\n"
        "def wrong(outputs, references):\n"
        "    print('counting')\n"
        "    found = next(iter(outputs.values())).argmax(1) != references['labels']\n"
        "    return {'all': found.size, 'wrong': float(found.sum()) + 5}\n"
    )
    options = ("--objective", "count:wrong", "--figure", "wrong", "--lower-is-better")
    printed = say(*search("--budget", "3", "--max-drop", "20", *options, "--json"))
    found = json.loads(printed)  # and nothing of what the function prints
    assert found["objective"] == "wrong"
    assert 5 <= found["float_score"] <= found["best"]["score"] <= found["float_score"] + 20
    table = say(*search("--budget", "3", "--max-drop", "20", *options, output="two"))
    assert re.search(rf"float model +{found['float_score']:.4f}\s", table)


def test_a_trial_is_realized_by_its_number(here: Path, say: Any, fails: Any) -> None:
    say(*search("--budget", "3"))
    for which in ("best", "0", "2"):
        replay = ("search", "model.onnx", "--replay", "out.search.jsonl", "--trial", which)
        say(*replay, "-o", f"again{which}")
        told = json.loads((here / f"again{which}" / "plan.json").read_text())["provenance"]
        assert told["search"].endswith("of out.search.jsonl")
        assert which in ("best", told["search"].split()[1])
    zero, two = ((here / f"again{n}" / "model.int8.onnx").read_bytes() for n in (0, 2))
    assert zero != two
    for odd, message in (("9", "no such trial"), ("first", "--trial 'first'")):
        line = fails(*replay[:-1], odd, "-o", "none")
        assert message in line
    assert not (here / "none").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--budget", "0"), 2, "a budget of zero allows no trial"),
        (("--budget", "soon"), 2, "--budget 'soon'"),
        (("--widths", "4,x"), 2, "--widths is '4,x'"),
        (("--minimize", "byte"), 2, "no cost 'byte'; did you mean 'bytes'?"),
        (("--trial", "3"), 2, "--trial without --replay"),
        (("--replay", "x", "--resume"), 2, "--replay and --resume"),
        (("--replay", "none.jsonl"), 2, "none.jsonl: cannot be read"),
        (("--replay", "model.onnx"), 2, "model.onnx: line 1"),
        (("--resume",), 2, "there is no log to resume"),
        (("--target", "tvm", "--minimize", "bytes"), 2, "no choice changes the bytes of tvm"),
        (("--budget", "1", "--min-score", "101"), 2, "--min-score 101 cannot be reached"),
        (
            ("--budget", "1", "--min-score", "100"),
            1,
            "no strategy so far reaches a score of 100, after 1 trial in ",
        ),
        (("--budget", "1", "--max-cost", "1"), 2, "no candidate costs less than"),
        (("--objective", "json:nothing"), 2, "nothing"),
    ],
)
def test_mistakes_are_one_line(
    here: Path,
    capfd: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    from intact.cli import run

    assert run(search(*options)) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (here / "out").exists()


class TestStopping:
    def slow(self, here: Path, seconds: float) -> tuple[str, ...]:
        (here / "slow.py").write_text(SLOW.replace("SECONDS", str(seconds)))
        return search("--budget", "9", "--objective", "slow:score", "--max-drop", "50")

    def test_ctrl_c_keeps_the_best(self, here: Path) -> None:
        running = process(here, *self.slow(here, 0.5), "--json")
        wait_for_lines(here / "out.search.jsonl", 4)
        running.send_signal(signal.SIGINT)
        printed, complaints = running.communicate(timeout=60)
        assert (running.returncode, complaints) == (0, "")
        found = json.loads(printed)
        assert found["stopped"] is True
        assert 3 <= found["trials"] < 9  # the one being written when it came does not count
        assert (here / "out" / "plan.json").is_file()
        last = json.loads((here / "out.search.jsonl").read_text().splitlines()[-1])
        assert last["search"]["confirms"] is True
        assert last["search"]["trial"] == found["best"]["trial"]

    def test_ctrl_c_before_anything_is_found_says_where_the_trials_are(self, here: Path) -> None:
        command = [*self.slow(here, 0.5), "--min-score", "101"]
        where = command.index("--max-drop")
        del command[where : where + 2]
        running = process(here, *command)
        wait_for_lines(here / "out.search.jsonl", 4)
        running.send_signal(signal.SIGINT)
        printed, complaints = running.communicate(timeout=60)
        assert (running.returncode, printed) == (130, "")
        assert complaints.count("intact: ") == 1  # behind the lines of phases
        assert re.search(r"\d trial\(s\) are in out\.search\.jsonl: --resume", complaints)
        assert not (here / "out").exists()

    def test_a_killed_search_goes_on_to_the_same_end(self, here: Path, say: Any) -> None:
        command = self.slow(here, 0.3)
        running = process(here, *command)
        wait_for_lines(here / "out.search.jsonl", 4)
        running.kill()
        running.communicate()
        known = timeless(here / "out.search.jsonl")
        assert len(known) < 9
        (here / "slow.py").write_text(SLOW.replace("SECONDS", "0"))
        say(*command, "--resume")
        whole = tuple("whole" if word == "out" else word for word in command)
        say(*whole)
        assert timeless(here / "out.search.jsonl") == timeless(here / "whole.search.jsonl")
        assert timeless(here / "out.search.jsonl")[: len(known)] == known
        for path in (here / "whole").iterdir():
            assert (here / "out" / path.name).read_bytes() == path.read_bytes()
        before = (here / "out.search.jsonl").read_bytes()
        say(*command, "--resume")  # there is nothing left to do, nor to write
        assert (here / "out.search.jsonl").read_bytes() == before


def test_the_screen_shows_samples_then_trials_and_the_time() -> None:
    text = io.StringIO()
    console = Console(file=text, width=90, force_terminal=False)
    screen = show_search.Screen()
    screen.observed(3, 9)
    console.print(screen)
    assert "observing" in text.getvalue()
    assert "3/9" in text.getvalue()
    screen.observed(9, 9)
    console.print(screen)
    assert "preparing the trials, 0 s" in text.getvalue()
    standing = SearchProgress(Goal(), 10, Budget(40), shown=lambda score: -score)
    for number in range(30):
        measured = TrialResult(State.COMPLETE, -float(number), 0.0, 10)
        standing.trials.append(Trial(number, (8,), 100.0 - number, measured))
    standing.seconds = 60.0
    text.truncate(text.seek(0))
    screen.tried(standing)
    console.print(screen)
    shown = text.getvalue()
    assert "30 of 40 trials, 30.0 full evaluations, 60 s, at most 20 s left; Ctrl-C" in shown
    assert re.search(r"best +0 +0 +100\b", shown)
    assert shown.count("\n") < 16  # 30 trials are on the front
    assert " -29" not in shown
    standing.budget = Budget(30)
    console.print(screen)
    assert "30 of 30 trials, 30.0 full evaluations, 60 s; confirming" in text.getvalue()


def test_one_display_at_a_time_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        show_search, "Console", lambda **_: Console(stderr=True, force_terminal=True, width=80)
    )
    from intact.cli import run

    assert run(search("--budget", "2")) == 0
    err = capfd.readouterr().err
    assert "loading packages" in err
    trials = err.rindex(" of 2 trials")
    assert "loading packages" not in err[trials:]
