"""Where raw arrays come from: files of numpy's, and functions of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from intact.errors import DataError
from intact.samples.archive import PickledError, map_npy, read_npz
from intact.samples.functions import describe, import_function

_NPZ, _NPY, _PICKLE = b"PK", b"\x93NUMPY", b"\x80"  # how the files begin


def load_arrays(path: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """Read an ``.npy`` (an array) or an ``.npz`` (a dict of them).

    Arrays are mapped into memory, not read; only compressed members of an ``.npz`` are read
    whole. Nothing in the file is run: pickled objects are refused.

    Raises:
        DataError: The file is missing, unreadable, something else, damaged, holds pickled
            objects, or compressed arrays that do not fit into memory.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_NPY))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", remedy="check --data") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
    if start.startswith(_PICKLE):
        raise _pickled(path)
    if not start.startswith((_NPZ, _NPY)):
        raise DataError(f"{path}: not an .npz or .npy file", remedy="write it with numpy.savez")
    try:
        return map_npy(path) if start.startswith(_NPY) else read_npz(path)
    except DataError:
        raise
    except PickledError as error:
        raise _pickled(path) from error
    except Exception as error:  # numpy, zipfile and zlib raise a dozen unrelated classes
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
        self._function = import_function(text, "--data")

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
            raise DataError(f"{self._text}: raises {describe(error)}") from error
