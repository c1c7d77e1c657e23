"""Caches what is computed for many plans of one graph, as a search makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")

_REMEMBERING = threading.Lock()
"""One for all: it is held for an instant, and memos are copied and sent to other processes."""


class IdentityKey:
    """A key for what never changes and has no hash: equal to that of the same object only.

    Args:
        thing: The object; it stays alive as long as the key.
    """

    __slots__ = ("_thing",)

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self._thing is other._thing

    def __hash__(self) -> int:
        return id(self._thing)


class Memo:
    """What was computed before; of one graph, target, method and set of statistics.

    What is remembered is shared and must not be changed. Threads may share one.

    Args:
        most: Parts that are kept; the oldest are forgotten. None keeps all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._known: dict[Hashable, Any] = {}

    def bounded(self, name: str, most: int) -> Memo:
        """Return the memo for parts of which there is no end, the same for the same name."""
        return self(("memo", name), lambda: Memo(most))

    def __call__(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        """Look up the value of a key; compute it the first time."""
        try:
            found: Found = self._known[key]
        except KeyError:
            # Two threads may compute the same: both get what came first, so that equal parts stay
            # one object.
            computed = compute()
            with _REMEMBERING:
                found = self._known.setdefault(key, computed)
                if self._most is not None and len(self._known) > self._most:
                    del self._known[next(iter(self._known))]
        return found


class Forgetful(Memo):
    """Remembers nothing: every part is computed."""

    def bounded(self, name: str, most: int) -> Memo:  # noqa: ARG002
        """Return a memo that remembers nothing either."""
        return self

    def __call__(self, key: Hashable, compute: Callable[[], Found]) -> Found:  # noqa: ARG002
        """Compute the value."""
        return compute()
