"""A job that does what a shard says; the opener that workers in tests use."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from intact.errors import DataError

OPENER = f"{__name__}:open_fake"

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


def open_fake(folder: Path, threads: int) -> Callable[[bytes], bytes]:
    """Load it."""
    opening = (folder / "opening").read_text(encoding="utf-8")
    if opening == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if opening == "wait":
        time.sleep(600)
    notes = Path((folder / "deep" / "notes").read_text(encoding="utf-8"))
    if opening == "one late":
        try:
            (notes / "first").touch(exist_ok=False)
        except FileExistsError:
            time.sleep(1)

    def answer(message: bytes) -> bytes:
        if not message:
            return f"{threads} threads".encode()
        died = notes / "died"
        if message == ALWAYS or (message == ONCE and not died.exists()):
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if message == WHO:  # both are asked at the same time, or one waits in vain
            (notes / f"{os.getpid()}.asked").touch()
            end = time.monotonic() + 60
            while time.monotonic() < end and len(list(notes.glob("*.asked"))) < 2:
                time.sleep(0.05)
            return str(os.getpid()).encode()
        if message == REFUSE:
            raise DataError("x: wrong", remedy="give another --data")
        return message.upper()

    return answer
