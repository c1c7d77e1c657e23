"""How quantizers say their grid: scale and range, scale and bit width, or the ends of a range."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.formats.onnx_qdq.reader.given import (
    Given,
    Grid,
    broadcast_axis,
    unreadable_quantizer,
)
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import Ends, params_of_ends

_MOST_BITS = 32
_WIDTHS = f"2 to {_MOST_BITS} bits are read"
_MOST_LEVELS = 1 << 16
_EPSILON = np.finfo(np.float32).eps
"""The smallest scale that a learned quantizer of MQBench computes with."""
_SMALLEST = float(np.finfo(np.float32).tiny)
"""Scale that a plan can hold."""
_OFF = 0.01
"""How far, in steps, 0 may lie from a level. Ends in float32 are off by 1e-4 at 16 bits."""
_ROUNDINGS = frozenset({"ROUND", "HALF_EVEN"})


def affine(given: Given) -> Grid:
    """Read scale, zero point and range, as MQBench takes them to OpenVINO."""
    scale, zero_point = given.array("scale"), given.array("zero_point", 0)
    low, high = given.whole("quant_min"), given.whole("quant_max")
    if not (2 <= high - low < 2**_MOST_BITS and max(-low, high) < 2**_MOST_BITS):
        raise unreadable_quantizer(given.node, f"its codes are {low}..{high}", _WIDTHS)
    changes = []
    if (scale < 0).any():
        changes.append("negative scales were made positive")
    least = _EPSILON if given.operator.learned else 0.0
    positive = np.maximum(np.abs(scale), least)
    if given.operator.power_of_two:
        with np.errstate(divide="ignore"):
            exponent = np.where(positive < 2.0**-15, 0, np.floor(-np.log2(positive)))
        rounded = 2.0**-exponent
        if not np.array_equal(rounded, positive):
            changes.append("scales were rounded up to powers of two, as its operator does")
        positive = rounded
    elif (np.abs(scale) < least).any():
        changes.append(f"scales below {least:.8g} were raised to that, as its training does")
    codes = np.clip(np.rint(zero_point), low, high)
    if not np.array_equal(codes, zero_point):
        changes.append(f"zero points were rounded to whole numbers within {low}..{high}")
    if given.optional("ch_axis") is not None:
        axis: int | None = given.whole("ch_axis")
    else:
        axis = broadcast_axis(given.node, scale.shape) if scale.ndim > 1 else None
    return Grid(_float32(positive), _int64(given, codes), low, high, axis, tuple(changes))


def bit_width(given: Given) -> Grid:
    """Read scale, zero point and bit width of QONNX."""
    bits = given.whole("bit_width")
    signed, narrow = given.whole("signed", 1), given.whole("narrow", 0)
    if not 2 <= bits <= _MOST_BITS:
        raise unreadable_quantizer(given.node, f"it has {bits} bits", _WIDTHS)
    rounding = given.text("rounding_mode", "ROUND")
    if rounding.upper() not in _ROUNDINGS:
        raise unreadable_quantizer(
            given.node, f"it rounds by {rounding}", "train with rounding_mode ROUND"
        )
    zero_point = given.array("zero_point", 0)
    if not np.array_equal(zero_point, np.rint(zero_point)):
        raise unreadable_quantizer(given.node, "its zero point is no whole number")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if narrow:
        low, high = (low + 1, high) if signed else (low, high - 1)
    if not ((low <= zero_point) & (zero_point <= high)).all():
        raise unreadable_quantizer(given.node, f"its zero point is outside {low}..{high}")
    scale = _float32(given.array("scale"))
    axis = broadcast_axis(given.node, scale.shape)
    return Grid(scale, _int64(given, zero_point), low, high, axis)


def _float32(scale: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return scale.astype(np.float32)


def _int64(given: Given, codes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    if not np.isfinite(codes).all():
        raise unreadable_quantizer(given.node, "its zero point is not finite")
    return codes.astype(np.int64)


def ends(given: Given) -> Grid:
    """Read the lowest and highest number and the levels of OpenVINO's FakeQuantize."""
    node = given.node
    if len(node.inputs) != 5:
        raise unreadable_quantizer(node, f"it has {len(node.inputs)} inputs and 1 outputs")
    levels = given.whole("levels")
    if not 3 <= levels <= _MOST_LEVELS:
        raise unreadable_quantizer(node, f"it has {levels} levels", f"3 to {_MOST_LEVELS} are read")
    low, high, out_low, out_high = (_finite(given, name) for name in given.operator.inputs)
    if not (np.array_equal(low, out_low) and np.array_equal(high, out_high)):
        raise unreadable_quantizer(node, "its output range is not its input range")
    try:
        low, high = np.broadcast_arrays(low, high)
    except ValueError as error:
        raise unreadable_quantizer(node, "its ends have different shapes") from error
    axis = broadcast_axis(node, low.shape)
    if not ((low < high) & (low <= 0) & (high >= 0)).all():
        raise unreadable_quantizer(node, "a range of it is empty or does not hold 0")
    if ((high.astype(np.float64) - low) / (levels - 1) < _SMALLEST).any():
        raise unreadable_quantizer(node, "its levels are nearer than normal float32 numbers")
    quant_min, params = _codes(low, high, levels)
    exact = quant_min - low.astype(np.float64) / params.scale
    if np.abs(exact - params.zero_point).max() > _OFF:
        raise unreadable_quantizer(node, "0 lies between two of its levels")
    return Grid(*params, quant_min, quant_min + levels - 1, axis, holds_fewer=True)


def _finite(given: Given, name: str) -> Ends:
    found = _float32(given.array(name))
    if found.size == 0 or not np.isfinite(found).all():
        raise unreadable_quantizer(given.node, "its range is not finite float32")
    return found


def _codes(low: Ends, high: Ends, levels: int) -> tuple[int, QuantParams]:
    """Return the smallest code, scale and zero point: signed codes if 0 is in their middle."""
    half = -(levels // 2)
    signed = params_of_ends(low, high, half, half + levels - 1)
    if not signed.zero_point.any():
        return half, signed
    return 0, params_of_ends(low, high, 0, levels - 1)
