"""Preprocessing as a TOML file: the same names as the fields, images in a table of their own.

::

    format = 1
    mean = [123.675, 116.28, 103.53]
    scale = [0.0171, 0.0175, 0.0174]

    [image]
    shorter_side = 256
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from intact.errors import DataError, nearest
from intact.samples.images.steps import ImageSteps
from intact.samples.preprocess import Preprocess

_FORMAT = 1
_LARGEST_FILE = 1 << 14
"""Also keeps dotted keys short: the parser takes time with the square of their parts."""
_ARRAYS = ("mean", "scale")
_IMAGE = tuple(step.name for step in fields(ImageSteps))
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


def read_preprocess(path: str | Path) -> Preprocess:
    """Read a preprocessing file.

    Raises:
        DataError: It cannot be read, is no TOML, is of another format, or has an unknown key, a
            wrong type or a contradiction.
    """
    return preprocess_from_toml(_read(Path(path), str(path)), str(path))


def preprocess_from_toml(data: bytes, label: str) -> Preprocess:
    """Return what the content of a preprocessing file says.

    Args:
        data: The content.
        label: What to call it in messages.

    Raises:
        DataError: As for :func:`read_preprocess`.
    """
    if len(data) > _LARGEST_FILE:
        raise DataError(
            f"{label}: larger than {_LARGEST_FILE >> 10} KiB", remedy="give a preprocessing file"
        )
    table = _parsed(data, label)
    _check_keys(table, ("format", *_ARRAYS, "image"), label)
    if "format" not in table:
        raise DataError(f"{label}: key 'format' is missing", remedy=f"add format = {_FORMAT}")
    if type(table["format"]) is not int or table["format"] != _FORMAT:
        raise DataError(f"{label}: format is not {_FORMAT}", remedy=f"write format = {_FORMAT}")
    image = table.get("image", {})
    if not isinstance(image, dict):
        raise DataError(f"{label}: image is no table", remedy="write [image] and its keys below")
    _check_keys(image, _IMAGE, label, place=" in [image]")
    arrays = {name: table[name] for name in _ARRAYS if name in table}
    try:
        return Preprocess(**arrays, image=ImageSteps(**image))
    except DataError as error:  # speaks of options; the keys have the same names
        message = _OPTION.sub(lambda option: option[1].replace("-", "_"), str(error))
        raise DataError(f"{label}: {message}") from error


def preprocess_to_toml(preprocess: Preprocess) -> bytes:
    """Return the content of the file that :func:`read_preprocess` reads back to an equal value.

    It holds what differs from the defaults, in the order of the fields.
    """
    lines = [f"format = {_FORMAT}"]
    lines += [
        f"{name} = {_toml(value)}" for name in _ARRAYS if (value := getattr(preprocess, name))
    ]
    steps = preprocess.image
    if steps.given:
        lines += ["", "[image]"]
        lines += [f"{name} = {_toml(getattr(steps, name))}" for name in steps.given]
    return "\n".join([*lines, ""]).encode()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'  # one of our own words
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return repr(value)  # of floats: the shortest that reads back to the same


def _read(path: Path, label: str) -> bytes:
    try:
        if not path.is_file():
            raise DataError(f"{label}: no such file", remedy="check --preprocess")
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{label}: cannot be read ({reason})", remedy="check the path") from error


def _parsed(data: bytes, label: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 text", remedy="give a TOML file") from error
    except RecursionError as error:
        raise DataError(f"{label}: nested too deeply", remedy="use the documented keys") from error
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise DataError(f"{label}: not TOML: {error}", remedy="correct the line") from error


def _check_keys(
    table: dict[str, Any], known: Iterable[str], label: str, *, place: str = ""
) -> None:
    for key in table:
        if key in known:
            continue
        remedy = nearest(key[:60], known)
        if key in _IMAGE:
            remedy = "put it below [image]"
        elif key in {"format", *_ARRAYS}:
            remedy = "put it above [image]"
        raise DataError(f"{label}: unknown key {key!r}{place}", remedy=remedy)
