"""Prepares the integers of a layer: data, weights, bias, and pairs that saturate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from intact.engines.integer.kernel import Overflow, Overflows, per_tensor
from intact.engines.integer.products.epilogue import Epilogue
from intact.engines.integer.products.gemm import exact_type
from intact.engines.integer.products.windows import Floats, offset_of
from intact.errors import PlanError
from intact.numerics.loop_cache import CACHED
from intact.program import Array, Encoding, Step, Tensor
from intact.program.arithmetic.ends import effective, effective_weight
from intact.program.operations import RESIDUAL_SLOT, Bounds
from intact.targets import PairSaturate


class PairSaturation:
    """What saturation adds to exact products, where pairs of them saturate before they are summed.

    The instruction (vpmaddubsw) multiplies unsigned data by signed weights, adds the products of
    two neighbouring channels and saturates the pair. It sees codes as they are: data with its zero
    point, in the unsigned range. Neighbours lie in one kernel tap and one group; the last of an odd
    number of channels has none. Weights of an unsigned type take other instructions, which do not
    saturate. The zero points are corrected afterwards, exactly.

    Most weights cannot make a pair saturate, whatever the data: only the rest is looked at.

    Args:
        weights: Raw codes, int64 ``[groups, K, N]``.
        run: Neighbouring channels in a row of K; a pair never crosses their end.
        data_dtype: The type of the data's codes.
        weight_dtype: The type of the weights' codes.
        bits: Bits of the register that a pair is summed in.
        shift: What a row's elements lack to the raw codes as `signed` leaves them.

    Attributes:
        can_happen: Whether any pair of codes can saturate.
        limit: Largest magnitude that a pair holds.
    """

    def __init__(
        self,
        weights: npt.NDArray[np.int64],
        run: int,
        data_dtype: np.dtype[Any],
        weight_dtype: np.dtype[Any],
        bits: int,
        shift: int = 0,
    ) -> None:
        self.limit = (1 << (bits - 1)) - 1
        # From an element of a row to the unsigned code that the instruction sees: all codes are
        # signed where rows are made, and made unsigned here, whatever they were at first.
        half = 1 << (8 * data_dtype.itemsize - 1)
        self._shift = shift + half
        low, high = 0, 2 * half - 1
        firsts, seconds, left, right = _neighbours(weights, run)
        ends = np.stack([_span(left, low, high), _span(right, low, high)]).sum(axis=0)
        unsafe = (ends[0] < -self.limit - 1) | (ends[1] > self.limit)
        if not np.issubdtype(weight_dtype, np.signedinteger):
            unsafe = np.zeros_like(unsafe)
        # The few pairs that data could make saturate: their places are all that the loop looks at.
        group, pair, column = np.nonzero(unsafe)
        self._places = np.ascontiguousarray(
            np.stack([group, firsts[pair], seconds[pair], column], axis=1).astype(np.int64)
        )
        self._weights = np.ascontiguousarray(
            np.stack([left[group, pair, column], right[group, pair, column]], axis=1)
        )
        self._pairs = left.shape[1]
        self.can_happen = bool(unsafe.any())

    def apply(self, rows: Floats, products: Floats, counted: Overflow) -> Floats:
        """Return the products of saturated pairs, and count those.

        Args:
            rows: ``[groups, M, K]``.
            products: Exact ones, ``[groups, M, N]``.
            counted: Added to. ``largest`` is that of the pairs that can saturate.
        """
        # A copy: the saturated products are no longer bounded by what made float32 exact.
        result = products.astype(np.float64)
        found = np.array([0, counted.largest], np.int64)
        _saturate(rows, self._places, self._weights, self._shift, self.limit, result, found)
        counted.sums += products.size * self._pairs
        counted.overflows += int(found[0])
        counted.largest = int(found[1])
        counted.limit = self.limit
        return result


def _neighbours(weights: npt.NDArray[np.int64], run: int) -> tuple[Array, Array, Array, Array]:
    """Return the rows of K of each pair's halves, and their weights ``[groups, pairs, N]``.

    A channel without a neighbour is paired with itself, at weight 0.
    """
    starts = np.arange(0, weights.shape[1], max(run, 1))
    firsts = (starts[:, None] + np.arange(0, run, 2)[None, :]).ravel()
    alone = (firsts % run == run - 1) if run else np.zeros(0, bool)
    seconds = np.where(alone, firsts, firsts + 1)
    right = np.where(alone[None, :, None], 0, weights[:, seconds])
    return firsts, seconds, weights[:, firsts], right


def _span(weights: Array, low: int, high: int) -> Array:
    """Return the least and the greatest product of weights with a code of a range."""
    return np.sort(np.stack([weights * low, weights * high]), axis=0)


@njit(cache=CACHED, nogil=True)
def _saturate(
    rows: Floats,
    places: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64],
    shift: int,
    limit: int,
    products: npt.NDArray[np.float64],
    found: npt.NDArray[np.int64],
) -> None:
    """Move products to what saturated pairs give; ``found`` is overflows and largest pair."""
    overflows, largest = 0, found[1]
    for row in range(rows.shape[1]):
        for index in range(places.shape[0]):
            group, column = places[index, 0], places[index, 3]
            first = np.int64(rows[group, row, places[index, 1]]) + shift
            second = np.int64(rows[group, row, places[index, 2]]) + shift
            pair = first * weights[index, 0] + second * weights[index, 1]
            largest = max(largest, abs(pair))
            held = min(max(pair, -limit - 1), limit)
            if held != pair:
                overflows += 1
                products[group, row, column] += held - pair
    found[0] += overflows
    found[1] = largest


ROWS_IN_CACHE = 1 << 19

"""Elements of the rows that are multiplied at once: 2 MiB as float32, about a core's L2 cache."""


