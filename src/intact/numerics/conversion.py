"""Scale and zero point as the range that they hold, and back: two ways to say one thing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intact.errors import UsageError
from intact.numerics.affine_params import QuantParams, params_from_range, range_from_params


@dataclass(frozen=True)
class Quantization:
    """One tensor's quantisation, said in both ways.

    Attributes:
        scale: float32.
        zero_point: The code of 0.
        low: What the smallest code stands for, computed in float64.
        high: What the largest code stands for.
        quant_min: Smallest code.
        quant_max: Largest code.
    """

    scale: np.float32
    zero_point: int
    low: float
    high: float
    quant_min: int
    quant_max: int

    @staticmethod
    def of_scale(scale: float, zero_point: int, quant_min: int, quant_max: int) -> Quantization:
        """Take a scale, which is rounded to float32, and a zero point.

        Raises:
            UsageError: The scale is no positive normal float32, or the zero point is no code.

        >>> Quantization.of_scale(0.5, 0, -128, 127).high
        63.5
        """
        with np.errstate(over="ignore"):
            stored = np.float32(scale)
        if not (np.isfinite(stored) and stored >= np.finfo(np.float32).tiny):
            raise UsageError(
                f"a scale of {scale}", remedy="give a positive number that fits float32"
            )
        if not quant_min <= zero_point <= quant_max:
            raise UsageError(
                f"a zero point of {zero_point}", remedy=f"give a code: {quant_min} to {quant_max}"
            )
        params = QuantParams(np.asarray(stored), np.asarray(zero_point, np.int64))
        low, high = range_from_params(params, quant_min, quant_max)
        return Quantization(stored, zero_point, float(low), float(high), quant_min, quant_max)

    @staticmethod
    def of_range(
        low: float, high: float, quant_min: int, quant_max: int, *, symmetric: bool
    ) -> Quantization:
        """Take a range; it is widened to hold 0, and moved so that 0 is a code.

        Raises:
            ConfigError: An end is not finite, or the ends are crossed.
        """
        scale, zero = params_from_range(low, high, quant_min, quant_max, symmetric=symmetric)
        return Quantization.of_scale(float(scale), int(zero), quant_min, quant_max)
