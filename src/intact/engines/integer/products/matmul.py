"""Makes the kernels of dense layers, and of products of two activations.

The data of a dense layer may be quantized while it runs, with scales of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from intact.engines.integer.kernel import KERNELS, Kernel, Overflows, per_tensor
from intact.engines.integer.products.convolution import multiply_rows
from intact.engines.integer.products.epilogue import Epilogue, wrap
from intact.engines.integer.products.gemm import ExactProduct, exact_type
from intact.engines.integer.products.layer import ROWS_IN_CACHE, Layer, PairSaturation
from intact.engines.integer.products.windows import Floats, offset_of, signed
from intact.errors import DataError, PlanError
from intact.numerics.affine_params import QuantParams
from intact.numerics.fused import fused_multiply_add
from intact.program import Array, Step, Tensor
from intact.program.arithmetic.ends import effective, effective_weight
from intact.program.forms import dequantize_constant
from intact.program.operations import (
    BatchMatMul,
    DynamicFullyConnected,
    DynamicQuantize,
    FullyConnected,
)
from intact.targets import FloatInTurn


@dataclass(frozen=True, eq=False)
class _Operand:
    """One side of a product.

    Attributes:
        tensor: The tensor.
        zero: Zero point, ``[]``.
        scale: Scale, ``[]``.
    """

    tensor: Tensor
    zero: npt.NDArray[np.int64]
    scale: Array

    @classmethod
    def from_input(cls, step: Step, slot: int) -> _Operand:
        tensor = step.inputs[slot]
        if tensor is None:
            raise PlanError(f"step {step.name!r} lacks input {slot}", remedy="build it anew")
        encoding = effective(step.arithmetic, per_tensor(step, tensor))
        return cls(tensor, encoding.zero_point.reshape(()), encoding.scale.reshape(()))

    def values(self, codes: Array) -> npt.NDArray[Any]:
        """Return codes less their zero point, in the narrowest type that holds them."""
        kind = np.int16 if codes.dtype.itemsize == 1 else np.int64
        return np.asarray(codes.astype(kind) - self.zero.astype(kind))


@KERNELS.register(BatchMatMul)
def batch_matmul(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `BatchMatMul`."""
    operation = cast(BatchMatMul, step.operation)
    operands = [_Operand.from_input(step, slot) for slot in range(2)]
    scales = [operand.scale for operand in operands]
    constants = [operand.tensor.data for operand in operands]
    nothing = np.zeros(1, np.int64)
    epilogue = Epilogue(step, scales, operation.bounds, nothing, None, overflows)

    def kernel(*activations: Array) -> tuple[Array, ...]:
        given = iter(activations)
        sides = [next(given) if constant is None else constant for constant in constants]
        left, right = (o.values(codes) for o, codes in zip(operands, sides, strict=True))
        # What the numbers at hand can add up to: of two activations nothing else is known.
        largest = left.shape[-1] * _largest(left) * _largest(right)
        kind = exact_type(largest)
        # In floats where those are exact: numpy has no BLAS for integers.
        products = np.matmul(left.astype(kind), right.astype(kind))
        products = _saturate_pairs(step, operands, sides, left, products, overflows)
        columns = products.shape[-1]
        flat = products.reshape(-1, columns) if columns else products.reshape(0, 1)
        return (epilogue(flat, largest).reshape(products.shape),)

    return kernel


def _largest(values: npt.NDArray[Any]) -> int:
    return int(max(values.max(initial=0), -int(values.min(initial=0))))


def _saturate_pairs(
    step: Step,
    operands: list[_Operand],
    sides: list[Array],
    left: npt.NDArray[Any],
    products: Floats,
    overflows: Overflows,
) -> Floats:
    """Return products whose pairs saturate, where they do, matrix by matrix.

    x86's pmaddubsw adds two products of bytes in 16 bits, and saturates.
    """
    saturating, data = step.arithmetic.pairs, operands[0].tensor.encoding
    if saturating is None or data is None:
        return products
    bits = saturating.pair_bits
    batch = products.shape[:-2]
    raw = sides[1].astype(np.int64)
    rows = np.broadcast_to(left, (*batch, *left.shape[-2:])).astype(np.float64)
    weights = np.broadcast_to(raw, (*batch, *raw.shape[-2:]))
    result = products.astype(np.float64)
    zero = int(operands[0].zero) - offset_of(data.dtype)
    for index in np.ndindex(*batch):
        matrix = np.ascontiguousarray(weights[index])[None]
        pairs = PairSaturation(matrix, matrix.shape[1], data.dtype, sides[1].dtype, bits, zero)
        if pairs.can_happen:
            lines = np.ascontiguousarray(rows[index])[None]
            result[index] = pairs.apply(lines, result[index][None], overflows.counter(step))[0]
    return result


