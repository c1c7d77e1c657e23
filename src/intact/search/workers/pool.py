"""What measures the candidates of a search, wherever it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import Protocol

from intact.errors import IntactError, UsageError
from intact.search.space import Candidate
from intact.search.trial import Ask, Measured, State


class Measurer(Protocol):
    """What a worker holds: an evaluator."""

    @property
    def float_score(self) -> float:
        """The score of the float model on all samples."""

    def measure(self, ask: Ask) -> Measured:
        """Run a candidate."""

    def confirm(self, candidate: Candidate) -> Measured:
        """Run a candidate on all samples, as the hardware computes it."""


class Pool(Protocol):
    """Workers, or none: a context manager, which ends them.

    The same asks give the same results in every pool, but for the seconds and for trials whose
    worker died. A candidate that cannot be measured (an `IntactError`, or too little memory) is a
    failed trial with its reason; an error in a program is raised.
    """

    @property
    def float_score(self) -> float:
        """The score of the float model on all samples."""

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[Measured]:
        """Measure candidates side by side; yield the results in the order asked.

        Nothing begins before the first result is wanted, and what has not begun when the
        iterator is closed never does.

        Raises:
            SearchError: Workers do not start.
        """

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[Measured]:
        """Measure candidates as the hardware computes them; otherwise like `evaluate`."""

    def close(self) -> None:
        """End the workers and remove what they needed; a second time does nothing."""

    def __enter__(self) -> Pool:
        """Return itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""


def failed(reason: str, seconds: float = 0.0) -> Measured:
    """Return the result of a trial that gave none."""
    return Measured(State.FAILED, math.nan, math.nan, 0, seconds, reason)


def attempt(run: Callable[[], Measured]) -> Measured:
    """Run a trial; what is wrong with its candidate is a failure of the trial, not of the search.

    Raises:
        UsageError: The request makes no sense.
        Exception: Any but `IntactError` and `MemoryError`: an error in a program.
    """
    began = time.perf_counter()
    try:
        return run()
    except UsageError:
        raise  # the ask itself is wrong
    except IntactError as error:
        reason = str(error)
    except MemoryError as error:
        reason = f"out of memory ({error})" if str(error) else "out of memory"
    return failed(reason, time.perf_counter() - began)


class Inline:
    """A pool that measures one candidate after the other.

    Args:
        make: Returns the evaluator; called when something is first measured.
    """

    def __init__(self, make: Callable[[], Measurer]) -> None:
        self._make = make

    @cached_property
    def _measurer(self) -> Measurer:
        return self._make()

    @property
    def float_score(self) -> float:
        """The score of the float model on all samples."""
        return self._measurer.float_score

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[Measured]:
        """Yield the results in the order asked; each is measured when it is wanted."""
        for ask in asks:
            yield attempt(partial(self._measurer.measure, ask))

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[Measured]:
        """Yield the results on all samples, as the hardware computes them."""
        for candidate in candidates:
            yield attempt(partial(self._measurer.confirm, candidate))

    def close(self) -> None:
        """Let go of the evaluator."""
        self.__dict__.pop("_measurer", None)

    def __enter__(self) -> Inline:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
