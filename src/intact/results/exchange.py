"""Exchanges a folder for another in one step, whatever kills the process.

A result is written into a staging folder beside the one that it is for::

    .NAME.XXXXXXXX/       removed at the end, or by the next run that writes NAME
    ├── lock              held while its process lives: it ends with it, also by ``kill -9``
    ├── next/             the new content
    └── previous/         what was there before, where it is moved file by file

The name of the folder with the content says how far it is; nothing else is written down:

=========== =======================================================================================
``next``    it is being written, or not needed any more: all is thrown away
``ready``   complete. ``previous`` goes back; an exchanged folder keeps what is not of intact's
``coming``  all that was there is in ``previous``: the rest of ``coming`` goes in
=========== =======================================================================================

A folder that is not there yet is renamed into its place. One that is there is exchanged with
``ready``: Linux and macOS swap two folders in one system call. Where the file system cannot (NFS,
overlays, Windows), or must not (the folder is mounted, is the working directory, is another
user's, or holds something of others), what is in it is moved out, then the new moved in. If that
is killed, the folder holds a part of one of the two until the next run that writes it has called
`recover`; a reader changes nothing, and says so.

What lies in a folder may come from anyone: a staging folder counts only if it is this user's,
closed to others, and has no links and nothing else in it. Even then nothing in it is more than
removed, or renamed to a free name in the folder that is written.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from intact._files import is_ours, lock, short_name
from intact.errors import OutputError

IsOwn = Callable[[Path], bool]
"""Tells whether a file or folder inside is intact's, and so may be replaced."""

_LOCK, _NEXT, _READY, _COMING, _PREVIOUS = "lock", "next", "ready", "coming", "previous"
_STATES = (_NEXT, _READY, _COMING)
_INSIDE = "intact"
"""Stands in the name of a staging folder that lies in the folder itself."""
_RANDOM = r"[a-z0-9_]{8}"
"""What `tempfile.mkdtemp` adds."""
_UNLOCKED_FOR = 3600.0
"""Seconds after which a staging folder is given up where files cannot be locked."""


@contextmanager
def replacing(folder: Path, is_own: IsOwn) -> Iterator[Path]:
    """Give an empty folder, and put it in the place of ``folder`` if nothing fails.

    Whatever fails, and whenever the process is killed: ``folder`` then holds what it held, or all
    that is new; where it takes `recover` to see to that, the next run that writes it does.

    Args:
        folder: Resolved. What in it is not of intact's stays.
        is_own: Tells what may be replaced.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        # First, so that what a killed process left half moved is whole before it is replaced.
        recover(folder, is_own)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _staging(folder) as staging:
            (staging.path / _NEXT).mkdir()
            yield staging.path / _NEXT
            _put(staging, folder, is_own)
    except (OSError, OutputError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise OutputError(
            f"cannot write {folder}: {cause.strerror or cause}",
            remedy="make room there, or name another folder",
        ) from error


def probe(folder: Path) -> None:
    """Check that `replacing` could write, and leave nothing.

    Raises:
        OSError: It could not.
    """
    with _staging(folder):
        pass


def recover(folder: Path, is_own: IsOwn) -> None:
    """Finish or undo what processes of this user that were killed left, and remove their litter.

    Only who writes the folder calls it. What belongs to a process that lives is left alone, and so
    is what cannot be written.

    Raises:
        OutputError: The folder holds a part of a result only, and stays so.
    """
    for path in _stagings(folder):
        with contextlib.suppress(OSError):  # BlockingIOError: its process lives
            age = time.time() - path.stat().st_mtime
            lock = _locked(path)
            if lock is not None or age > _UNLOCKED_FOR:
                with _removed(_Staging(path, lock, is_needed=True)) as staging:
                    _settle(staging, folder, is_own)
    if is_unfinished(folder):
        raise OutputError(
            f"{folder}: the exchange of its files is not finished",
            remedy="wait for the process that does it, or name another folder",
        )


def is_staging(path: Path) -> bool:
    """Tell whether something in a folder is where a process writes what is to replace it."""
    return _is_left_by_us(path, _INSIDE)


def is_unfinished(folder: Path) -> bool:
    """Tell whether a folder holds a part of a result only, until `recover` is called."""
    return any(
        _inside(path / _COMING) or ((path / _READY).is_dir() and _inside(path / _PREVIOUS))
        for path in _stagings(folder)
    )


# ---- the staging folder --------------------------------------------------------------------------


@dataclass
class _Staging:
    """A staging folder, locked.

    Attributes:
        path: The folder.
        lock: Descriptor of its lock; None where files cannot be locked.
        is_needed: It holds what is nowhere else.
    """

    path: Path
    lock: int | None
    is_needed: bool = False

    def turn(self, state: str) -> Path:
        """Rename the folder with the content, in whatever state it is; return its path."""
        for each in _STATES:
            if each != state and (self.path / each).is_dir():
                (self.path / each).rename(self.path / state)
        return self.path / state


@contextmanager
def _staging(folder: Path) -> Iterator[_Staging]:
    """Make a staging folder: beside ``folder``, or in it where nothing can be renamed into it.

    Raises:
        OSError: It cannot be made.
    """
    while True:
        # Another process may take the folder for litter between its making and its lock; a new one
        # is made then.
        path = _made(folder)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):  # it was taken for litter
            lock = _locked(path)
            break
    with _removed(_Staging(path, lock)) as staging:
        yield staging


def _made(folder: Path) -> Path:
    """Make a folder that nobody else has."""
    parent = _nearest(folder.parent)
    if not folder.is_dir() or _mount_of(folder) == _mount_of(parent):
        try:
            return Path(tempfile.mkdtemp(prefix=f".{short_name(folder.name)}.", dir=parent))
        except OSError:
            if not folder.is_dir():
                raise
    return Path(tempfile.mkdtemp(prefix=f".{_INSIDE}.", dir=folder))


def _mount_of(folder: Path) -> int:
    """Tell mounts apart; Linux mounts folders of a device that is mounted already (bind mounts)."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        descriptor = os.open(folder, os.O_PATH)
        try:
            facts = Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii")
        finally:
            os.close(descriptor)
        return int(facts.partition("mnt_id:")[2].split("\n")[0])
    return folder.stat().st_dev


