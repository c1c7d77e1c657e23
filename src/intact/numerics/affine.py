"""Quantizes linearly: real = (code - zero_point) * scale.

The arithmetic is that of ONNX QuantizeLinear and DequantizeLinear: divide, round, and only then
add the zero point, saturate. Scales are float32 because every runtime stores them so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError, DataError
from intact.numerics.affine_params import (
    QuantParams,
    check_code_range,
    params_from_range,
    range_from_params,
)
from intact.numerics.levels import Rounding
from intact.numerics.rounding import round_to_integer

__all__ = [
    "QuantParams",
    "dequantize",
    "fake_quantize",
    "params_from_range",
    "quantize",
    "range_from_params",
]

_FLOAT32_EXACT = 2**24
"""Integers up to here are exact in float32."""
_AT_ONCE = 1 << 20
"""Elements of a tensor in blocks that are computed together: they stay in the caches."""
_SHORT = 2
"""Bytes of codes whose differences are."""


def quantize(
    values: npt.NDArray[np.floating[Any]],
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    quant_min: int,
    quant_max: int,
    *,
    rounding: Rounding = Rounding.HALF_EVEN,
    axis: int | None = None,
    block: int | None = None,
) -> npt.NDArray[np.signedinteger[Any]]:
    """Turn real values into integer codes: ``clip(round(values / scale) + zero_point)``.

    Args:
        values: Any shape. float32 values are divided in float32, as runtimes do; float64 values
            in float64 by the float32 scale, for biases whose codes need more than 24 bits.
            Infinities saturate.
        scale: Scalar; ``[values.shape[axis]]`` when ``axis`` is given; with ``block`` of the shape
            of ``values``, but for one for each block along ``axis``. Scales of blocks may be
            negative, all others are positive.
        zero_point: Integers, of the shape of ``scale`` or a scalar.
        quant_min: Smallest code.
        quant_max: Largest code.
        rounding: How ``values / scale`` is rounded.
        axis: The axis of channels or blocks, or None for one scale for the whole tensor.
        block: Neighbours along ``axis`` that share a scale; the last block may have fewer.

    Returns:
        int32 codes of the shape of ``values``; int64 if the range does not fit int32.

    Raises:
        DataError: If a value is NaN, which has no code.
        ConfigError: If scale, zero point, range or axis do not fit each other.
    """
    values = _checked_values(values, quant_min, quant_max)
    fits_int32 = quant_min >= -(2**31) and quant_max < 2**31
    # The steps may leave int32 although the codes do not, when the zero point is far from 0.
    wide = not fits_int32 or max(abs(quant_min), abs(quant_max)) > 2**29

    def codes_of(each: _ScaledPiece) -> npt.NDArray[Any]:
        steps = _clipped_steps(each, codes=(quant_min, quant_max), rounding=rounding)
        # In place from here on: another array of the codes of a large tensor would cost as much as
        # the division.
        codes: npt.NDArray[Any] = steps.astype(np.int64 if wide else np.int32)
        codes += each.zero.astype(codes.dtype, copy=False)
        return codes.astype(np.int32, copy=False) if fits_int32 else codes

    kind = np.int32 if fits_int32 else np.int64
    return _in_pieces(codes_of, kind, values, scale, zero_point, axis, block)


def dequantize(
    quantized: npt.NDArray[np.integer[Any]],
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    *,
    axis: int | None = None,
    block: int | None = None,
) -> npt.NDArray[np.float32]:
    """Turn integer codes into the float32 values they stand for: ``(code - zero_point) * scale``.

    The difference is exact, is rounded to float32 once and multiplied in float32. Zero points of
    blocks may be float32; the difference is taken in float32 then.

    Args:
        quantized: Integer codes of any shape.
        scale: The same as for :func:`quantize`.
        zero_point: Integers, of the shape of ``scale`` or a scalar.
        axis: The same as for :func:`quantize`.
        block: The same as for :func:`quantize`.

    Raises:
        ConfigError: If the codes are not integers, or scale, zero point and axis do not fit.
    """
    quantized = np.asarray(quantized)
    if not np.issubdtype(quantized.dtype, np.integer):
        raise ConfigError(
            f"dequantize was given codes of {quantized.dtype}", remedy="pass integer codes"
        )

    def floats_of(each: _ScaledPiece) -> npt.NDArray[np.float32]:
        result = _difference(each.values, each.zero)
        with np.errstate(over="ignore"):
            result *= each.factor
        return result

    return _in_pieces(
        floats_of, np.float32, quantized, scale, zero_point, axis, block, between=block is not None
    )


def _difference(
    codes: npt.NDArray[np.integer[Any]], zero: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return ``codes - zero``, rounded to float32 once; of short codes it is exact in float32."""
    if zero.dtype.kind == "f":
        return codes.astype(np.float32) - zero
    if codes.dtype.itemsize <= _SHORT and (np.abs(zero) < _FLOAT32_EXACT // 2).all():
        short = codes.astype(np.float32)
        short -= zero.astype(np.float32)
        return short
    # An int32 code minus a zero point takes 33 bits: float32 would round each operand, and then
    # their difference again.
    steps = codes.astype(np.int64)
    steps -= zero
    return steps.astype(np.float32)


def fake_quantize(
    values: npt.NDArray[np.floating[Any]],
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    quant_min: int,
    quant_max: int,
    *,
    rounding: Rounding = Rounding.HALF_EVEN,
    axis: int | None = None,
    block: int | None = None,
) -> npt.NDArray[np.float32]:
    """Quantize and dequantize: bit for bit ``dequantize(quantize(values))``, without the integers.

    Arguments and errors are those of :func:`quantize`.
    """
    values = _checked_values(values, quant_min, quant_max)

    def floats_of(each: _ScaledPiece) -> npt.NDArray[np.float32]:
        steps = _clipped_steps(each, codes=(quant_min, quant_max), rounding=rounding)
        result: npt.NDArray[np.float32] = steps.astype(np.float32, copy=False)
        result += np.float32(0.0)  # an integer has no negative zero
        with np.errstate(over="ignore"):
            result *= each.factor
        return result

    return _in_pieces(floats_of, np.float32, values, scale, zero_point, axis, block)


class _ScaledPiece(NamedTuple):
    """Values, or codes, with scales and zero points that broadcast over them."""

    values: npt.NDArray[Any]
    factor: npt.NDArray[np.float32]
    zero: npt.NDArray[np.int64]


def _clipped_steps(
    scaled: _ScaledPiece, *, codes: tuple[int, int], rounding: Rounding
) -> npt.NDArray[np.floating[Any]]:
    """Return ``code - zero_point`` as floats in a fresh array."""
    quant_min, quant_max = codes
    values, factor, zero = scaled
    if zero.size and (zero.min() < quant_min or zero.max() > quant_max):
        raise ConfigError(
            f"a zero point lies outside the codes {quant_min}..{quant_max}",
            remedy="choose a zero point that is itself a code",
        )
    with np.errstate(over="ignore"):  # a quotient that overflows saturates, as it must
        steps = round_to_integer(np.asarray(values / factor.astype(values.dtype)), rounding)
    # Clipped before the zero point is added, which gives the same codes as saturating after it:
    # float32 would round the sum of a large step and a zero point.
    low, high = quant_min - zero, quant_max - zero
    largest = max(abs(int(low.min())), abs(int(high.max()))) if zero.size else 0
    # Beyond 2**24 the ends of the range are no float32, and a clip would leave the codes.
    if steps.dtype == np.float32 and largest > _FLOAT32_EXACT:
        steps = steps.astype(np.float64)
    np.clip(steps, low.astype(steps.dtype), high.astype(steps.dtype), out=steps)
    return steps


def _checked_values(
    values: npt.ArrayLike, quant_min: int, quant_max: int
) -> npt.NDArray[np.floating[Any]]:
    check_code_range(quant_min, quant_max)
    array: npt.NDArray[np.floating[Any]] = np.asarray(values)
    if array.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"cannot quantize values of {array.dtype}", remedy="convert them to float32"
        )
    _refuse_nan(array)
    return array


