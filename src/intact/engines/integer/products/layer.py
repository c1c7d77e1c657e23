"""What layers with constant weights share: operands as integers, corrections and proofs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.engines.integer.kernel import Overflows, per_tensor
from intact.engines.integer.products.epilogue import Epilogue
from intact.engines.integer.products.gemm import exact_type
from intact.engines.integer.products.pairs import PairSaturation
from intact.engines.integer.products.windows import offset_of
from intact.errors import PlanError
from intact.program import Array, Encoding, Step, Tensor
from intact.program.arithmetic.ends import effective, effective_weight
from intact.program.operations import RESIDUAL_SLOT, Bounds
from intact.targets.arithmetic import Overflow

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
        scales: Of data and weight.
        bias: Codes, int64 ``[O]``; zeros where there is none or it is in float.
        float_bias: Bias in float, which is added to what the sums stand for.
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

    @classmethod
    def of(cls, step: Step) -> Layer:
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
        """Return what follows the products.

        Args:
            bounds: Of the fused activation.
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
            raw_weights: As the product takes them, ``[groups, K, N]``.
            run: Neighbouring channels in K.
            centred: The rows hold signed codes, not codes less their zero point.
        """
        arithmetic, weight = self.step.arithmetic, self.step.inputs[1]
        bits = arithmetic.pair_bits
        kind = arithmetic.accumulator_overflow
        if kind is not Overflow.PAIR_SATURATE or bits is None or weight is None:
            return None
        if weight.data is None:
            return None
        shift = 0 if centred else self.zero
        dtype = weight.data.dtype
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
