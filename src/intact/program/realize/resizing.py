"""Resize: what each element of the output samples is computed here, one axis after the other."""

from __future__ import annotations

from typing import cast

import numpy as np

from intact.config import Rounding
from intact.errors import Unsupported
from intact.program.operations import Resize, ResizeMode
from intact.program.program import Array
from intact.program.realize.graph import Value
from intact.program.realize.moves import taken
from intact.program.realize.part import Part, Realize, channels_first, known
from intact.program.realize.pointwise import recoded
from intact.program.realize.requantize import quotient, refuse_floats
from intact.targets import Requantize

_BITS = 10
"""Of a weight, in TFLite's integer kernels."""


def resize(part: Part) -> None:
    """Realize a Resize of data with its channels anywhere."""
    operation = cast(Resize, part.step.operation)
    source, target = part.encoding(part.tensor(0)), part.encoding(part.output)
    order = channels_first(part.rank(0))
    data = part.read(0, order)
    if operation.mode is ResizeMode.NEAREST:
        for axis, size in enumerate(operation.sizes, 2):
            places = _nearest(operation, known(data.shape[axis]), size)
            data = taken(part, data, part.draft.constant(places, "places"), axis)
    else:
        data = _linear(part, operation, data)
    part.give(recoded(part, data, source, target), order)


def _linear(part: Part, operation: Resize, data: Value) -> Value:
    """Blend neighbours with integer weights, and round once."""
    arithmetic, draft = part.step.arithmetic, part.draft
    refuse_floats(arithmetic)
    if arithmetic.requantize is Requantize.FIXED_POINT_SINGLE:
        raise Unsupported("it interpolates with weights of floats", "resize to the nearest")
    encoding = part.encoding(part.tensor(0))
    for axis, size in enumerate(operation.sizes, 2):
        first, second, weights = _positions(operation, known(data.shape[axis]), size)
        along = [-1 if at == axis else 1 for at in range(len(data.shape))]
        sides = []
        for places, share in ((first, (1 << _BITS) - weights), (second, weights)):
            side = taken(part, data, draft.constant(places, "places"), axis)
            sides.append(draft.mul(side, share.reshape(along)))
        data = draft.add(*sides)
    shifts = arithmetic.requantize is Requantize.SHIFT
    rounding = arithmetic.rounding if shifts else Rounding.HALF_AWAY_FROM_ZERO
    mean = quotient(draft, data, 1 << _BITS * len(operation.sizes), rounding)
    return draft.cast(draft.clip(mean, encoding.quant_min, encoding.quant_max), encoding.dtype)


def _nearest(operation: Resize, length: int, size: int) -> Array:
    """Return which element each output takes, computed in float32 as TFLite does."""
    spans = (length - 1, size - 1) if operation.align_corners and size > 1 else (length, size)
    places = np.arange(size, dtype=np.float32)
    if operation.half_pixel:
        places += np.float32(0.5)
    places = places * (np.float32(spans[0]) / np.float32(spans[1]))
    if operation.align_corners:
        places = places + np.float32(0.5)
    return np.clip(np.floor(places), 0, length - 1).astype(np.int64)


def _positions(operation: Resize, length: int, size: int) -> tuple[Array, Array, Array]:
    """Return two elements and the second's weight, sampled in integers as TFLite does."""
    one = 1 << _BITS
    spans = (length - 1, size - 1) if operation.align_corners and size > 1 else (length, size)
    step = (one * spans[0] + spans[1] // 2) // max(spans[1], 1)
    places = np.arange(size, dtype=np.int64) * step
    if operation.half_pixel:
        places += step // 2 - one // 2
    first = np.clip(places >> _BITS, 0, length - 1)
    second = np.clip((places + one - 1) >> _BITS, 0, length - 1)
    return first, second, places - (first << _BITS)


TABLE: dict[type, Realize] = {Resize: resize}
