"""The operations that multiply and accumulate."""

from __future__ import annotations

from typing import cast

from intact.engines.integer.kernel import KERNELS, Kernel, Overflows
from intact.engines.integer.products.convolution import (
    convolution,
    multiply_rows,
    transposed_convolution,
)
from intact.engines.integer.products.layer import Layer
from intact.engines.integer.products.matmul import batch_matmul
from intact.program import Step
from intact.program.operations import (
    BatchMatMul,
    Convolution,
    FullyConnected,
    TransposedConvolution,
)


@KERNELS.register(FullyConnected)
def fully_connected(step: Step, overflows: Overflows) -> Kernel:
    """Make the kernel of a `FullyConnected`."""
    layer = Layer.of(step)
    weights = layer.raw_weights.T[None]
    pairs = layer.pairs(weights, weights.shape[1])
    return multiply_rows(layer, cast(FullyConnected, step.operation).bounds, overflows, pairs)
