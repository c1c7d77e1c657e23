"""What users hand to a model, as a lowered program takes it: stored in its layout, as its codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.numerics.affine import dequantize, quantize
from intact.program import Array, Encoding, Program, Tensor


def stored_feeds(program: Program, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array]:
    """Return a batch as the inputs of a program.

    Args:
        program: Of which the inputs may be integers, and stored with channels last.
        feeds: By input name, with axes as the model has them: floats, or codes in the type of an
            integer input, which are taken as they are.

    Raises:
        DataError: An input is missing.
    """
    return {
        name: np.ascontiguousarray(tensor.as_stored(_fed(name, tensor, feeds)))
        for name, tensor in program.inputs.items()
    }


def _fed(name: str, tensor: Tensor, feeds: Mapping[str, npt.NDArray[Any]]) -> Array:
    if name not in feeds:
        raise DataError(f"input {name!r} is missing", remedy="give an array of that name")
    array = np.asarray(feeds[name])
    encoding = tensor.encoding
    if encoding is None or array.dtype == encoding.dtype:
        return array
    if array.dtype.kind != "f":
        raise DataError(
            f"input {name!r} is {array.dtype}, the program takes {encoding.dtype}",
            remedy="give its codes in that type, or floats",
        )
    return in_codes(array, encoding, _axis_in_model(tensor))


def _axis_in_model(tensor: Tensor) -> int | None:
    """Return the axis along which the scales of a tensor lie in the model's own layout."""
    encoding = tensor.encoding
    if encoding is None or encoding.axis is None or tensor.permutation is None:
        return None if encoding is None else encoding.axis
    return tensor.permutation[encoding.axis]


def in_codes(array: Array, encoding: Encoding, axis: int | None) -> Array:
    """Return floats as the nearest codes."""
    codes = quantize(
        array,
        encoding.scale,
        encoding.zero_point,
        encoding.quant_min,
        encoding.quant_max,
        rounding=encoding.rounding,
        axis=axis,
    )
    return codes.astype(encoding.dtype)


def in_numbers(array: Array, tensor: Tensor) -> Array:
    """Return what the codes of a tensor, as it is stored, stand for; floats are what they are."""
    encoding = tensor.encoding
    if encoding is None:
        return array
    return dequantize(array, encoding.scale, encoding.zero_point, axis=encoding.axis)
