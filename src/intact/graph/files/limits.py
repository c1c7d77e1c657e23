"""Limits how much a file may unpack to: few bytes can stand for any number of values.

The limits are far above what honest files need. ``--raise-limits`` multiplies all of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

UNPACKED_BYTES = 256 << 20
"""Bytes that sparse or compressed arrays of one file may unpack to, whatever its size."""

UNPACKED_RATIO = 64
"""Bytes that they may unpack to for each byte of the file, beside those. Sparse tensors of 1 % and
compressed photographs stay below; deflate can give 1032."""

NODES = 250_000
"""Nodes of a model, where each call of a function counts as the function's own nodes."""

NODE_RUNS = 10_000_000
"""The same, where a loop of constant length counts as its body so many times."""

TENSORS = 500_000
"""Initializers of a model, and inputs, outputs and declared types: two a node, bodies included."""

FUNCTIONS = 50_000
"""Functions that a model defines."""

_MOST = 1024
"""The largest factor that a message offers: what needs more is not a model."""

_FACTOR: ContextVar[int] = ContextVar("raise_limits", default=1)


@contextlib.contextmanager
def raised_limits(factor: int) -> Iterator[None]:
    """Multiply all limits while the block runs.

    Args:
        factor: 1 or more.
    """
    # The larger of both: a block inside cannot lower what the user allowed outside.
    token = _FACTOR.set(max(factor, _FACTOR.get()))
    try:
        yield
    finally:
        _FACTOR.reset(token)


def unpacked_limit(size: int) -> int:
    """Return the bytes that arrays may unpack to from a file of this size in bytes."""
    return _FACTOR.get() * (UNPACKED_BYTES + UNPACKED_RATIO * size)


def limit_of(usual: int) -> int:
    """Return a limit as it is now."""
    return _FACTOR.get() * usual


def remedy(needed: int, allowed: int, otherwise: str) -> str:
    """Say how to allow what was refused; where no machine could bear it, what else to do.

    Args:
        needed: What the file asks for.
        allowed: The limit, as it is now.
        otherwise: What to do about the file.
    """
    factor = math.ceil(needed * _FACTOR.get() / allowed) if allowed else _MOST + 1
    if factor > _MOST:
        return otherwise
    return f"{otherwise}, or allow it with --raise-limits {factor}"
