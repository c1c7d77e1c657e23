"""Makes temporary folders that go even where their process is killed.

Others remove what it left.

A folder is locked by the process that made it, and a lock ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from intact._files import is_ours

_PREFIX = "intact-workers-"
_OWNED = f"{_PREFIX}????????-*"
"""The names of all: with the owner's eight characters."""
_PATIENCE = 5.0
"""Seconds that processes which were killed may take to end."""
_PAUSE = 0.02


def new_owner() -> str:
    """Return a name that nobody else has."""
    return secrets.token_hex(4)


@contextlib.contextmanager
def temporary_folder(owner: str) -> Iterator[Path]:
    """Make a folder; it is removed at the end, and first those that others have left.

    Args:
        owner: Part of its name, for `remove_left`; of `new_owner`.
    """
    _remove_unlocked()
    while True:
        # Only for this user: a job has the user's data in it.
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner}-"))
        descriptor = _lock_folder(folder, waits=True)
        if folder.is_dir():
            break
        _close(descriptor)  # somebody took it for one that was left, before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _close(descriptor)


def remove_left(owner: str) -> None:
    """Remove what ended processes have left on this machine.

    Args:
        owner: Its processes were killed just now: they are waited for.
    """
    ends = time.monotonic() + _PATIENCE
    while any(folder.match(f"{_PREFIX}{owner}-*") for folder in _remove_unlocked()):
        if time.monotonic() > ends:
            return
        time.sleep(_PAUSE)


def _remove_unlocked() -> list[Path]:
    """Remove the folders of processes that ended; return those that are in use."""
    used = []
    for folder in Path(tempfile.gettempdir()).glob(_OWNED):
        descriptor = _lock_folder(folder, waits=False)
        if descriptor is None:
            used.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            _close(descriptor)
    return used


def _lock_folder(folder: Path, *, waits: bool) -> int | None:
    """Lock a folder until the descriptor is closed.

    Returns:
        The descriptor; None where it is another user's, is locked, or cannot be.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        # The temporary folder is everybody's: a link there may lead anywhere.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # it is gone, or another user's
        return None
    try:
        if not is_ours(os.fstat(descriptor)):
            raise PermissionError(errno.EPERM, "another user's")
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError:  # it is another user's or in use, or the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
