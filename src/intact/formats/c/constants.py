"""Constant arrays as C text; large ones that are equal are written once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.formats.c.names import Identifiers, comment

_TYPES = {
    np.dtype(np.int8): "int8_t",
    np.dtype(np.int16): "int16_t",
    np.dtype(np.int32): "int32_t",
}

_WORTH_SHARING = 64
"""Bytes below which a layer has an array of its own, for the reader's sake."""

_WIDTH = 100
"""Columns of a line of numbers."""


class Constants:
    """Collects arrays.

    Args:
        identifiers: Gives their names.

    Attributes:
        flash: Bytes of all arrays.
    """

    def __init__(self, identifiers: Identifiers) -> None:
        self.flash = 0
        self._identifiers = identifiers
        self._names: dict[tuple[str, bytes], str] = {}
        self._texts: list[str] = []

    def add(self, array: npt.NDArray[Any], name: str, suffix: str, note: str) -> str:
        """Return the identifier of an array of these numbers: new, or of a large one that is equal.

        Args:
            array: int8, int16 or int32, any shape, not empty.
            name: Of the layer or tensor that it belongs to.
            suffix: What it is, as the end of an identifier.
            note: What it is, for a comment.
        """
        array = np.ascontiguousarray(array)
        key = (array.dtype.str, array.tobytes())
        if array.nbytes >= _WORTH_SHARING and key in self._names:
            return self._names[key]
        known = self._names[key] = self._identifiers.unique(name, suffix)
        self.flash += array.nbytes
        self._texts.append(
            f"/* {comment(note)} */\n"
            f"static const {_TYPES[array.dtype]} {known}[{array.size}] = {{\n"
            f"{_numbers(array)}\n}};\n"
        )
        return known

    def text(self) -> str:
        """Return the definitions of all arrays in the order in which they were added."""
        return "\n".join(self._texts)


def _numbers(array: npt.NDArray[Any]) -> str:
    """Return numbers in lines of equal columns."""
    flat = array.reshape(-1)
    low, high = int(flat.min()), int(flat.max())
    columns = max(len(_literal(low)), len(_literal(high)))
    per_line = max(1, (_WIDTH - 4) // (columns + 2))
    if array.dtype == np.int8:
        known = np.array([f"{code:>{columns}}" for code in range(-128, 128)])
        texts = known[flat.astype(np.int64) + 128].tolist()
    else:
        texts = [f"{_literal(code):>{columns}}" for code in flat.tolist()]
    lines = (texts[at : at + per_line] for at in range(0, len(texts), per_line))
    return "\n".join(f"    {', '.join(line)}," for line in lines)


def _literal(code: int) -> str:
    """Return a number as C writes it: there is no literal of the smallest int32."""
    return "INT32_MIN" if code == -(2**31) else str(code)
