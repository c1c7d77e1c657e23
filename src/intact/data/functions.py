"""User functions, given as ``module:function`` on the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intact.errors import DataError, nearest


def import_function(text: str, option: str) -> Callable[..., Any]:
    """Import a function by name.

    Args:
        text: ``module:function``; the module may be in the working directory.
        option: The option, for messages: ``--data``.

    Raises:
        DataError: There is no such module or function, or the module raises.
    """
    module_name, _, name = text.partition(":")
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
            f"{option} {text}: cannot import {module_name!r} ({describe(error)})"
        ) from error
    function = getattr(module, name, None) if name else None
    if not callable(function):
        known = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_")
        ]
        raise DataError(
            f"{option} {text}: {module_name} has no function {name!r}",
            remedy=nearest(name, known),
        )
    found: Callable[..., Any] = function
    return found


def describe(error: BaseException) -> str:
    """Format type and message of any exception on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
