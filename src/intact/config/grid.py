"""Declares the integer grid of a tensor: all of its quantization except scale and offset.

A signed grid of 8 bits, for example, has the codes -128 to 127 and ties that round to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from intact.config.policy import Granularity, PerBlock, PerRow, QuantPolicy, granularity_flag
from intact.errors import ConfigError
from intact.numerics.affine import dequantize, fake_quantize, quantize
from intact.numerics.affine_params import QuantParams
from intact.numerics.levels import MOST_STEPS, STEPS_PER_OCTAVE, Levels, Rounding, Scheme
from intact.numerics.logarithmic import dequantize_logarithmic, quantize_logarithmic

FloatArray = npt.NDArray[np.float32]

IntegerArray = npt.NDArray[np.integer[Any]]

Array = TypeVar("Array", bound=npt.NDArray[Any])


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Policy, rounding, width and range of a tensor's integers.

    Args:
        policy: A checked set of properties.
        granularity: One scale for the tensor, one per index of an axis, or one per block along it.
        rounding: Rounding mode.
        bits: 2 to 32, 48 or 64 (biases of 16-bit activations). The range may have fewer levels than
            the bits allow (as in [tvm], 6 bits in an int8), never more.
        quant_min: Smallest integer used.
        quant_max: Largest integer used.
        steps_per_octave: Logarithmic levels between a magnitude and its double; None for linear
            ones. 16 (NNIE's) unless given.
        channel_codes: The smallest and the largest integer of each channel, where channels have
            ranges of their own; both are 0 for one that is not kept. Else empty. They may be wider
            than ``bits``: those of a channel that has the bits of another too.

    Raises:
        ConfigError: If the fields contradict each other.
    """

    policy: QuantPolicy
    granularity: Granularity
    rounding: Rounding
    bits: int
    quant_min: int
    quant_max: int
    steps_per_octave: int | None = None
    channel_codes: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        # Set here, so that grids that were written with and without the default are equal.
        if self.exponential and self.steps_per_octave is None:
            object.__setattr__(self, "steps_per_octave", STEPS_PER_OCTAVE)
        self.policy.check()
        self._check_granularity()
        self._check_range()
        self._check_symmetry()
        self._check_octave()
        self._check_channel_codes()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Grids are looked up far more often than made, and enums hash their names in Python. Of
        # integers only: it is the same in every process, so that it may be pickled.
        axis = -1 if self.axis is None else self.axis
        codes = self.bits, self.quant_min, self.quant_max, len(self.channel_codes)
        return hash((self.policy.value, axis, self.block or 0, *codes))

    @cached_property
    def symmetric(self) -> bool:
        """Whether integer 0 always represents 0.0."""
        return bool(self.policy & QuantPolicy.SYMMETRICAL)

    @cached_property
    def exponential(self) -> bool:
        """Whether the levels are spaced logarithmically."""
        return bool(self.policy & QuantPolicy.EXPONENTIAL)

    @cached_property
    def power_of_two(self) -> bool:
        """Whether every scale is a power of two."""
        return bool(self.policy & QuantPolicy.POWER_OF_2)

    @property
    def axis(self) -> int | None:
        """The axis of channels or blocks, or ``None`` per tensor."""
        return self.granularity.axis

    @property
    def block(self) -> int | None:
        """How many neighbours along the axis share a scale; ``None`` unless per block."""
        match self.granularity:
            case PerBlock(size=size):
                return size
            case PerRow(block=block):
                return block
        return None

    @property
    def scheme(self) -> Scheme:
        """The position of the levels around zero, for threshold methods."""
        if not self.symmetric:
            return Scheme.ASYMMETRIC
        return Scheme.ONE_SIDED if self.quant_min >= 0 else Scheme.SYMMETRIC

    @cached_property
    def levels(self) -> Levels:
        """The range, the scheme and the spacing, for ``numerics.thresholds.estimate_range``."""
        codes = self.quant_min, self.quant_max
        return Levels(*codes, self.scheme, self.steps_per_octave, self.power_of_two)

    @cached_property
    def code_ends(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The smallest and the largest integers: ``[]``, or ``[channels]`` where they differ."""
        ends = np.array(self.channel_codes or [(self.quant_min, self.quant_max)], np.int64).T
        return (ends[0], ends[1]) if self.channel_codes else (ends[0, 0], ends[1, 0])

    @property
    def widest(self) -> tuple[int, int]:
        """The smallest and the largest integer of all channels."""
        low, high = self.code_ends
        return int(low.min()), int(high.max())

    @property
    def octave(self) -> int:
        """Logarithmic levels between a magnitude and its double."""
        return self.steps_per_octave or STEPS_PER_OCTAVE

    def check_params(self, scale: npt.ArrayLike, offset: npt.ArrayLike | None) -> QuantParams:
        """Check scale and offset against the grid; return them as read-only arrays.

        Args:
            scale: Shape ``[]`` per tensor, ``[channels]`` per channel, that of the tensor with one
                for each block along the axis per block.
            offset: Same shape, integers; ``None`` for zeros. Of blocks without symmetry it may
                be float32, and lie between the codes or beyond them.

        Raises:
            ConfigError: If a scale is not positive and finite as float32 (of a block it may be
                negative), is not a power of two
                where the policy asks for one, an offset is not an integer of the grid, or a
                shape is wrong.
        """
        scales = _float32(scale)
        self._check_shape(scales.shape)
        # Files of blocks give the number of largest magnitude the lowest code, whatever its sign,
        # so scales may be negative.
        usable = np.isfinite(scales) & (scales > 0 if self.block is None else scales != 0)
        if not np.all(usable):
            kind = "positive finite float32" if self.block is None else "finite float32 but 0"
            raise ConfigError(
                f"scale {float(scales[~usable].flat[0])!r} is not a {kind}",
                remedy="calibrate with finite values",
            )
        # `frexp` splits exactly; a logarithm would round.
        if self.power_of_two and not np.all(np.abs(np.frexp(scales)[0]) == 0.5):
            raise ConfigError(
                "the policy is POWER_OF_2 but a scale is not a power of two",
                remedy="round the scale to a power of two",
            )
        offsets = np.zeros(scales.shape, np.int64) if offset is None else self._offsets(offset)
        if offsets.shape != scales.shape:
            raise ConfigError(
                f"offset has shape {list(offsets.shape)}, scale has {list(scales.shape)}",
                remedy="give both the same shape",
            )
        self._check_offset(offsets)
        # Shared by copies of plans, and read by all that follow a dominator.
        scales.setflags(write=False)
        offsets.setflags(write=False)
        return QuantParams(scales, offsets)

    def quantize(self, values: FloatArray, params: QuantParams) -> IntegerArray:
        """Quantize floats to integers of the grid, saturating; NaN raises ``DataError``."""
        # Codes of logarithmic levels are a sign and an exponent: no scale and offset multiply them.
        if self.exponential:
            scale = self._broadcast(params.scale, values.shape)
            codes = self.quant_min, self.quant_max
            return quantize_logarithmic(values, scale, *codes, self.octave)
        found = quantize(
            values,
            params.scale,
            params.zero_point,
            *self.widest,
            rounding=self.rounding,
            axis=self.axis,
            block=self.block,
        )
        if not self.channel_codes:
            return found
        low, high = (self._broadcast(each, values.shape) for each in self.code_ends)
        return np.asarray(np.clip(found, low, high), found.dtype)

    def dequantize(self, quantized: IntegerArray, params: QuantParams) -> FloatArray:
        """Dequantize integers of the grid to float32."""
        if self.exponential:
            scale = self._broadcast(params.scale, quantized.shape)
            return dequantize_logarithmic(quantized, scale, self.octave)
        return dequantize(
            quantized, params.scale, params.zero_point, axis=self.axis, block=self.block
        )

    def fake_quantize(self, values: FloatArray, params: QuantParams) -> FloatArray:
        """Quantize and dequantize."""
        if self.exponential or self.channel_codes:
            return self.dequantize(self.quantize(values, params), params)
        return fake_quantize(
            values,
            params.scale,
            params.zero_point,
            self.quant_min,
            self.quant_max,
            rounding=self.rounding,
            axis=self.axis,
            block=self.block,
        )

    def value_range(self, params: QuantParams) -> tuple[float, float]:
        """Return the values of the lowest and the highest code, over all channels."""
        codes = np.array([self.quant_min, self.quant_max])
        if self.block is not None:
            ends = [(code - params.zero_point) * params.scale for code in codes]
            return float(np.min(ends)), float(np.max(ends))
        if self.axis is not None:
            # Both codes for each channel, in a tensor that has its channels where the weight has
            # them.
            codes = np.array(self.channel_codes or codes)
            codes = np.broadcast_to(codes, (1,) * self.axis + (params.scale.size, 2))
        values = self.dequantize(codes, params)
        return float(values.min()), float(values.max())

    def _broadcast(self, scale: Array, shape: tuple[int, ...]) -> Array:
        """Reshape ``[channels]`` to broadcast along the channel axis of a tensor."""
        if self.axis is None:
            return scale
        if self.axis >= len(shape) or shape[self.axis] != scale.size:
            raise ConfigError(
                f"{scale.size} scales along axis {self.axis} of a tensor of shape {list(shape)}",
                remedy="give one scale per channel",
            )
        sizes = [-1 if axis == self.axis else 1 for axis in range(len(shape))]
        return cast("Array", scale.reshape(sizes))

    def _check_granularity(self) -> None:
        if not self.policy & granularity_flag(self.granularity):
            raise ConfigError(
                f"policy {self.policy.spelled} does not fit granularity {self.granularity}",
                remedy="use PER_CHANNEL with PerChannel(axis), PER_BLOCK with PerBlock(axis, size) "
                "PER_ROW with PerRow() and PER_TENSOR with PerTensor()",
            )

    def _check_range(self) -> None:
        if not (2 <= self.bits <= 32 or self.bits in (48, 64)):
            raise ConfigError(f"bits is {self.bits}", remedy="use 2 to 32, 48 or 64")
        if self.quant_min >= self.quant_max:
            raise ConfigError(
                f"quant_min {self.quant_min} is not below quant_max {self.quant_max}",
                remedy="swap or widen them",
            )
        half = 1 << (self.bits - 1)
        signed = -half <= self.quant_min and self.quant_max < half
        unsigned = self.quant_min >= 0 and self.quant_max < 2 * half
        if not (signed or unsigned):
            raise ConfigError(
                f"range {self.quant_min}..{self.quant_max} does not fit {self.bits} bits",
                remedy=f"stay within {-half}..{half - 1} or 0..{2 * half - 1}",
            )

    def _check_symmetry(self) -> None:
        # Integer 0 must be there, as it is 0.0.
        if self.symmetric and not self.quant_min <= 0 < self.quant_max:
            raise ConfigError(
                f"symmetric range {self.quant_min}..{self.quant_max} does not contain zero",
                remedy="use a quant_min of 0 or less and a positive quant_max",
            )
        if self.exponential and self.quant_min not in (0, -self.quant_max):
            raise ConfigError(
                f"logarithmic range {self.quant_min}..{self.quant_max} is not symmetric",
                remedy=f"use quant_min {-self.quant_max} or 0",
            )

    def _check_octave(self) -> None:
        steps = self.steps_per_octave
        if steps is not None and not self.exponential:
            raise ConfigError(
                f"{steps} steps an octave, but the levels are linear",
                remedy="use EXPONENTIAL, or leave the steps out",
            )
        if steps is not None and not 1 <= steps <= MOST_STEPS:
            raise ConfigError(f"{steps} steps an octave", remedy=f"use 1 to {MOST_STEPS}")

    def _check_channel_codes(self) -> None:
        if not self.channel_codes:
            return
        is_plain = self.symmetric and not self.exponential and self.block is None
        if not is_plain or self.axis is None:
            raise ConfigError(
                "channels have ranges of their own, and the policy is not symmetric, linear and "
                "per channel",
                remedy="leave channel_codes out",
            )
        if not all(low <= 0 <= high for low, high in self.channel_codes):
            raise ConfigError("the range of a channel does not contain zero", remedy="widen it")
        # Two codes at most: no integer of a file is too large for what computes with it.
        if not 0 < max(max(-low, high) for low, high in self.channel_codes) < 1 << 2 * self.bits:
            raise ConfigError(
                f"the ranges of channels do not fit two codes of {self.bits} bits",
                remedy="narrow them, or keep a channel",
            )

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if isinstance(self.granularity, PerRow):
            raise ConfigError(
                "a scale is given for rows, whose scales are computed while the model runs",
                remedy="use DYNAMIC without a scale",
            )
        if self.channel_codes and shape != (len(self.channel_codes),):
            raise ConfigError(
                f"scale has shape {list(shape)}, for {len(self.channel_codes)} channels",
                remedy="give one scale per channel",
            )
        if self.axis is None and shape != ():
            raise ConfigError(
                f"per-tensor scale has shape {list(shape)}", remedy="give a scalar of shape []"
            )
        if self.block is not None:
            self._check_blocks(shape)
        elif self.axis is not None and (len(shape) != 1 or shape[0] == 0):
            raise ConfigError(
                f"per-channel scale has shape {list(shape)}", remedy="give one scale per channel"
            )

    def _check_blocks(self, shape: tuple[int, ...]) -> None:
        if len(shape) <= (self.axis or 0) or 0 in shape:
            raise ConfigError(
                f"per-block scale has shape {list(shape)}",
                remedy=f"give one scale for each block along axis {self.axis}",
            )

    def _offsets(self, offset: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Copy to int64; floats of blocks stay floats, for runtimes compute by their type."""
        array = np.asarray(offset)
        if self.block is None or self.symmetric or array.dtype != np.float32:
            return _integers(array)
        if not np.isfinite(array).all():
            raise ConfigError("an offset is not finite", remedy="give finite numbers")
        # Typed as all others are: only code for blocks sees these.
        return cast("npt.NDArray[np.int64]", array.copy())

    def _check_offset(self, offsets: npt.NDArray[np.int64]) -> None:
        if offsets.dtype.kind == "f":  # no code, and what 0.0 is does not depend on it
            return
        if self.symmetric and np.any(offsets != 0):
            raise ConfigError(
                "the policy is SYMMETRICAL but an offset is not 0", remedy="use ASYMMETRICAL"
            )
        outside = (offsets < self.quant_min) | (offsets > self.quant_max)
        if not self.symmetric and np.any(outside):
            raise ConfigError(
                f"offset {int(offsets[outside][0])} is outside {self.quant_min}..{self.quant_max}",
                remedy="widen the range of the tensor to include 0.0",
            )


def _float32(scale: npt.ArrayLike) -> FloatArray:
    """Copy to float32; overflow becomes inf, which the caller rejects."""
    with np.errstate(over="ignore", under="ignore"):
        try:
            # A copy, because it is made read-only.
            return np.array(scale, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"scale is not numeric: {error}", remedy="give floats") from error


def _integers(offset: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Copy to int64; floats are rejected, since they would be truncated."""
    array = np.asarray(offset)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"offset has dtype {array.dtype}", remedy="give integers")
    return np.array(array, dtype=np.int64)


class OnGrid:
    """Base class of objects with a grid."""

    __slots__ = ("grid",)

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    @property
    def policy(self) -> QuantPolicy:
        """The kind of quantization."""
        return self.grid.policy

    @property
    def rounding(self) -> Rounding:
        """Rounding mode."""
        return self.grid.rounding

    @property
    def bits(self) -> int:
        """Width in bits, 2 to 32, 48 or 64."""
        return self.grid.bits

    @property
    def quant_min(self) -> int:
        """Smallest integer used."""
        return self.grid.quant_min

    @property
    def quant_max(self) -> int:
        """Largest integer used."""
        return self.grid.quant_max

    @property
    def granularity(self) -> Granularity:
        """``PerTensor()``, ``PerChannel(axis)``, ``PerBlock(axis, size)`` or ``PerRow()``."""
        return self.grid.granularity

    @property
    def steps_per_octave(self) -> int | None:
        """Logarithmic levels between a magnitude and its double; None for linear ones."""
        return self.grid.steps_per_octave

    @property
    def scheme(self) -> Scheme:
        """The position of the levels around zero."""
        return self.grid.scheme

    @property
    def levels(self) -> Levels:
        """The range and the scheme, for threshold methods."""
        return self.grid.levels

    def same_grid(self, other: OnGrid) -> bool:
        """Tell whether both grids are equal."""
        return self.grid == other.grid
