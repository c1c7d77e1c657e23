"""Remembering parts of an assignment, for callers that assign scales to many plans of one graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")


class Memo:
    """What was computed before; of one graph, target, method and set of statistics.

    What is remembered is shared and must not be changed.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        """Return what a key stands for, computed the first time."""
        try:
            found: Found = self._known[key]
        except KeyError:
            found = self._known.setdefault(key, compute())
        return found


class Forgetful(Memo):
    """Remembers nothing: every part is computed."""

    def __call__(self, key: Hashable, compute: Callable[[], Found]) -> Found:  # noqa: ARG002
        """Return what is computed."""
        return compute()
