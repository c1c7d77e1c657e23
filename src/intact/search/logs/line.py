"""Encodes one line of the log of a search: the format of [tvm] with an additional part.

Source: [tvm], "Log Format": ``version``, ``strategy`` and ``results`` follow it. ``search`` is
added, so that a search can be continued. ``log.schema.json`` is the same as a JSON schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeAlias, TypeVar

import msgspec

from intact.errors import DataError, SearchError, UsageError
from intact.graph.files.regular import open_file
from intact.search.logs.settings import Count, LogSettings
from intact.search.strategy import Strategy
from intact.search.trial import Executor, State, Trial, TrialResult

LOG_VERSION = 3

Choice: TypeAlias = Annotated[int, msgspec.Meta(ge=2, le=32)]


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The result of a trial.

    Attributes:
        sim_acc: The score, higher is better; None if it is not finite.
        cost: Lower is better.
        noise: Error power of the outputs over their signal power.
        samples: Samples run.
        state: How it ended.
        seconds: Time taken.
        executor: What computed it.
        reason: Why it failed, or why it was simulated and not run by the integer engine.
        not_finite: Names of the fields that are ``inf`` or ``-inf``; other None fields are NaN.
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
    """The place of a line in its search.

    Attributes:
        trial: Number of the trial, from 0.
        candidate: Bits for each group of the search space; 32 is float.
        settings: Settings of the search; the same in every line.
        confirms: The line is not a new trial: an earlier one was measured again on all samples, as
            the hardware computes it.
    """

    trial: Count
    candidate: tuple[Choice, ...]
    settings: LogSettings
    confirms: bool = False


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line.

    Attributes:
        version: Version of the format.
        strategy: None if no plan could be made for the candidate.
        results: The result.
        search: The place in the search.
    """

    version: int
    strategy: Strategy | None
    results: Results
    search: SearchPart

    @staticmethod
    def of(
        trial: Trial, strategy: Strategy | None, settings: LogSettings, *, confirms: bool = False
    ) -> Entry:
        """Make the line of a trial."""
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
            # JSON has no infinities and no NaN; a NaN is a None that is not listed here.
            not_finite=infinite,  # type: ignore[arg-type]  # str(inf) is "inf"
        )
        # Samplers may give NumPy's integers.
        candidate = tuple(int(bits) for bits in trial.candidate)
        part = SearchPart(trial.number, candidate, settings, confirms)
        return Entry(LOG_VERSION, strategy, results, part)

    @property
    def trial(self) -> Trial:
        """The trial as the sampler received it."""
        return trial_of(self.results, self.search)

    @property
    def settings(self) -> LogSettings:
        """Settings of the search."""
        return self.search.settings

    @property
    def is_confirmation(self) -> bool:
        """Whether an earlier trial was measured again, as the hardware computes it."""
        return self.search.confirms


class EntryWithoutStrategy(msgspec.Struct, forbid_unknown_fields=True):
    """An `Entry` whose strategy is not decoded."""

    version: int
    strategy: msgspec.Raw
    results: Results
    search: SearchPart


class VersionField(msgspec.Struct):
    """The field that every version of the format has."""

    version: int