@contextmanager
def _removed(staging: _Staging) -> Iterator[_Staging]:
    """Remove a staging folder at the end, unless it is needed; the next run removes the rest."""
    try:
        yield staging
    finally:
        if not staging.is_needed:
            with contextlib.suppress(OSError):
                staging.turn(_NEXT)  # first: what follows it is not whole any more
                for each in (_NEXT, _PREVIOUS):
                    shutil.rmtree(staging.path / each, ignore_errors=True)
        if staging.lock is not None:
            os.close(staging.lock)
        if not staging.is_needed:
            shutil.rmtree(staging.path, ignore_errors=True)


def _locked(folder: Path) -> int | None:
    """Lock a staging folder by a file in it; None where the file system has no locks.

    Raises:
        BlockingIOError: Another process holds the lock.
        FileNotFoundError: The folder is gone.
    """
    path = folder / _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        lock(descriptor, inherited=True)
        # The lock is worth nothing if the file was removed, and made anew by another process,
        # between opening and locking it.
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116 - beside fstat
            return descriptor
        raise FileNotFoundError(errno.ENOENT, "another has its name")
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            raise
        return None


def _stagings(folder: Path) -> list[Path]:
    """List the staging folders of a folder that processes of this user left, or still use."""
    found: list[Path] = []
    for place, name in ((_nearest(folder.parent), short_name(folder.name)), (folder, _INSIDE)):
        with contextlib.suppress(OSError):
            with os.scandir(place) as entries:  # there may be thousands of others
                named = sorted(e.name for e in entries if e.name.startswith(f".{name}."))
            found += [place / each for each in named if _is_left_by_us(place / each, name)]
    return found


def _is_left_by_us(path: Path, name: str) -> bool:
    """Tell whether a path is a staging folder of this user's, by all that can be seen of it."""
    if not re.fullmatch(rf"\.{re.escape(name)}\.{_RANDOM}", path.name):
        return False
    kinds = {_LOCK: stat.S_ISREG, **dict.fromkeys((*_STATES, _PREVIOUS), stat.S_ISDIR)}
    with contextlib.suppress(OSError):
        found = path.lstat()
        # `tempfile.mkdtemp` makes folders of this mode: one that others may write is not ours.
        is_private = os.name == "nt" or stat.S_IMODE(found.st_mode) == 0o700
        return (
            stat.S_ISDIR(found.st_mode)
            and is_private
            and is_ours(found)
            and all(
                each.name in kinds
                and kinds[each.name](each.lstat().st_mode)
                and is_ours(each.lstat())
                for each in path.iterdir()
            )
        )
    return False


