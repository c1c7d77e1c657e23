"""Worker processes: how they die, how they end, and what is left of them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from intact.search.pool import TrialPool
from intact.search.trial import Ask, State, TrialResult
from intact.workers.processes import ProcessLauncher
from tests.search.evaluators import ABORT, EXIT, KILL, WHO, FakeTrialData

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

REPOSITORY = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
sys.path[:0] = {path!r}
from intact.search.trial import Ask
from intact.search.pool import TrialPool
from intact.workers.processes import ProcessLauncher
from tests.search.evaluators import HANG, FakeTrialData

with TrialPool(ProcessLauncher(1), FakeTrialData(notes={notes!r}), 2) as pool:
    print(next(pool.evaluate([Ask((2,)), Ask((3,))])).score, flush=True)
    list(pool.evaluate([Ask((HANG,)), Ask((HANG,))]))
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[TrialPool]:
    with TrialPool(ProcessLauncher(1), FakeTrialData(), 2) as made:
        yield made


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that holds no others."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def numbers(notes: Path) -> list[int]:
    return sorted(int(path.name) for path in notes.iterdir())


def is_gone(number: int) -> bool:
    try:
        stat = Path(f"/proc/{number}/stat").read_text("utf-8")
    except FileNotFoundError:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"  # dead; whoever adopted it has to notice


def wait_until(condition: object, seconds: float = 10.0) -> bool:
    assert callable(condition)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def pids(results: Iterator[TrialResult]) -> set[int]:
    return {int(each.score) for each in results}


def test_a_worker_that_dies_loses_its_trial_only(pool: TrialPool) -> None:
    choices = [1, KILL, 2, ABORT, EXIT, 3]
    results = list(pool.evaluate([Ask((choice,)) for choice in choices]))
    lost = [each for each in results if each.state is State.FAILED]
    assert [each.state is State.FAILED for each in results] == [c > 3 for c in choices]
    assert [each.reason for each in lost] == [
        "the worker died (signal 9, SIGKILL: the system may be out of memory)",
        "the worker died (signal 6, SIGABRT): terminate called: bad_alloc",
        "the worker died (exit code 7)",
    ]
    for each in lost:
        assert math.isnan(each.score)
        assert math.isnan(each.noise)
        assert each.samples == 0
        assert 0 <= each.seconds < 10
    assert [results[index].score for index in (0, 2, 5)] == [
        pytest.approx(1 / 7),
        pytest.approx(3 / 7),
        pytest.approx(6 / 7),
    ]


def test_a_worker_that_died_between_trials_loses_none(pool: TrialPool) -> None:
    before = pids(pool.evaluate([Ask((WHO,))] * 4))
    members = list(pool._pool._members)
    for member in members:
        member.worker.kill()
    assert wait_until(lambda: not any(member.worker.is_alive for member in members))
    (after,) = pool.evaluate([Ask((WHO,))])
    assert after.state is State.COMPLETE
    assert int(after.score) not in before
    assert not {*pool._pool._members} & {*members}  # what was found dead is let go


def test_nothing_starts_before_it_is_needed(scratch: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with TrialPool(ProcessLauncher(3), FakeTrialData(notes=str(notes)), 5) as pool:
        results = pool.evaluate([Ask((WHO,))])
        assert list(pool.evaluate([])) == []
        assert list(scratch.glob("intact-*")) == []
        assert numbers(notes) == []
        first = next(results)
        assert numbers(notes) == [first.score]  # one, not five
        assert first.noise == 3  # threads
        assert list(pids(pool.evaluate([Ask((WHO,))]))) == numbers(notes)
        assert [path.name[:15] for path in scratch.glob("intact-*")] == ["intact-workers-"]
    assert wait_until(lambda: all(map(is_gone, numbers(notes))))
    assert list(scratch.glob("intact-*")) == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_nothing_is_left_of_a_script_that_is_stopped(
    scratch: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The script searches at its top level, without a guard."""
    notes, path = tmp_path / "notes", tmp_path / "script.py"
    notes.mkdir()
    places = [str(REPOSITORY), str(REPOSITORY / "src")]
    path.write_text(SCRIPT.format(path=places, notes=str(notes)), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{1 / 7 + 2 / 7}\n"  # a trial is done; others hang
    assert wait_until(lambda: len(numbers(notes)) == 2)
    time.sleep(0.2)
    os.killpg(process.pid, number)  # as the terminal does
    began = time.monotonic()
    _, said = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert process.returncode == -number
    assert wait_until(lambda: all(map(is_gone, numbers(notes))))
    assert [path for folder in scratch.iterdir() for path in folder.rglob("data")] == []
    if number == signal.SIGINT:
        assert list(scratch.glob("intact-*")) == []
        assert said.count("Traceback") == 1  # the script's own, which catches nothing
        assert said.rstrip().endswith("KeyboardInterrupt")