def trial_of(results: Results, search: SearchPart) -> Trial:
    """Decode the trial of a line."""
    named = results.not_finite

    def number(name: str, value: float | None) -> float:
        return float(named.get(name, "nan")) if value is None else value

    measured = TrialResult(
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

"""Limit in bytes. A threshold takes about 20: more than a million channels fit."""

_BEGINNING = b'{"version":'

_REMEDY = "give the log of a search, or start a new one"

_Kind = TypeVar("_Kind", Entry, EntryWithoutStrategy)


def read_log(path: str | Path) -> Iterator[Entry]:
    """Yield the lines of a log, one at a time. A truncated last line is left out.

    Raises:
        DataError: The file cannot be read or is not a log, or a line is damaged.
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            for entry, _ in whole_lines(file, path, Entry):
                yield entry
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def whole_lines(file: BinaryIO, path: Path, kind: type[_Kind]) -> Iterator[tuple[_Kind, int]]:
    """Yield each line and its end offset in the file; a truncated last line is left out.

    A last line is truncated if it has no newline or is not JSON. A file that is not a log is never
    taken for a truncated line.

    Raises:
        DataError: As `read_log`.
    """
    end = 0
    for number, line, is_last in _lines(file, path):
        try:
            entry = _decode(line, kind, f"{path}: line {number}")
        except _TornError as torn:
            # Behind a good line anything may be torn. A first line has to begin like ours: a
            # foreign file must not be taken for an empty log, which is written over.
            if is_last and (end > 0 or _is_beginning(line)):
                return
            raise DataError(f"{path}: line {number} is damaged ({torn})", remedy=_REMEDY) from torn
        end += len(line)
        yield entry, end


def choose(entries: Iterable[Entry], which: str | int) -> Entry:
    """Choose one line of a log.

    Args:
        entries: Lines as `read_log` yields them.
        which: The number of a trial, or ``"best"``: the result of the search. That is the last
            confirmed trial, or without one the best trial on all samples.

    Raises:
        UsageError: There is no such trial, or it has no strategy.
        SearchError: No trial is within the limits of the search.
    """
    entry = _best_entry(entries) if which == "best" else _entry_of_trial(entries, which)
    if entry.strategy is None:
        reason = entry.results.reason or "no plan could be made"
        raise UsageError(
            f"trial {entry.search.trial} has no strategy: {reason}", remedy="choose another trial"
        )
    return entry


def _entry_of_trial(entries: Iterable[Entry], which: str | int) -> Entry:
    text = str(which)
    # `isdecimal` takes digits of other scripts, and `int` refuses a very long text with an error of
    # its own.
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


def _best_entry(entries: Iterable[Entry]) -> Entry:
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
        # A search ends with the first confirmed trial, so the last line is the result.
        if best is None or rank > best[0] or entry.is_confirmation:
            best = rank, entry
    if best is None:
        near = f" (highest score: {nearest:g})" if nearest > -math.inf else ""
        raise SearchError(
            f"--trial best: none of the {lines} line(s) of the log is within the limits of "
            f"its search{near}",
            remedy="search longer, or give the number of a trial",
        )
    return best[1]


class _TornError(Exception):
    """A line that is not JSON; allowed for the last one."""


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, bytes and "is the last" for every line."""
    # Bounded, because a file without a line end would be read into memory whole.
    number, line = 1, file.readline(LONGEST_LINE + 1)
    while line:
        if len(line) > LONGEST_LINE:
            raise DataError(
                f"{path}: line {number} is longer than {LONGEST_LINE >> 20} MiB",
                remedy="this is not the log of a search",
            )
        # One line ahead: only the last one may be torn.
        following = file.readline(LONGEST_LINE + 1)
        yield number, line, not following
        number, line = number + 1, following


def _decode(line: bytes, kind: type[_Kind], where: str) -> _Kind:
    # The end is written last, so a line without it may lack more.
    if not line.endswith(b"\n"):
        raise _TornError("it has no end")
    try:
        # First the version alone: a line of another one would fail at some field, with a message
        # that does not help.
        version = msgspec.json.decode(line, type=VersionField).version
        if version != LOG_VERSION:
            raise DataError(
                f"{where}: the log's format is version {version}, this intact reads {LOG_VERSION}",
                remedy="use the version of intact that wrote it, or start a new log",
            )
        return msgspec.json.decode(line, type=kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: {error}", remedy=_REMEDY) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _TornError(str(error)) from error


def _is_beginning(line: bytes) -> bool:
    """Tell whether a first line is the beginning of a log line; a power failure leaves zeros."""
    is_ours = line.startswith(_BEGINNING) or _BEGINNING.startswith(line)
    return is_ours or not line.strip(b"\0")
