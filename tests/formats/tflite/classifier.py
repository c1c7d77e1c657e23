"""A whole small model as a program, quantized at its ends: for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact.program import Program, Step, Tensor
from intact.program.operations import (
    Bounds,
    Convolution,
    Dequantize,
    FullyConnected,
    Quantize,
    Reshape,
    Softmax,
)
from tests.formats.tflite.cases import (
    ARITHMETIC,
    OUT,
    X,
)
from tests.program.one_step import int8


def classifier(batch: int | None = None) -> Program:
    """Float input, quantize, convolution, reshape, product, softmax, dequantize, float output."""
    weights = np.random.default_rng(0).integers(-127, 128, (10, 3 * 3 * 4)).astype(np.int8)
    kernel = np.random.default_rng(1).integers(-127, 128, (4, 3, 3, 2)).astype(np.int8)
    scale, narrow = int8(0.003), int8(1 / 256, -128)
    image = Tensor("image", (batch, 6, 6, 2))
    codes = Tensor("image_codes", (batch, 6, 6, 2), X)
    features = Tensor("features", (batch, 3, 3, 4), OUT)
    flat = Tensor("flat", (batch, 36), OUT)
    logits = Tensor("logits", (batch, 10), int8(0.1, 4))
    shares = Tensor("shares", (batch, 10), narrow)
    floats = Tensor("probabilities", (batch, 10))
    conv = Convolution((2, 2), ((1, 1), (1, 1)), (1, 1), bounds=Bounds(0))

    def step(name: str, operation: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Step:
        return Step(name, operation, inputs, (output,), ARITHMETIC)

    steps = (
        step("q", Quantize(), (image,), codes),
        step("c", conv, (codes, Tensor("kernel", kernel.shape, scale, kernel)), features),
        step("r", Reshape((-1, 36)), (features,), flat),
        step("m", FullyConnected(), (flat, Tensor("w", weights.shape, scale, weights)), logits),
        step("s", Softmax(1), (logits,), shares),
        step("d", Dequantize(), (shares,), floats),
    )
    return Program({"image": image}, {"probabilities": floats}, steps)
