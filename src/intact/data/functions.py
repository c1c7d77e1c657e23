"""Calls functions of the user, given as ``module:function`` on the command line."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from intact.errors import DataError, nearest

_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')
"""A line of a traceback."""


def import_function(text: str, option: str) -> Callable[..., Any]:
    """Import a function by name.

    Args:
        text: ``module:function``; the module may be in the working directory.
        option: The option, for messages: ``--data``.

    Raises:
        DataError: There is no such module or function, or the module raises.
    """
    module_name, _, name = text.partition(":")
    # The most frequent slip: a file in the place of a module.
    if module_name.endswith(".py") or "/" in module_name or not module_name:
        example = Path(module_name).stem or "samples"
        raise DataError(
            f"{option} {text}: {module_name!r} is not a module name",
            remedy=f"write {example}:{name or 'function'}, from the folder of {example}.py",
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules in the working directory, as for `python -m`
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise DataError(
            f"{option} {text}: cannot import {module_name!r} ({describe(error)})",
            remedy=_import_remedy(module_name, error),
        ) from error
    function = getattr(module, name, None) if name else None
    if not callable(function):
        known = [
            key
            # Only what is public: suggesting an import or a helper would mislead.
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_")
        ]
        raise DataError(
            f"{option} {text}: {module_name} has no function {name!r}",
            remedy=nearest(name, known),
        )
    found: Callable[..., Any] = function
    return found


def _import_remedy(module: str, error: BaseException) -> str:
    """Say how to mend an import that fails; "" where the place of the error says it."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    # The module itself was found; what it imports is missing.
    if module != error.name and not module.startswith(f"{error.name}."):
        return f"install {error.name} for {sys.executable}"
    here = [path.stem for path in Path().glob("*.py")]
    hint = nearest(module, here) if here else ""
    if hint.startswith("did you mean"):
        return hint
    return f"run this in the folder of {module.partition('.')[0]}.py, or name it in PYTHONPATH"


def describe(error: BaseException) -> str:
    """Format type and message of any exception on one line, with the line of the user's code."""
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    # A SyntaxError names its own place, and the traceback is of the importer.
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    place = place_of(frames)
    return f"{said} ({place})" if place else said


def place_of(frames: Iterable[traceback.FrameSummary]) -> str:
    """Name file, line and function of the last frame that is of the user's code; "" for none.

    That is what belongs neither to Python or installed packages nor to this package.
    """
    place = ""
    for frame in frames:
        path = Path(frame.filename)
        if frame.filename.startswith("<") or any(map(path.is_relative_to, _not_of_users())):
            continue
        with contextlib.suppress(ValueError):
            path = path.relative_to(Path.cwd())
        inside = "" if frame.name.startswith("<") else f", in {frame.name}"
        place = f"{path}:{frame.lineno}{inside}"
    return place


def place_in(text: str) -> str:
    """Name the place in a traceback that another process wrote as text; "" for none."""
    found = _FRAME.findall(text)
    return place_of(traceback.FrameSummary(file, int(line), name) for file, line, name in found)


@functools.cache
def _not_of_users() -> frozenset[Path]:
    """Return the folders of Python, of installed packages and of this one."""
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return frozenset({Path(__file__).parent.parent, *map(Path, places)})
