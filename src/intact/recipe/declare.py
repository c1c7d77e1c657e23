"""Declares options, and makes recipes and function signatures of the declarations.

An option is declared as a field of a frozen dataclass would be: its name and type as there, its
kind, default and help in ``option``. A class that inherits from several groups is the recipe of a
command and of its public function. Constructing it checks every value.

The classes are no dataclasses to Python, only to type checkers: there are some 45 of up to 40
options, for each of which ``dataclass`` would compile a constructor, a tenth of the time that a
small model takes to be quantized.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
)

from intact.errors import FLAGS, IntactWarning, UsageError
from intact.recipe.kinds import Flag, Kind, Unfit

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
O = TypeVar("O", bound="Options")  # noqa: E741
R = TypeVar("R")

_LONGEST_VALUE = 80
_WIDTH = 96
"""Of a line of documentation, which stands in a function."""
_KEYWORDS_FOLLOW = "_"
"""The name of the field of type ``dataclasses.KW_ONLY``."""
_MISSING: Any = inspect.Parameter.empty


class Declaration(NamedTuple):
    """What a class says of an option: the arguments of ``option`` or ``required``."""

    kind: Kind[Any]
    default: Any
    help: str
    flag: str | None
    short: str
    recorded: bool
    in_python: str


class Option(NamedTuple):
    """One option.

    Attributes:
        name: Its name in Python and in recipes.
        annotation: The type as it is written.
        kind: What values it takes.
        default: Its value where it is not given; ``inspect.Parameter.empty`` where it must be.
        help: What it does, with its unit.
        flag: Its flag, e.g. ``--method``; empty for what only Python has.
        off: The flag that says no, of a switch that is on by default.
        short: A second flag, e.g. ``-d``.
        positional: It stands on the command line without a flag.
        keyword_only: Python takes it by name only.
        recorded: The recipe of a result has it: it says how the result is made, not where it goes.
        in_python: What else Python takes, a sentence that follows the help there.
        section: Heading above it in the help.
    """

    name: str
    annotation: Any
    kind: Kind[Any]
    default: Any
    help: str
    flag: str
    off: str
    short: str
    positional: bool
    keyword_only: bool
    recorded: bool
    in_python: str
    section: str

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is _MISSING

    def checked(self, value: Any) -> Any:
        """Return a value in the one form that its kind has for it.

        Raises:
            UsageError: It is of another type, or out of range.
        """
        # A default is taken as it is: it may be of a form that its kind would not take from a user.
        if not self.required and (value is self.default or value is None is self.default):
            return value
        with self.refusing(value):
            return self.kind.check(value)

    def refusing(self, value: object) -> _Refusal:
        """Name the option and its value in what the kind refuses."""
        return _Refusal(self, value)


class _Refusal(NamedTuple):
    option: Option
    value: object

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Unfit):
            shown = repr(self.value)
            # An array in a message would hide what the message says.
            if len(shown) > _LONGEST_VALUE or "\n" in shown:
                shown = f"a {type(self.value).__name__}"
            option = self.option
            said = option.kind.metavar if option.positional else option.flag or option.name
            found = UsageError(f"{said} is {shown}", remedy=error.remedy)
            # Python says `method`, the command line `--method`: `with_flags` is what the latter
            # prints.
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
    return cast("T | D", Declaration(kind, default, help, flag, short, recorded, in_python))


def required(
    kind: Kind[Any],
    help: str,
    *,
    flag: str | None = None,
    short: str = "",
    recorded: bool = True,
    in_python: str = "",
) -> Any:
    """Declare an option that must be given.

    Args:
        kind: What values it takes.
        help: What it is.
        flag: On the command line; None for a positional argument.
        short: A second flag of one letter.
        recorded: The recipe of a result has it.
        in_python: What else Python takes, a sentence that follows the help there.
    """
    return Declaration(kind, _MISSING, help, flag, short, recorded, in_python)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(required,))
class Options:
    """A group of options; its values are checked when it is made.

    A subclass says ``kw_only=True``, or has ``_: KW_ONLY`` before those that Python takes by name.

    Attributes:
        section: Heading above its options in the help.
        headings: Other headings for those of inherited groups.
        first: The options that people need first, by name, in the order of the short help; where
            there are none, it shows all.

    Raises:
        TypeError: An option is missing, unknown or given twice.
        UsageError: A value is of a wrong type, or out of range.
    """

    section: ClassVar[str] = ""
    headings: ClassVar[Mapping[str, str]] = {}
    first: ClassVar[Sequence[str]] = ()
    _kw_only: ClassVar[bool] = False

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        cls._kw_only = kw_only

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Bring every value into its one form."""
        # By a signature, as there is no compiled constructor: it raises what Python itself would.
        values = signature_of(type(self)).bind(*args, **kwargs)
        values.apply_defaults()
        known = options_of(type(self))
        # Around `__setattr__`, which refuses.
        vars(self).update(
            {name: known[name].checked(value) for name, value in values.arguments.items()}
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse changes."""
        raise AttributeError(f"options are not changed: {name}")

    def but(self, **values: object) -> Self:
        """Return these options with other values, which are not checked again."""
        copy = object.__new__(type(self))
        vars(copy).update({**vars(self), **values})
        return copy

    def in_force(self) -> AbstractContextManager[None]:
        """Return a context in which what the options change for a whole call holds."""
        return nullcontext()


def options_of(recipe: type[Options]) -> Mapping[str, Option]:
    """List the options of a recipe by name, in the order of its signature."""
    # Asked for at each construction, and the same every time.
    if recipe in _KNOWN:
        return _KNOWN[recipe]
    found: dict[str, Option] = {}
    # From the most general on, so that a recipe's own declaration replaces an inherited one.
    for group in reversed(recipe.__mro__):
        if issubclass(group, Options):
            section = recipe.headings.get(group.section, group.section)
            found |= {each.name: each for each in _declared_in(group, section)}
    # Stable: the order of declaration stays, and those by position come first, as Python wants.
    _KNOWN[recipe] = dict(sorted(found.items(), key=lambda item: item[1].keyword_only))
    return _KNOWN[recipe]


_KNOWN: dict[type[Options], Mapping[str, Option]] = {}


def signature_of(recipe: type[Options]) -> inspect.Signature:
    """Return the signature that a recipe shares with its public function."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                kinds[each.keyword_only],
                default=each.default,
                annotation=each.annotation,
            )
            for each in options_of(recipe).values()
        ]
    )


