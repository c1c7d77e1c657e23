"""Steps of one function, run by their kernels alone, and the arithmetics that were measured."""

from __future__ import annotations

import msgspec
import numpy as np

from intact.config import Rounding
from intact.engines.integer.kernel import KERNELS, Overflows
from intact.engines.integer.pointwise import functions
from intact.program import Encoding
from intact.program.operations import Operation, PRelu
from intact.targets import (
    Arithmetic,
    FixedPoint,
    FloatOnce,
    Functions,
    Multiplier,
    Product,
)
from tests.engines.integer.one_op import Array
from tests.program.one_step import int8, one_step, with_options

TABLES = Arithmetic(requantize=FixedPoint(Product.DOUBLE), rounding=Rounding.HALF_AWAY_FROM_ZERO)
"""LiteRT: what is curved is a table filled in float32."""
FIXED = msgspec.structs.replace(TABLES, functions=Functions.FIXED_POINT)
"""LiteRT, for what it computes in integers: hard swish, inverse root, softmax."""
TRUNCATED = msgspec.structs.replace(TABLES, functions=Functions.TRUNCATED)
"""LiteRT, for the square root."""
WIDE = with_options(FIXED, multiplier=Multiplier.FLOAT64)
"""TensorFlow Lite Micro."""
FLOATS = Arithmetic(requantize=FloatOnce())
"""ONNX Runtime, and the tables of XNNPACK."""
EIGHT_BIT = Arithmetic(requantize=FixedPoint(Product.SINGLE, multiplier_bits=8))
"""XNNPACK's leaky relu."""

CODES = np.arange(-128, 128).astype(np.int8)
LOGISTIC_END, TANH_END = int8(1 / 256, -128), int8(1 / 128, 0)


def run(
    operation: Operation, arithmetic: Arithmetic, codes: Array, data: Encoding, output: Encoding
) -> Array:
    program = one_step(operation, arithmetic, [(codes.shape, data)], [(codes.shape, output)])
    kernel = KERNELS[type(operation)](program.steps[0], Overflows())
    (result,) = kernel(codes)
    assert isinstance(result, np.ndarray)
    assert result.dtype == output.dtype
    return result


def run_prelu(arithmetic: Arithmetic, codes: Array, slope: Array, ends: list[Encoding]) -> Array:
    program = one_step(
        PRelu(), arithmetic, [(codes.shape, ends[0]), (slope, ends[1])], [(codes.shape, ends[2])]
    )
    (found,) = functions.prepare_prelu(program.steps[0], Overflows())(codes)
    assert isinstance(found, np.ndarray)
    return found
