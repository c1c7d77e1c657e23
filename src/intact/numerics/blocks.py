"""Blocks of neighbours along one axis, each with a scale and a zero point of its own.

Parameters (scales, zero points) have the shape of the tensor with the length K of the axis replaced
by ``ceil(K / size)``: a weight ``[64, 100]`` in blocks of 32 along axis 1 has scales ``[64, 4]``,
and the last block of each row has 4 neighbours (it is ragged).

Views are made where a block is whole, so that parameters broadcast and are never repeated in
memory; a ragged last block is a piece of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError


class Piece(NamedTuple):
    """Blocks of equal length: all whole ones, or the ragged last one.

    Attributes:
        start: Where they begin along the axis.
        stop: Where they end.
        first: The first block.
        last: Behind the last block.
        size: Length of each.
    """

    start: int
    stop: int
    first: int
    last: int
    size: int

    def view_values(self, values: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
        """View the values of the blocks as ``[..., blocks, size, ...]``."""
        part = _part(values, axis, self.start, self.stop)
        shape = part.shape
        return part.reshape(*shape[:axis], self.last - self.first, self.size, *shape[axis + 1 :])

    def view_parameters(self, parameters: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
        """View the parameters of the blocks so that they broadcast against their values."""
        return np.expand_dims(_part(parameters, axis, self.first, self.last), axis + 1)


def pieces(length: int, size: int) -> Iterator[Piece]:
    """Yield the whole blocks of an axis, and the ragged last one.

    >>> [(piece.start, piece.stop, piece.size) for piece in pieces(100, 32)]
    [(0, 96, 32), (96, 100, 4)]
    """
    whole = length // size
    if whole:
        yield Piece(0, whole * size, 0, whole, size)
    if length % size:
        yield Piece(whole * size, length, whole, whole + 1, length % size)


def block_rows(values: npt.NDArray[Any], axis: int, size: int) -> npt.NDArray[Any]:
    """Return a tensor as ``[*parameters, size]``, each block in a row; a ragged one ends in zeros.

    The axes of the parameters keep their order.
    """
    along = np.moveaxis(values, axis, -1)
    length = along.shape[-1]
    missing = -length % size
    if missing:
        along = np.pad(along, [(0, 0)] * (along.ndim - 1) + [(0, missing)])
    rows = along.reshape(*along.shape[:-1], -(-length // size), size)
    # The compiled loops that read the rows take C-contiguous arrays only.
    return np.ascontiguousarray(np.moveaxis(rows, -2, axis))


def check_blocks(shape: tuple[int, ...], parameters: tuple[int, ...], axis: int, size: int) -> None:
    """Refuse parameters that are not one for each block.

    Args:
        shape: The shape of the tensor.
        parameters: Shape of its scales.
        axis: Along which the blocks lie, counted from 0.
        size: Neighbours in a block.

    Raises:
        ConfigError: They do not fit.
    """
    if not 0 <= axis < len(shape) or size < 1:
        raise ConfigError(
            f"blocks of {size} along axis {axis} of a tensor of shape {shape}",
            remedy="use an axis it has, and a size of 1 or more",
        )
    expected = (*shape[:axis], -(-shape[axis] // size), *shape[axis + 1 :])
    if parameters != expected:
        raise ConfigError(
            f"scales of shape {parameters} for blocks of {size} along axis {axis} of a tensor of "
            f"shape {shape}",
            remedy=f"pass one for each block: {expected}",
        )


def _part(array: npt.NDArray[Any], axis: int, start: int, stop: int) -> npt.NDArray[Any]:
    return array[(slice(None),) * axis + (slice(start, stop),)]
