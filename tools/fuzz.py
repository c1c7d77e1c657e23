"""Feed damaged files to everything that reads files, for some minutes.

Each must be read, or refused with one line. What was not lands in ``fuzz-failures/``, with a text
that says what happened; the exit code is then 1. A run with the seed that it printed repeats it,
and a single file can be fed again::

    python tools/fuzz.py --minutes 10
    python tools/fuzz.py --kind onnx --kind plan --seed 4711
    python tools/fuzz.py --kind onnx --file fuzz-failures/onnx-4711-12.onnx
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz.campaign import run_cases  # noqa: E402 - found through the line above
from tests.fuzz.kinds import KINDS  # noqa: E402
from tests.fuzz.worker import complaint  # noqa: E402

CASES = 300
"""In one process, before the next line of progress."""


@dataclass
class Tally:
    """What was fed so far."""

    started: float = field(default_factory=time.monotonic)
    cases: int = 0
    failures: int = 0

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self.started

    def __str__(self) -> str:
        return f"{self.seconds:6.0f} s  {self.cases:8d} cases  {self.failures:4d} failures"


def fuzz(kinds: Sequence[str], seed: int, minutes: float, jobs: int, folder: Path) -> int:
    """Feed the kinds in turns until the time is up; return the number of failures."""
    tally = Tally()

    def work(kind: str, first: int) -> None:
        if first and tally.seconds > 60 * minutes:
            return  # the first turn is for all
        for failure in run_cases(kind, seed, first, CASES):
            tally.failures += 1
            path = failure.save(folder)
            print(f"{path}: {failure.wrong.strip().splitlines()[-1][:200]}", flush=True)
        tally.cases += CASES
        print(f"{tally}  {kind} from {first}", flush=True)

    first = 0
    while not first or tally.seconds < 60 * minutes:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, kinds, [first] * len(kinds)))
        first += CASES
    return tally.failures


def feed_again(name: str, file: Path) -> int:
    """Feed one file in this process; return 1 if it is not read well."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as folder:
        kind.seeds(Path(folder))
        path = Path(folder) / kind.file
        path.write_bytes(file.read_bytes())
        wrong = complaint(kind, path)
    print(wrong or "read well, or refused with one line")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, help="repeat a run (default: a new one)")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--output", type=Path, default=Path("fuzz-failures"), metavar="FOLDER")
    parser.add_argument("--file", type=Path, help="feed only this file, of the one --kind")
    options = parser.parse_args(arguments)
    kinds = options.kind or list(KINDS)
    if options.file is not None:
        if len(kinds) != 1:
            parser.error("--file needs one --kind")
        return feed_again(kinds[0], options.file)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    failures = fuzz(kinds, seed, options.minutes, options.jobs, options.output)
    print(f"{failures} failures" + (f", in {options.output}" if failures else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
