"""Opening files that users name: a pipe may never end, and a device never does."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading, without waiting for anything.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    wait_for_nothing = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer
    handle = os.open(path, os.O_RDONLY | wait_for_nothing | getattr(os, "O_BINARY", 0))
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
