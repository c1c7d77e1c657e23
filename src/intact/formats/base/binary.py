"""Binary files of others, decoded within what their size explains."""

from __future__ import annotations

from intact.errors import ModelError

_SHARED = 4
"""How often every byte may be decoded: writers share texts and small lists."""
_SLACK = 1 << 16
_SHOWN = 400
"""Characters of a reason in a message."""


def clipped(text: str) -> str:
    """Return text of a file as messages show it: its names and lists may be megabytes.

    >>> clipped("short"), len(clipped("x" * 1000))
    ('short', 400)
    """
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


class BinaryFile:
    """A file and how much of it may still be decoded.

    Args:
        data: The whole file.
        source: How messages call it.
    """

    def __init__(self, data: bytes, source: str) -> None:
        self.data = memoryview(data)
        self.source = source
        self._left = _SHARED * len(data) + _SLACK

    def damaged(self, reason: str) -> ModelError:
        """Return the error for a file that is not what it should be."""
        return ModelError(
            f"{self.source}: {clipped(reason)}", remedy="the file is damaged: get it again"
        )

    def charge(self, size: int) -> None:
        """Count bytes that are decoded.

        Raises:
            ModelError: They are more than the file can hold.
        """
        self._left -= size
        if self._left < 0:
            raise self.damaged("its parts share their contents too often")
