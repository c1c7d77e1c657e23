"""Writes and reads arrays beside a plan: an ``.npz`` with a list of names.

A name in a zip archive could contain anything, and equal arrays give equal bytes. The plan has the
hash of what it needs.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from intact.errors import IntactError, PlanError

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

_LIST = "ends"
_MOST_LIST_BYTES = 1 << 26
_PIECE = 1 << 20


def arrays_to_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Encode the file; equal arrays give equal bytes."""
    names = json.dumps(list(arrays)).encode()
    members = {str(at): np.ascontiguousarray(array) for at, array in enumerate(arrays.values())}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_LIST: np.frombuffer(names, np.uint8), **members})
    return buffer.getvalue()


def arrays_hash(arrays: Mapping[str, Array]) -> str:
    """Compute the SHA-256 of the arrays in hexadecimal; "" if there are none."""
    if not arrays:
        return ""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        # Of the arrays, not of the file: another version of zlib or zipfile packs them in other
        # bytes.
        head = json.dumps([name, array.dtype.newbyteorder("<").str, array.shape])
        digest.update(head.encode())
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def load_arrays(
    path: Path,
    shape_of: Callable[[str], Shape],
    types: Collection[np.dtype[Any]],
    expected: str,
    *,
    what: str,
    remedy: str,
) -> dict[str, Array]:
    """Read arrays, which are those of a plan.

    Args:
        path: The file; shapes are compared before memory is allocated.
        shape_of: Returns the shape that the array of a name has; raises ValueError or an
            IntactError for names that the plan does not know.
        types: What arrays may hold.
        expected: The hash that the plan has.
        what: What the arrays are of a plan, for messages.
        remedy: What the user is told to do.

    Raises:
        PlanError: The file is missing, damaged or belongs to another plan.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = dict(_members(archive, shape_of, types))
    except IntactError as error:
        raise PlanError(f"{path}: {error}", remedy=remedy) from error
    except Exception as error:  # zipfile, zlib, tokenize and numpy raise a dozen unrelated classes
        reason = str(error) or type(error).__name__
        raise PlanError(f"{path}: cannot be read as {what} of a plan ({reason})") from error
    if arrays_hash(found) != expected:
        raise PlanError(f"{path}: not the {what} of this plan", remedy=remedy)
    return found


def _members(
    archive: zipfile.ZipFile, shape_of: Callable[[str], Shape], types: Collection[np.dtype[Any]]
) -> Iterator[tuple[str, Array]]:
    with archive.open(f"{_LIST}.npy") as file:
        listed = json.loads(_read(file, _LIST, None, (np.dtype(np.uint8),)).tobytes())
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise ValueError("it has no list of tensor ends")
    # One more could be a bomb that nobody reads here, but the next tool does.
    if len(archive.namelist()) != len(listed) + 1:
        raise ValueError("its members do not match its list")
    for position, name in enumerate(listed):
        shape = shape_of(name)
        with archive.open(f"{position}.npy") as file:
            yield name, _read(file, name, shape, types)


def _read(
    file: IO[bytes], what: str, expected: Shape | None, types: Collection[np.dtype[Any]]
) -> Array:
    """Read an array in pieces, so that a false header allocates no memory.

    Args:
        file: A member of the archive.
        what: Name for messages.
        expected: Its shape; None for the list, which is a limited number of bytes.
        types: What it may hold.
    """
    version = npy.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"{what} is stored in npy version {version}")
    shape, fortran, dtype = npy.read_array_header_1_0(file)
    if dtype.newbyteorder("=") not in types or fortran or expected not in (None, shape):
        raise ValueError(f"{what} holds {dtype} of shape {list(shape)}")
    size = math.prod(shape) * dtype.itemsize
    if expected is None and size > _MOST_LIST_BYTES:
        raise ValueError("its list of tensor ends is too long")
    data = bytearray()
    while len(data) < size and (piece := file.read(min(_PIECE, size - len(data)))):
        data += piece
    if len(data) != size or file.read(1):
        raise ValueError(f"{what} does not have the length given by its shape")
    array = np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    array.setflags(write=False)
    return array
