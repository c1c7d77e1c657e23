"""Declares the kinds of values that options take, from flags, recipes and Python.

``parse`` reads the text behind a flag. ``check`` takes what Python or a recipe gives and returns it
in one form, so that an option has one type whoever gave it. Both raise ``Unfit`` with what to give
instead. Values that stand for names are read without regard to case.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from intact.data.preprocess import Preprocess
    from intact.plan import Overrides
    from intact.targets import Target
from dataclasses import dataclass

from intact.errors import UsageError

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


class Kind(ABC, Generic[T_co]):
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

    @abstractmethod
    def check(self, value: Any) -> T_co:
        """Return the value in its one form.

        Raises:
            Unfit: It is of another type, or out of range.
        """

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
        # `MODULE:FUNCTION` is case-sensitive.
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
        # A text is an iterable of letters, and a dict one of names: both are slips.
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise self.wrong()
        names = tuple(value)
        if not all(isinstance(name, str) for name in names):
            raise self.wrong()
        return tuple(self._read(name) for name in names)

    def to_toml(self, value: Any) -> TomlValue:
        """Write a list."""
        return list(value)


class Passes(Names):
    """Improvement passes, ``NAME`` or ``NAME{key=value,...}``; one text may list several."""

    def __init__(self) -> None:
        super().__init__("passes", _lower_name, "NAME[{K=V,...}]")

    def check(self, value: Any) -> tuple[str, ...]:
        """Take an iterable of texts, but no single text; commas outside of braces part them."""
        texts = super().check(value)
        return tuple(part for text in texts for part in _APART.split(text) if part.strip())


def _lower_name(text: str) -> str:
    # Values of options may be paths, whose case counts.
    name, brace, options = text.partition("{")
    return f"{name.lower()}{brace}{options}"


_APART = re.compile(r",(?![^{}]*\})")
"""Commas that are not within braces."""


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
        if not isinstance(value, str | Path) or value == "":  # of a variable that is not set
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
        text: What a text may be, as a phrase, where ``what`` names objects too.
    """

    def __init__(
        self,
        what: str,
        types: Sequence[str] = (),
        metavar: str = "FILE",
        read: Callable[[str], str] = str,
        *,
        text: str = "",
    ) -> None:
        self.expects, self.types, self.metavar, self._read = what, types, metavar, read
        self._text = text or what

    def check(self, value: Any) -> Any:
        """Take a text, a path or one of the objects."""
        if isinstance(value, str):
            if not value:
                raise Unfit(f"give {self._text}")
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
    # Where the module is not loaded there is no object of it, and loading torch takes seconds.
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
        # A word of its own, because a command line cannot give an empty list.
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
        # One that cannot be written makes the whole list unwritable: a part would be another list.
        return None if None in found else found


class NamedValues(Several):
    """Several values of a kind, of which Python may give each a name."""

    def check(self, value: Any) -> Any:
        """Take a value, a list of them, or a mapping of names to them."""
        if isinstance(value, Mapping):
            return {str(name): self._one(each) for name, each in value.items()}
        return super().check(value)


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
    """Return the kind of ``preprocess``."""
    return Given(
        "a Preprocess, or the path of a preprocessing file",
        ["intact.data.preprocess.Preprocess"],
        "FILE.toml",
    )


def overrides() -> Kind[Overrides]:
    """Return the kind of ``overrides``."""
    return Instance("an Overrides", "intact.plan.overrides.Overrides")


TARGET = Given(
    "the name of a target, the path of a TOML file or a Target (for several, quantize_for)",
    ["intact.targets.schema.Target"],
    "NAME|FILE.toml",
)


def target() -> Kind[str | Path | Target]:
    """Return the kind of ``target``."""
    return TARGET


_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}

_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(trials?|[a-z]+)?")

_REMEDY = "write for instance 200trials, 90s, 10min or 2h"


@dataclass(frozen=True)
class Budget:
    """The number of trials and the time that a search may take, whichever ends first.

    Attributes:
        trials: Maximum number of trials, including those of a resumed run. A trial on a tenth of
            the samples counts as a tenth of one. None for no limit.
        seconds: No trial starts after this many seconds; None for no limit.

    >>> Budget.parse("10min").seconds
    600.0
    """

    trials: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Check that there is a limit, and that it is above zero."""
        if self.trials is None and self.seconds is None:
            raise UsageError("the budget has no limit", remedy=_REMEDY)
        if (self.trials is not None and self.trials < 1) or (
            self.seconds is not None and not self.seconds > 0
        ):
            raise UsageError("a budget of zero allows no trial", remedy=_REMEDY)

    @staticmethod
    def parse(text: str) -> Budget:
        """Read ``200trials``, ``200``, ``90s``, ``10min``, ``2h``, or two with a comma.

        Raises:
            UsageError: The text has another form, or the budget is zero.
        """
        trials: int | None = None
        seconds: float | None = None
        for part in text.split(","):
            found = _FORM.fullmatch(part.strip().lower())
            unit = None if found is None else found[2]
            if found is None or (unit is not None and unit not in {"trial", "trials", *_SECONDS}):
                raise UsageError(f"--budget {text!r}", remedy=_REMEDY)
            # A number alone is one of trials.
            if unit in _SECONDS:
                seconds = float(found[1]) * _SECONDS[unit]
            elif "." in found[1]:
                raise UsageError(
                    f"--budget {text!r}: the number of trials is not whole", remedy=_REMEDY
                )
            else:
                trials = int(found[1])
        return Budget(trials, seconds)
