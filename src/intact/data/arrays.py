"""Converts arrays of other libraries to NumPy's.

A library is told by the methods of its arrays, so that none is imported for that.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError

_PROTOCOLS = ("__array__", "__array_interface__", "__dlpack__")

# A list may hold itself, so the walk below must end.
_DEEPEST = 64
"""Axes that an array of NumPy may have."""


def is_array(value: object) -> bool:
    """Tell whether a value is an array or a tensor, of whatever library."""
    # Asked of the type, because objects that answer to any attribute are no arrays.
    return any(hasattr(type(value), each) for each in _PROTOCOLS)


def plain(values: Any) -> npt.NDArray[Any]:
    """Return an array or tensor, or lists of numbers or of such, as an array of NumPy.

    A tensor may be on a device, and may need a gradient. bfloat16, which NumPy has not, becomes
    float32.

    Raises:
        Exception: Whatever the library raises.
    """
    if isinstance(values, list | tuple):
        # Each tensor by itself: NumPy would go through the elements of tensors in a list.
        ours = [plain(each) if is_array(each) else each for each in values]
        return np.asarray(ours)
    if isinstance(values, np.ndarray):
        found = values
    else:
        for step in ("detach", "cpu"):  # of the type: a table may have columns of these names
            if hasattr(type(values), step):
                values = getattr(values, step)()
        # torch refuses to give NumPy a type that it lacks.
        if str(getattr(values, "dtype", "")) == "torch.bfloat16":
            values = values.float()
        is_foreign = hasattr(values, "__dlpack__") and not hasattr(values, "__array__")
        found = np.from_dlpack(values) if is_foreign else np.asarray(values)
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an array, a tensor or nested lists, without a copy; else an empty one."""
    lengths: list[int] = []
    while isinstance(value, list | tuple):
        lengths.append(len(value))
        if not value or len(lengths) > _DEEPEST:  # no array, which is reported when it is taken
            return tuple(lengths)
        value = value[0]
    if not is_array(value):
        return tuple(lengths)
    try:
        inner = tuple(value.shape) if hasattr(value, "shape") else plain(value).shape
    except Exception:  # reported when the array is taken
        inner = ()
    return (*lengths, *inner)


def as_array(source: str, name: str, values: Any) -> npt.NDArray[Any]:
    """Convert an item of a source to an array.

    Raises:
        DataError: It is not an array, or has masked values.
    """
    # No array is masked before numpy.ma is loaded, which takes 0.01 s.
    if "numpy.ma" in sys.modules and np.ma.is_masked(values):
        raise DataError(
            f"{source}: {name!r} is a masked array", remedy="fill it, or remove the samples"
        )
    try:
        return plain(values)
    except Exception as error:  # arrays of other libraries may raise anything
        reason = " ".join(str(error).split())
        raise DataError(
            f"{source}: {name!r} is not an array ({reason})", remedy="give arrays of numbers"
        ) from error
