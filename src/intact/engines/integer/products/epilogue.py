"""Turns exact sums into output codes: bias, the accumulator's width, requantization."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from numba import njit

from intact.engines.integer.kernel import Overflow, Overflows
from intact.engines.integer.products.windows import Floats
from intact.errors import ConfigError, PlanError
from intact.numerics.fixed_point_kernel import ROUNDING_CODES, round_float
from intact.numerics.fused import fused_float32, fused_multiply_add
from intact.numerics.loop_cache import CACHED
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.ends import EndsGrid, effective, effective_zero, has_ends
from intact.program.arithmetic.in_turn import requantizer
from intact.program.arithmetic.requantize import code_bounds
from intact.program.operations import Bounds, Convolution
from intact.targets import Arithmetic, FloatEnds, FoldedEnds, ZeroPointOrder

Floats32 = npt.NDArray[np.float32]

_ONE, _NONE = np.float32(1), np.float32(0)


class _Last(enum.IntEnum):
    """How a number is counted in steps of the output."""

    FUSED = 0
    """Times a factor, plus an offset, rounded once."""
    MULTIPLIED = 1
    """Times a factor, then plus an offset."""
    DIVIDED = 2
    """By the scale, then plus an offset."""


_FUSED, _MULTIPLIED = int(_Last.FUSED), int(_Last.MULTIPLIED)  # numba reads plain integers


class RealRequantizer:
    """Brings sums, a float bias and a residual to an output's codes.

    ``sum * scale + bias``, in float32, is a real number. A residual is added as one too, or, where
    the target takes ranges by their ends, as it is: the number is counted in its steps then, and
    quantized by ends in these. Such a target may also fold the output's factor into scale and bias.

    Args:
        arithmetic: How.
        scale: The scale of the sums, float32 ``[]`` or ``[channels]``.
        output: The encoding of the result.
        bounds: Real numbers that the result is clamped to.
        constant: Integers that are added to the sums first, ``[channels]``; None adds nothing.
        bias: Floats, ``[channels]``; None adds nothing.
        residual: What the codes of the residual stand for; None where there is none.
        keeps_residual: It is not added in place, see `Convolution`.

    Raises:
        ConfigError: A scale is not finite.
    """

    def __init__(
        self,
        arithmetic: Arithmetic,
        scale: Floats32,
        output: Encoding,
        bounds: Bounds,
        *,
        constant: npt.NDArray[np.int64] | None = None,
        bias: Array | None = None,
        residual: Encoding | None = None,
        keeps_residual: bool = False,
    ) -> None:
        self._dtype = output.dtype
        low, high = code_bounds(arithmetic, output, bounds)
        biases: Array = np.zeros(1, np.float32) if bias is None else np.asarray(bias, np.float32)
        added = np.zeros(1, np.int64) if constant is None else constant
        channels = np.broadcast_shapes((1,), scale.shape, biases.shape, added.shape)
        prepare = _by_scale
        if isinstance(arithmetic.requantize, FloatEnds):
            prepare = partial(_by_ends, arithmetic.requantize, in_place=not keeps_residual)
        with np.errstate(over="ignore", invalid="ignore"):
            real, units, last = prepare(arithmetic, (_NONE, scale, biases), output, residual)
        if not all(np.isfinite(each).all() for each in (*real, *last[:2])):
            raise ConfigError(
                "a scale or a bias is not finite in float32",
                remedy="check the scales: they are positive and finite",
            )
        self._parameters: tuple[Any, ...] = (
            np.broadcast_to(added + np.float64(real[0]), channels).copy(),
            *(np.broadcast_to(each.astype(np.float32), channels).copy() for each in real[1:]),
            arithmetic.fuses_bias,
            units,
            (*(np.broadcast_to(each, channels).copy() for each in last[:2]), *last[2:]),
            (float(low), float(high)),
            ROUNDING_CODES[arithmetic.rounding],
        )

    def __call__(self, sums: Array, residual: Array | None = None) -> Array:
        """Return codes ``[M, channels]`` of whole sums of that shape; the residual has it too."""
        codes = np.empty(sums.shape, self._dtype)
        beside = np.zeros((0, 0), np.int8) if residual is None else np.ascontiguousarray(residual)
        fill: Any = _fill
        fill(np.ascontiguousarray(sums), beside, *self._parameters, codes)
        return codes


_Real = tuple[Floats32 | np.float32, Floats32, Floats32]

"""What is added to the sums, the scale, what is added then."""

_Units = tuple[np.float32, np.float32, np.int64, np.float32]

"""What is added to a number, and what it is multiplied by; what is taken off a residual's code,
and what that is multiplied by; then they are added."""

_Steps = tuple[Floats32, Floats32, int, int]

"""Factor, offset, what is added after rounding, and how: a value of :class:`_Last`."""


def _by_ends(
    way: FloatEnds,
    arithmetic: Arithmetic,
    real: _Real,
    output: Encoding,
    residual: Encoding | None,
    *,
    in_place: bool = True,
) -> tuple[_Real, _Units, _Steps]:
    """Count in the residual's steps, whose zero point is taken off beforehand (OpenVINO).

    With ``folded_ends``, where no bias lies between, the scale of the sums is counted in these
    steps at once, and the zero point in the sums' units: or, without a residual, the ends. If that
    is so per tensor only, sums with a scale for each channel are real numbers first, which are
    multiplied by the reciprocal of a stored scale. A sum that is not in place is an operation of
    its own, whose lowest code comes after rounding. Measured with openvino 2026.4.1 on an AVX2
    processor: 0 of 50 million codes of convolutions differ, and 0 of 300 million of dense layers.
    """
    _, scale, biases = real
    bare = way.folded_ends is not FoldedEnds.NONE and not biases.any()
    one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
    unit, zero = _ONE, _NONE
    if residual is not None:
        unit = np.float32(effective(arithmetic, residual).scale.item())
        zero = effective_zero(residual)
    units = -(zero * unit), _ONE / unit, np.int64(0), _ONE
    # Cases: (1) no bias, no residual: the ends are counted in units of the sums, one multiplication
    # in all, or, without `folded_channels`, real numbers first; (2) the output's factor folded into
    # scale and bias (dense layers); (3) real numbers, a residual perhaps, then the output's grid.
    if bare and residual is None:
        grid = EndsGrid.from_encoding(arithmetic, output, scale).share_offset()
        if (grid.factor == grid.factor[0]).all():  # as of one channel
            grid = grid.with_stored_scale()
            return (_NONE, one, none), units, (grid.factor, grid.offset, grid.first, _Last.FUSED)
        if way.folded_ends is FoldedEnds.PER_CHANNEL:
            return (_NONE, grid.factor, grid.offset), units, (one, none, grid.first, _Last.FUSED)
        grid = EndsGrid.from_encoding(arithmetic, output).with_stored_scale()
        return real, units, (grid.factor, grid.offset, grid.first, _Last.FUSED)
    after = msgspec.structs.replace(arithmetic, zero_point=ZeroPointOrder.AFTER_ROUNDING)
    if way.folded_factor and residual is None:
        grid = EndsGrid.from_encoding(after, output)
        offset = biases * grid.factor + grid.offset + np.float32(grid.first)
        return (_NONE, scale * grid.factor, offset), units, (one, none, 0, _Last.FUSED)
    grid = EndsGrid.from_encoding(arithmetic if in_place else after, output, float(unit))
    grid = grid.with_stored_scale() if in_place else grid
    if bare:
        real = -(zero * unit) / scale, scale / unit, biases
        units = _NONE, _ONE, np.int64(0), _ONE
    return real, units, (grid.factor, grid.offset, grid.first, _Last.FUSED)


def _by_scale(
    arithmetic: Arithmetic, real: _Real, output: Encoding, residual: Encoding | None
) -> tuple[_Real, _Units, _Steps]:
    """Divide real numbers by the output's scale, or multiply with its reciprocal."""
    units = _NONE, _ONE, np.int64(0), _NONE
    if residual is not None:
        step = np.float32(residual.scale.item())
        units = _NONE, _ONE, np.int64(residual.zero_point.item()), step
    scale, zero = np.atleast_1d(output.scale.astype(np.float32)), int(output.zero_point.item())
    before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    offset = np.full(1, zero if before else 0, np.float32)
    first = 0 if before else zero
    if arithmetic.reciprocal_scale:
        return real, units, (_ONE / scale, offset, first, _Last.MULTIPLIED)
    return real, units, (scale, offset, first, _Last.DIVIDED)


