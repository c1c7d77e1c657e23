"""Requantizes: from accumulators to codes of the output, as a target rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.errors import ConfigError
from intact.numerics import fixed_point_kernel as loops
from intact.numerics.fixed_point import (
    Integers,
    power_of_two_exponent,
    quantize_multiplier,
    saturate_single,
)
from intact.numerics.rounding import round_to_integer
from intact.program.arithmetic.ends import ends_codes, has_ends
from intact.program.operations import Bounds
from intact.program.program import Array, Encoding
from intact.targets import (
    Arithmetic,
    FixedPoint,
    FloatType,
    Multiplier,
    Product,
    Shift,
    ZeroPointOrder,
)

_LARGEST_SHIFT = 62
_WIDE_SHIFT = 7
"""The largest exponent that LiteRT's product of 64 bits takes."""


class Requantizer:
    """Brings accumulators to an output's codes: multiply, round, add the zero point, clamp.

    Fixed-point multiplications but wide ones wrap accumulators to 32 bits. All add the zero point
    after rounding whatever the arithmetic says; their second rounding is half up or else half away
    from zero.

    Args:
        arithmetic: How.
        multiplier: ``accumulator scale / output scale``, ``[]`` or ``[channels]`` (the last axis),
            as `real_multiplier` computes it.
        output: The encoding of the result.
        bounds: Real numbers that the result is clamped to.
        bias: Integers at the accumulators' scale, ``[channels]`` or ``[]``, that are added to them
            first; None adds nothing.

    Raises:
        ConfigError: If a multiplier is not finite, or no power of two where only shifts are.
    """

    def __init__(
        self,
        arithmetic: Arithmetic,
        multiplier: npt.ArrayLike,
        output: Encoding,
        bounds: Bounds = Bounds(),  # noqa: B008
        *,
        bias: npt.ArrayLike | None = None,
    ) -> None:
        self.output = output
        self.low, self.high = code_bounds(arithmetic, output, bounds)
        factors = np.asarray(multiplier)
        added = np.asarray(0 if bias is None else bias, np.int64)
        channels = np.broadcast_shapes(factors.shape, added.shape, output.zero_point.shape) or (1,)
        if len(channels) != 1:
            raise ConfigError(
                f"multipliers of shape {list(channels)} are no channels",
                remedy="give one number, or one for each channel of the last axis",
            )

        self._channels = channels[0]
        self._add = _per_channel(added, channels)
        self._factors = _per_channel(factors, channels)
        self._zero = _per_channel(output.zero_point, channels)
        self._prepare(arithmetic)

    def __call__(self, accumulators: Array) -> Array:
        """Return codes of ``output.dtype``, of the accumulators' shape.

        Accumulators are int32, int64, or float32 or float64 that hold integers exactly.
        """
        codes = np.empty(accumulators.shape, self.output.dtype)
        if codes.size == 0:
            return codes
        rows = (-1, self._channels) if self._channels > 1 else (1, -1)
        sums = np.ascontiguousarray(accumulators).reshape(rows)
        self._loop(sums, *self._parameters, codes.reshape(rows))
        return codes

    def _prepare(self, arithmetic: Arithmetic) -> None:
        """Choose the loop, and its arguments between the accumulators and the codes."""
        way = arithmetic.requantize
        rounding = loops.ROUNDING_CODES[arithmetic.rounding]
        before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
        zero_before = self._zero if before else np.zeros_like(self._zero)
        zero_after = self._zero - zero_before
        self._loop: Any
        self._parameters: tuple[Any, ...]
        if isinstance(way, FixedPoint):
            multiplier, shift, which = _fixed_point_multipliers(arithmetic, self._factors)
            self._loop = loops.requantize_fixed_point
            # Fixed-point kernels add the zero point behind the rounding, whatever order the
            # arithmetic has for floats.
            last = (self._zero, self.low, self.high, which)
            self._parameters = (self._add, multiplier, shift, *last)
        elif isinstance(way, Shift):
            shift = np.clip(-power_of_two_exponent(self._factors), -_LARGEST_SHIFT, _LARGEST_SHIFT)
            self._loop = loops.requantize_shift
            last = (zero_after, self.low, self.high, rounding)
            self._parameters = (self._add, shift, zero_before, *last)
        else:
            real = real_type(arithmetic)
            factors = _finite(self._factors, real)
            self._loop = loops.requantize_float
            # float64 for the sum with the bias: it is exact below 2**53, and rounded to the
            # arithmetic's floats once.
            bias, after = self._add.astype(np.float64), zero_after.astype(np.float64)
            limits = (float(self.low), float(self.high))
            self._parameters = (bias, factors, zero_before.astype(real), after, *limits, rounding)


