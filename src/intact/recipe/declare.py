"""How an option is declared, and what is made of the declarations.

An option is a field of a frozen dataclass: its name, type and default as in any dataclass, its help
and its kind in ``option``. A dataclass that inherits from several groups is the recipe of a command
and of its public function. Constructing it checks every value.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, TypeVar

from intact.errors import FLAGS, UsageError
from intact.recipe.kinds import Flag, Kind, Unfit

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
O = TypeVar("O", bound="Options")  # noqa: E741
R = TypeVar("R")

_KEY = "option"
_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: In Python and in recipes.
        kind: What values it takes.
        default: Where it is not given; ``MISSING`` where it must be.
        help: What it does, with its unit.
        flag: On the command line, e.g. ``--method``; empty for what only Python has.
        off: The flag that says no, of a switch that is on by default.
        short: A second flag, e.g. ``-d``.
        positional: It stands on the command line without a flag.
        recorded: The recipe of a result has it: it says how the result is made, not where it goes.
        in_python: What else Python takes, a sentence that follows the help there.
        section: Heading above it in the help.
    """

    name: str
    kind: Kind[Any]
    default: Any
    help: str
    flag: str
    off: str
    short: str
    positional: bool
    recorded: bool
    in_python: str
    section: str

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is dataclasses.MISSING

    def checked(self, value: Any) -> Any:
        """Return a value in the one form that its kind has for it.

        Raises:
            UsageError: It is of another type, or out of range.
        """
        if not self.required and (value is self.default or value is None is self.default):
            return value
        with self.refusing(value):
            return self.kind.check(value)

    def refusing(self, value: object) -> _Refusal:
        """Name the option and its value in what the kind refuses."""
        return _Refusal(self, value)


@dataclass(frozen=True)
class _Refusal:
    option: Option
    value: object

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Unfit):
            shown = repr(self.value)
            if len(shown) > _LONGEST_VALUE or "\n" in shown:
                shown = f"a {type(self.value).__name__}"
            option = self.option
            said = option.kind.metavar if option.positional else option.flag or option.name
            found = UsageError(f"{said} is {shown}", remedy=error.remedy)
            found.args = (found.with_flags.replace(said, option.name, 1),)
            raise found from None


def option(
    kind: Kind[T],
    default: D,
    help: str,
    *,
    flag: str | None = None,
    short: str = "",
    recorded: bool = True,
    in_python: str = "",
) -> T | D:
    """Declare an option with a default.

    Args:
        kind: What values it takes.
        default: Where it is not given.
        help: What it does, with its unit: one or two sentences, for the command line and Python's
            documentation alike.
        flag: On the command line; None makes it of the name, an empty text leaves it to Python. A
            switch that is on by default may have two: ``--signed/--unsigned``.
        short: A second flag of one letter.
        recorded: The recipe of a result has it.
        in_python: What else Python takes, a sentence that follows the help there.
    """
    declared = {
        "kind": kind,
        "help": help,
        "flag": flag,
        "short": short,
        "recorded": recorded,
        "in_python": in_python,
    }
    made: T | D = field(default=default, metadata={_KEY: declared})
    return made


def required(
    kind: Kind[Any],
    help: str,
    *,
    flag: str | None = None,
    short: str = "",
    recorded: bool = True,
    in_python: str = "",
) -> Mapping[str, Any]:
    """Declare an option that must be given: the metadata of its field.

    Args:
        kind: What values it takes.
        help: What it is.
        flag: On the command line; None for a positional argument.
        short: A second flag of one letter.
        recorded: The recipe of a result has it.
        in_python: What else Python takes, a sentence that follows the help there.
    """
    declared = {
        "kind": kind,
        "help": help,
        "flag": flag,
        "short": short,
        "recorded": recorded,
        "in_python": in_python,
    }
    return {_KEY: {**declared, "positional": flag is None}}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options:
    """A group of options; its values are checked when it is made.

    Attributes:
        section: Heading above its options in the help.
        headings: Other headings for those of inherited groups.
    """

    section: ClassVar[str] = ""
    headings: ClassVar[Mapping[str, str]] = {}

    def in_force(self) -> AbstractContextManager[None]:
        """Return a context in which what the options change for a whole call holds."""
        return nullcontext()

    def __post_init__(self) -> None:
        """Bring every value into its one form.

        Raises:
            UsageError: One is of a wrong type, or out of range.
        """
        for each in options_of(type(self)).values():
            value = getattr(self, each.name)
            checked = each.checked(value)
            if checked is not value:
                object.__setattr__(self, each.name, checked)


