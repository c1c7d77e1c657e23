"""Quantizes by the ends of a range, as OpenVINO computes FakeQuantize.

A number becomes ``round(number * codes / (high - low) - low * codes / (high - low))`` codes above
the lowest, with the multiplication and the addition fused, in float32 throughout. The offset need
not be whole, and the number may be counted in a unit of its own, by which the ends are divided
then: the scale of what was not dequantized. Measured with openvino 2026.4.1: no code of some ten
million differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from intact.errors import ConfigError
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import ends_of_codes
from intact.numerics.fixed_point_kernel import ROUNDING_CODES, round_float
from intact.numerics.fused import fused_float32
from intact.numerics.loop_cache import CACHED
from intact.program.program import Array, Encoding
from intact.targets import Arithmetic, FloatEnds, ZeroPointOrder

Floats32 = npt.NDArray[np.float32]

_NEGLIGIBLE = np.float32(1e-4)
"""Offsets below it are left out (OpenVINO's own limit)."""

_ALIKE = np.float32(5e-5)
"""Offsets of channels that differ less are taken for one (OpenVINO's own limit)."""


@dataclass(frozen=True)
class EndsGrid:
    """How numbers of some unit become codes.

    Attributes:
        factor: Codes in a unit, ``[channels]``.
        offset: Added to that before it is rounded, ``[channels]``.
        first: Added after it was rounded.
    """

    factor: Floats32
    offset: Floats32
    first: int

    @staticmethod
    def from_encoding(
        arithmetic: Arithmetic,
        encoding: Encoding,
        unit: float | Floats32 = 1.0,
        shift: float | Floats32 = 0.0,
    ) -> EndsGrid:
        """Return the grid of an encoding.

        Args:
            arithmetic: With ``before_rounding`` the lowest code is part of the offset.
            encoding: What the codes stand for.
            unit: What numbers are counted in, rounded to float32; one, or ``[channels]``.
            shift: What is to be added to numbers, in units, float32; the ends are moved instead.

        Raises:
            ConfigError: A factor is not finite.
        """
        units = np.asarray(unit, np.float32)
        moved = np.asarray(shift, np.float32)
        # The order of operations is OpenVINO's, each rounded to float32: another order gives other
        # codes next to ties.
        low, high = (np.atleast_1d(np.divide(end, units) - moved) for end in _ends(encoding))
        codes = np.float32(encoding.quant_max - encoding.quant_min)
        span = high - low
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            factor, offset = codes / span, -low * codes / span
        if not (np.isfinite(factor).all() and np.isfinite(offset).all() and (factor > 0).all()):
            raise ConfigError(
                "a range is too small or too large for float32",
                remedy="check the scales: they are positive and finite",
            )
        # FakeQuantize numbers its levels from 0: the lowest code is added to what was rounded, or
        # is part of the fused offset.
        if arithmetic.zero_point is ZeroPointOrder.AFTER_ROUNDING:
            return EndsGrid(factor, offset, encoding.quant_min)
        return EndsGrid(factor, offset + np.float32(encoding.quant_min), 0)

    def with_stored_scale(self) -> EndsGrid:
        """Return the grid of kernels that are given a scale where nothing is to be added.

        They multiply by the reciprocal of the stored scale, which is that of the factor.
        """
        if (np.abs(self.offset) >= _NEGLIGIBLE).any():
            return self
        one = np.float32(1)
        # The kernel is handed a scale, not a factor: the reciprocal of a reciprocal may be another
        # float32.
        return replace(self, factor=one / (one / self.factor), offset=np.zeros_like(self.offset))

    def share_offset(self) -> EndsGrid:
        """Return the grid of kernels that have one offset where those of channels are about alike.

        It is the first channel's, and none where it is negligible (OpenVINO's own limits).
        """
        alike = (np.abs(self.offset - self.offset[0]) < _ALIKE).all()
        offset = self.offset[:1] if alike else self.offset
        kept = np.where(np.abs(offset) < _NEGLIGIBLE, np.float32(0), offset)
        return replace(self, offset=np.asarray(kept, np.float32))


def has_ends(arithmetic: Arithmetic) -> bool:
    """Tell whether a target takes ranges, not scales and zero points."""
    return isinstance(arithmetic.requantize, FloatEnds)


def effective(arithmetic: Arithmetic, encoding: Encoding) -> Encoding:
    """Return what codes stand for, with the scale that the target makes of its ends."""
    if not has_ends(arithmetic):
        return encoding
    low, high = _ends(encoding)
    codes = np.float32(encoding.quant_max - encoding.quant_min)
    return replace(encoding, scale=np.asarray((high - low) / codes, np.float32))


def effective_weight(arithmetic: Arithmetic, encoding: Encoding) -> Encoding:
    """Return what codes of a constant stand for, as `effective` does.

    Their ends are those of all codes of the type, where they are not symmetric: fewer bits are
    stored as 8.
    """
    if not has_ends(arithmetic):
        return encoding
    whole = np.iinfo(encoding.dtype)
    if encoding.quant_min == -encoding.quant_max and encoding.quant_max == whole.max:
        return effective(arithmetic, encoding)
    stored = replace(encoding, quant_min=int(whole.min), quant_max=int(whole.max))
    return replace(encoding, scale=effective(arithmetic, stored).scale)


def effective_zero(encoding: Encoding) -> np.float32:
    """Return the zero point that a target makes of the ends of one range, which need not be whole.

    Measured with openvino 2026.4.1 under ONEDNN_MAX_CPU_ISA=AVX2, on residuals of convolutions: 35
    of 12 million codes differ where it is rounded, none where it is not.
    """
    low, high = (np.float32(end.item()) for end in _ends(encoding))
    unit = np.float32((high - low) / np.float32(encoding.quant_max - encoding.quant_min))
    zero = np.float32(-low / unit + np.float32(encoding.quant_min))
    return zero if abs(zero) >= _NEGLIGIBLE else np.float32(0)


def ends_codes(
    numbers: Floats32,
    arithmetic: Arithmetic,
    encoding: Encoding,
    limits: tuple[int, int],
    unit: float = 1.0,
) -> Array:
    """Return the codes of numbers ``[..., channels]``, or of any shape where there is one scale.

    Args:
        numbers: float32.
        arithmetic: How.
        encoding: What the codes stand for.
        limits: Smallest and largest code.
        unit: What numbers are counted in.
    """
    grid = EndsGrid.from_encoding(arithmetic, encoding, unit)
    codes = np.empty(numbers.shape, encoding.dtype)
    rows = (-1, grid.factor.size) if grid.factor.size > 1 else (1, -1)
    flat = np.ascontiguousarray(numbers, np.float32).reshape(rows)
    rounding = ROUNDING_CODES[arithmetic.rounding]
    bounds = (float(limits[0]), float(limits[1]))
    _fill(flat, grid.factor, grid.offset, grid.first, bounds, rounding, codes.reshape(rows))
    return codes


def _ends(encoding: Encoding) -> Sequence[Floats32]:
    # As float32: a FakeQuantize in the file holds the ends so, and the runtime knows nothing finer.
    params = QuantParams(encoding.scale, encoding.zero_point)
    return ends_of_codes(params, encoding.quant_min, encoding.quant_max)


@njit(cache=CACHED, nogil=True)
def _fill(
    numbers: Any, factors: Any, offsets: Any, first: int, limits: Any, rounding: int, codes: Any
) -> None:
    """Fill ``codes`` ``[rows, columns]``; one channel, or as many as there are columns."""
    low, high = limits
    step = 1 if factors.shape[0] > 1 else 0
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            one = column * step
            steps = fused_float32(numbers[row, column], factors[one], offsets[one])
            code = np.float64(round_float(steps, rounding)) + first
            # NaN is not above the low end, and gets it.
            code = code if code > low else low
            codes[row, column] = np.int32(code if code < high else high)
