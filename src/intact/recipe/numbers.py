"""Declares the kinds of options that are numbers, or values and shapes by name."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from intact.recipe.kinds import Kind, TomlValue, Unfit, is_instance


class Whole(Kind[int]):
    """A whole number within bounds.

    Args:
        least: The smallest.
        most: The largest; None for no end.
    """

    metavar = "N"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self.least, self.most = least, most
        if least is not None and most is not None:
            self.expects = f"a whole number from {least} to {most}"
        elif least is not None:
            self.expects = f"{least} or more"
        else:
            self.expects = "a whole number"

    def parse(self, text: str) -> int:
        """Read decimal digits."""
        try:
            return self.check(int(text))
        except Unfit:
            raise
        except ValueError:
            raise self._no_number() from None

    def check(self, value: Any) -> int:
        """Take any integer type, but no bool."""
        try:
            # NumPy's integers have it, floats do not: 3.0 is refused.
            number = operator.index(value)
        except TypeError:
            raise self._no_number() from None
        too_small = self.least is not None and number < self.least
        if isinstance(value, bool) or too_small or (self.most is not None and number > self.most):
            raise self.wrong()
        return number

    def _no_number(self) -> Unfit:
        whole = "a whole number"
        return (
            self.wrong()
            if self.expects.startswith(whole)
            else Unfit(f"give {whole}, {self.expects}")
        )


class Count(Whole):
    """How many samples: 1 or more, or ``all``, which is None."""

    metavar = "N|all"

    def __init__(self) -> None:
        super().__init__(least=1)

    def parse(self, text: str) -> int | None:  # type: ignore[override]
        """Read digits or ``all``."""
        return None if text.lower() == "all" else super().parse(text)

    def check(self, value: Any) -> int | None:  # type: ignore[override]
        """Take a number, None or ``all``."""
        if value is None or (isinstance(value, str) and value.lower() == "all"):
            return None
        return super().check(value)

    def to_toml(self, value: Any) -> TomlValue:
        """Write None as ``all``."""
        return "all" if value is None else value


class Number(Kind[float]):
    """A finite number."""

    expects = "a number"
    metavar = "NUMBER"

    def parse(self, text: str) -> float:
        """Read a decimal number."""
        try:
            return float(text)
        except ValueError:
            raise self.wrong() from None

    def check(self, value: Any) -> float:
        """Take any real number type, but no bool and no text."""
        # `float` would read texts, which came from a recipe by mistake.
        if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            raise self.wrong()
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong() from None


class Constant(Kind[bool | int | float]):
    """A finite number, or a truth value."""

    expects = "a number, true or false"
    metavar = "VALUE"

    def parse(self, text: str) -> bool | int | float:
        """Read a truth value, a whole or a decimal number."""
        known = {"true": True, "false": False}
        text = text.strip().lower()
        if text in known:
            return known[text]
        try:
            return self.check(int(text))
        except ValueError:
            return self.check(Number().parse(text))

    def check(self, value: Any) -> bool | int | float:
        """Take a number or a truth value, NumPy's too, also as an array of one."""
        # Scalars of NumPy and torch are what code has at hand.
        number = value.item() if getattr(value, "size", 0) == 1 else value
        # NaN fails this comparison too, and whole numbers beyond float64 do.
        if not isinstance(number, bool | int | float) or not abs(number) <= sys.float_info.max:
            raise self.wrong()
        return number


class Numbers(Kind[tuple[Any, ...]]):
    """Numbers with commas between them, or a list of them.

    Args:
        what: Completes "give ...".
        metavar: What the help writes behind the flag.
        whole: Take whole numbers only.
        square: A single number stands for two: rows and columns.
    """

    def __init__(
        self, what: str, metavar: str, *, whole: bool = False, square: bool = False
    ) -> None:
        self.expects, self.metavar, self.whole, self.square = what, metavar, whole, square

    def parse(self, text: str) -> tuple[Any, ...]:
        """Read ``1,2,3``."""
        try:
            return self.check([(int if self.whole else float)(part) for part in text.split(",")])
        except Unfit:
            raise
        except ValueError:
            kind = "whole numbers" if self.whole else "numbers"
            raise Unfit(f"give {kind} separated by commas") from None

    def check(self, value: Any) -> tuple[Any, ...]:
        """Take numbers, or one of them."""
        one: Kind[Any] = Whole() if self.whole else Number()
        values = value if isinstance(value, list | tuple) else [value]
        try:
            numbers = tuple(one.check(each) for each in values)
        except Unfit:
            raise self.wrong() from None
        return numbers * 2 if self.square and len(numbers) == 1 else numbers

    def to_toml(self, value: Any) -> TomlValue | None:
        """Write a list."""
        return list(value)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Memory(Kind[int]):
    """Bytes: a whole number, or a text like ``500M``."""

    expects = "bytes, for instance 500M or 4G"
    metavar = "SIZE"

    def check(self, value: Any) -> int:
        """Take bytes, or a text with a unit."""
        if not isinstance(value, str):
            return Whole(least=1).check(value)
        # `isdecimal` below refuses signs and points: part of a byte is nothing.
        number, unit = (value[:-1], value[-1].upper()) if value[-1:].isalpha() else (value, "")
        if unit not in _UNITS or not number.isdecimal() or not int(number):
            raise self.wrong()
        return int(number) * _UNITS[unit]


class TextOrNumber(Kind[Any]):
    """A number, or a text that whoever takes it reads.

    Args:
        what: Completes "give ...".
        metavar: What the help writes behind the flag.
        types: Objects to take too, each as ``module.Class``.
    """

    def __init__(self, what: str, metavar: str, types: Sequence[str] = ()) -> None:
        self.expects, self.metavar, self.types = what, metavar, types

    def check(self, value: Any) -> Any:
        """Take a number, a text or one of the objects."""
        is_object = any(is_instance(value, each) for each in self.types)
        is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        if not is_object and not (is_plain and (isinstance(value, str) or math.isfinite(value))):
            raise self.wrong()
        return value


Shape = tuple[int | None, ...]


class Pairs(Kind[Mapping[str, Any]]):
    """Values by name: ``NAME=VALUE``; the flag is repeated.

    Args:
        one: The kind of each value.
        what: What values are, in the plural.
        example: An example of such a pair.
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
            # At the last `=`: names of nodes may have some, values have none.
            name, mark, value = text.rpartition("=")
            if not (name and mark and value):
                raise self._form_error()
            if name in found:
                raise Unfit(f"give {name} once")
            try:
                found[name] = self.one.parse(value)
            except Unfit:
                raise self._form_error() from None
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

    def _form_error(self) -> Unfit:
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
            # At the last `=`: names of inputs may have some.
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
        # A model of one input needs no name for it.
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
        # TOML has no null.
        return {name: ["?" if n is None else n for n in shape] for name, shape in value.items()}


def _size(size: Any) -> int | None:
    if size is None or (isinstance(size, str) and size.strip() == "?"):
        return None
    return Whole(least=1).check(int(size) if isinstance(size, str) else size)
