"""Where raw arrays come from: files of numpy's, and functions of the user's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError, nearest

_NPZ, _NPY, _PICKLE = b"PK", b"\x93NUMPY", b"\x80"  # how the files begin


def load_arrays(path: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """Read an ``.npy`` (an array, mapped into memory) or an ``.npz`` (a dict of them).

    Nothing in the file is run: pickled objects are refused.

    Raises:
        DataError: The file is missing, unreadable, something else, damaged or holds pickled
            objects.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_NPY))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", remedy="check --data") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if start.startswith(_PICKLE):
        raise _pickled(path)
    if not start.startswith((_NPZ, _NPY)):
        raise DataError(f"{path}: not an .npz or .npy file", remedy="write it with numpy.savez")
    try:
        if start.startswith(_NPY):
            array: npt.NDArray[Any] = np.load(path, allow_pickle=False, mmap_mode="r")
            return array
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # numpy, zipfile and zlib raise a dozen unrelated classes
        if "pickle" in str(error) or "Python objects" in str(error):
            raise _pickled(path) from error
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path}: damaged or truncated ({reason})", remedy="write or copy it again"
        ) from error


def _pickled(path: Path) -> DataError:
    return DataError(
        f"{path}: holds pickled Python objects, which can run code when loaded",
        remedy="save plain numeric arrays",
    )


class FunctionSource:
    """A ``module:function`` source: called anew for each pass over the data.

    Args:
        text: ``module:function``; the module may lie in the working directory.

    Raises:
        DataError: There is no such module or function.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        module_name, _, name = text.partition(":")
        if module_name.endswith(".py") or "/" in module_name or not module_name:
            example = Path(module_name).stem or "samples"
            raise DataError(
                f"--data {text}: {module_name!r} is no module name",
                remedy=f"write {example}:{name or 'function'}, from the folder of {example}.py",
            )
        if "" not in sys.path:
            sys.path.insert(0, "")  # a module beside the user, as `python -m` would find it
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # whatever the user's module does
            raise DataError(
                f"--data {text}: cannot import {module_name!r} ({_what(error)})"
            ) from error
        function = getattr(module, name, None) if name else None
        if not callable(function):
            known = [
                key
                for key, value in vars(module).items()
                if callable(value) and not key.startswith("_")
            ]
            raise DataError(
                f"--data {text}: {module_name} has no function {name!r}",
                remedy=nearest(name, known),
            )
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        """Call the function and give what it yields; one dict counts as one batch."""
        try:
            found = self._function()
            if found is None:
                raise DataError(
                    f"{self._text}: returns None", remedy="yield or return dicts of arrays"
                )
            yield from [found] if isinstance(found, Mapping) else found
        except DataError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"{self._text}: raises {_what(error)}") from error


def _what(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