@dataclass(frozen=True, eq=False)
class Layer:
    """Data, weights and bias of one step.

    Attributes:
        step: The step.
        data: Encoding of the data.
        zero: The data's zero point, less what `signed` takes off: what stands for a real 0.
        largest_code: No signed code has a larger magnitude.
        largest_value: No code less its zero point has a larger magnitude.
        weights: Codes less their zero points, int64 ``[O, ...]``, as the tensor has them.
        raw_weights: The codes themselves.
        scales: The scales of data and weight.
        bias: Codes, int64 ``[O]``; zeros where there is none or it is in float.
        float_bias: Bias in float, which is added to what the sums stand for.
        saturating: How pairs of products saturate; None where they do not.
    """

    step: Step
    data: Encoding
    zero: int
    largest_code: int
    largest_value: int
    weights: npt.NDArray[np.int64]
    raw_weights: npt.NDArray[np.int64]
    scales: list[Array]
    bias: npt.NDArray[np.int64]
    float_bias: Array | None
    saturating: PairSaturate | None

    @classmethod
    def from_step(cls, step: Step) -> Layer:
        """Return the layer that a step computes.

        Raises:
            PlanError: Its weights or bias are no constants, or not in integers.
        """
        data, weight, *rest = step.inputs
        if data is None or weight is None or weight.data is None or weight.encoding is None:
            raise PlanError(
                f"step {step.name!r} has weights that are no constant codes",
                remedy="leave the node in float",
            )
        encoding = per_tensor(step, data)
        zero = int(encoding.zero_point.item())
        offset = offset_of(encoding.dtype)
        raw = weight.data.astype(np.int64)
        pairs = step.arithmetic.pairs
        halves = pairs is not None and pairs.halves and encoding.dtype.kind == "i"
        if halves:
            raw = 2 * np.rint(raw / 2).astype(np.int64)
        # All that the type holds, not the encoding's range: what callers feed is theirs to choose.
        codes = (int(np.iinfo(encoding.dtype).min), int(np.iinfo(encoding.dtype).max))
        bias, float_bias = _bias(step, rest[0] if rest else None, raw.shape[0])
        scale = effective(step.arithmetic, encoding).scale
        weight_scale = effective_weight(step.arithmetic, weight.encoding).scale
        return cls(
            step=step,
            data=encoding,
            zero=zero - offset,
            largest_code=max(abs(code - offset) for code in (*codes, zero)),
            largest_value=max(abs(code - zero) for code in codes),
            weights=raw - _by_output(step, weight, weight.encoding.zero_point, raw.ndim),
            raw_weights=raw,
            scales=[scale.reshape(()), _by_output(step, weight, weight_scale, 1)],
            bias=bias,
            float_bias=float_bias,
            saturating=None if halves else pairs,
        )

    @property
    def residual(self) -> Encoding | None:
        """Encoding of what is added to the sums, where something is: the fourth input."""
        if len(self.step.inputs) <= RESIDUAL_SLOT:
            return None
        return per_tensor(self.step, self.step.inputs[RESIDUAL_SLOT])

    @property
    def weight_sums(self) -> npt.NDArray[np.int64]:
        """Sums of the weights of each output channel."""
        return np.asarray(self.weights.reshape(len(self.weights), -1).sum(axis=1))

    @cached_property
    def magnitude_sums(self) -> npt.NDArray[np.int64]:
        """Sums of the weights' magnitudes of each output channel."""
        return np.asarray(np.abs(self.weights).reshape(len(self.weights), -1).sum(axis=1))

    @cached_property
    def largest_sum(self) -> int:
        """No accumulator, bias included, can have a larger magnitude."""
        worst = self.magnitude_sums * self.largest_value + np.abs(self.bias)
        return int(worst.max(initial=0))

    @property
    def exact_type(self) -> np.dtype[Any]:
        """The fastest type that holds sums of products of signed codes."""
        return exact_type(int(self.magnitude_sums.max(initial=0)) * self.largest_code)

    def epilogue(self, bounds: Bounds, overflows: Overflows, *, centred: bool = True) -> Epilogue:
        """Make the epilogue of the products.

        Args:
            bounds: The ends of the fused activation.
            overflows: Where sums that leave the accumulator are counted.
            centred: The products are those of signed codes, not of codes less their zero point.
        """
        constant = self.bias - self.zero * self.weight_sums if centred else self.bias
        ends = self.step, self.scales, bounds, constant, self.float_bias, overflows
        return Epilogue(*ends, self.residual)

    def pairs(
        self, raw_weights: npt.NDArray[np.int64], run: int, *, centred: bool = True
    ) -> PairSaturation | None:
        """Return how pairs saturate; None where none can.

        Args:
            raw_weights: The weights as the product takes them, ``[groups, K, N]``.
            run: Neighbouring channels in K.
            centred: The rows hold signed codes, not codes less their zero point.
        """
        saturating, weight = self.saturating, self.step.inputs[1]
        if saturating is None or weight is None or weight.data is None:
            return None
        shift = 0 if centred else self.zero
        dtype = weight.data.dtype
        bits = saturating.pair_bits
        pairs = PairSaturation(raw_weights, run, self.data.dtype, dtype, bits, shift)
        return pairs if pairs.can_happen else None


def _by_output(step: Step, weight: Tensor, values: Array, rank: int) -> Array:
    """Return one value for each output channel, or for all, to broadcast against weights."""
    encoding = weight.encoding
    if values.size == 1:
        return values.reshape(())
    if encoding is not None and encoding.axis not in (0, None):
        raise PlanError(
            f"step {step.name!r} has a weight with scales along axis {encoding.axis}",
            remedy="quantize it per output channel, which is axis 0",
        )
    return values.reshape(-1, *(1,) * (rank - 1))


def _bias(
    step: Step, bias: Tensor | None, channels: int
) -> tuple[npt.NDArray[np.int64], Array | None]:
    if bias is None:
        return np.zeros(channels, np.int64), None
    if bias.data is None:
        raise PlanError(
            f"step {step.name!r} has a bias that is no constant", remedy="leave the node in float"
        )
    flat = np.broadcast_to(bias.data.reshape(-1), (channels,))
    if bias.encoding is None:
        return np.zeros(channels, np.int64), flat
    zero = np.broadcast_to(bias.encoding.zero_point, (channels,))
    return flat.astype(np.int64) - zero, None
