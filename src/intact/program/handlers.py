"""Registers functions by the operation that they handle: kernels, readers, writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from intact.errors import Unsupported
from intact.ops.operators import Named, type_of

Key = TypeVar("Key")
Handler = TypeVar("Handler", bound=Callable[..., Any])


class _Handlers(Mapping[Key, Handler]):
    """A table filled by a decorator.

    Args:
        refusal: What is said of an operation without a function, with {} in its place.
    """

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._table: dict[Key, Handler] = {}

    def register(self, *keys: Key) -> Callable[[Handler], Handler]:
        """Register the decorated function for these operations.

        Raises:
            ValueError: An operation has a function already.
        """

        def decorate(function: Handler) -> Handler:
            for key in keys:
                # A second function would silently win by the order of imports.
                if key in self._table:
                    raise ValueError(f"{_name(key)} has a function already")
                self._table[key] = function
            return function

        return decorate

    def _find(self, key: Key) -> Handler:
        found = self._table.get(key)
        if found is None:
            raise Unsupported(self._refusal.format(_name(key)))
        return found

    def __getitem__(self, key: Key) -> Handler:
        return self._table[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


class Handlers(_Handlers[type[Any], Handler]):
    """A table from operation types to functions, filled by a decorator.

    Each function is registered where it is defined, so that adding an operation touches one file::

        WRITERS: Handlers[Writer] = Handlers("intact writes no {} for TFLite")


        @WRITERS.register(Add, Sub)
        def _sum(step: Step, builder: Builder) -> None: ...
    """

    def of(self, operation: object) -> Handler:
        """Look up the function for an operation.

        Raises:
            Unsupported: There is none.
        """
        return self._find(type(operation))


class NamedHandlers(_Handlers[str, Handler]):
    """A table from operator names, as a file has them, to functions; filled like `Handlers`."""

    def register(self, *operators: Named) -> Callable[[Handler], Handler]:
        """Register the decorated function for these operators.

        Raises:
            ValueError: An operator has a function already.
        """
        return super().register(*map(type_of, operators))

    def of(self, name: str) -> Handler:
        """Look up the function for an operator.

        Raises:
            Unsupported: There is none.
        """
        return self._find(name)


def _name(key: object) -> str:
    return key.__name__ if isinstance(key, type) else str(key)
