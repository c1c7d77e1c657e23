"""A folder takes another's place in one step, whatever kills the process.

A result is written into a staging folder beside the one that it is for::

    .NAME.XXXXXXXX/       removed at the end, or by the next run
    ├── lock              held while its process lives: it ends with it, also by ``kill -9``
    ├── journal           how the exchange is done; from here on it can be finished by anyone
    ├── next/             the new content; after an exchange in one step, what was there before
    └── previous/         what was there before, where it is moved file by file

A folder that is not there yet is renamed into its place. One that is there is exchanged: Linux and
macOS swap two folders in one system call. Where the file system cannot do that (NFS, overlays), or
must not (the folder is mounted, is the working directory, or belongs to somebody else), its
content is moved file by file, and `recover` finishes what a killed process began.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from intact._files import short_name
from intact.errors import OutputError

IsOwn = Callable[[Path], bool]
"""Tells whether a file or folder inside is intact's, and so may be replaced."""

_LOCK, _JOURNAL, _NEXT, _PREVIOUS = "lock", "journal", "next", "previous"
_OLD_NEXT, _OLD_PREVIOUS = "new", "old"  # as staging folders of versions without journals have it
_PARTS = frozenset(
    [_LOCK, _JOURNAL, f"{_JOURNAL}.partial", _NEXT, _PREVIOUS, _OLD_NEXT, _OLD_PREVIOUS]
)
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
    that is new; where it takes `recover` to see to that, every reader and the next run calls it.

    Args:
        folder: Resolved. What in it is not of intact's stays.
        is_own: Tells what may be replaced.

    Raises:
        OutputError: It cannot be written.
    """
    staging: _Staging | None = None
    try:
        recover(folder, is_own)
        staging = _Staging.make(folder, make_parents=True)
        staging.next.mkdir()
        yield staging.next
        _put(staging, folder, is_own)
    except (OSError, OutputError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise OutputError(
            f"cannot write {folder}: {cause.strerror or cause}",
            remedy="make room there, or name another folder",
        ) from error
    finally:
        if staging is not None:
            staging.remove()


def probe(folder: Path) -> None:
    """Check that `replacing` could write, and leave nothing.

    Raises:
        OSError: It could not.
    """
    _Staging.make(folder, make_parents=False).remove()


def recover(folder: Path, is_own: IsOwn) -> None:
    """Finish or undo what processes that were killed left of ``folder``, and remove their litter.

    What belongs to a process that lives is left alone, and so is what cannot be written.
    """
    for path in _stagings(folder):
        with contextlib.suppress(OSError):
            staging = _Staging.take(path)
            if staging is not None:
                staging.is_needed = True
                try:
                    _settle(staging, folder, is_own)
                    staging.is_needed = False
                finally:
                    staging.remove()


def is_staging(path: Path) -> bool:
    """Tell whether something in a folder is where another process writes what is to replace it."""
    return _is_left_by_us(path, _INSIDE)


# ---- the staging folder --------------------------------------------------------------------------


@dataclass
class _Staging:
    """A staging folder, locked.

    Attributes:
        path: The folder.
        lock: Descriptor of its lock; None where it was released, or files cannot be locked.
        is_needed: It holds what is nowhere else.
    """

    path: Path
    lock: int | None
    is_needed: bool = False

    @property
    def next(self) -> Path:
        return self.path / _NEXT

    @property
    def previous(self) -> Path:
        return self.path / _PREVIOUS

    @property
    def journal(self) -> Path:
        return self.path / _JOURNAL

    @staticmethod
    def make(folder: Path, *, make_parents: bool) -> _Staging:
        """Make one beside ``folder``; inside where only that can be written."""
        if make_parents:
            folder.parent.mkdir(parents=True, exist_ok=True)
        while True:
            path = _made(folder)
            with contextlib.suppress(FileNotFoundError):  # taken for litter before it was locked
                lock = _locked(path / _LOCK)
                if lock is not _HELD:
                    return _Staging(path, lock)

    @staticmethod
    def take(path: Path) -> _Staging | None:
        """Take over one whose process has ended; None while that lives."""
        age = time.time() - path.stat().st_mtime
        lock = _locked(path / _LOCK)
        if lock is _HELD or (lock is None and age < _UNLOCKED_FOR):
            return None
        return _Staging(path, lock)

    def write_journal(self, **entry: object) -> None:
        """Write down what is about to be done, in one step."""
        partial = self.path / f"{_JOURNAL}.partial"
        partial.write_text(json.dumps(entry), "utf-8")
        partial.replace(self.journal)

    def remove(self) -> None:
        """Remove it, unless it is needed; what stays is removed by the next run."""
        if self.is_needed:
            self.release()
            return
        self.journal.unlink(missing_ok=True)  # first: what follows it is not whole any more
        for each in (self.next, self.previous):
            shutil.rmtree(each, ignore_errors=True)
        self.release()
        shutil.rmtree(self.path, ignore_errors=True)

    def release(self) -> None:
        """Let go of the lock."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


