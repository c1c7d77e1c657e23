"""Whether `intact diagnose` finds seeded faults, and its commands mend them.

    python benchmarks/diagnosing.py [--only NAME] [--try SECONDS] [--json FILE] [--losses]
        [--draws NUMBER [--seed NUMBER]] [--here]

For each case of the set (models with one fault each, and healthy ones: `tests/faults` and
`zoo_faults.py`) it does what a user would, on the command line: quantize, diagnose, run the command
of the first finding, evaluate before and after. What was lost is the difference to the same model
without the fault. A row: case, seeded cause, first cause found, what evaluation gives without the
fault, with it and mended, the part of the loss that was regained, and the time of the diagnosis in
that of `quantize`. ``--losses`` only tells what the faults cost, without a diagnosis.

``--draws`` takes faults that are drawn from a seed instead (`drawn_faults.py`), at places that must
be named. A drawn place or size may cost nothing. What can be found is decided by evaluation alone,
before anything is diagnosed, and in this order: a fault that costs less than it should
(`drawn_faults.LEAST`, dB or points) is none; nor is one that leaves the worst output at 30 dB or
more (`intact.limits.WELL_DB`: 8 bits leave no more of many healthy models) while accuracy on the
labels drops by no more than chance. Both are left out of the totals, whatever was found.
``--here`` runs all in one process, which saves the start of each command.

Times are processor seconds of whole commands, children included, so that other work on the machine
does not count; with ``--here`` they lack the start. Of a healthy model a finding is an alarm,
unless it says that int8 is slower than float, or that rounding costs answers, and the evaluation
says so too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # nets of the tests

import drawn_faults  # noqa: E402
import zoo_faults  # noqa: E402
from intact.limits import WELL_DB  # noqa: E402
from tests.faults import generated  # noqa: E402 - found through the line above
from tests.faults.case import Case, evaluated_data, figure, quantized_data  # noqa: E402

CASES: tuple[Case, ...] = (
    *generated.FAULTS,
    *zoo_faults.FAULTS,
    *generated.HEALTHY,
    *zoo_faults.HEALTHY,
)
SLOWER = "slower_than_float"
ENOUGH = 0.9
"""The part of the loss that a remedy is to regain, and of the cases that are to be right."""
TWICE = 2.0
"""How long a diagnosis may take, in times of `quantize`."""


@dataclass(frozen=True)
class Row:
    """What a case came to.

    Attributes:
        name: The case.
        seeded: Its cause; "" for a healthy model.
        unit: Of the figures.
        found: Causes found, worst first.
        right: Whether the first is the seeded one; for a healthy model, whether there is none.
        healthy: What evaluation gives without the fault; NaN where that was not measured.
        faulty: With the fault.
        place: The node of the first finding.
        mended: After the command of the first finding; NaN if it has none, or it fails.
        quantize_seconds: Of a processor, of `intact quantize`.
        diagnose_seconds: Of `intact diagnose`.
        remedy: The command.
        error: What went wrong.
    """

    name: str
    seeded: str
    unit: str
    found: list[str] = field(default_factory=list)
    right: bool = False
    healthy: float = math.nan
    faulty: float = math.nan
    place: str = ""
    mended: float = math.nan
    quantize_seconds: float = math.nan
    diagnose_seconds: float = math.nan
    remedy: str = ""
    error: str = ""

    @property
    def regained(self) -> float:
        """The part of the loss that the command regained."""
        lost = self.healthy - self.faulty
        return (self.mended - self.faulty) / lost if lost else math.nan

    @property
    def ratio(self) -> float:
        """Time of the diagnosis in times of that of `quantize`."""
        return self.diagnose_seconds / self.quantize_seconds

    def __str__(self) -> str:
        """Write one line."""
        found = ",".join(self.found[:2]) or "-"
        found += f" {self.place}"
        head = f"{self.name:25s} {self.seeded or '-':20s} {found:40.40s}"
        figures = f"{self.healthy:6.1f} {self.faulty:6.1f} {self.mended:6.1f} {self.unit:6s}"
        times = f"{self.quantize_seconds:5.1f} s {self.diagnose_seconds:5.1f} s {self.ratio:5.2f}"
        mark = "right" if self.right else "WRONG"
        return f"{head} {mark} {figures} {100 * self.regained:5.0f} % {times} {self.error}"


class CommandError(Exception):
    """A command failed; its message is the last line that it printed."""


HERE = False
"""Whether commands run in this process."""


def intact(*arguments: str, folder: Path) -> str:
    """Run a command line of intact, and return what it prints."""
    if not HERE:
        return shell([sys.executable, "-m", "intact", *arguments], folder)
    from intact.cli import run

    said, errors = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors)
    with contextlib.chdir(folder), streams[0], streams[1]:
        if run(arguments):
            raise CommandError((errors.getvalue().strip() or "nothing said").splitlines()[-1][:200])
    return said.getvalue()


def spent() -> float:
    """Return the processor seconds of this process and its children until now."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in uses)