def _declared_in(group: type[Options], section: str) -> Iterator[Option]:
    """Yield the options that a class itself declares."""
    keyword_only = group._kw_only
    for name, annotation in inspect.get_annotations(group).items():
        # Of the class itself: `getattr` would find what it inherits.
        declared = vars(group).get(name)
        # As in dataclasses, all behind `_: KW_ONLY` follow it.
        keyword_only = keyword_only or name == _KEYWORDS_FOLLOW
        if not isinstance(declared, Declaration):
            continue
        is_positional = declared.default is _MISSING and declared.flag is None
        flag = declared.flag
        if flag is None:
            flag = "" if is_positional else f"--{name.replace('_', '-')}"
        flag, _, off = flag.partition("/")
        if declared.default is True and flag and not off:
            off = f"--no-{flag[2:]}"
        for text, said in ((flag, name), (off, f"{name}=False")):
            if text:
                FLAGS.setdefault(text, said)  # that of the groups, where a command has another
        yield Option(
            name=name,
            annotation=annotation,
            kind=declared.kind,
            default=declared.default,
            help=declared.help,
            flag=flag,
            off=off,
            short=declared.short,
            positional=is_positional,
            keyword_only=keyword_only,
            recorded=declared.recorded,
            in_python=declared.in_python,
            section=section,
        )