_HELD = -1
"""In the place of a descriptor: another process holds the lock."""


def _locked(path: Path) -> int | None:
    """Lock a file that is made for it; None where the file system has no locks.

    Raises:
        FileNotFoundError: Its folder is gone.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor)
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116 - beside fstat
            return descriptor
        held: int | None = _HELD
    except BlockingIOError:
        held = _HELD
    except FileNotFoundError:
        os.close(descriptor)
        raise
    except OSError:
        held = None
    os.close(descriptor)
    return held


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed.

    Raises:
        BlockingIOError: It is locked.
        OSError: It cannot be.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(str(error)) from error
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _made(folder: Path) -> Path:
    """Make a folder that nobody else has: beside ``folder``, or else in it."""
    parent = _nearest(folder.parent)
    is_mounted = folder.is_dir() and folder.stat().st_dev != parent.stat().st_dev
    try:
        if not is_mounted:
            return Path(tempfile.mkdtemp(prefix=f".{short_name(folder.name)}.", dir=parent))
    except OSError:
        if not folder.is_dir():
            raise
    return Path(tempfile.mkdtemp(prefix=f".{_INSIDE}.", dir=folder))


def _stagings(folder: Path) -> list[Path]:
    """List the staging folders of a folder, whoever they are of."""
    found: list[Path] = []
    for place, name in ((_nearest(folder.parent), short_name(folder.name)), (folder, _INSIDE)):
        with contextlib.suppress(OSError):
            with os.scandir(place) as entries:  # there may be thousands of others
                named = sorted(e.name for e in entries if e.name.startswith(f".{name}."))
            found += [place / each for each in named if _is_left_by_us(place / each, name)]
    return found


def _is_left_by_us(path: Path, name: str) -> bool:
    """Tell whether a path is a staging folder, by its name, its mode and what lies in it."""
    if not re.fullmatch(rf"\.{re.escape(name)}\.{_RANDOM}", path.name):
        return False
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        is_private = os.name == "nt" or stat.S_IMODE(mode) == 0o700
        if stat.S_ISDIR(mode) and is_private:
            return {each.name for each in path.iterdir()} <= _PARTS
    return False


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder


# ---- the exchange --------------------------------------------------------------------------------


def _put(staging: _Staging, folder: Path, is_own: IsOwn) -> None:
    """Put what was written in the place of ``folder``."""
    if not folder.exists():
        staging.next.replace(folder)
        return
    if _may_be_another(folder, staging.next):
        staging.write_journal(swaps=staging.next.stat().st_ino)
        if _swap(staging.next, folder):
            staging.is_needed = True  # it holds what was there, until nothing of others is in it
            _return_foreign(staging.next, folder, is_own)
            staging.is_needed = False
            return
    staging.previous.mkdir()
    names = sorted(path.name for path in staging.next.iterdir())
    staging.write_journal(moves=names)
    _move_inside(staging, folder, names, is_own)


def _may_be_another(folder: Path, new: Path) -> bool:
    """Tell whether a folder may be another one afterwards; its mode is then that of the old.

    It may not be where somebody works in it, where it is mounted, and where the new one would
    belong to another user.
    """
    here, there = folder.stat(), new.stat()
    if folder.is_mount() or (here.st_uid, here.st_gid) != (there.st_uid, there.st_gid):
        return False
    with contextlib.suppress(OSError):
        if Path.cwd().samefile(folder):
            return False
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            if any(not name.startswith("security.") for name in os.listxattr(folder)):
                return False  # access control lists and the like
    shutil.copymode(folder, new)
    return True


_LINUX_EXCHANGE, _APPLE_SWAP, _HERE = 2, 2, -100


def _swap(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot.

    Linux: renameat2 with RENAME_EXCHANGE; macOS: renamex_np with RENAME_SWAP.
    """
    sys.audit("intact.swap", str(one), str(other))
    first, second = os.fsencode(one), os.fsencode(other)
    with contextlib.suppress(OSError, AttributeError):  # no such library; no such function in it
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            failed = library.renameat2(_HERE, first, _HERE, second, ctypes.c_uint(_LINUX_EXCHANGE))
        elif sys.platform == "darwin":
            failed = library.renamex_np(first, second, ctypes.c_uint(_APPLE_SWAP))
        else:
            return False
        return int(failed) == 0
    return False