@njit(cache=CACHED, nogil=True)
def _fill(
    sums: Any,
    residual: Any,
    constant: Any,
    scales: Any,
    biases: Any,
    fused_bias: bool,
    units: Any,
    last: Any,
    limits: Any,
    rounding: int,
    codes: Any,
) -> None:
    """Fill ``codes`` ``[rows, columns]``; one channel, or as many as there are columns."""
    shift, unit, residual_zero, residual_unit = units
    factors, offsets, first, kind = last
    low, high = limits
    step = 1 if scales.shape[0] > 1 else 0
    for row in range(sums.shape[0]):
        for column in range(sums.shape[1]):
            one = column * step
            # float64 holds sum and constant exactly; the sum is rounded to float32 once, as a
            # conversion from int32 does.
            value = np.float32(np.float64(sums[row, column]) + constant[one])
            if fused_bias:
                value = fused_float32(value, scales[one], biases[one])
            else:
                value = np.float32(value * scales[one]) + biases[one]
            if residual.shape[0]:
                beside = np.float32(np.int64(residual[row, column]) - residual_zero)
                counted = np.float32(np.float32(value + shift) * unit)
                value = counted + np.float32(beside * residual_unit)
            if kind == _FUSED:
                steps = fused_float32(value, factors[one], offsets[one])
            elif kind == _MULTIPLIED:
                steps = np.float32(value * factors[one]) + offsets[one]
            else:
                steps = np.float32(value / factors[one]) + offsets[one]
            code = np.float64(round_float(steps, rounding)) + first
            code = code if code > low else low
            codes[row, column] = np.int32(code if code < high else high)