def _inside(folder: Path) -> list[Path]:
    """List what is in a folder; nothing where there is none."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder


# ---- the exchange --------------------------------------------------------------------------------


def _put(staging: _Staging, folder: Path, is_own: IsOwn) -> None:
    """Put what was written in the place of ``folder``."""
    ready = staging.turn(_READY)
    if not folder.exists():
        ready.rename(folder)
        return
    # From here on until the end of `_settle` an interruption leaves content that is nowhere else.
    staging.is_needed = True
    if not (_may_be_another(folder, ready, is_own) and _swap(ready, folder)):
        _move_inside(staging, folder, is_own)
    _settle(staging, folder, is_own)


def _may_be_another(folder: Path, new: Path, is_own: IsOwn) -> bool:
    """Tell whether a folder may be another one afterwards; its mode is then that of the old.

    It may not be where somebody works in it, where something of others is in it, and where the new
    one would belong to another user.
    """
    here, there = folder.stat(), new.stat()
    if (here.st_uid, here.st_gid) != (there.st_uid, there.st_gid):
        return False
    with contextlib.suppress(OSError):
        if Path.cwd().samefile(folder):
            return False
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            if any(not name.startswith("security.") for name in os.listxattr(folder)):
                return False  # access control lists and the like
    shutil.copymode(folder, new)
    return all(map(is_own, folder.iterdir()))


_LINUX_EXCHANGE, _APPLE_SWAP, _HERE = 2, 2, -100


def _swap(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot.

    Linux: renameat2 with RENAME_EXCHANGE; macOS: renamex_np with RENAME_SWAP.
    """
    # Tests see by this event, as by those of Python's own file functions, what a process has done
    # when they kill it.
    sys.audit("intact.swap", str(one), str(other))
    first, second = os.fsencode(one), os.fsencode(other)
    with contextlib.suppress(OSError, AttributeError):  # no such library; no such function in it
        # Python has no function for either system call.
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            failed = library.renameat2(_HERE, first, _HERE, second, ctypes.c_uint(_LINUX_EXCHANGE))
        elif sys.platform == "darwin":
            failed = library.renamex_np(first, second, ctypes.c_uint(_APPLE_SWAP))
        else:
            return False
        return int(failed) == 0
    return False


def _move_inside(staging: _Staging, folder: Path, is_own: IsOwn) -> None:
    """Move what is in a folder out of it, so that the new can come. Whatever fails is undone."""
    previous = staging.path / _PREVIOUS
    previous.mkdir()
    try:
        _move(folder, previous, is_own)
        # The rename is the moment of decision: before it recovery goes back, after it forward.
        staging.turn(_COMING)
        _move(staging.path / _COMING, folder, is_own)
        if _inside(staging.path / _COMING):
            raise FileExistsError(errno.EEXIST, "files of others are in the way")
    # Also of Ctrl-C: half of a folder must not stay behind.
    except BaseException:
        if (staging.path / _COMING).is_dir():
            _move(folder, staging.path / _COMING, is_own)
            staging.turn(_READY)
        _settle(staging, folder, is_own)
        raise


def _settle(staging: _Staging, folder: Path, is_own: IsOwn) -> None:
    """Bring a folder into one of its two states, from whatever there is; `recover` does no more."""
    ready, coming = staging.path / _READY, staging.path / _COMING
    if ready.is_dir():
        _move(staging.path / _PREVIOUS, folder, is_own)
        shutil.rmtree(staging.path / _PREVIOUS, ignore_errors=True)
        _move(ready, folder, lambda path: not is_own(path))
    _move(coming, folder, is_own)
    staging.is_needed = not all(map(is_own, _inside(ready)))


def _move(source: Path, goal: Path, is_meant: IsOwn) -> None:
    """Move what is meant of a folder to another; nothing where one of the names is there already.

    Then somebody else has written them since: what was killed long ago is not finished any more.
    """
    found = list(filter(is_meant, _inside(source)))
    # `lexists`, because a broken link has the name too.
    if any(os.path.lexists(goal / path.name) for path in found):
        return
    for path in found:
        goal.mkdir(exist_ok=True)
        path.rename(goal / path.name)
