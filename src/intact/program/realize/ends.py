"""The only floats there are: a quantise at an input, a dequantise at an output.

Runtimes' own quantise operators round half to even alone, and some divide in their own ways; what
is drawn here rounds as the plan says, to the bit (`program.arithmetic.reals.to_codes`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.program.program import Encoding
from intact.program.realize.draft import Draft
from intact.program.realize.graph import Op, Value
from intact.targets import Arithmetic, ZeroPointOrder

_FLOAT = np.dtype(np.float32)


def quantized(draft: Draft, floats: Value, encoding: Encoding, arithmetic: Arithmetic) -> Value:
    """Return floats as codes; what is no number becomes the lowest code."""
    scale, zero = np.float32(encoding.scale.item()), int(encoding.zero_point.item())
    if arithmetic.reciprocal_scale:
        steps = _float(draft, Op.MUL, floats, np.float32(1) / scale)
    else:
        steps = _float(draft, Op.DIVIDE, floats, scale)
    if arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING and zero:
        steps, zero = _float(draft, Op.ADD, steps, zero), 0
    nearest = _rounded(draft, steps, encoding.rounding)
    # Clamped as floats: what leaves an integer's range cannot be cast.
    low, high = encoding.quant_min - zero, encoding.quant_max - zero
    bottom = _number(draft, low)
    is_number = _is(draft, Op.GREATER, nearest, bottom)
    shape = nearest.shape
    not_below = draft.emit(Op.CHOOSE, [is_number, nearest, bottom], _FLOAT, shape, (0, 0))
    limited = _float(draft, Op.MINIMUM, not_below, high)
    codes = draft.emit(Op.CAST, [limited], np.int32, shape, (low, high))
    return draft.cast(draft.add(codes, zero), encoding.dtype)


def dequantized(draft: Draft, codes: Value, encoding: Encoding) -> Value:
    """Return codes as floats."""
    steps = draft.sub(draft.wide(codes), int(encoding.zero_point.item()))
    floats = draft.emit(Op.CAST, [steps], _FLOAT, steps.shape, (0, 0))
    return _float(draft, Op.MUL, floats, encoding.scale.item())


def _rounded(draft: Draft, steps: Value, rounding: Rounding) -> Value:
    """Return floats rounded: `Op.ROUND` is half to even, and only ties are moved.

    A tie is recognised exactly: ``x - round(x)`` has no rounding error.
    """
    if rounding is Rounding.UP:
        return draft.emit(Op.CEIL, [steps], _FLOAT, steps.shape, (0, 0))
    nearest = draft.emit(Op.ROUND, [steps], _FLOAT, steps.shape, (0, 0))
    if rounding in (Rounding.HALF_EVEN, Rounding.NEAREST):
        return nearest
    rest = _float(draft, Op.SUB, steps, nearest)

    def tie(size: float, side: Op | None = None) -> Value:
        """Return 1 where the rest is of this size, and the number on this side of 0."""
        found = _is(draft, Op.EQUAL, rest, _number(draft, size))
        if side is not None:
            lies = _is(draft, side, steps, _number(draft, 0))
            found = _is(draft, Op.BOTH, found, lies)
        return draft.emit(Op.CAST, [found], _FLOAT, found.shape, (0, 1))

    if rounding is Rounding.HALF_UP:
        return _float(draft, Op.ADD, nearest, tie(0.5))
    if rounding is Rounding.HALF_DOWN:
        return _float(draft, Op.SUB, nearest, tie(-0.5))
    away = rounding is Rounding.HALF_AWAY_FROM_ZERO
    up, down = (Op.GREATER, Op.LESS) if away else (Op.LESS, Op.GREATER)
    raised = _float(draft, Op.ADD, nearest, tie(0.5, up))
    return _float(draft, Op.SUB, raised, tie(-0.5, down))


def _number(draft: Draft, number: npt.ArrayLike) -> Value:
    return draft.constant(np.asarray(number, _FLOAT))


def _float(draft: Draft, op: Op, first: Value, second: Value | npt.ArrayLike) -> Value:
    operand = second if isinstance(second, Value) else _number(draft, second)
    return draft.emit(op, [first, operand], _FLOAT, first.shape, (0, 0))


def _is(draft: Draft, op: Op, first: Value, second: Value) -> Value:
    return draft.emit(op, [first, second], np.bool_, first.shape, (0, 1))
