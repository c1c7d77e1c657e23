"""The kinds of values that options take: from the text of a flag, from a recipe, from Python.

``parse`` reads the text behind a flag. ``check`` takes what Python or a recipe gives and returns it
in one form, so that an option has one type whoever gave it. Both raise ``Unfit`` with what to give
instead. Values that stand for names are read without regard to case.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from intact.data.preprocess import Preprocess
    from intact.plan import Overrides
    from intact.targets import Target

T_co = TypeVar("T_co", covariant=True)
TomlValue: TypeAlias = "str | int | float | bool | list[Any] | dict[str, Any]"


class Unfit(ValueError):  # noqa: N818 - a reason, which the option turns into an error
    """A value that an option does not take.

    Args:
        remedy: What to give instead, as a phrase.
    """

    def __init__(self, remedy: str) -> None:
        super().__init__(remedy)
        self.remedy = remedy


class Kind(Generic[T_co]):
    """What an option takes.

    Attributes:
        expects: Completes "give ...".
        metavar: What the help writes behind the flag; empty for switches.
        repeated: The flag may be given several times.
    """

    expects = "a value"
    metavar = "VALUE"
    repeated = False

    def parse(self, text: str) -> T_co:
        """Read the text behind a flag."""
        return self.check(text)

    def parse_all(self, texts: Sequence[str]) -> T_co:
        """Read the texts behind a flag that may be repeated."""
        return self.parse(texts[0])

    def check(self, value: Any) -> T_co:
        """Return the value in its one form.

        Raises:
            Unfit: It is of another type, or out of range.
        """
        raise NotImplementedError

    def to_toml(self, value: Any) -> TomlValue | None:
        """Return what a recipe writes; None for what only Python can give."""
        return value if isinstance(value, str | int | float | bool) else None

    def wrong(self) -> Unfit:
        """Refuse a value."""
        return Unfit(f"give {self.expects}")


class Flag(Kind[bool]):
    """A switch."""

    expects = "true or false"
    metavar = ""

    def check(self, value: Any) -> bool:
        """Take a bool, no other number."""
        if not isinstance(value, bool):
            raise self.wrong()
        return value


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
            raise Unfit(f"give a whole number, {self.expects}") from None

    def check(self, value: Any) -> int:
        """Take any integer type, but no bool."""
        try:
            number = operator.index(value)
        except TypeError:
            raise Unfit(f"give a whole number, {self.expects}") from None
        too_small = self.least is not None and number < self.least
        if isinstance(value, bool) or too_small or (self.most is not None and number > self.most):
            raise self.wrong()
        return number


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
        if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            raise self.wrong()
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong() from None


class Name(Kind[str]):
    """A name out of a table, which is read without regard to case.

    Args:
        what: Completes "give ...".
        known: The names, where the table is small; others are refused by whoever has the table.
        metavar: What the help writes behind the flag.
    """

    def __init__(self, what: str, known: Sequence[str] = (), metavar: str = "") -> None:
        self.expects = what
        self.known = tuple(known)
        self.metavar = metavar or ("|".join(known) if known else "NAME")

    def check(self, value: Any) -> str:
        """Take a text."""
        if not isinstance(value, str):
            raise self.wrong()
        name = value if ":" in value else value.lower()
        if self.known and name not in self.known:
            raise self.wrong()
        return name


class Text(Kind[str]):
    """A text that is taken as it is.

    Args:
        what: Completes "give ...".
        metavar: What the help writes behind the flag.
    """

    def __init__(self, what: str, metavar: str = "TEXT") -> None:
        self.expects, self.metavar = what, metavar

    def check(self, value: Any) -> str:
        """Take a text."""
        if not isinstance(value, str):
            raise self.wrong()
        return value


class Names(Kind[tuple[str, ...]]):
    """Several names; the flag is repeated.

    Args:
        what: Completes "give a list of ...".
        read: Gives a name its one form.
        metavar: What the help writes behind the flag.
    """

    repeated = True

    def __init__(
        self, what: str, read: Callable[[str], str] = str.lower, metavar: str = "NAME"
    ) -> None:
        self.expects, self._read, self.metavar = f"a list of {what}", read, metavar

    def parse_all(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Read each text as a name."""
        return self.check(list(texts))

    def check(self, value: Any) -> tuple[str, ...]:
        """Take an iterable of texts, but no single text."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise self.wrong()
        names = tuple(value)
        if not all(isinstance(name, str) for name in names):
            raise self.wrong()
        return tuple(self._read(name) for name in names)

    def to_toml(self, value: Any) -> TomlValue:
        """Write a list."""
        return list(value)


class NamesOrAll(Names):
    """Several names, or None for all there are."""

    def check(self, value: Any) -> tuple[str, ...] | None:  # type: ignore[override]
        """Take None, too."""
        return None if value is None else super().check(value)


class File(Kind["str | Path"]):
    """A path.

    Args:
        metavar: What the help writes behind the flag.
        what: Completes "give ...".
    """

    def __init__(self, metavar: str = "FILE", what: str = "a path") -> None:
        self.metavar, self.expects = metavar, what

    def check(self, value: Any) -> str | Path:
        """Take a text or a path."""
        if not isinstance(value, str | Path):
            raise self.wrong()
        return value

    def to_toml(self, value: Any) -> TomlValue:
        """Write the text."""
        return str(value)


class Given(Kind[Any]):
    """A path or a name, or an object that only Python can give.

    Args:
        what: Completes "give ...".
        types: Objects to take, each as ``module.Class``; a class that is not imported has no
            objects. Empty takes every object that is no number.
        metavar: What the help writes behind the flag.
        read: Gives a text its one form.
    """

    def __init__(
        self,
        what: str,
        types: Sequence[str] = (),
        metavar: str = "FILE",
        read: Callable[[str], str] = str,
    ) -> None:
        self.expects, self.types, self.metavar, self._read = what, types, metavar, read

    def check(self, value: Any) -> Any:
        """Take a text, a path or one of the objects."""
        if isinstance(value, str):
            return self._read(value)
        is_taken = (
            any(is_instance(value, each) for each in self.types)
            if self.types
            else not (value is None or isinstance(value, bool | int | float | complex | bytes))
        )
        if not (is_taken or isinstance(value, Path)):
            raise self.wrong()
        return value

    def to_toml(self, value: Any) -> TomlValue | None:
        """Write a text; an object cannot be written."""
        return str(value) if isinstance(value, str | Path) else None


def is_instance(value: object, place: str) -> bool:
    """Tell whether a value is of a class, without importing the class."""
    module, _, name = place.rpartition(".")
    owner = getattr(sys.modules.get(module), name, None)
    return isinstance(owner, type) and isinstance(value, owner)


class Several(Kind[Any]):
    """One value of a kind, or several; the flag is repeated.

    Args:
        one: The kind of each.
        nothing: A text that stands for an empty list.
        unwrap: Give a single value as itself, no list.
    """

    repeated = True

    def __init__(self, one: Given, *, nothing: str = "", unwrap: bool = False) -> None:
        self.one, self.nothing, self.unwrap = one, nothing, unwrap
        self.expects, self.metavar = f"{one.expects}, or a list of such", one.metavar

    def parse_all(self, texts: Sequence[str]) -> Any:
        """Read each text as a value."""
        if self.nothing and self.nothing in (text.lower() for text in texts):
            if len(texts) > 1:
                raise Unfit(f"leave {self.nothing!r} out beside others")
            return []
        return self.check(list(texts))

    def check(self, value: Any) -> Any:
        """Take a value or a list of them."""
        if isinstance(value, list | tuple):
            found = [self._one(each) for each in value]
            return found[0] if self.unwrap and len(found) == 1 else found
        one = self._one(value)
        return one if self.unwrap else [one]

    def _one(self, value: Any) -> Any:
        try:
            return self.one.check(value)
        except Unfit:
            raise self.wrong() from None

    def to_toml(self, value: Any) -> TomlValue | None:
        """Write a list, or a single value."""
        if not isinstance(value, list | tuple):
            return self.one.to_toml(value)
        found = [self.one.to_toml(each) for each in value]
        return None if None in found else found


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


class Pairs(Kind[Mapping[str, Any]]):
    """Numbers by name: ``NAME=NUMBER``; the flag is repeated.

    Args:
        example: Of such a pair.
        metavar: What the help writes behind the flag.
        whole: Take whole numbers only.
    """

    repeated = True

    def __init__(self, example: str, metavar: str, *, whole: bool = False) -> None:
        self.example, self.metavar, self.whole = example, metavar, whole
        name, _, number = example.rpartition("=")
        self.expects = f"numbers by name, for instance {{{name!r}: {number}}}"

    def parse_all(self, texts: Sequence[str]) -> Mapping[str, Any]:
        """Read each text as a name and a number."""
        found: dict[str, Any] = {}
        for text in texts:
            name, mark, number = text.rpartition("=")
            try:
                value = int(number) if self.whole else float(number)
            except ValueError:
                mark = ""
            if not mark or not name:
                raise Unfit(f"write {self.metavar}, for instance {self.example}")
            if name in found:
                raise Unfit(f"give {name} once")
            found[name] = value
        return found

    def check(self, value: Any) -> Mapping[str, Any]:
        """Take a mapping from texts to numbers."""
        one: Kind[Any] = Whole() if self.whole else Number()
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.wrong()
        try:
            return {name: one.check(number) for name, number in value.items()}
        except Unfit:
            raise self.wrong() from None

    def to_toml(self, value: Any) -> TomlValue:
        """Write a table."""
        return dict(value)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Memory(Kind[int]):
    """Bytes: a whole number, or a text like ``500M``."""

    expects = "bytes, for instance 500M or 4G"
    metavar = "SIZE"

    def check(self, value: Any) -> int:
        """Take bytes, or a text with a unit."""
        if not isinstance(value, str):
            return Whole(least=1).check(value)
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


class Instance(Kind[T_co]):
    """An object that only Python can give.

    Args:
        what: Completes "give ...".
        place: Its class, as ``module.Class``; empty for anything that can be called.
    """

    def __init__(self, what: str, place: str = "") -> None:
        self.expects, self.place = what, place

    def check(self, value: Any) -> T_co:
        """Take an object of the class."""
        if not (is_instance(value, self.place) if self.place else callable(value)):
            raise self.wrong()
        return value  # type: ignore[no-any-return]


def path_or_preprocess() -> Kind[str | Path | Preprocess]:
    """The kind of ``preprocess``."""
    return Given(
        "a Preprocess, or the path of a preprocessing file",
        ["intact.data.preprocess.Preprocess"],
        "FILE.toml",
    )


def overrides() -> Kind[Overrides]:
    """The kind of ``overrides``."""
    return Instance("an Overrides", "intact.plan.overrides.Overrides")


TARGET = Given(
    "the name of a target, the path of a TOML file or a Target",
    ["intact.targets.schema.Target"],
    "NAME|FILE.toml",
)


def target() -> Kind[str | Path | Target]:
    """The kind of ``target``."""
    return TARGET