class Epilogue:
    """What is done to the products of a step.

    A sum has the bias in it when it is held against the accumulator: the bias is added in the same
    register, before or after the products.

    Args:
        step: Its output and arithmetic.
        scales: The scales of data and weight, each ``[]`` or ``[channels]``.
        bounds: The ends of the fused activation.
        constant: Added to the products, int64 ``[channels]``: bias codes and what corrects zero
            points.
        float_bias: Added in float32 to what the sums stand for.
        overflows: Where sums that leave the accumulator are counted.
        residual: What the codes of a residual stand for, which is added to that too.
    """

    def __init__(
        self,
        step: Step,
        scales: list[Array],
        bounds: Bounds,
        constant: npt.NDArray[np.int64],
        float_bias: Array | None,
        overflows: Overflows,
        residual: Encoding | None = None,
    ) -> None:
        self._step = step
        self._overflows = overflows
        self._constant = constant
        # Two functions, for sums with and without the constant in them: where a register may
        # overflow, the constant is in the sum that wraps; elsewhere it is one addition less.
        self._as_output = _output(step, scales, bounds, constant, float_bias, residual)
        self._from_sums = _output(step, scales, bounds, None, float_bias, residual)

    def __call__(self, products: Floats, largest: int, residual: Array | None = None) -> Array:
        """Return the output's codes, or floats, ``[M, channels]``.

        Args:
            products: Exact integers, ``[M, channels]``.
            largest: No sum of a product and its constant has a larger magnitude.
            residual: Codes of that shape, for a step that adds them.
        """
        beside = () if residual is None else (residual.reshape(products.shape),)
        arithmetic = self._step.arithmetic
        # A proof for all data: no sum is looked at where none can leave the accumulator, which is
        # nearly always. Pairs have saturated before.
        limit = (1 << (arithmetic.accumulator.bits - 1)) - 1
        if largest <= limit or arithmetic.pairs is not None:
            return self._as_output(products, *beside)
        sums = products.astype(np.int64) + self._constant
        _count(sums, limit, self._overflows.counter(self._step))
        if arithmetic.wraps:
            sums = wrap(sums, arithmetic.accumulator.bits)
        return self._from_sums(sums, *beside)