def options_of(recipe: type[Options]) -> Mapping[str, Option]:
    """List the options of a recipe by name, in the order of its signature."""
    known = _KNOWN.get(recipe)
    if known is not None:
        return known
    sections = {
        name: recipe.headings.get(group.section, group.section)
        for group in reversed(recipe.__mro__)
        if issubclass(group, Options)
        for name in inspect.get_annotations(group)
    }
    found = {each.name: _option(each, sections[each.name]) for each in dataclasses.fields(recipe)}
    _KNOWN[recipe] = {name: found[name] for name in inspect.signature(recipe).parameters}
    return _KNOWN[recipe]


_KNOWN: dict[type[Options], Mapping[str, Option]] = {}


def _option(each: dataclasses.Field[Any], section: str) -> Option:
    declared = dict(each.metadata[_KEY])
    flag = declared.pop("flag")
    is_positional = declared.pop("positional", False)
    if flag is None:
        flag = "" if is_positional else f"--{each.name.replace('_', '-')}"
    flag, _, off = flag.partition("/")
    if each.default is True and flag and not off:
        off = f"--no-{flag[2:]}"
    for text, name in ((flag, each.name), (off, f"{each.name}=False")):
        if text:
            FLAGS.setdefault(text, name)  # that of the groups, where a command has another
    return Option(
        name=each.name,
        default=each.default,
        flag=flag,
        off=off,
        short=declared.pop("short"),
        positional=is_positional,
        recorded=declared.pop("recorded"),
        in_python=declared.pop("in_python"),
        section=section,
        **declared,
    )


def public(recipe: Callable[P, O]) -> Callable[[Callable[[O], R]], Callable[P, R]]:
    """Give a function that takes a recipe the recipe's options as its arguments.

    Its signature and the ``Args`` of its documentation are those of the declarations.

    Args:
        recipe: A dataclass of options.
    """

    def decorate(function: Callable[[O], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            _refuse_unknown(function.__name__, recipe, kwargs)
            options = recipe(*args, **kwargs)
            with options.in_force():
                return function(options)

        signature = inspect.signature(recipe)
        answer = inspect.signature(function).return_annotation
        call.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]
        call.__annotations__ = {
            **{name: each.annotation for name, each in signature.parameters.items()},
            "return": answer,
        }
        call.__doc__ = _documented(function.__doc__ or "", recipe)
        del call.__wrapped__
        return call

    return decorate


def _refuse_unknown(name: str, recipe: Any, given: Mapping[str, object]) -> None:
    known = options_of(recipe)
    for each in given:
        if each not in known:
            from intact.errors import nearest

            message = f"{name}() got an unexpected keyword argument {each!r}; "
            raise TypeError(message + nearest(each, known))


def _documented(doc: str, recipe: Any) -> str:
    """Insert the list of arguments before what a function's documentation says it raises."""
    head, mark, tail = inspect.cleandoc(doc).partition("\nRaises:")
    if "\nReturns:" in head:
        head, returns, rest = head.partition("\nReturns:")
        mark = f"{returns}{rest}{mark}"
    lines = "\n".join(_arguments(recipe))
    return f"{head}\nArgs:\n{lines}\n{mark}{tail}"


def _arguments(recipe: Any) -> Iterator[str]:
    for each in options_of(recipe).values():
        shown = shown_default(each)
        parts = [each.help, each.in_python, f"Default: {shown}." if shown else ""]
        text = f"{each.name}: {' '.join(part for part in parts if part)}"
        yield textwrap.fill(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)


def shown_default(each: Option) -> str:
    """Write a default as help does; nothing for an empty one, which the help text explains."""
    if each.required or each.default in (None, "", (), False):
        return ""
    if isinstance(each.kind, Flag):
        return "yes"
    value = each.default
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
