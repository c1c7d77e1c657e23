"""No workers: everything in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from types import TracebackType

from intact.search.space import Candidate
from intact.search.trial import Ask, Measured
from intact.search.workers.pool import Measurer, attempt


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
