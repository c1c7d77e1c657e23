"""Quantizes by a scale that follows from the values at hand, while a model runs.

Everything is computed in float32, as runtimes do: a scale is rounded before it divides, so codes
differ from those of a scale in float64 where a value lies near a tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError, DataError
from intact.numerics.affine_params import QuantParams, check_code_range
from intact.numerics.levels import Factor, Rounding
from intact.numerics.rounding import round_to_integer

Floats32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DynamicQuantizer:
    """Quantizes floats by a scale that their range gives.

    The range is widened to hold 0. Of symmetric codes the scale is ``max|a| / quant_max``, of
    others ``(max - min) / (quant_max - quant_min)``, with the zero point
    ``round_half_even(clip(quant_min - min / scale))``. Values that are all 0 have scale 1.

    Args:
        quant_min: Smallest code.
        quant_max: Largest code.
        symmetric: The zero point is 0.
        rows: One scale for each vector along the last axis; else one for the tensor.
        block: One scale for each so many neighbours along the last axis; None for whole rows. The
            last block may be shorter.
        rounding: How a number of steps is rounded.
        factor: How a value becomes a number of steps.

    Raises:
        ConfigError: The codes do not fit, or blocks are of no rows.
    """

    quant_min: int
    quant_max: int
    symmetric: bool = False
    rows: bool = False
    block: int | None = None
    rounding: Rounding = Rounding.HALF_EVEN
    factor: Factor = Factor.SCALE

    def __post_init__(self) -> None:
        """Refuse codes that do not fit."""
        check_code_range(self.quant_min, self.quant_max)
        if self.symmetric and not self.quant_min < 0 < self.quant_max:
            raise ConfigError(
                f"codes {self.quant_min}..{self.quant_max} for symmetric values of both signs",
                remedy="use codes of both signs",
            )
        if self.block is not None and (not self.rows or self.block < 1):
            raise ConfigError(f"blocks of {self.block}", remedy="give a size of 1 or more, of rows")

    def blocks(self, length: int | None) -> int | None:
        """Return how many scales a row of so many values has; None where that is not known."""
        if self.block is None:
            return 1
        return None if length is None else -(-length // self.block)

    def params(self, values: npt.NDArray[np.floating[Any]]) -> QuantParams:
        """Return scale and zero point of values.

        Args:
            values: Any shape; taken as float32. An infinite value makes the scale infinite.

        Returns:
            Of shape ``[]`` for a tensor, ``[..., 1]`` for rows, ``[..., blocks]`` for blocks. A
            tensor or row without elements has scale 1.

        Raises:
            DataError: A value is NaN.
        """
        floats = np.asarray(values, np.float32)
        if np.isnan(floats).any():
            raise DataError(
                "a value that is quantized while running is NaN",
                remedy="find out where the float model makes it: `intact run` shows the outputs",
            )
        low, high = self._ends(floats)
        with np.errstate(all="ignore"):
            span, codes = self._span(low, high)
            inverted = self.factor is Factor.INVERTED
            # Both quotients are rounded to float32 by themselves: 1 / (span / codes) and codes /
            # span differ in the last bit, and which of them a runtime computes decides ties.
            factor = np.asarray(np.where(low == high, 1, codes / span), np.float32)
            step = 1 / factor if inverted else np.where(low == high, 1, span / codes)
            scale = np.asarray(step, np.float32)
            if self.symmetric:
                return QuantParams(scale, np.zeros(scale.shape, np.int64))
            # 0 / 0 and inf / inf are NaN: runtimes take the largest code then.
            least, most = np.float32(self.quant_min), np.float32(self.quant_max)
            zero = least - low / scale
            if inverted:
                from_low, from_high = low * factor, high * factor
                is_high = (least + from_low) + (most + from_high) > 0
                zero = np.where(is_high, least - from_low, most - from_high)
            zero = np.where(np.isnan(zero), self.quant_max, zero)
        return QuantParams(
            scale, np.rint(np.clip(zero, self.quant_min, self.quant_max)).astype(np.int64)
        )

    def codes(
        self, values: npt.NDArray[np.floating[Any]], params: QuantParams
    ) -> npt.NDArray[np.int32]:
        """Return the codes of values, by what :meth:`params` gave for them.

        A quotient that is NaN, as that of infinite values, has the smallest code, and 0 of
        symmetric codes.
        """
        floats = np.asarray(values, np.float32)
        scale = self.spread(params.scale, floats.shape)
        zero = self.spread(params.zero_point, floats.shape)
        lower, upper = self.quant_min - zero, self.quant_max - zero
        with np.errstate(all="ignore"):
            if self.factor is Factor.SCALE:
                steps = floats / scale
            elif self.factor is Factor.RECIPROCAL:
                steps = floats * (np.float32(1) / scale)
            else:
                steps = floats * self.spread(self._codes_over_range(floats), floats.shape)
            odd = np.isnan(steps)
        if odd.any():
            steps = np.where(odd, np.float32(0) if self.symmetric else lower, steps)
        # Clipped while they are floats: an infinite one cannot become an integer.
        steps = np.clip(np.asarray(steps, np.float32), lower, upper)
        codes = round_to_integer(steps, self.rounding).astype(np.int64) + zero
        return np.asarray(codes, np.int32)

    def fake_quantize(self, values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
        """Return the numbers that the codes of values stand for.

        Raises:
            DataError: A value is NaN.
        """
        params = self.params(values)
        steps = self.codes(values, params) - self.spread(params.zero_point, np.shape(values))
        with np.errstate(all="ignore"):
            return np.asarray(
                steps.astype(np.float32) * self.spread(params.scale, np.shape(values)), np.float32
            )

    def spread(self, numbers: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return scales or zero points so that they broadcast against values of a shape."""
        if self.block is None:
            return numbers
        return np.repeat(numbers, self.block, axis=-1)[..., : shape[-1]]

    def _codes_over_range(self, floats: Floats32) -> npt.NDArray[np.float32]:
        low, high = self._ends(floats)
        span, codes = self._span(low, high)
        return np.asarray(np.where(low == high, 1, codes / span), np.float32)

    def _span(self, low: Floats32, high: Floats32) -> tuple[Floats32, np.float32]:
        """Return what is divided into codes, and how many those are."""
        if self.symmetric:
            return np.asarray(np.maximum(-low, high)), np.float32(self.quant_max)
        return np.asarray(high - low), np.float32(self.quant_max - self.quant_min)

    def _ends(self, floats: Floats32) -> tuple[Floats32, Floats32]:
        """Return the ends of each range, which hold 0."""
        if not self.rows:
            return np.asarray(floats.min(initial=0)), np.asarray(floats.max(initial=0))
        if self.block is not None:
            length = floats.shape[-1]
            blocks = -(-length // self.block)
            pads = [(0, 0)] * (floats.ndim - 1) + [(0, blocks * self.block - length)]
            floats = np.pad(floats, pads).reshape(*floats.shape[:-1], blocks, self.block)
        ends = (
            f(floats, axis=-1, initial=0, keepdims=self.block is None) for f in (np.min, np.max)
        )
        low, high = ends
        return low, high
