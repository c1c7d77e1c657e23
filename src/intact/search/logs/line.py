"""One line of a search's log: [tvm]'s format, strict, and what a search needs besides.

Source: [tvm], "Log Format": ``version``, ``strategy`` and ``results`` are its;
``search`` is added, so that a search can be continued. ``log.schema.json`` says the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeAlias, TypeVar

import msgspec

from intact.errors import DataError, SearchError, UsageError
from intact.search.logs.settings import Count, LogSettings
from intact.search.strategy import Strategy
from intact.search.trial import Executor, Measured, State, Trial

LOG_VERSION = 1

Choice: TypeAlias = Annotated[int, msgspec.Meta(ge=2, le=32)]


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a trial gave.

    Attributes:
        sim_acc: The score, higher is better; None if it is no finite number.
        cost: Lower is better.
        noise: Power of the error of the outputs over their power.
        samples: Samples run.
        state: How it ended.
        seconds: It took.
        executor: What computed it.
        reason: Of a failure, or why a simulation had to do where integers were wanted.
        not_finite: Which of the numbers that are None stand for ``inf`` or ``-inf``; a None that
            is not named here is NaN.
    """

    sim_acc: float | None
    cost: float | None
    noise: float | None
    samples: Count
    state: State
    seconds: float | None
    executor: Executor
    reason: str = ""
    not_finite: dict[str, Literal["inf", "-inf"]] = {}


class SearchPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where in which search a line belongs.

    Attributes:
        trial: Number of the trial, from 0.
        candidate: Bits, one for each group of the choice space; 32 is float.
        settings: Of the search; the same in every line.
        confirms: The line is no trial of its own: an earlier one was run again on all samples,
            to give what the hardware computes.
    """

    trial: Count
    candidate: tuple[Choice, ...]
    settings: LogSettings
    confirms: bool = False


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line.

    Attributes:
        version: Of the format.
        strategy: None if no plan could be made of the candidate.
        results: What it gave.
        search: Where it belongs.
    """

    version: int
    strategy: Strategy | None
    results: Results
    search: SearchPart

    @staticmethod
    def of(
        trial: Trial, strategy: Strategy | None, settings: LogSettings, *, confirms: bool = False
    ) -> Entry:
        """Return the line of a trial."""
        measured = trial.measured
        numbers = {
            "sim_acc": float(measured.score),
            "cost": float(trial.cost),
            "noise": float(measured.noise),
            "seconds": float(measured.seconds),
        }
        finite = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
        infinite = {name: str(x) for name, x in numbers.items() if math.isinf(x)}
        results = Results(
            **finite,
            samples=int(measured.samples),
            state=measured.state,
            executor=measured.executor,
            reason=measured.reason,
            not_finite=infinite,  # type: ignore[arg-type]  # str(inf) is "inf"
        )
        candidate = tuple(int(bits) for bits in trial.candidate)
        part = SearchPart(trial.number, candidate, settings, confirms)
        return Entry(LOG_VERSION, strategy, results, part)

    @property
    def trial(self) -> Trial:
        """The trial as the sampler got it."""
        return trial_of(self.results, self.search)

    @property
    def settings(self) -> LogSettings:
        """Of the search."""
        return self.search.settings

    @property
    def is_confirmation(self) -> bool:
        """Whether an earlier trial was run again, to give what the hardware computes."""
        return self.search.confirms


class Skimmed(msgspec.Struct, forbid_unknown_fields=True):
    """An `Entry` whose strategy is not looked at."""

    version: int
    strategy: msgspec.Raw
    results: Results
    search: SearchPart


class Head(msgspec.Struct):
    """What every version of the format begins with."""

    version: int


def trial_of(results: Results, search: SearchPart) -> Trial:
    """Decode the trial of a line."""
    named = results.not_finite

    def number(name: str, value: float | None) -> float:
        return float(named.get(name, "nan")) if value is None else value

    measured = Measured(
        results.state,
        number("sim_acc", results.sim_acc),
        number("noise", results.noise),
        results.samples,
        number("seconds", results.seconds),
        results.reason,
        results.executor,
    )
    return Trial(search.trial, search.candidate, number("cost", results.cost), measured)


LONGEST_LINE = 1 << 25

"""Bytes. A threshold takes some 20 of them: more than a million channels."""

_BEGINNING = b'{"version":'

_REMEDY = "give the log of a search, or start a new one"

_Kind = TypeVar("_Kind", Entry, Skimmed)