ELSEWHERE = {
    **dict.fromkeys(("trials", "n_trials", "num_trials", "max_trials"), "budget"),
    **dict.fromkeys(
        ("calibration_data", "calibration_dataset", "calib_data", "dataset", "dataloader"), "data"
    ),
    **dict.fromkeys(("num_samples", "subset_size", "calibration_samples"), "samples"),
    **dict.fromkeys(("ignored_scope", "nodes_to_exclude", "exclude"), "keep_float"),
    **dict.fromkeys(("calibrate_method", "calibration_method"), "method"),
}
"""What other tools call an option: its name here."""


def public(recipe: Callable[P, O]) -> Callable[[Callable[[O], R]], Callable[P, R]]:
    """Give a function that takes a recipe the recipe's options as its arguments.

    Its signature and the ``Args`` of its documentation are those of the declarations.

    Args:
        recipe: A class of options.
    """

    def decorate(function: Callable[[O], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # Before the signature, which would not name the nearest option.
            _refuse_unknown(function.__name__, recipe, kwargs)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                # What may be given without its name tells what was taken for what.
                kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
                names = [n for n, each in signature.parameters.items() if each.kind is kinds]
                places = f"its arguments are {', '.join(names)}, then by name"
                raise TypeError(f"{function.__name__}(): {error}; {places}") from None
            options = recipe(*args, **kwargs)
            # The function only: what its result computes later has usual limits again.
            with options.in_force():
                found = function(options)
            warn_of(found)
            return found

        signature = signature_of(cast(Any, recipe))
        answer = inspect.signature(function).return_annotation
        call.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]
        call.__annotations__ = {
            **{name: each.annotation for name, each in signature.parameters.items()},
            "return": answer,
        }
        call.__doc__ = _insert_arguments(function.__doc__ or "", recipe)
        # Tools follow it to the function inside, whose signature has one argument.
        del call.__wrapped__
        return call

    return decorate


def warn_of(found: object) -> None:
    """Warn the caller of what a result tells of weight: by ``worries()``, or in ``warnings``.

    The warning is of the line that called the package. The command line, which prints the same,
    shows no warnings.
    """
    tell = getattr(found, "worries", None)
    told = getattr(found, "warnings", ()) if tell is None else tell()
    if not told:
        return
    # Up to the first frame outside of the package: that is the line which a user can change.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("intact."):
        level, frame = level + 1, frame.f_back
    for each in told:
        warnings.warn(each, IntactWarning, stacklevel=level)


def _refuse_unknown(name: str, recipe: Any, given: Mapping[str, object]) -> None:
    known = options_of(recipe)
    for each in given:
        if each not in known:
            from intact.errors import nearest

            message = f"{name}() got an unexpected keyword argument {each!r}; "
            elsewhere = ELSEWHERE.get(each)
            if elsewhere in known:
                raise TypeError(f"{message}here it is called {elsewhere!r}")
            raise TypeError(message + nearest(each, known, listed_by=f"help(intact.{name})"))


def _insert_arguments(doc: str, recipe: Any) -> str:
    """Insert the list of arguments before what a function's documentation says it raises."""
    # Google's order of sections: Args, Returns, Raises.
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
        yield from _wrapped(f"{each.name}: {' '.join(part for part in parts if part)}")


def _wrapped(text: str) -> Iterator[str]:
    """Yield the lines of an argument; `textwrap` took 1 % of the time of a small model."""
    line = "   "
    for word in text.split():
        if len(line) + len(word) >= _WIDTH:
            yield line
            line = " " * 7
        line += f" {word}"
    yield line


def shown_default(each: Option) -> str:
    """Write a default as help does; nothing for an empty one, which the help text explains."""
    if each.required or each.default in (None, "", (), False):
        return ""
    if isinstance(each.kind, Flag):
        return "yes"
    value = each.default
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
