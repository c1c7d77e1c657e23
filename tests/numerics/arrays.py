"""Short ways to write arrays in the numerics tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def float32(*values: float) -> npt.NDArray[np.float32]:
    """Return a 1-d float32 array of the given values."""
    return np.array(values, dtype=np.float32)


def float32_of(values: Iterable[float]) -> npt.NDArray[np.float32]:
    """Return a 1-d float32 array of the values of an iterable."""
    return np.array(list(values), dtype=np.float32)
