"""Tells a caller how far a call has come, and what it does now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int | None], None]
"""Takes the samples done and, where known, of all; with an attribute ``phase``, a function, also
the name of each part of the work that begins: the count then starts anew."""

_log = logging.getLogger("intact")


def begin(progress: Progress | None, what: str) -> None:
    """Name what begins, to whoever wants to know: the caller, and the log of the package.

    Args:
        progress: The caller's progress.
        what: The name in a few words: ``timing both models``.
    """
    _log.info("%s", what)
    # An attribute and no argument, so that a plain function of two numbers is a progress too.
    phase = getattr(progress, "phase", None)
    if phase is not None:
        phase(what)