def _refuse_nan(values: npt.NDArray[np.floating[Any]]) -> None:
    # min() passes a NaN on and, unlike isnan(), needs no temporary array.
    if values.size and np.isnan(values.min()):
        index = tuple(int(i) for i in np.argwhere(np.isnan(values))[0])
        raise DataError(
            f"the value at index {index} is NaN, which no integer code represents",
            remedy="find the layer or sample that produces it",
        )


def _in_pieces(
    compute: Callable[[_ScaledPiece], npt.NDArray[Any]],
    kind: npt.DTypeLike,
    values: npt.NDArray[Any],
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    axis: int | None,
    block: int | None,
    *,
    between: bool = False,
) -> npt.NDArray[Any]:
    """Compute something of a tensor: at once, or where it is in blocks a part at a time.

    Tables in blocks are the largest tensors there are: what is computed between is not to take
    their memory several times over. ``between``: zero points may lie between the codes.
    """
    factor, zero = _checked_params(scale, zero_point, in_blocks=block is not None, between=between)
    if block is None:
        broadcast = _broadcast_params(values.shape, factor, zero, axis)
        return compute(_ScaledPiece(values, *broadcast)).reshape(values.shape)
    from intact.numerics.blocks import check_blocks, pieces  # of which few tensors have any

    along = -1 if axis is None else axis
    check_blocks(values.shape, factor.shape, along, block)
    if zero.shape not in (factor.shape, ()):
        raise ConfigError(
            f"zero points of shape {zero.shape} for scales of {factor.shape}",
            remedy="pass one of each per block",
        )
    zeros = np.broadcast_to(zero, factor.shape)
    found = np.empty(values.shape, kind)
    for piece in pieces(values.shape[along], block):
        given, made = (piece.view_values(each, along) for each in (values, found))
        factors, offsets = (piece.view_parameters(each, along) for each in (factor, zeros))
        step = max(_AT_ONCE * len(given) // max(given.size, 1), 1)
        for start in range(0, len(given), step):
            part = slice(start, start + step)
            made[part] = compute(_ScaledPiece(given[part], factors[part], offsets[part]))
    return found


def _checked_params(
    scale: npt.ArrayLike, zero_point: npt.ArrayLike, *, in_blocks: bool, between: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    factor = np.asarray(scale, dtype=np.float32)
    zero = np.asarray(zero_point)
    is_between = between and zero.dtype == np.float32
    if not (is_between or np.issubdtype(zero.dtype, np.integer)):
        raise ConfigError(f"zero points of {zero.dtype}", remedy="pass integers")
    # Formats with scales of blocks store the sign of the largest value in the scale (GGUF's Q4_0
    # for one, whose lowest code has no positive counterpart).
    usable = factor != 0 if in_blocks else factor > 0
    if not (np.isfinite(factor).all() and usable.all()):
        kind = "is 0 or not finite" if in_blocks else "is not positive and finite"
        raise ConfigError(f"a scale {kind}", remedy="recalibrate the tensor")
    return factor, zero if is_between else zero.astype(np.int64, copy=False)


def _broadcast_params(
    shape: tuple[int, ...],
    factor: npt.NDArray[np.float32],
    zero: npt.NDArray[np.int64],
    axis: int | None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return scale and zero point shaped to broadcast over a tensor of the given shape."""
    if axis is None:
        if factor.size != 1 or zero.size != 1:
            raise ConfigError(
                f"{factor.size} scales and {zero.size} zero points for a whole tensor",
                remedy="name the channel axis",
            )
        return factor.reshape(()), zero.reshape(())
    if not -len(shape) <= axis < len(shape):
        raise ConfigError(f"axis {axis} of a tensor of shape {shape}", remedy="use an axis it has")
    channels = shape[axis]
    broadcast = [1] * len(shape)
    broadcast[axis] = channels
    if factor.shape != (channels,) or zero.shape not in ((channels,), ()):
        raise ConfigError(
            f"scales of shape {factor.shape} and zero points of shape {zero.shape} "
            f"for {channels} channels",
            remedy="pass one of each per channel",
        )
    return factor.reshape(broadcast), np.broadcast_to(zero, (channels,)).reshape(broadcast)
