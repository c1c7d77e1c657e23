"""Libraries that print of their own accord."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_STDOUT = 1


@contextmanager
def nothing_printed() -> Iterator[None]:
    """Send what compiled code prints to stdout nowhere while the block runs.

    HiGHS prints lines of its own although its output is switched off (scipy 1.17); between a
    program's own output they would break the JSON that scripts read.
    """
    try:
        sys.stdout.flush()
        kept = os.dup(_STDOUT)
    except (AttributeError, OSError, ValueError):  # there is no stdout
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  it is no path of anybody's
            os.dup2(nowhere.fileno(), _STDOUT)
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)
