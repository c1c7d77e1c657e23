"""Products of matrices: dense layers and products of two activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from intact.engines.integer.kernel import KERNELS, Kernel, Overflows, per_tensor
from intact.engines.integer.products.convolution import (
    multiply_rows,
)
from intact.engines.integer.products.epilogue import Epilogue
from intact.engines.integer.products.gemm import exact_type
from intact.engines.integer.products.layer import Layer, PairSaturation
from intact.engines.integer.products.windows import Floats, offset_of
from intact.errors import PlanError
from intact.program import Array, Step, Tensor
from intact.program.arithmetic.ends import effective
from intact.program.operations import (
    BatchMatMul,
    FullyConnected,
)


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
    def of(cls, step: Step, slot: int) -> _Operand:
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
    operands = [_Operand.of(step, slot) for slot in range(2)]
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
        products = np.matmul(left.astype(kind), right.astype(kind))
        products = _saturated(step, operands, sides, left, products, overflows)
        columns = products.shape[-1]
        flat = products.reshape(-1, columns) if columns else products.reshape(0, 1)
        return (epilogue(flat, largest).reshape(products.shape),)

    return kernel


def _largest(values: npt.NDArray[Any]) -> int:
    return int(max(values.max(initial=0), -int(values.min(initial=0))))


def _saturated(
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
            result[index] = pairs.apply(lines, result[index][None], overflows.of(step))[0]
    return result


@KERNELS.register(FullyConnected)
def fully_connected(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `FullyConnected`."""
    layer = Layer.of(step)
    weights = layer.raw_weights.T[None]
    pairs = layer.pairs(weights, weights.shape[1])
    return multiply_rows(layer, cast(FullyConnected, step.operation).bounds, overflows, pairs)
