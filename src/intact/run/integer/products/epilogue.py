"""From exact products to a step's output: bias, the accumulator's width, the output's codes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from intact.errors import PlanError
from intact.numerics.fused import fused_multiply_add
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.ends import has_ends
from intact.program.arithmetic.in_turn import requantizer
from intact.program.operations import Bounds
from intact.run.integer.kernel import Overflow, Overflows
from intact.run.integer.products.patches import Floats
from intact.run.integer.products.real_sums import RealRequantizer
from intact.targets import Arithmetic
from intact.targets.arithmetic import Overflow as OverflowKind


class Epilogue:
    """What is done to the products of a step.

    A sum has the bias in it when it is held against the accumulator: the bias is added in the same
    register, before or after the products.

    Args:
        step: Its output and arithmetic.
        scales: Those of data and weight, each ``[]`` or ``[channels]``.
        bounds: Of the fused activation.
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
        limit = (1 << (arithmetic.accumulator_bits - 1)) - 1
        pairs = arithmetic.accumulator_overflow is OverflowKind.PAIR_SATURATE
        if largest <= limit or pairs:
            return self._as_output(products, *beside)
        sums = products.astype(np.int64) + self._constant
        _count(sums, limit, self._overflows.of(self._step))
        if arithmetic.accumulator_overflow is OverflowKind.WRAP:
            sums = wrapped(sums, arithmetic.accumulator_bits)
        return self._from_sums(sums, *beside)


def wrapped(sums: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Return what a two's complement register of this width holds of sums.

    >>> wrapped(np.array([127, 128, -129]), 8).tolist()
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
    """Return what makes the output of accumulators that lack a constant."""
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
        self._fused = arithmetic.fused_bias
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
    """Return what one unit of the accumulator stands for, as the target computes it in float32."""
    data, weight = (np.asarray(scale, np.float32) for scale in scales)
    if not arithmetic.reciprocal_scale:
        return np.asarray(data * weight, np.float32)
    one = np.float32(1)
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(one / ((one / data) * (one / weight)), np.float32)
