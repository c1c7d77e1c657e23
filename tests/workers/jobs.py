"""A job that does what a message says, for workers of this process and of others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from intact.errors import DataError
from intact.workers.job import Opened

ONCE, ALWAYS, REFUSE, WHO = b"once", b"always", b"refuse", b"who"


class FakeJob:
    """A number and a folder for notes, with a file in a folder below.

    Args:
        notes: Where a worker that dies once writes that it did.
        opening: What happens when it is loaded.
    """

    def __init__(self, notes: Path, opening: str = "") -> None:
        self._notes, self._opening = notes, opening

    def save(self, folder: Path) -> None:
        """Write it."""
        (folder / "deep").mkdir()
        (folder / "deep" / "notes").write_text(str(self._notes), encoding="utf-8")
        (folder / "opening").write_text(self._opening, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> FakeJob:
        """Read it."""
        notes = (folder / "deep" / "notes").read_text(encoding="utf-8")
        return cls(Path(notes), (folder / "opening").read_text(encoding="utf-8"))

    def open(self, threads: int) -> Opened:
        """Do what the opening says."""
        if self._opening == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._opening == "wait":
            time.sleep(600)
        if self._opening == "one late":
            try:
                (self._notes / "first").touch(exist_ok=False)
            except FileExistsError:
                time.sleep(1)
        return Opened(self._answer, f"{threads} threads".encode())

    def _answer(self, message: bytes) -> bytes:
        died = self._notes / "died"
        if message == ALWAYS or (message == ONCE and not died.exists()):
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if message == WHO:  # both are asked at the same time, or one waits in vain
            (self._notes / f"{os.getpid()}.asked").touch()
            end = time.monotonic() + 60
            while time.monotonic() < end and len(list(self._notes.glob("*.asked"))) < 2:
                time.sleep(0.05)
            return str(os.getpid()).encode()
        if message == REFUSE:
            raise DataError("x: wrong", remedy="give another --data")
        return message.upper()
