"""Convolutions, dense layers and matrix products."""

from __future__ import annotations

from typing import cast

import numpy as np

from intact.program.arithmetic.requantize import real_multiplier
from intact.program.operations import BatchMatMul, Convolution, FullyConnected
from intact.program.realize.draft import broadcast
from intact.program.realize.graph import Window
from intact.program.realize.layer import (
    accumulated,
    convolve,
    finish,
    of_bytes,
    product,
    refuse_other_sums,
    weights_of,
)
from intact.program.realize.part import Part, Realize, channels_first, known, type_range
from intact.program.realize.requantizing import requantized, zero_point


def convolution(part: Part) -> None:
    """Realise a convolution."""
    operation = cast(Convolution, part.step.operation)
    weights, rank = weights_of(part), part.rank(0)
    window = Window(
        tuple(weights.codes.shape[1:-1]),
        operation.strides,
        operation.pads,
        operation.dilations,
        operation.groups,
    )
    data = part.read(0, channels_first(rank))
    kernel = np.ascontiguousarray(np.moveaxis(weights.codes, -1, 1))
    finish(part, convolve(part, data, kernel, weights, window), weights, operation.bounds)


def fully_connected(part: Part) -> None:
    """Realise a fully connected layer."""
    operation = cast(FullyConnected, part.step.operation)
    weights, data = weights_of(part), part.read(0)
    shape = (*data.shape[:-1], weights.codes.shape[0])
    held = part.draft.constant(np.ascontiguousarray(weights.codes.T), "weight")
    sums = product(part, data, held, shape, weights.magnitudes, weights.zero)
    finish(part, sums, weights, operation.bounds, channels_last=True)


def batch_matmul(part: Part) -> None:
    """Realise a product of two activations."""
    operation = cast(BatchMatMul, part.step.operation)
    refuse_other_sums(part)
    first, second = part.read(0), part.read(1)
    encodings = [of_bytes(part, part.tensor(slot)) for slot in range(2)]
    lead = broadcast(first.shape[:-2], second.shape[:-2])
    shape = (*lead, first.shape[-2], second.shape[-1])
    zero = zero_point(encodings[1])
    largest = max(abs(code - zero) for code in type_range(encodings[1]))
    depth = known(first.shape[-1])
    sums = product(part, first, second, shape, depth * largest, zero)
    output = part.encoding(part.output)
    factors = [encoding.scale for encoding in encodings]
    multiplier = real_multiplier(part.step.arithmetic, factors, output)
    sums = accumulated(part, sums)
    part.give(
        requantized(part.draft, sums, part.step.arithmetic, multiplier, output, operation.bounds)
    )


TABLE: dict[type, Realize] = {
    BatchMatMul: batch_matmul,
    Convolution: convolution,
    FullyConnected: fully_connected,
}
