"""The command line: options, commands, what they print, and how it ends.

Nothing heavy is imported before a command needs it, so that ``intact --help`` is quick. Nothing at
all is imported here: Ctrl-C may come while the first package loads.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intact.cli.entry import run as run

__all__ = ["main", "run"]


def main() -> None:
    """Run the process's command line and exit."""
    _open_closed_streams()
    from intact.cli.interruption import stoppable

    with stoppable():
        from intact.cli.entry import main as run_process

        run_process()


def _open_closed_streams() -> None:
    """Open what whoever started the process has closed (``>&-``), so that it leads nowhere.

    In this order each gets its own number, the lowest that is free: a file that is opened later
    would get it otherwise, and what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            # Python's descriptors close in child processes; workers would find these numbers free
            # again.
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def __getattr__(name: str) -> object:
    if name == "run":
        from intact.cli.entry import run

        return run
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
