"""Decides whether numba may keep compiled loops on disk, and read them again.

Its files are pickles, which run code when they are read. Beside this module lie Python's own, which
whoever may write there could change as well. In another folder, which a variable of the environment
names or which is the user's, they are read only if nobody else can have put them there.
`intact.numerics.native` asks the same of its object files, one by one.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def is_private(folder: Path) -> bool:
    """Tell whether only this user may write into a folder, which is made where there is none.

    A relative path leads into whatever folder one works in: what lies there may be of others, and
    unpacked by this user.
    """
    if os.name == "nt":
        return True
    if not folder.is_absolute():
        return False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Both: who owns a link may turn it to another folder later.
        found, link = folder.stat(), folder.lstat()
    except OSError:
        return False
    is_closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return (
        stat.S_ISDIR(found.st_mode) and is_closed and {found.st_uid, link.st_uid} == {os.geteuid()}
    )


def _cache_folder() -> Path | None:
    """Return the folder that numba keeps the loops of this package in; None for its own."""
    from numba import config
    from numba.misc.appdirs import AppDirs

    asked = vars(config).get("CACHE_DIR", "")
    if asked:
        return Path(asked)
    own = Path(__file__).parent / "__pycache__"
    if os.access(own if own.exists() else own.parent, os.W_OK):
        return None
    folders: Any = AppDirs  # numba has no types for it
    return Path(folders(appname="numba", appauthor=False).user_cache_dir)


def _may_cache() -> bool:
    folder = _cache_folder()
    if folder is None or is_private(folder):
        return True
    _log.warning("loops are compiled anew: others may write into numba's cache %s", folder)
    return False


CACHED = _may_cache()
"""What numba's decorators get as ``cache``."""
