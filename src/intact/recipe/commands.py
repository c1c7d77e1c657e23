"""Lists which command has which flag, and writes command lines."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from intact.errors import UsageError
from intact.recipe.declare import Option, Options, options_of
from intact.recipe.file import recipe_options
from intact.recipe.options import ExportCommand, ImportCommand, QuantizeCommand, SearchCommand
from intact.recipe.reports import (
    CompareCommand,
    ConvertRangesCommand,
    DiagnoseCommand,
    EvaluateCommand,
    InspectCommand,
    ReportCommand,
)
from intact.recipe.runs import RunCommand, VerifyCommand
from intact.recipe.samples import ReadOptions
from intact.recipe.training import TrainCommand

RECIPES: Mapping[str, type[Options]] = {
    "quantize": QuantizeCommand,
    "import": ImportCommand,
    "search": SearchCommand,
    "export": ExportCommand,
    "evaluate": EvaluateCommand,
    "diagnose": DiagnoseCommand,
    "compare": CompareCommand,
    "report": ReportCommand,
    "run": RunCommand,
    "verify": VerifyCommand,
    "inspect": InspectCommand,
    "convert-ranges": ConvertRangesCommand,
    "train": TrainCommand,
}
"""The commands with options of models, those first that make a result."""


def owner_of(flag: str, command: str) -> str:
    """Name the command that has a flag; nothing where the current one has it, or none does.

    >>> owner_of("--keep-float", "export")
    'quantize'
    >>> owner_of("--keep-float", "import")
    ''
    """
    current = RECIPES.get(command)
    if current is None or flag in flags_of(current):
        return ""
    return next((name for name, recipe in RECIPES.items() if flag in flags_of(recipe)), "")


def flags_of(recipe: type[Options]) -> frozenset[str]:
    """List the flags of a command."""
    options = options_of(recipe).values()
    return frozenset(flag for each in options for flag in (each.flag, each.off) if flag)


def command_line(command: str, recipe: type[Options], values: Mapping[str, Any]) -> str:
    """Write the command line that gives a command these options.

    Args:
        command: Its name.
        recipe: Its options.
        values: Values by the name of the option, checked; those with their default are left out.

    Returns:
        One line that a shell reads; it reads back as the same values.
    """
    known = recipe_options(recipe)
    placed: list[str] = []
    flagged: list[str] = []
    for name, value in values.items():
        each = known.get(name)
        # Defaults are left out: a short line is read.
        if each is None or (not each.required and value == each.default):
            continue
        (placed if each.positional else flagged).extend(_words(each, value))
    # Quoted for a shell, as names of nodes have slashes, brackets and spaces.
    return shlex.join(["intact", command, *placed, *flagged])


def reading_words(recipe: str) -> str:
    """Write how a result's samples of text or sounds were read, for a command that reads others.

    Args:
        recipe: The options that made it, as TOML.

    Returns:
        The options, each behind a space; "" where there are none.
    """
    try:
        values = tomllib.loads(recipe)
        known = recipe_options(ReadOptions)
        given = {name: each.checked(values[name]) for name, each in known.items() if name in values}
    except (ValueError, UsageError):  # of another version, or changed by hand
        return ""
    words = [word for name, value in given.items() for word in _words(known[name], value)]
    return "".join(f" {word}" for word in map(shlex.quote, words))


def _words(each: Option, value: Any) -> Iterator[str]:
    """Yield the words of one option."""
    if isinstance(value, bool):
        # A switch that is on by default has a flag that says no.
        yield each.flag if value else each.off
        return
    for text in _texts(each, each.kind.to_toml(value)):
        if not each.positional:
            yield each.flag
        yield text


def _texts(each: Option, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from (f"{name}={_text(one)}" for name, one in value.items())
    elif isinstance(value, list | tuple) and each.kind.repeated:
        yield from map(_text, value)
    elif value is not None:
        yield _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value)