def wrap(sums: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Wrap sums as a two's complement register of this width does.

    >>> wrap(np.array([127, 128, -129]), 8).tolist()
    [127, -128, 127]
    """
    half = 1 << (bits - 1)
    return np.asarray(((sums + half) & ((half << 1) - 1)) - half)


def _count(sums: npt.NDArray[np.int64], limit: int, counted: Overflow) -> None:
    counted.sums += sums.size
    counted.overflows += int(np.count_nonzero((sums > limit) | (sums < -limit - 1)))
    counted.largest = max(counted.largest, int(np.abs(sums).max(initial=0)))
    counted.limit = limit


def _output(
    step: Step,
    scales: list[Array],
    bounds: Bounds,
    constant: npt.NDArray[np.int64] | None,
    float_bias: Array | None,
    residual: Encoding | None,
) -> Callable[..., Array]:
    """Make the function from accumulators that lack a constant to the output."""
    output, arithmetic = step.outputs[0], step.arithmetic
    if output.encoding is None:
        return _FloatOutput(arithmetic, scales, bounds, constant, float_bias)
    if float_bias is not None and not np.isfinite(float_bias).all():
        raise PlanError(
            f"step {step.name!r} has a bias that is not finite",
            remedy="mend the model, or leave the node in float",
        )
    if float_bias is not None or residual is not None or has_ends(arithmetic):
        scale = _product_scale(arithmetic, scales)
        return RealRequantizer(
            arithmetic,
            scale,
            output.encoding,
            bounds,
            constant=constant,
            bias=float_bias,
            residual=residual,
            keeps_residual=isinstance(step.operation, Convolution)
            and step.operation.keeps_residual,
        )
    return requantizer(arithmetic, scales, output.encoding, bounds, bias=constant)


class _FloatOutput:
    """Accumulators times the product of both scales, plus a bias, in float32."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        scales: list[Array],
        bounds: Bounds,
        constant: npt.NDArray[np.int64] | None,
        bias: Array | None,
    ) -> None:
        self._scale = _product_scale(arithmetic, scales)
        self._fused = arithmetic.fuses_bias
        self._constant, self._bias, self._bounds = constant, bias, bounds

    def __call__(self, accumulators: Array) -> npt.NDArray[np.float32]:
        sums = accumulators
        if self._constant is not None and self._constant.any():
            sums = accumulators.astype(np.float64) + self._constant
        floats = sums.astype(np.float32)
        if self._bias is not None and self._fused:
            floats = fused_multiply_add(floats, self._scale, self._bias)
        else:
            floats = floats * self._scale
            if self._bias is not None:
                floats = floats + self._bias.astype(np.float32)
        if self._bounds != Bounds():
            floats = np.clip(floats, np.float32(self._bounds.low), np.float32(self._bounds.high))
        return np.asarray(floats, np.float32)


def _product_scale(arithmetic: Arithmetic, scales: list[Array]) -> npt.NDArray[np.float32]:
    """Return the scale of the accumulator, as the target computes it in float32."""
    data, weight = (np.asarray(scale, np.float32) for scale in scales)
    if not arithmetic.reciprocal_scale:
        return np.asarray(data * weight, np.float32)
    one = np.float32(1)
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(one / ((one / data) * (one / weight)), np.float32)
