"""Running many damaged files in worker processes, and keeping those that were not read well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.kinds import kind_named
from tests.fuzz.worker import MEMORY, REPORT, WRONG

REPOSITORY = Path(__file__).absolute().parents[2]
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_STDERR = 3000
"""Characters of a crashed worker's last words that are kept."""


@dataclass(frozen=True)
class Failure:
    """A file after which something else happened than success or one clear line.

    Attributes:
        kind: What kind of file, by name.
        seed: Of the campaign.
        case: Number of the case in it.
        wrong: What happened: a traceback, the bad message, or how the process ended.
        data: The file.
    """

    kind: str
    seed: int
    case: int
    wrong: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}, case {self.case}: {self.wrong}"

    def save(self, folder: Path) -> Path:
        """Write the file, and beside it what happened."""
        folder.mkdir(parents=True, exist_ok=True)
        path = (
            folder / f"{self.kind}-{self.seed}-{self.case}{Path(kind_named(self.kind).file).suffix}"
        )
        path.write_bytes(self.data)
        path.with_name(f"{path.name}.txt").write_text(f"{self}\n", encoding="utf-8")
        return path


def run_cases(kind: str, seed: int, first: int, count: int) -> Iterator[Failure]:
    """Feed cases of one kind, in a new process whenever one has died of a case.

    Raises:
        RuntimeError: The worker cannot even read the seeds.
    """
    end, allowed = first + count, kind_named(kind).seconds
    while first < end:
        with tempfile.TemporaryDirectory(prefix="intact-fuzz-") as name:
            folder = Path(name)
            process = _work(kind, seed, first, end - first, folder)
            last = None
            for line in _report(folder):
                last = line["case"]
                if "wrong" in line:
                    yield _failure(kind, seed, last, str(line["wrong"]), folder)
            if process.returncode == 0:
                return
            if last is None:
                raise RuntimeError(f"{kind}: the seeds cannot be read:\n{process.stderr}")
            code, room = process.returncode, MEMORY >> 20
            how = f"exit code {code}; {allowed} s of work and {room} MiB are allowed"
            yield _failure(kind, seed, last, f"{how}\n{process.stderr[-_STDERR:]}", folder)
            first = last + 1


def _work(
    kind: str, seed: int, first: int, count: int, folder: Path
) -> subprocess.CompletedProcess[str]:
    numbers = [str(number) for number in (seed, first, count)]
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.worker", kind, *numbers, str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, **_ONE_THREAD, "PYTHONPATH": str(REPOSITORY / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )


def _report(folder: Path) -> list[dict[str, Any]]:
    path = folder / REPORT
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _failure(kind: str, seed: int, case: int, wrong: str, folder: Path) -> Failure:
    kept = folder / f"{WRONG}{case}"
    path = kept if kept.exists() else folder / kind_named(kind).file  # that it died of
    return Failure(kind, seed, case, wrong, path.read_bytes())
