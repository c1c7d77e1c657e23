"""Opens files that users name: a pipe may never end, and a device never does."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from intact.errors import nearest

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")
"""What a path begins with that is a URL; `Path` leaves one slash of two. Drives have one letter."""
_MOST_NAMES = 1000


def is_url(path: Path) -> bool:
    """Tell a URL, which is not opened, from a path."""
    return _URL.match(str(path)) is not None


def as_typed(path: Path) -> str:
    """Write a path for a message; a URL with both slashes, of which `Path` leaves one."""
    text = str(path)
    return text.replace(":/", "://", 1) if is_url(path) and "://" not in text else text


def remedy_for_absent(path: Path, otherwise: str) -> str:
    """Say what to do about a path that is not there.

    Args:
        path: As it was given.
        otherwise: What to do where it is no URL, and nothing there has a similar name.
    """
    if is_url(path):
        return "it is a URL: download it first, and give the file"
    try:
        with os.scandir(path.parent) as entries:
            # A folder may have millions of files, and its listing is a hint only.
            names = [entry.name for entry, _ in zip(entries, range(_MOST_NAMES), strict=False)]
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return otherwise
    hint = nearest(path.name, names)
    return hint if hint.startswith("did you mean") else otherwise


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading, without waiting for anything.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    wait_for_nothing = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer
    try:
        handle = os.open(path, os.O_RDONLY | wait_for_nothing | getattr(os, "O_BINARY", 0))
    except PermissionError as error:  # Windows opens no folders
        if os.path.isdir(path):  # noqa: PTH112 - pathlib raises for a name that is too long
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from error
        raise
    try:
        # Of the open file: what the path names may be another one by now.
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        kind = _KINDS.get(stat.S_IFMT(mode))
        if kind is not None:
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        OSError: See `open_file`.
    """
    with open_file(path) as file:
        return file.read()
