"""The command line: options, commands, what they print, and how it ends.

Nothing heavy is imported before a command needs it, so that ``intact --help`` is quick. Nothing at
all is imported here: Ctrl-C may come while the first package loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intact.cli.entry import run as run

__all__ = ["main", "run"]


def main() -> None:
    """Run the process's command line and exit."""
    from intact.cli.interruption import stoppable

    with stoppable():
        from intact.cli.entry import main as run_process

        run_process()


def __getattr__(name: str) -> object:
    if name == "run":
        from intact.cli.entry import run

        return run
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