def read_log(path: str | Path) -> Iterator[Entry]:
    """Yield the lines of a log; one at a time is in memory. A torn last line is left out.

    Raises:
        DataError: The file cannot be read, is no log, or a line of it is damaged.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            for entry, _ in whole_lines(file, path, Entry):
                yield entry
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def whole_lines(file: BinaryIO, path: Path, kind: type[_Kind]) -> Iterator[tuple[_Kind, int]]:
    """Yield each line, and where it ends in the file; a torn last one is left out.

    Torn is a last line without an end, or one that is no JSON. A file that is no log at all is
    never taken for one that consists of a torn line.

    Raises:
        DataError: As `read_log`.
    """
    end = 0
    for number, line, is_last in _lines(file, path):
        try:
            entry = _decoded(line, kind, f"{path}: line {number}")
        except _TornError as torn:
            if is_last and (end > 0 or _is_beginning(line)):
                return
            raise DataError(f"{path}: line {number} is damaged ({torn})", remedy=_REMEDY) from torn
        end += len(line)
        yield entry, end


def choose(entries: Iterable[Entry], which: str | int) -> Entry:
    """Return one line of a log.

    Args:
        entries: As `read_log` yields them.
        which: The number of a trial, or ``"best"``: what the search ended with, the last that was
            confirmed; where none was, the best of those run on all samples, the first of equals.

    Raises:
        UsageError: There is no such trial, or it has no strategy.
        SearchError: None holds the limits of the search.
    """
    entry = _best(entries) if which == "best" else _numbered(entries, which)
    if entry.strategy is None:
        reason = entry.results.reason or "no plan could be made"
        raise UsageError(
            f"trial {entry.search.trial} has no strategy: {reason}", remedy="choose another trial"
        )
    return entry


def _numbered(entries: Iterable[Entry], which: str | int) -> Entry:
    text = str(which)
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise UsageError(f"--trial {text!r}", remedy="give best, or the number of a trial")
    found, last = None, -1
    for entry in entries:
        last = max(last, entry.search.trial)
        if entry.search.trial == int(text):
            found = entry  # a confirmation comes later, with the same strategy
    if found is None:
        known = f"give best, or a number up to {last}" if last >= 0 else "search longer"
        raise UsageError(f"--trial {text}: the log has no such trial", remedy=known)
    return found


def _best(entries: Iterable[Entry]) -> Entry:
    best: tuple[tuple[float, ...], Entry] | None = None
    nearest, lines = -math.inf, 0
    for lines, entry in enumerate(entries, 1):  # noqa: B007 - used behind the loop
        trial, settings = entry.trial, entry.settings
        if not trial.counts(settings.samples):
            continue
        nearest = max(nearest, trial.score)
        if not settings.goal.accepts(trial):
            continue
        rank = (entry.is_confirmation, *settings.goal.rank(trial.score, trial.cost))
        # A search ends with the first that is confirmed, so that the last line is the outcome.
        if best is None or rank > best[0] or entry.is_confirmation:
            best = rank, entry
    if best is None:
        near = f" (highest score: {nearest:g})" if nearest > -math.inf else ""
        raise SearchError(
            f"--trial best: none of the {lines} line(s) of the log holds the limits of its "
            f"search{near}",
            remedy="search longer, or give the number of a trial",
        )
    return best[1]


class _TornError(Exception):
    """A line that is no JSON: the last one may be."""


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, bytes and whether it is the last one of every line."""
    number, line = 1, file.readline(LONGEST_LINE + 1)
    while line:
        if len(line) > LONGEST_LINE:
            raise DataError(
                f"{path}: line {number} is longer than {LONGEST_LINE >> 20} MiB",
                remedy="this is no log of a search",
            )
        following = file.readline(LONGEST_LINE + 1)
        yield number, line, not following
        number, line = number + 1, following


def _decoded(line: bytes, kind: type[_Kind], where: str) -> _Kind:
    if not line.endswith(b"\n"):
        raise _TornError("it has no end")
    try:
        version = msgspec.json.decode(line, type=Head).version
        if version != LOG_VERSION:
            raise DataError(
                f"{where}: the log's format is version {version}, this reads {LOG_VERSION}",
                remedy="use the intact that wrote it, or start a new log",
            )
        return msgspec.json.decode(line, type=kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: {error}", remedy=_REMEDY) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _TornError(str(error)) from error


def _is_beginning(line: bytes) -> bool:
    """Tell whether a first line was cut off while it was written; power failures leave zeros."""
    is_ours = line.startswith(_BEGINNING) or _BEGINNING.startswith(line)
    return is_ours or not line.strip(b"\0")
