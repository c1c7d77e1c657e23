"""Reads and writes recipe files: options as TOML.

::

    model = "model.onnx"
    data = "photos/"
    target = "tflite"
    method = "percentile"

    [method_options]
    percentile = 99.9

The keys are the names that the options have in Python. Paths are relative to the working directory,
as on the command line. Whatever is left out has its default.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from intact.errors import UsageError, nearest
from intact.graph.files.regular import open_file
from intact.recipe.declare import Option, Options, options_of

RECIPE = "recipe.toml"
"""The file in a result's folder."""
COMMAND = "command"
"""Key of a recipe: the command that it is for; it may be left out."""

_LARGEST_FILE = 1 << 20
_BARE = re.compile(r"[A-Za-z0-9_-]+")
HEAD = b"# `intact "
"""How every recipe begins that intact wrote."""
_HEAD = """\
# `intact {command} --recipe {file}` makes this result again (add --output).
# Paths are relative to the folder in which the command ran.
"""


def recipe_options(recipe: type[Options]) -> dict[str, Option]:
    """List the options that a recipe file may hold, by key."""
    return {
        name: each
        for name, each in options_of(recipe).items()
        # How a call prints is its own affair, and a recipe names no other.
        if (each.flag or each.positional) and name not in ("as_json", "recipe")
    }


def read_recipe(path: str | Path, command: str, recipe: type[Options]) -> dict[str, Any]:
    """Read a recipe file: checked values by the names of options.

    Args:
        path: The file.
        command: The command that reads it.
        recipe: The options of the command.

    Raises:
        UsageError: The file cannot be read, is no TOML, is for another command, or has an unknown
            key or a value of a wrong type.
    """
    table = _parse(_read(Path(path)), str(path))
    # A recipe without it is for whichever command reads it.
    wanted = table.pop(COMMAND, command)
    if wanted != command:
        raise UsageError(f"{path}: {COMMAND} is {wanted!r}", remedy=f"this is `intact {command}`")
    known = recipe_options(recipe)
    found = {}
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{path}: unknown key {key[:60]!r}", remedy=nearest(key[:60], known))
        try:
            found[key] = known[key].checked(value)
        except UsageError as error:
            # In the words of Python, as keys are: the file has no flags.
            raise UsageError(f"{path}: {error}") from error
    return found


def write_recipe(
    command: str, recipe: type[Options], options: Options, effective: Mapping[str, Any]
) -> str:
    """Write the options that make a result.

    Args:
        command: The command that reads the file.
        recipe: Its options.
        options: The options of the call; what has its default is left out.
        effective: Values to write instead of those given; None leaves one out.
    """
    values: dict[str, Any] = {}
    lost = []
    for name, each in recipe_options(recipe).items():
        # `getattr` with a default: a command may have options that its function lacks.
        value = effective.get(name, getattr(options, name, each.default))
        if not each.recorded or (value is None and name in effective):
            continue
        # The type too: True equals 1, and an array has no truth.
        if name not in effective and type(value) is type(each.default) and value == each.default:
            continue
        written = each.kind.to_toml(value)
        if written is None or not _is_text(written):
            lost.append(name)
        elif written != {}:
            values[name] = written
    # Said in the file, or a recipe would seem to make the same and would not.
    lost += [name for name, each in _objects(recipe).items() if _is_given(options, each, effective)]
    lines = _HEAD.format(command=command, file=RECIPE)
    if lost:
        lines += f"# Given as an object in Python, so not written here: {', '.join(lost)}.\n"
    return lines + recipe_text(command, values)


def recipe_text(command: str, values: Mapping[str, Any]) -> str:
    """Write options for a command as TOML; the values are those of `Kind.to_toml`."""
    return "\n".join(_toml({COMMAND: command, **values})) + "\n"


def _objects(recipe: type[Options]) -> dict[str, Option]:
    """List the options that only Python has, and that change the result."""
    known = recipe_options(recipe)
    return {
        n: e for n, e in options_of(recipe).items() if e.recorded and not e.flag and n not in known
    }


def _is_given(options: Options, each: Option, effective: Mapping[str, Any]) -> bool:
    return each.name not in effective and getattr(options, each.name, each.default) != each.default


def _toml(values: Mapping[str, Any]) -> Iterator[str]:
    # Last, since in TOML what follows a table's heading is in the table.
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    for key, value in values.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(value)}"
    for key, table in tables.items():
        yield ""
        yield f"[{_key(key)}]"
        yield from (f"{_key(name)} = {_value(value)}" for name, value in table.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan
    return repr(value)


def _string(text: str) -> str:
    # JSON's strings are TOML's basic strings, but for this one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_text(value: Any) -> bool:
    """Tell whether UTF-8 can hold a value: paths may have bytes that are no text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            # One byte more than allowed tells a file that is too large, without a size that may be
            # wrong.
            data = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file", remedy="check --recipe") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be read ({reason})", remedy="check --recipe") from error
    # The parser's time grows with the square of the parts of a dotted key.
    if len(data) > _LARGEST_FILE or any(line.count(b".") > 1000 for line in data.splitlines()):
        raise UsageError(f"{path}: too large for a recipe", remedy="give a file of options")
    return data


def _parse(data: bytes, label: str) -> dict[str, Any]:
    try:
        # Some editors begin a file with a byte order mark.
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{label}: not UTF-8 text", remedy="give a TOML file") from error
    except RecursionError as error:
        raise UsageError(f"{label}: nested too deeply", remedy="use the documented keys") from error
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise UsageError(f"{label}: not TOML: {error}", remedy="correct the line") from error
