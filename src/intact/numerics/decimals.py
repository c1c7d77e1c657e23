"""Numbers that pass through text of six decimals, C's ``%f``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_DECIMALS = 6
SMALLEST = np.float32(10.0**-_DECIMALS)
"""The smallest positive number that six decimals can hold."""


def six_decimals(scale: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return the float32 numbers that are read from the text ``"%f"`` of others.

    >>> f"{six_decimals(np.float32(1 / 127)):.9f}"
    '0.007874000'
    """
    values = np.asarray(scale, np.float32)
    texts = [f"{float(value):.{_DECIMALS}f}" for value in values.reshape(-1)]
    return np.array([float(text) for text in texts], np.float32).reshape(values.shape)
