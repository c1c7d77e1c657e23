"""The kinds of options that give something else than numbers by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from intact.recipe.kinds import Kind, TomlValue, Unfit
from intact.recipe.numbers import Whole

Shape = tuple[int | None, ...]


class Links(Kind[Mapping[str, str]]):
    """Names by name: ``OUT=IN``; the flag is repeated.

    Args:
        example: Of such a pair.
        metavar: What the help writes behind the flag.
    """

    repeated = True

    def __init__(self, example: str, metavar: str) -> None:
        self.example, self.metavar = example, metavar
        first, _, second = example.partition("=")
        self.expects = f"names by name, for instance {{{first!r}: {second!r}}}"

    def parse_all(self, texts: Sequence[str]) -> Mapping[str, str]:
        """Read each text as two names."""
        found: dict[str, str] = {}
        for text in texts:
            first, mark, second = text.rpartition("=")
            if not (first and mark and second):
                raise Unfit(f"write {self.metavar}, for instance {self.example}")
            if first in found:
                raise Unfit(f"give {first} once")
            found[first] = second
        return found

    def check(self, value: Any) -> Mapping[str, str]:
        """Take a mapping from texts to texts."""
        if not isinstance(value, Mapping):
            raise self.wrong()
        if not all(isinstance(each, str) for pair in value.items() for each in pair):
            raise self.wrong()
        return dict(value)

    def to_toml(self, value: Any) -> TomlValue:
        """Write a table."""
        return dict(value)


class Shapes(Kind[Mapping[str, Shape]]):
    """Shapes by name: ``NAME=1,3,224,224``, or one without a name; the flag is repeated.

    The name of the latter is empty. A size that stays open is ``?``, which is None.
    """

    metavar = "[NAME=]N,N,..."
    expects = "sizes by name, for instance {'image': [1, 3, 224, 224]}, or a list of sizes"
    repeated = True
    _remedy = "write NAME=1,3,224,224, or 1,3,224,224 where the model has one input; ? is any size"

    def parse_all(self, texts: Sequence[str]) -> Mapping[str, Shape]:
        """Read each text as a name and sizes."""
        found: dict[str, Shape] = {}
        for text in texts:
            name, _, sizes = text.rpartition("=")
            try:
                shape = tuple(map(_size, sizes.split(",")))
            except (ValueError, Unfit):
                raise Unfit(self._remedy) from None
            if name in found:
                raise Unfit(f"give {name or 'it'} once")
            found[name] = shape
        return found

    def check(self, value: Any) -> Mapping[str, Shape]:
        """Take a mapping from names to sizes, or sizes alone."""
        by_name = value if isinstance(value, Mapping) else {"": value}
        found: dict[str, Shape] = {}
        for name, sizes in by_name.items():
            if not isinstance(name, str) or not isinstance(sizes, list | tuple) or not sizes:
                raise self.wrong()
            try:
                found[name] = tuple(map(_size, sizes))
            except (ValueError, Unfit):
                raise self.wrong() from None
        return found

    def to_toml(self, value: Any) -> TomlValue:
        """Write a table of lists."""
        return {name: ["?" if n is None else n for n in shape] for name, shape in value.items()}


class Constants(Kind[Mapping[str, bool | int | float]]):
    """Numbers or truth values by name: ``NAME=16000``; the flag is repeated."""

    metavar = "NAME=VALUE"
    expects = "a number, true or false by name, for instance {'sr': 16000}"
    repeated = True
    _remedy = "write NAME=VALUE with a number, true or false, for instance sr=16000"

    def parse_all(self, texts: Sequence[str]) -> Mapping[str, bool | int | float]:
        """Read each text as a name and a value."""
        found: dict[str, Any] = {}
        for text in texts:
            name, mark, value = text.rpartition("=")
            if not (name and mark):
                raise Unfit(self._remedy)
            if name in found:
                raise Unfit(f"give {name} once")
            try:
                found[name] = _constant(value)
            except ValueError:
                raise Unfit(self._remedy) from None
        return self.check(found)

    def check(self, value: Any) -> Mapping[str, bool | int | float]:
        """Take a mapping from names to numbers or truth values, NumPy's too."""
        if not isinstance(value, Mapping):
            raise self.wrong()
        found: dict[str, bool | int | float] = {}
        for name, given in value.items():
            number = given.item() if getattr(given, "size", 0) == 1 else given
            is_number = isinstance(number, bool | int | float) and abs(number) <= _LARGEST
            if not isinstance(name, str) or not is_number:
                raise self.wrong()
            found[name] = number
        return found

    def to_toml(self, value: Any) -> TomlValue:
        """Write a table."""
        return dict(value)


_LARGEST = sys.float_info.max


def _constant(text: str) -> bool | int | float:
    """Read a truth value, or a number.

    Raises:
        ValueError: It is neither.
    """
    known = {"true": True, "false": False}
    text = text.strip().lower()
    if text in known:
        return known[text]
    try:
        return int(text)
    except ValueError:
        return float(text)


def _size(size: Any) -> int | None:
    if size is None or (isinstance(size, str) and size.strip() == "?"):
        return None
    return Whole(least=1).check(int(size) if isinstance(size, str) else size)