def real_type(arithmetic: Arithmetic) -> type[np.floating[Any]]:
    """Return the floats that a target computes in."""
    return np.float64 if arithmetic.precision is FloatType.FLOAT64 else np.float32


def _per_channel(values: Array, channels: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(np.broadcast_to(values, channels))


def _fixed_point_multipliers(
    arithmetic: Arithmetic, factors: Array
) -> tuple[Integers, Integers, int]:
    """Return multipliers, shifts and which multiplication takes them."""
    multiplier, shift = quantize_multiplier(factors)
    if arithmetic.product is Product.SINGLE:
        return *saturate_single(multiplier, shift), loops.SINGLE
    if arithmetic.product is Product.WIDE:
        if shift.max(initial=0) > _WIDE_SHIFT:
            raise ConfigError(
                f"a multiplier is at least 2**{_WIDE_SHIFT}, for which 64 bits are too few",
                remedy="check the scales: the output's is far below that of the products",
            )
        return multiplier, shift, loops.WIDE
    half_up = arithmetic.rounding is Rounding.HALF_UP
    return multiplier, shift, loops.DOUBLE_HALF_UP if half_up else loops.DOUBLE_HALF_AWAY


def _finite(factors: Array, real: type[np.floating[Any]]) -> Array:
    with np.errstate(over="ignore"):
        converted = factors.astype(real)
    if not np.isfinite(converted).all():
        raise ConfigError(
            "a multiplier is not finite", remedy="check the scales: they are positive and finite"
        )
    return converted


def real_multiplier(
    arithmetic: Arithmetic, factors: Sequence[npt.ArrayLike], output: Encoding
) -> Array:
    """Return the product of ``factors`` (scales) over the output's scale.

    It is computed from left to right in the precision that ``arithmetic.multiplier`` says, from
    float32 scales either way, and rounded to the ``multiplier_bits`` of fixed point if those are
    given.

    Returns:
        float32 or float64 of the shape that the scales broadcast to.
    """
    way, precision = arithmetic.requantize, arithmetic.multiplier
    real = np.float64 if precision is Multiplier.FLOAT64 else np.float32
    product = np.ones((), real)
    for factor in factors:
        product = np.asarray(product * np.asarray(factor, np.float32).astype(real))
    # The product was rounded to float32 above; only the quotient has the digits of float64.
    if precision is Multiplier.FLOAT32_PRODUCT:
        real = np.float64
    with np.errstate(over="ignore", divide="ignore"):
        ratio = product.astype(real) / np.asarray(output.scale, np.float32).astype(real)
        if isinstance(way, FixedPoint) and way.multiplier_bits is not None:
            bits = way.multiplier_bits
            # Scaled by powers of two only, which is exact: one rounding to so many bits behind the
            # point.
            ratio = np.ldexp(np.rint(np.ldexp(ratio, bits)), -bits)
    return np.asarray(ratio)


def code_bounds(arithmetic: Arithmetic, output: Encoding, bounds: Bounds) -> tuple[int, int]:
    """Return the lowest and highest code that a fused activation leaves.

    A bound over the scale is rounded, in float32, and the zero point added; fixed-point hardware
    rounds it half away from zero (TFLite's ``CalculateActivationRangeQuantized``), other hardware
    as it rounds results.
    """
    fixed = isinstance(arithmetic.requantize, FixedPoint)
    rounding = Rounding.HALF_AWAY_FROM_ZERO if fixed else arithmetic.rounding
    scale = np.asarray(output.scale.flat[0], np.float32)
    zero = int(output.zero_point.flat[0])

    def code(bound: float) -> int:
        if math.isinf(bound):
            return output.quant_min if bound < 0 else output.quant_max
        if has_ends(arithmetic):
            first = replace(output, scale=scale, zero_point=np.asarray(zero), axis=None)
            held = (output.quant_min, output.quant_max)
            return int(ends_codes(np.full(1, bound, np.float32), arithmetic, first, held).item())
        with np.errstate(over="ignore"):
            steps = round_to_integer(np.asarray(np.float32(bound) / scale), rounding)
        # A bound over a tiny scale is infinite, which no int holds; 2**40 is beyond all codes.
        nearest = zero + int(np.clip(np.float64(steps), -(2.0**40), 2.0**40))
        return min(max(nearest, output.quant_min), output.quant_max)

    return code(bounds.low), code(bounds.high)