def no_fault(case: Case, healthy: float, evaluation: Mapping[str, Any]) -> str:
    """Say why a seeded fault is none that can be found; "" where it is one."""
    faulty = figure(case, evaluation)
    if healthy - faulty < case.loss:
        return f"costs {healthy - faulty:.1f} {case.unit}: no fault"
    if case.unit == "dB" and faulty >= WELL_DB and not loses_answers(evaluation):
        return f"leaves {faulty:.1f} dB and the accuracy: no fault"
    return ""


def loses_answers(evaluation: Mapping[str, Any]) -> bool:
    """Tell whether accuracy on the labels drops by more than chance."""
    change = (evaluation.get("accuracy") or {}).get("difference")
    return change is not None and bool(change[2] < 0)  # the upper end of the interval


def shell(command: str | Sequence[str], folder: Path) -> str:
    """Run a command as a user would, in a folder.

    Raises:
        CommandError: It fails.
    """
    is_text = isinstance(command, str)
    done = subprocess.run(
        command, shell=is_text, capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "nothing said"
        raise CommandError(said.splitlines()[-1][:200])
    return done.stdout


def quantize(case: Case, folder: Path, *, faulty: bool) -> float:
    """Make the files of a case and quantize; return the processor seconds that this took."""
    folder.mkdir(parents=True)
    options = case.build(folder, faulty)
    start = spent()
    intact("quantize", *quantized_data(folder), *options, "--output", "out", folder=folder)
    return spent() - start


def evaluated(case: Case, folder: Path, result: str = "out") -> tuple[float, dict[str, Any]]:
    """Evaluate a result; return the figure that the case is about, and all of them."""
    data = str(evaluated_data(folder))
    found = json.loads(intact("evaluate", result, "--data", data, "--json", folder=folder))
    return figure(case, found), found


def diagnosed(folder: Path, seconds: float | None) -> tuple[list[dict[str, Any]], float]:
    """Diagnose a result; return the findings and the processor seconds that this took."""
    tried = () if seconds is None else ("--try", f"{seconds:g}")
    start = spent()
    data = str(evaluated_data(folder))
    said = intact("diagnose", "out", "--data", data, *tried, "--json", folder=folder)
    return json.loads(said)["findings"], spent() - start


def mended(case: Case, folder: Path, command: str) -> float:
    """Run the command of a finding, and evaluate what it writes.

    Raises:
        CommandError: It is no command of intact, it fails, or it writes no result.
    """
    words = command.split()
    if words[:1] != ["intact"]:
        raise CommandError(f"no command: {command}"[:200])
    before = {path.parent for path in folder.rglob("plan.json")}
    kept = folder / "faulty-out"
    shutil.copytree(folder / "out", kept)
    start = time.time()
    intact(*shlex.split(command)[1:], folder=folder)
    written = {path.parent for path in folder.rglob("plan.json")} - before - {kept}
    changed = {each for each in before if (each / "plan.json").stat().st_mtime >= start}
    results = sorted(written or changed)
    if not results:
        raise CommandError(f"it writes no result: {command}"[:200])
    return evaluated(case, folder, str(results[0]))[0]


def measure(case: Case, folder: Path, seconds: float | None, *, losses: bool) -> Row:
    """Do all that is done with a case."""
    row = Row(case.name, case.cause, case.unit)
    try:
        if case.cause:
            quantize(case, folder / "healthy", faulty=False)
            row = replace(row, healthy=evaluated(case, folder / "healthy")[0])
        place = folder / "faulty"
        row = replace(row, quantize_seconds=quantize(case, place, faulty=True))
        faulty, evaluation = evaluated(case, place)
        row = replace(row, faulty=faulty)
        if case.cause:
            row = replace(row, error=no_fault(case, row.healthy, evaluation))
        if losses:
            return replace(row, right=not case.cause or row.healthy - faulty >= case.loss)
        findings, taken = diagnosed(place, seconds)
        row = replace(row, diagnose_seconds=taken, found=[each["cause"] for each in findings])
        if not case.cause:
            speedup = evaluation.get("speedup")
            is_slower = speedup is not None and speedup < 1
            true = {SLOWER} if is_slower else set()
            true |= {"rounding"} if loses_answers(evaluation) else set()
            return replace(row, right=not {*row.found} - true)
        first = [findings[0][key] for key in ("cause", "node", "tensor")] if findings else [""]
        row = replace(row, right=case.is_named_by(*first), place=first[1] if findings else "")
        if findings:
            row = replace(row, remedy=str(findings[0]["remedy"]))
            row = replace(row, mended=mended(case, place, row.remedy))
    except CommandError as error:
        row = replace(row, error=str(error))
    return row


def totals(rows: Iterable[Row]) -> str:
    """Sum up what was found."""
    rows = list(rows)
    faulty = [row for row in rows if row.seeded and "no fault" not in row.error]
    healthy = [row for row in rows if not row.seeded]
    right = sum(row.right for row in faulty)
    cured = sum(row.regained >= ENOUGH for row in faulty)
    quiet = sum(row.right for row in healthy)
    quick = sum(row.ratio <= TWICE for row in rows)
    kinds = {row.seeded for row in faulty if row.right}
    in_words = sum(row.right and not row.remedy.startswith("intact ") for row in faulty)
    return (
        f"right cause first: {right} of {len(faulty)} ({len(kinds)} kinds); command regains "
        f"{ENOUGH:.0%} of the loss: {cured} of {len(faulty)} ({in_words} mended in words); "
        f"healthy without alarm: {quiet} of {len(healthy)}; "
        f"at most {TWICE:g} times the time of quantize: {quick} of {len(rows)}"
    )


def main() -> None:
    """Print a line for each case as it is measured, and the totals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="part of a case's name")
    parser.add_argument("--try", dest="seconds", type=float, help="as for intact diagnose")
    parser.add_argument("--json", type=Path, help="where the rows are written, too")
    parser.add_argument("--losses", action="store_true", help="only what the faults cost")
    parser.add_argument("--draws", type=int, default=0, help="faults drawn at random instead")
    parser.add_argument("--seed", type=int, help="of the draws; another one each time without")
    parser.add_argument("--here", action="store_true", help="run all in one process")
    given = parser.parse_args()
    global HERE  # noqa: PLW0603
    HERE = given.here
    cases = CASES
    if given.draws:
        seed = random.SystemRandom().randrange(1 << 16) if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        cases = tuple(drawn_faults.drawn(seed, given.draws))
    rows = []
    for case in cases:
        if given.only and not any(each in case.name for each in given.only):
            continue
        with tempfile.TemporaryDirectory() as name:
            rows.append(measure(case, Path(name), given.seconds, losses=given.losses))
        print(rows[-1], flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps([asdict(each) for each in rows], indent=1))
    if given.losses:
        print(f"the faults cost what they say in {sum(row.right for row in rows)} of {len(rows)}")
    else:
        print(totals(rows))


if __name__ == "__main__":
    main()
