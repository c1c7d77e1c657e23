"""Multiply-accumulate kernels against the runtimes whose arithmetic they are told to follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pytest

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Encoding, Program, Shape
from intact.program.operations import (
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    Operation,
    TransposedConvolution,
)
from intact.targets import Arithmetic, FixedPoint, FloatOnce, FloatType, Multiplier, Product
from tests.engines.integer.one_op import REFERENCE, XNNPACK, litert, micro
from tests.program.one_step import int8, int32, one_step

Ends: TypeAlias = list[tuple[Shape, Encoding | None] | tuple[Array, Encoding | None] | None]

DOUBLE = Arithmetic(
    requantize=FixedPoint(Product.DOUBLE, multiplier=Multiplier.FLOAT64),
    rounding=Rounding.HALF_AWAY_FROM_ZERO,
)
FLOAT64 = Arithmetic(
    requantize=FloatOnce(precision=FloatType.FLOAT64, multiplier=Multiplier.FLOAT64),
    rounding=Rounding.HALF_AWAY_FROM_ZERO,
)
OF_ACTIVATIONS = Arithmetic(
    requantize=FixedPoint(Product.DOUBLE, multiplier=Multiplier.FLOAT32_PRODUCT),
    rounding=Rounding.HALF_AWAY_FROM_ZERO,
)
FLOAT32 = Arithmetic(requantize=FloatOnce(), rounding=Rounding.HALF_EVEN)


@dataclass(frozen=True)
class Runtime:
    """A runtime and how it computes products with constants, and of two activations."""

    run: Callable[..., Array]
    convolution: Arithmetic
    fully_connected: Arithmetic
    activations: Arithmetic

    def arithmetic(self, operation: Operation) -> Arithmetic:
        """Return how an operation is computed."""
        if isinstance(operation, BatchMatMul):
            return self.activations
        dense = isinstance(operation, FullyConnected)
        return self.fully_connected if dense else self.convolution


RUNTIMES = {
    "reference": Runtime(
        lambda model, *feeds: litert(model, *feeds, kernels=REFERENCE),
        DOUBLE, FLOAT64, OF_ACTIVATIONS,
    ),
    "micro": Runtime(micro, DOUBLE, DOUBLE, DOUBLE),
    "xnnpack": Runtime(
        lambda model, *feeds: litert(model, *feeds, kernels=XNNPACK), FLOAT32, FLOAT32, FLOAT32
    ),
}  # fmt: skip
every_runtime = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)


def check(runtime: Runtime, make: Callable[[Arithmetic], Program], *feeds: Array) -> Array:
    """Hold the engine against a runtime and return what both computed."""
    operation = make(DOUBLE).steps[0].operation
    program = make(runtime.arithmetic(operation))
    expected = runtime.run(program_to_tflite(program), *feeds)
    fed = dict(zip(program.inputs, feeds, strict=True))
    result = IntegerEngine(program).run(fed).outputs["out0"]
    np.testing.assert_array_equal(result, expected)
    return expected


CONVOLUTIONS = {
    "same": ((1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "valid": ((1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    "same strided": ((2, 2), ((0, 1), (0, 1)), (1, 1), 1),
    "explicit pads": ((2, 2), ((1, 1), (2, 0)), (1, 1), 1),
    "dilated": ((1, 1), ((2, 2), (2, 2)), (2, 2), 1),
    "grouped": ((1, 1), ((1, 1), (1, 1)), (1, 1), 2),
    "depthwise": ((1, 1), ((1, 1), (1, 1)), (1, 1), 6),
    "depthwise strided": ((2, 2), ((0, 1), (0, 1)), (1, 1), 6),
}


@every_runtime
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: str, multiplier: int, runtime: Runtime) -> None:
    rng = np.random.default_rng(0)
    strides, pads, dilations, groups = CONVOLUTIONS[case]
    channels = 6 * multiplier
    data = rng.integers(-128, 128, (1, 8, 8, 6)).astype(np.int8)
    weights = rng.integers(-127, 128, (channels, 3, 3, 6 // groups)).astype(np.int8)
    scales = rng.uniform(1e-3, 1e-2, channels).astype(np.float32)
    bias = rng.integers(-3000, 3000, channels).astype(np.int32)
    inside = [
        (8 + sum(pad) - 2 * d - 1) // s + 1
        for pad, d, s in zip(pads, dilations, strides, strict=True)
    ]
    inputs: Ends = [
        (data.shape, int8(0.0243, -7)),
        (weights, int8(scales, 0, 0)),
        (bias, int32(np.float32(0.0243) * scales, 0)),
    ]
    operation = Convolution(strides, pads, dilations, groups, Bounds(0.0, 6.0))
    output = ((1, *inside, channels), int8(0.0235, -128))
    found = check(
        runtime, lambda arithmetic: one_step(operation, arithmetic, inputs, [output]), data
    )
    assert len(np.unique(found)) > 20


@every_runtime
@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((0, 1), (0, 1))])
def test_transposed_convolution(pads: Any, runtime: Runtime) -> None:
    rng = np.random.default_rng(1)
    data = rng.integers(-128, 128, (1, 5, 4, 3)).astype(np.int8)
    weights = rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    scales = rng.uniform(1e-3, 1e-2, 4).astype(np.float32)
    bias = rng.integers(-3000, 3000, 4).astype(np.int32)
    inputs: Ends = [
        (data.shape, int8(0.0243, -7)),
        (weights, int8(scales, 0, 0)),
        (bias, int32(np.float32(0.0243) * scales, 0)),
    ]
    cut = pads[0][1]
    output = ((1, 11 - cut, 9 - cut, 4), int8(0.2, 3))
    operation = TransposedConvolution((2, 2), pads, (1, 1), (0, 0))
    check(runtime, lambda arithmetic: one_step(operation, arithmetic, inputs, [output]), data)


LAYERS: dict[str, tuple[Operation, tuple[int, ...], tuple[int, ...]]] = {
    "convolution": (Convolution((1, 1), ((0, 0), (0, 0)), (1, 1)), (1, 1, 1), (1, 1, 1)),
    "depthwise": (Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), 1000), (1, 1, 1), (1, 1, 1)),
    "transposed": (
        TransposedConvolution((1, 1), ((0, 0), (0, 0)), (1, 1), (0, 0)), (1, 1, 1), (1, 1, 1),
    ),
    "fully connected": (FullyConnected(), (1,), (1,)),
    "fully connected per channel": (FullyConnected(), (1,), (1,)),
}  # fmt: skip


@every_runtime
@pytest.mark.parametrize("exponent", [2, 12, 22])
@pytest.mark.parametrize("kind", LAYERS)
def test_accumulators_next_to_ties(kind: str, exponent: int, runtime: Runtime) -> None:
    """Biases that land on halves of an output step: every rounding on the way shows.

    With wrong fields of the arithmetic, a sixth of these outputs differ, or two fifths.
    """
    operation, leading, taps = LAYERS[kind]
    rng = np.random.default_rng(exponent)
    channels = 1000
    per_channel = kind != "fully connected"
    scale = np.float32(rng.uniform(0.01, 0.03))
    scales = rng.uniform(1e-3, 2e-3, channels if per_channel else ()).astype(np.float32)
    step = np.float32(float(scale) * 1.5e-3 * 2.0**exponent)
    real = float(scale) * scales.astype(np.float64) / float(step)
    halves = rng.integers(-120, 120, channels) + 0.5
    bias = (np.round(halves / real) + rng.integers(-2, 3, channels)).astype(np.int32)
    inputs = channels if kind == "depthwise" else 1
    axis = 0 if per_channel else None
    data = np.full((*leading, inputs), -7, np.int8)
    ends: Ends = [
        (data.shape, int8(scale, -7)),
        (np.ones((channels, *taps), np.int8), int8(scales, 0, axis)),
        (bias, int32(scale * scales, axis)),
    ]
    output = ((*leading, channels), int8(step, 3))
    found = check(runtime, lambda arithmetic: one_step(operation, arithmetic, ends, [output]), data)
    assert len(np.unique(found)) > 100


@pytest.mark.parametrize(
    ("name", "zero"), [("reference", 1), ("reference", 0), ("micro", 1), ("xnnpack", 0)]
)
def test_batch_matmul(name: str, zero: int) -> None:
    """XNNPACK takes only right sides whose zero point is 0."""
    rng = np.random.default_rng(2)
    left = rng.integers(-6, 7, (3, 20, 5)).astype(np.int8)
    right = rng.integers(-6, 7, (3, 5, 30)).astype(np.int8)
    ends: Ends = [(left.shape, int8(0.0201, -1)), (right.shape, int8(0.0133, zero))]
    output = ((3, 20, 30), int8(0.0201 * 0.0133 * 2.3, 3))
    check(
        RUNTIMES[name],
        lambda arithmetic: one_step(BatchMatMul(), arithmetic, ends, [output]),
        *(left, right),
    )


def test_xnnpack_leaves_other_products_of_activations_to_the_built_in_kernels() -> None:
    rng = np.random.default_rng(2)
    left = rng.integers(-6, 7, (3, 20, 5)).astype(np.int8)
    right = rng.integers(-6, 7, (3, 5, 30)).astype(np.int8)
    ends: Ends = [(left.shape, int8(0.0201, -1)), (right.shape, int8(0.0133, 1))]
    output = ((3, 20, 30), int8(0.0201 * 0.0133 * 2.3, 3))
    program = one_step(BatchMatMul(), OF_ACTIVATIONS, ends, [output])
    expected = RUNTIMES["xnnpack"].run(program_to_tflite(program), left, right)
    result = IntegerEngine(program).run({"in0": left, "in1": right}).outputs["out0"]
    np.testing.assert_array_equal(result, expected)


@every_runtime
@pytest.mark.parametrize("seed", range(3))
def test_products_of_activations_next_to_ties(seed: int, runtime: Runtime) -> None:
    """Large sums at halves of an output step: they show in which floats scales are multiplied."""
    rng = np.random.default_rng(seed)
    length, rows = 2000, 200
    scales = rng.uniform(0.01, 0.03, 2).astype(np.float32)
    step = np.float32(float(scales[0]) * float(scales[1]) * 127 * 127 * length * 0.9 / 120)
    real = float(scales[0]) * float(scales[1]) / float(step)
    sums = np.round((rng.integers(3, 118, rows) + 0.5) / real).astype(np.int64)
    sums += rng.integers(-1, 2, rows)
    left, right = np.zeros((1, rows, length), np.int8), np.full((1, length, 1), 127, np.int8)
    right[0, -1] = 1
    for row, wanted in zip(left[0], sums, strict=True):
        whole, rest = divmod(int(wanted), 127 * 127)
        row[:whole] = 127
        row[whole], row[-1] = divmod(rest, 127)
    np.testing.assert_array_equal((left.astype(np.int64) @ right)[0, :, 0], sums)
    ends: Ends = [(left.shape, int8(scales[0])), (right.shape, int8(scales[1]))]
    output = ((1, rows, 1), int8(step))
    check(
        runtime,
        lambda arithmetic: one_step(BatchMatMul(), arithmetic, ends, [output]),
        *(left, right),
    )
