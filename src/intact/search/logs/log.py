"""Writes and reads the log of a search: each trial is on the disk before the next.

An interrupted search continues from its log, and any logged strategy can be made a plan again.
``docs/search-log.md`` describes the format.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from intact._files import lock, without_links
from intact.errors import DataError, IntactError, OutputError, UsageError
from intact.search.logs.line import (
    LONGEST_LINE,
    Entry,
    EntryWithoutStrategy,
    choose,
    read_log,
    trial_of,
    whole_lines,
)
from intact.search.logs.settings import LogSettings
from intact.search.plans import Planner
from intact.search.space import Candidate
from intact.search.strategy import Strategy
from intact.search.trial import Trial

__all__ = ["Entry", "Log", "LogSettings", "choose", "read_log"]


class Log:
    """A log that is open for writing.

    Attributes:
        path: The file.
        settings: Settings of the search.
        trials: Trials of the resumed run, in order.
        confirmed: Its trials that were measured again as the hardware computes them, by number.
    """

    def __init__(self, path: Path, settings: LogSettings, file: io.FileIO) -> None:
        self.path = path
        self.settings = settings
        self.trials: list[Trial] = []
        self.confirmed: dict[int, Trial] = {}
        self._file = file

    @staticmethod
    def refuse_early(path: str | Path, *, resume: bool) -> None:
        """Check the path as ``create`` or ``resume`` do, before any other work.

        Raises:
            UsageError: There is a log already, or none to resume.
            OutputError: The path is a folder or a link.
        """
        path = Path(path)
        with _writing(path):
            if path.is_symlink():
                raise OutputError(f"the log {path} is a link", remedy="name the file itself")
            if path.is_dir():
                raise OutputError(f"the log {path} is a folder", remedy="name a file")
            there = path.is_file() and path.stat().st_size > 0
        if resume and not path.is_file():
            raise _nothing_to_resume(path)
        if there and not resume:
            raise _there_already(path)

    @classmethod
    def create(cls, path: str | Path, settings: LogSettings) -> Log:
        """Create a log.

        Raises:
            UsageError: There is one already.
            OutputError: The file cannot be written.
        """
        path = Path(path)
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that a write that returns is with the system. Appended to and not
            # truncated: an existing log is refused below, when it is locked.
            file = io.FileIO(path, "ab", opener=without_links)
        with _closing_if_it_fails(file), _writing(path):
            _lock(file, path)
            # Behind the lock, so that of two searches that start together one finds the other's
            # lines. An empty file may be taken: a search that was killed before its first trial
            # left it.
            if os.fstat(file.fileno()).st_size > 0:
                raise _there_already(path)
            _make_durable(path.parent)
        return cls(path, settings, file)

    @classmethod
    def resume(cls, path: str | Path, settings: LogSettings) -> Log:
        """Open a log to continue its search; a truncated last line is removed.

        Raises:
            UsageError: There is none.
            SearchError: It belongs to another search; the message has the difference.
            DataError: It is damaged other than at its end, or not a log.
            OutputError: The file cannot be written, or another search writes it.
        """
        path = Path(path)
        if not path.is_file():
            raise _nothing_to_resume(path)
        with _writing(path):
            file = io.FileIO(path, "r+b", opener=without_links)
        log = cls(path, settings, file)
        with _closing_if_it_fails(file), _writing(path):
            _lock(file, path)
            # Read under the lock, because another search could still append.
            end = log._read()
            # The next line must not be glued to half of one.
            file.truncate(end)
            file.seek(end)
        return log

    def append(self, trial: Trial, strategy: Strategy | None) -> None:
        """Write a trial; it is on the disk when the call returns.

        Args:
            trial: The next trial.
            strategy: The strategy of its plan; None if no plan could be made.

        Raises:
            OutputError: Writing failed. The earlier trials can be resumed.
        """
        self._write(Entry.of(trial, strategy, self.settings))

    def confirm(self, trial: Trial, strategy: Strategy | None) -> None:
        """Write the result of an earlier trial that was measured as the hardware computes it.

        Args:
            trial: The same trial with the new result.
            strategy: See ``append``.

        Raises:
            OutputError: See ``append``.
        """
        self._write(Entry.of(trial, strategy, self.settings, confirms=True))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, entry: Entry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        if len(line) > LONGEST_LINE:
            raise OutputError(
                f"{self.path}: trial {entry.search.trial} takes {len(line) >> 20} MiB, the limit "
                f"is {LONGEST_LINE >> 20}",
                remedy="search with weight scales per tensor",
            )
        with _writing(self.path):
            handle = self._file.fileno()
            before = os.fstat(handle).st_size
            try:
                rest = memoryview(line)
                # An unbuffered file may write a part of what it is given.
                while rest:
                    rest = rest[self._file.write(rest) or 0 :]
                os.fsync(handle)
            except BaseException:  # also Ctrl-C: no line is written in part
                with contextlib.suppress(OSError):
                    self._file.truncate(before)
                raise

    def _read(self) -> int:
        """Read the lines of the file; return the offset of the end of the last complete one."""
        buffered = io.BufferedReader(self._file)
        try:
            last = 0
            for number, (entry, end) in enumerate(
                whole_lines(buffered, self.path, EntryWithoutStrategy), 1
            ):
                self._take(entry, number)
                last = end
            return last
        finally:
            # Otherwise the buffer would close the file when it is collected.
            buffered.detach()

    def _take(self, entry: EntryWithoutStrategy, number: int) -> None:
        where = f"{self.path}: line {number}"
        entry.search.settings.refuse_unlike(self.settings, where)
        trial = trial_of(entry.results, entry.search)
        # Confirmations have the number of an earlier trial and are no step of the sampler.
        if entry.search.confirms:
            self.confirmed[trial.number] = trial
        elif trial.number != len(self.trials):
            raise DataError(
                f"{where}: trial {trial.number} where {len(self.trials)} is expected",
                remedy="start a new log: lines are missing or duplicated",
            )
        else:
            self.trials.append(trial)


def _there_already(path: Path) -> UsageError:
    return UsageError(
        f"{path}: there is a log already", remedy="give --resume or --log FILE, or remove it"
    )


def _nothing_to_resume(path: Path) -> UsageError:
    return UsageError(f"{path}: there is no log to resume", remedy="leave out --resume")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write the log {path}: {error.strerror or error}",
            remedy="give a file on a disk with room; --resume goes on from what is written",
        ) from error


@contextlib.contextmanager
def _closing_if_it_fails(file: io.FileIO) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise


def _lock(file: io.FileIO, path: Path) -> None:
    """Lock the file; fail if another process is writing it, where the file system has locks.

    This kind of lock is not inherited by workers that outlive a killed search.
    """
    try:
        lock(file.fileno(), inherited=False)
    except (BlockingIOError, PermissionError) as error:
        raise OutputError(
            f"{path}: another search is writing this log", remedy="wait for it, or stop it"
        ) from error
    except OSError:  # a file system without locks
        return


def _make_durable(folder: Path) -> None:
    """Synchronize a folder, so that a new file in it survives a power failure, where possible."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@dataclass
class TrialRecorder:
    """Writes trials to a log, each with the strategy of its candidate.

    Attributes:
        log: The log; None writes nothing.
        planner: Makes the plans of candidates.
    """

    log: Log | None
    planner: Planner

    @property
    def trials(self) -> Sequence[Trial]:
        """Trials of the resumed run."""
        return () if self.log is None else self.log.trials

    @property
    def confirmed(self) -> Mapping[int, Trial]:
        """Trials that were measured again as the hardware computes them, by number."""
        return {} if self.log is None else self.log.confirmed

    def append(self, trial: Trial) -> None:
        """Write a trial; it is on the disk when the call returns."""
        if self.log is not None:
            self.log.append(trial, self._strategy(trial.candidate))

    def confirm(self, trial: Trial) -> None:
        """Write the result of a trial that was measured again as the hardware computes it."""
        if self.log is not None:
            self.log.confirm(trial, self._strategy(trial.candidate))

    def _strategy(self, candidate: Candidate) -> Strategy | None:
        """Make the strategy of a candidate; None where no plan can be made."""
        try:
            return self.planner.strategy_of(candidate)
        except IntactError:
            return None
