"""What users hand to a model, as a lowered program takes it: stored in its layout, as its codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.numerics.affine import dequantize, quantize
from intact.program import Array, Encoding, Program, Tensor


def stored_feeds(
    program: Program,
    feeds: Mapping[str, npt.NDArray[Any]],
    as_lowered: Mapping[str, Tensor] | None = None,
) -> dict[str, Array]:
    """Return a batch as the inputs of a program.

    Args:
        program: Of which the inputs may be integers, and stored with channels last.
        feeds: By input name, with axes as the model has them: floats, or codes in the type of an
            integer input, which are taken as they are.
        as_lowered: The inputs before they were made integers, which tell how axes lie; those
            of the program if None.

    Raises:
        DataError: An input is missing.
    """
    layouts = program.inputs if as_lowered is None else as_lowered
    return {
        name: np.ascontiguousarray(_fed(name, tensor, layouts[name].as_stored, feeds))
        for name, tensor in program.inputs.items()
    }


def _fed(
    name: str,
    tensor: Tensor,
    as_stored: Callable[[Array], Array],
    feeds: Mapping[str, npt.NDArray[Any]],
) -> Array:
    if name not in feeds:
        raise DataError(f"input {name!r} is missing", remedy="give an array of that name")
    array, encoding = as_stored(np.asarray(feeds[name])), tensor.encoding
    if encoding is None or array.dtype == encoding.dtype:
        return array
    if array.dtype.kind != "f":
        raise DataError(
            f"input {name!r} is {array.dtype}, the program takes {encoding.dtype}",
            remedy="give its codes in that type, or floats",
        )
    return in_codes(array, encoding)


def in_codes(array: Array, encoding: Encoding) -> Array:
    """Return floats as the nearest codes."""
    codes = quantize(
        array,
        encoding.scale,
        encoding.zero_point,
        encoding.quant_min,
        encoding.quant_max,
        rounding=encoding.rounding,
        axis=encoding.axis,
    )
    return codes.astype(encoding.dtype)


def in_numbers(array: Array, tensor: Tensor) -> Array:
    """Return what the codes of a tensor, as it is stored, stand for; floats are what they are."""
    encoding = tensor.encoding
    if encoding is None:
        return array
    return dequantize(array, encoding.scale, encoding.zero_point, axis=encoding.axis)
