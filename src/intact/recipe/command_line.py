"""Command lines from options: what a user pastes to run a command with other values."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from intact.errors import UsageError
from intact.recipe.declare import Option, Options
from intact.recipe.file import recipe_options
from intact.recipe.reading import ReadOptions


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
        if each is None or (not each.required and value == each.default):
            continue
        (placed if each.positional else flagged).extend(_words(each, value))
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
