"""Writes files that appear only when they are complete: beside their places, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from intact.errors import OutputError

_LONGEST_NAME = 200
"""Bytes of a name that is kept where something is added to it; file systems take 255."""


@contextmanager
def appearing(*paths: Path) -> Iterator[tuple[BinaryIO, ...]]:
    """Open temporary files that are renamed to these paths, in order, when all are complete.

    Raises:
        OSError: One cannot be written, or is no name of a file; nothing new is left.
    """
    partials = [_partial(path) for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            # `x`: a file or a link of this name, which nobody could foresee, is never opened.
            files = tuple(stack.enter_context(partial.open("xb")) for partial in partials)
            yield files
            for file in files:
                file.truncate()  # extends the file over a hole at its end
        for partial, path in zip(partials, paths, strict=True):
            partial.replace(path)
    finally:
        for partial in partials:
            with contextlib.suppress(OSError):
                partial.unlink()


@contextmanager
def whole_file(path: Path, remedy: str = "name a file that you may write") -> Iterator[BinaryIO]:
    """Open a file that a user named; it is there whole, or as it was before.

    Args:
        path: The file.
        remedy: What helps if it cannot be written.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        with appearing(path) as (file,):
            yield file
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error})", remedy=remedy
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that a user named; it is there whole, or as it was before.

    Raises:
        OutputError: It cannot be written.
    """
    with whole_file(path) as file:
        file.write(content)


def lock(descriptor: int, *, inherited: bool) -> None:
    """Lock a file until it is closed.

    Args:
        descriptor: The file's.
        inherited: Whether processes that this one starts hold the lock too, where systems have both
            kinds.

    Raises:
        BlockingIOError: It is locked.
        OSError: It cannot be.
    """
    try:
        import fcntl
    except ImportError:
        _lock_on_windows(descriptor)
        return
    # `flock` belongs to the open file, which children share; `lockf` to the process alone.
    (fcntl.flock if inherited else fcntl.lockf)(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_FAR = 1 << 30
"""The byte that is locked on Windows, where nobody can read what another has locked."""


def _lock_on_windows(descriptor: int) -> None:
    system: Any = importlib.import_module("msvcrt")
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _FAR, os.SEEK_SET)
    try:
        system.locking(descriptor, system.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(errno.EAGAIN, str(error)) from error
    finally:
        os.lseek(descriptor, place, os.SEEK_SET)


def is_ours(found: os.stat_result) -> bool:
    """Tell whether what was found belongs to the user of this process."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def without_links(path: str, flags: int) -> int:
    """Open a file, but no link to one: an ``opener`` of `open` and `io.FileIO`."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer
    return os.open(path, flags, 0o666)


def user_cache() -> Path:
    """Return the folder of intact's among what the user's programs keep, as XDG has it.

    A relative path counts for nothing there: it would lead into whatever folder one works in.

    Raises:
        RuntimeError: The user has no home.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "intact"


def _partial(path: Path) -> Path:
    """Name a file that nobody can have put there before, as a link to another."""
    if not path.name or "\0" in str(path):
        raise OSError(errno.EINVAL, "no name of a file")
    # In the same folder, because a rename is one step on one file system only.
    return path.with_name(f".{short_name(path.name)}.{secrets.token_hex(8)}.partial")


def short_name(name: str) -> str:
    """Bound a name, so that there is room for what is added to it; other names stay others."""
    encoded = os.fsencode(name)
    if len(encoded) <= _LONGEST_NAME:
        return name
    # A hash tells apart names that begin alike.
    head = encoded[: _LONGEST_NAME // 2].decode(errors="ignore")
    return f"{head}~{hashlib.sha256(encoded).hexdigest()[:16]}"
