"""The kinds of options that give values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intact.recipe.kinds import Kind, TomlValue, Unfit
from intact.recipe.numbers import Whole

Shape = tuple[int | None, ...]


class Pairs(Kind[Mapping[str, Any]]):
    """Values by name: ``NAME=VALUE``; the flag is repeated.

    Args:
        one: The kind of each value.
        what: What values are, in the plural.
        example: Of such a pair.
        metavar: What the help writes behind the flag.
    """

    repeated = True

    def __init__(self, one: Kind[Any], what: str, example: str, metavar: str) -> None:
        self.one, self.example, self.metavar = one, example, metavar
        name, _, value = example.rpartition("=")
        self.expects = f"{what} by name, for instance {{{name!r}: {one.parse(value)!r}}}"

    def parse_all(self, texts: Sequence[str]) -> Mapping[str, Any]:
        """Read each text as a name and a value."""
        found: dict[str, Any] = {}
        for text in texts:
            name, mark, value = text.rpartition("=")
            if not (name and mark and value):
                raise self._malformed()
            if name in found:
                raise Unfit(f"give {name} once")
            try:
                found[name] = self.one.parse(value)
            except Unfit:
                raise self._malformed() from None
        return found

    def check(self, value: Any) -> Mapping[str, Any]:
        """Take a mapping from texts to values."""
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.wrong()
        try:
            return {name: self.one.check(each) for name, each in value.items()}
        except Unfit:
            raise self.wrong() from None

    def to_toml(self, value: Any) -> TomlValue:
        """Write a table."""
        return dict(value)

    def _malformed(self) -> Unfit:
        return Unfit(f"write {self.metavar}, for instance {self.example}")


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


def _size(size: Any) -> int | None:
    if size is None or (isinstance(size, str) and size.strip() == "?"):
        return None
    return Whole(least=1).check(int(size) if isinstance(size, str) else size)