def _return_foreign(previous: Path, folder: Path, is_own: IsOwn) -> None:
    """Return what is not intact's, and came between the check and the exchange."""
    for path in sorted(previous.iterdir()):
        if not is_own(path) and not os.path.lexists(folder / path.name):
            shutil.move(path, folder / path.name)


def _move_inside(staging: _Staging, folder: Path, names: Collection[str], is_own: IsOwn) -> None:
    """Move what is in a folder out of it, and what is new into it; it stays the same folder.

    Called again after it was killed, it goes on: what is in the folder, is named, and is not in
    ``next`` any more is new. Whatever fails is undone.
    """
    moves: list[tuple[Path, Path]] = []

    def move(source: Path, goal: Path) -> None:
        moves.append((source, goal))
        if goal.is_dir() and not goal.is_symlink():
            shutil.rmtree(goal)  # a copy that was not finished
        shutil.move(source, goal)  # copies between file systems

    try:
        for path in sorted(folder.iterdir()):
            is_new = path.name in names and not (staging.next / path.name).exists()
            if is_own(path) and not is_new:
                move(path, staging.previous / path.name)
        for path in sorted(staging.next.iterdir()):
            move(path, folder / path.name)
    except BaseException:
        staging.is_needed = True  # until all is undone: `recover` goes on from what there is
        for before, after in reversed(moves):
            if after.exists() and not before.exists():
                shutil.move(after, before)
        staging.is_needed = False
        raise


# ---- after a kill --------------------------------------------------------------------------------


def _settle(staging: _Staging, folder: Path, is_own: IsOwn) -> None:
    """Bring a folder into one of its two states, from whatever a killed process left."""
    if not staging.journal.exists() and (staging.path / _OLD_PREVIOUS).is_dir():
        _write_old_journal(staging, folder, is_own)
    try:
        entry = json.loads(staging.journal.read_text("utf-8"))
    except (OSError, ValueError):
        return  # the exchange had not begun, or was finished
    if "moves" in entry:
        for name, now in ((_OLD_PREVIOUS, staging.previous), (_OLD_NEXT, staging.next)):
            if (staging.path / name).is_dir():
                (staging.path / name).replace(now)
        folder.mkdir(exist_ok=True)
        _move_inside(staging, folder, entry["moves"], is_own)
    elif folder.is_dir() and folder.stat().st_ino == entry.get("swaps"):
        _return_foreign(staging.next, folder, is_own)


def _write_old_journal(staging: _Staging, folder: Path, is_own: IsOwn) -> None:
    """Write the journal of an exchange by a version that wrote none: all out, then all in.

    Both went in the order of the names, which tells how far it came.
    """
    new, old = staging.path / _OLD_NEXT, staging.path / _OLD_PREVIOUS
    coming = {path.name for path in new.iterdir()} if new.is_dir() else set()
    gone = {path.name for path in old.iterdir()}
    if not coming or not gone:
        return
    present = {path.name for path in folder.iterdir() if is_own(path)} if folder.is_dir() else set()
    still_moving_out = bool(present) and min(present) > max(gone)
    staging.write_journal(moves=sorted(coming if still_moving_out else coming | present))
