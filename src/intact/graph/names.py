"""Makes unique names for nodes, values and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import onnx_ir as ir

_Named = TypeVar("_Named", ir.Node, ir.Value)


class Names:
    """A set of names in use, which makes new ones that are not.

    A name that is in use gets a number behind it, counted up from ``first``.

    >>> names = Names(["x", "x_2"])
    >>> [names.fresh(wanted) for wanted in ("x", "y", "x", "y")]
    ['x_3', 'y', 'x_4', 'y_2']

    Args:
        taken: Names in use; None and "" are skipped.
        first: The first number that is tried.
        key: Two names are the same if their keys are; for instance ``str.lower``.
    """

    def __init__(
        self,
        taken: Iterable[str | None] = (),
        *,
        first: int = 2,
        key: Callable[[str], str] = str,
    ) -> None:
        self._first, self._key = first, key
        self._taken = {key(name) for name in taken if name}
        # The next number by stem: a hostile file gives all tensors one name.
        self._next: dict[tuple[str, str], int] = {}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._key(name) in self._taken

    def fresh(self, wanted: str, suffix: str = "") -> str:
        """Make a name and mark it as used: ``wanted`` + ``suffix``, or with a number between."""
        name, number = f"{wanted}{suffix}", self._next.get((wanted, suffix), self._first)
        while name in self:
            name, number = f"{wanted}_{number}{suffix}", number + 1
        self._next[wanted, suffix] = number
        self.add(name)
        return name

    def add(self, name: str) -> None:
        """Mark a name as used."""
        self._taken.add(self._key(name))

    def discard(self, name: str | None) -> None:
        """Mark a name as free."""
        if name:
            self._taken.discard(self._key(name))
            # A freed name may be lower than the number at which the next search would begin.
            self._next.clear()

    def claim(self, things: Iterable[_Named]) -> list[_Named]:
        """Mark the names of nodes or values as used; list those whose name is empty or in use."""
        nameless = []
        for thing in things:
            if thing.name and thing.name not in self:
                self.add(thing.name)
            else:
                nameless.append(thing)
        return nameless


def value_names(graph: ir.Graph) -> Names:
    """Collect the names of a graph's own values; numbers start at 1."""
    names = {value.name for node in graph for value in node.outputs}
    names |= {value.name for value in graph.inputs} | set(graph.initializers)
    return Names(names, first=1)


def node_names(graph: ir.Graph) -> Names:
    """Collect the names of a graph's own nodes; numbers start at 1."""
    return Names((node.name for node in graph), first=1)
