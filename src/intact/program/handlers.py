"""Functions by the type of operation that they handle: kernels, lowerings, writers of formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from intact.errors import Unsupported

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Handlers(Mapping[type[Any], Handler]):
    """A table from operation types to functions, filled by a decorator.

    Each function is registered where it is defined, so that adding an operation touches one file::

        WRITERS: Handlers[Writer] = Handlers("TFLite")


        @WRITERS.register(Add, Sub)
        def _sum(step: Step, builder: Builder) -> None: ...

    Args:
        owner: Who handles the operations, as messages name it.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._table: dict[type[Any], Handler] = {}

    def register(self, *operations: type[Any]) -> Callable[[Handler], Handler]:
        """Register the decorated function for these operation types.

        Raises:
            ValueError: An operation has a function already.
        """

        def decorate(function: Handler) -> Handler:
            for operation in operations:
                if operation in self._table:
                    message = f"{self._owner} handles {operation.__name__} twice"
                    raise ValueError(message)
                self._table[operation] = function
            return function

        return decorate

    def of(self, operation: object) -> Handler:
        """Look up the function for an operation.

        Raises:
            Unsupported: There is none.
        """
        found = self._table.get(type(operation))
        if found is None:
            raise Unsupported(f"{self._owner} has no {type(operation).__name__}")
        return found

    def __getitem__(self, operation: type[Any]) -> Handler:
        return self._table[operation]

    def __iter__(self) -> Iterator[type[Any]]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)
