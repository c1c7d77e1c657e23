"""An evaluator that does what a candidate says, and the job that workers in tests open."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from intact.errors import CalibrationError, ModelError
from intact.search.pool import answers
from intact.search.space import Candidate
from intact.search.trial import Ask, State, TrialResult
from intact.workers.job import Opened

KILL, REFUSE, BUG, MEMORY, SLOW, EXIT, ABORT, WHO, HANG = range(100, 109)
"""First choices of candidates that do something else than compute."""

NUMBERS = np.arange(1000, dtype=np.float64) / 7


@dataclass(frozen=True)
class FakeTrialData:
    """What a fake evaluator needs, as a job.

    Attributes:
        factor: Of every score.
        opening: What happens when it is loaded.
        notes: A folder into which each process writes a file with its number as name.
    """

    factor: float = 1.0
    opening: str = ""
    notes: str = ""

    def save(self, folder: Path) -> None:
        """Write it, with an array in a folder below."""
        (folder / "fake.json").write_text(json.dumps(asdict(self)), encoding="utf-8")
        (folder / "deep").mkdir()
        np.save(folder / "deep" / "numbers.npy", NUMBERS)

    @classmethod
    def load(cls, folder: Path) -> FakeTrialData:
        """Read it, and what lies below."""
        found = cls(**json.loads((folder / "fake.json").read_text("utf-8")))
        numbers = np.load(folder / "deep" / "numbers.npy", mmap_mode="r")
        assert np.array_equal(numbers, NUMBERS)
        return found

    def open(self, threads: int) -> Opened:
        """Do what it asks for."""
        if self.notes:
            (Path(self.notes) / str(os.getpid())).touch()
        if self.opening == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.opening == "refuse":
            raise ModelError("the trial_data's model is damaged", remedy="save it anew")
        if self.opening == "bug":
            raise KeyError("a bug of ours")
        return Opened(answers(FakeEvaluator(self, NUMBERS, threads)))


class FakeEvaluator:
    """Scores that follow from the candidate and depend on every bit of the saved numbers."""

    def __init__(self, trial_data: FakeTrialData, numbers: np.ndarray, threads: int) -> None:
        self._data, self._numbers, self.threads = trial_data, numbers, threads

    def measure(self, ask: Ask) -> TrialResult:
        first = ask.candidate[0]
        if first == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if first == ABORT:
            os.write(2, b"first line\nterminate called: bad_alloc\n\n")
            os.abort()
        if first == EXIT:
            os._exit(7)
        if first == REFUSE:
            raise CalibrationError("no scale for 'conv1'", remedy="use more samples")
        if first == BUG:
            raise ZeroDivisionError("a bug of ours")
        if first == MEMORY:
            raise MemoryError
        if first == HANG:
            time.sleep(600)
        if first == SLOW:
            os.write(1, b"noise on the standard output")
            time.sleep(0.2)
        if first == WHO:
            time.sleep(0.05)
            return TrialResult(State.COMPLETE, float(os.getpid()), float(self.threads), 1)
        score = self._numbers[: 1 + sum(ask.candidate)].sum() * self._data.factor
        state = State.STOPPED if ask.bar is not None and score < ask.bar else State.COMPLETE
        samples = np.int64(1000 if ask.samples is None else ask.samples)
        return TrialResult(state, np.float64(score), np.float32(0.1), samples)  # type: ignore[arg-type]

    def confirm(self, candidate: Candidate) -> TrialResult:
        measured = self.measure(Ask(candidate))
        return TrialResult(measured.state, -measured.score, 0.0, 1000, reason="confirmed")
