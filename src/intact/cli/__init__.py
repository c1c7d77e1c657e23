"""The command line: options, commands, what they print, and how it ends.

Nothing heavy is imported before a command needs it, so that ``intact --help`` is quick.
"""

from intact.cli.entry import main, run

__all__ = ["main", "run"]