@KERNELS.register(FullyConnected)
def fully_connected(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `FullyConnected`."""
    layer = Layer.from_step(step)
    weights = layer.raw_weights.T[None]
    pairs = layer.pairs(weights, weights.shape[1])
    return multiply_rows(layer, cast(FullyConnected, step.operation).bounds, overflows, pairs)


@KERNELS.register(DynamicQuantize)
def dynamic_quantize(step: Step, _: Overflows) -> Kernel:
    """Make the kernel of a `DynamicQuantize`."""
    quantizer = cast(DynamicQuantize, step.operation).quantizer
    dtype = step.outputs[0].dtype

    def kernel(values: Array) -> tuple[Array, ...]:
        try:
            params = quantizer.params(values)
        except DataError as error:
            raise DataError(f"step {step.name!r}: {error}", remedy=error.remedy) from error
        codes = quantizer.codes(values, params).astype(dtype)
        return codes, params.scale, params.zero_point.astype(dtype)

    return kernel


@KERNELS.register(DynamicFullyConnected)
def dynamic_fully_connected(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `DynamicFullyConnected`.

    Raises:
        PlanError: Its weight is no constant of codes.
    """
    weight = step.inputs[3]
    if weight is not None and weight.encoding is not None and weight.encoding.block is not None:
        return _multiply_blocks(step)
    layer = _Layer(step, overflows)

    def kernel(codes: Array, scale: Array, zero_point: Array) -> tuple[Array, ...]:
        return (layer(codes, QuantParams(scale, zero_point.astype(np.int64))),)

    return kernel


def _multiply_blocks(step: Step) -> Kernel:
    """Make the kernel of a layer whose weights have scales in blocks, as its data have.

    The sum of a block is exact, and becomes a float by the product of two scales: but for the order
    of float sums, which runtimes do not tell, that is the product of the numbers that codes stand
    for.

    Raises:
        PlanError: Its weight is no constant of codes.
    """
    operation = cast(DynamicFullyConnected, step.operation)
    _, _, _, weight, bias = step.inputs
    if weight is None or weight.data is None:
        raise PlanError(f"step {step.name!r} has weights that are no constant codes")
    quantizer = operation.quantizer
    numbers = dequantize_constant(weight).data
    factors = np.ascontiguousarray(np.asarray(numbers, np.float32).T)
    added = None if bias is None or bias.data is None else bias.data.astype(np.float32)

    def kernel(codes: Array, scale: Array, zero_point: Array) -> tuple[Array, ...]:
        steps = codes.astype(np.float32)
        steps -= quantizer.spread(zero_point.astype(np.float32), codes.shape)
        with np.errstate(all="ignore"):  # an infinite value has an infinite scale
            steps *= quantizer.spread(scale, codes.shape)
            result = steps @ factors
        return (result if added is None else result + added,)

    return kernel


class _Layer:
    """The sums of a layer, and the floats that they stand for."""

    def __init__(self, step: Step, overflows: Overflows) -> None:
        codes, _, _, weight, bias = step.inputs
        if codes is None or weight is None or weight.data is None or weight.encoding is None:
            raise PlanError(f"step {step.name!r} has weights that are no constant codes")
        arithmetic = step.arithmetic
        encoding = effective_weight(arithmetic, weight.encoding)
        raw = weight.data.astype(np.int64)
        weights = raw - encoding.zero_point.reshape(-1, 1)
        self._step, self._bits = step, arithmetic.accumulator.bits
        self._fused = arithmetic.fuses_bias
        self._in_turn = isinstance(arithmetic.requantize, FloatInTurn)
        self._offset = offset_of(codes.dtype)
        self._scale = np.broadcast_to(encoding.scale.reshape(-1), (len(raw),))
        self._bias = None if bias is None or bias.data is None else bias.data.astype(np.float32)
        self._sums = weights.sum(axis=1)
        magnitudes = int(np.abs(weights).sum(axis=1).max(initial=0))
        reach = 1 << (8 * codes.dtype.itemsize)
        self._largest = magnitudes * reach
        self._product = ExactProduct(np.ascontiguousarray(weights.T)[None], reach >> 1)
        self._pairs, self._counted = None, None
        if arithmetic.pairs is not None:
            dtypes, bits = (codes.dtype, weight.data.dtype), arithmetic.pairs.pair_bits
            pairs = PairSaturation(np.ascontiguousarray(raw.T)[None], raw.shape[1], *dtypes, bits)
            if pairs.can_happen:
                self._pairs, self._counted = pairs, overflows.counter(step)

    def __call__(self, codes: Array, params: QuantParams) -> npt.NDArray[np.float32]:
        """Return floats ``[..., O]`` of codes ``[..., K]``."""
        length = codes.shape[-1]
        if length != self._product.length:
            raise DataError(
                f"step {self._step.name!r} takes {self._product.length} channels, not {length}",
                remedy="feed data of the model's shape",
            )
        rows = signed(codes).reshape(-1, length)
        scales = np.broadcast_to(params.scale.reshape(-1, 1), (len(rows), 1))
        zeros = np.broadcast_to(params.zero_point.reshape(-1, 1), (len(rows), 1))
        results = np.empty((len(rows), len(self._scale)), np.float32)
        at_once = max(ROWS_IN_CACHE // max(length + len(self._scale), 1), 1)
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            results[part] = self._floats(self._products(rows[part]), scales[part], zeros[part])
        return results.reshape(*codes.shape[:-1], len(self._scale))

    def _products(self, rows: Array) -> Floats:
        exact = rows.astype(self._product.dtype)[None]
        products = self._product(exact)
        if self._pairs is not None and self._counted is not None:
            products = self._pairs.apply(exact, products, self._counted)
        first: Floats = products[0]
        return first

    def _floats(self, products: Floats, scales: Array, zeros: Array) -> Array:
        # The zero point is another for each batch or row, so that its share cannot be folded into
        # the bias.
        sums: npt.NDArray[Any] = products - (zeros - self._offset) * self._sums.astype(np.float64)
        if self._largest >= 1 << (self._bits - 1):
            sums = wrap(sums.astype(np.int64), self._bits)
        with np.errstate(all="ignore"):  # an infinite value has an infinite scale
            floats, factors = sums.astype(np.float32), scales * self._scale
            if self._in_turn:
                floats, factors = np.asarray(floats * scales, np.float32), self._scale
            if self._bias is None:
                return np.asarray(floats * factors)
            if self._fused:
                return np.asarray(fused_multiply_add(floats, factors, self._bias), np.float32)
            return np.asarray(floats * factors + self._bias)
