"""Names that nothing else has."""

from __future__ import annotations


class Names:
    """The names that are taken.

    >>> names = Names()
    >>> [names.fresh(name) for name in ("a", "a", "a_3", "a")]
    ['a', 'a_2', 'a_3', 'a_4']
    """

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}  # the last number tried: a hostile file calls all alike

    def fresh(self, wanted: str) -> str:
        """Return a name with a number behind it where it is taken, and take it."""
        name, number = wanted, self._taken.get(wanted, 1)
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken[wanted] = number
        self._taken.setdefault(name, 1)
        return name
