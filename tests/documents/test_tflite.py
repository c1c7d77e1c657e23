"""[tflite]: its listings written out in plain Python, and intact on the same numbers."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from intact.engines.integer import IntegerEngine
from intact.graph import normalize
from intact.numerics import fixed_point as fp
from intact.program import Array
from intact.program.operations import Binary, Bounds, Elementwise, FullyConnected
from intact.targets import Arithmetic, load_target
from tests.models import ModelBuilder
from tests.plans import calibrated, config
from tests.program.one_step import int8, int32, one_step

HIGHEST = 2**31 - 1


def high_mul(a: int, b: int) -> int:
    """SaturatingRoundingDoublingHighMul: C divides towards zero."""
    if a == b == -(2**31):
        return HIGHEST
    product = a * b
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    return abs(nudged) // 2**31 * (1 if nudged >= 0 else -1)


def divide_by_pot(x: int, exponent: int) -> int:
    """gemmlowp's RoundingDivideByPOT: half away from zero."""
    mask = (1 << exponent) - 1
    return (x >> exponent) + ((x & mask) > (mask >> 1) + (x < 0))


def quantize_multiplier(real: float) -> tuple[int, int]:
    mantissa, shift = math.frexp(real)
    return math.floor(mantissa * 2**31 + 0.5), shift


def multiply(x: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier as listed, for shifts to the right."""
    return divide_by_pot(high_mul(x, multiplier), -shift)


@pytest.mark.parametrize(
    ("real", "mantissa", "exponent", "multiplier", "product", "result"),
    [
        (0.012, 0.768, -6, 1649267456, 77, 1),  # the numbers that are printed
        (0.12, 0.96, -3, 2061584256, 96, 12),  # the number that stands in the source
    ],
)
def test_the_demonstration(
    real: float, mantissa: float, exponent: int, multiplier: int, product: int, result: int
) -> None:
    number = np.float32(real)  # `float b`
    found = math.frexp(float(number))
    assert (round(found[0], 6), found[1]) == (mantissa, exponent)
    assert int(found[0] * 2**31) == multiplier  # cut off, in the demonstration
    assert [int(each) for each in fp.quantize_multiplier(number)] == [multiplier, exponent]
    assert fp.saturating_rounding_doubling_high_mul(100, multiplier) == product
    assert high_mul(100, multiplier) >> -exponent == result
    assert fp.multiply_by_quantized_multiplier(100, multiplier, exponent) == result


def test_the_smallest_integer_by_itself_saturates() -> None:
    lowest = np.int64(-(2**31))
    assert fp.saturating_rounding_doubling_high_mul(lowest, lowest) == HIGHEST
    assert high_mul(-(2**31), -(2**31)) == HIGHEST


def test_a_mantissa_of_one_is_halved() -> None:
    """The listing gives 2**31, which int32 does not hold; TFLite's own code halves it, as here."""
    assert quantize_multiplier(1 - 2.0**-40) == (2**31, 0)
    assert [int(each) for each in fp.quantize_multiplier(1 - 2.0**-40)] == [2**30, 1]


def test_the_shift_rounds_where_the_demonstration_cuts_off() -> None:
    multiplier, shift = quantize_multiplier(0.012)
    assert high_mul(125, multiplier) >> -shift == 1  # 1.5
    assert multiply(125, multiplier, shift) == 2
    assert fp.multiply_by_quantized_multiplier(125, multiplier, shift) == 2


EVERY = np.arange(-128, 128, dtype=np.int8)
FIRST = np.repeat(EVERY, 256).reshape(1, 256, 256, 1)
SECOND = np.tile(EVERY, 256).reshape(1, 256, 256, 1)


def arithmetic_of(target: str, op_type: str) -> Arithmetic:
    return load_target(target).arithmetic_for(op_type)


@pytest.mark.parametrize("target", ["tflite", "tflite-micro"])
def test_the_kernel_of_mul(target: str) -> None:
    """Every pair of codes; what is listed last, `static_cast<int8>`, is a clamp in the kernels."""
    (s1, z1), (s2, z2), (s3, z3) = (0.013, 5), (0.021, -7), (0.00821, 3)
    scales = [np.float32(each) for each in (s1, s2, s3)]
    real = float(scales[0] * scales[1] / scales[2])  # in float32, as C does it
    if target == "tflite-micro":
        real = float(scales[0]) * float(scales[1]) / float(scales[2])
    multiplier, shift = quantize_multiplier(real)
    expected = []
    for first, second in zip(FIRST.reshape(-1).tolist(), SECOND.reshape(-1).tolist(), strict=True):
        output = z3 + multiply((first - z1) * (second - z2), multiplier, shift)
        expected.append(max(-128, min(127, output)))
    program = one_step(
        Elementwise(Binary.MUL, Bounds()),
        arithmetic_of(target, "Mul"),
        [(FIRST.shape, int8(s1, z1)), (SECOND.shape, int8(s2, z2))],
        [(FIRST.shape, int8(s3, z3))],
    )
    feeds = dict(zip(program.inputs, (FIRST, SECOND), strict=True))
    (found,) = IntegerEngine(program).run(feeds).outputs.values()
    assert found.reshape(-1).tolist() == expected
    assert {-128, 127} <= set(expected)  # some are clamped


def dense() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", ["batch", 17])
    bias = b.constant(b.random.normal(size=6).astype(np.float32), "bias")
    b.node("Gemm", x, b.weight(6, 17, name="weight"), bias, name="dense", out="y", transB=1)
    b.output("y")
    return b.build()


def test_a_bias_has_the_scale_of_the_products() -> None:
    model = dense()
    plan = calibrated(model, "tflite")
    data, weight, bias = (config(plan, f"dense.input[{slot}]") for slot in range(3))
    assert data.scale is not None
    assert weight.scale is not None
    assert bias.scale is not None
    products = data.scale.astype(np.float64) * weight.scale
    np.testing.assert_array_equal(bias.scale, products.astype(np.float32))
    assert not np.any(bias.offset)
    assert (bias.bits, bias.quant_max) == (32, HIGHEST)
    values = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "bias")
    codes = bias.quantize(values.astype(np.float64))
    assert np.abs(codes * products - values).max() <= 0.5 * products.max() * (1 + 1e-6)


def test_zero_points_are_integers_and_scales_are_not() -> None:
    plan = calibrated(dense(), "tflite")
    data = config(plan, "dense.input[0]")
    assert data.offset is not None
    assert data.scale is not None
    assert data.offset.dtype == np.int64
    assert math.frexp(float(data.scale))[0] != 0.5


def test_batch_normalization_with_the_scripts_numbers() -> None:
    """scale = gamma / sqrt(var + eps); its bias lacks the factor, which the true one has."""
    gamma, beta, mean, var = (
        np.array(each, np.float32)
        for each in ([1.5, -2.0], [0.25, 1.0], [0.001, 3.0], [0.001, 4.0])
    )
    b = ModelBuilder()
    x = b.input("x", ["batch", 17])
    w = b.weight(2, 17, name="weight")
    x = b.node("Gemm", x, w, name="dense", transB=1)
    given = [b.constant(each) for each in (gamma, beta, mean, var)]
    b.node("BatchNormalization", x, *given, out="y", epsilon=0.001)
    b.output("y")
    model = b.build()
    graph = normalize(model)
    before = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weight")
    layer = graph.node("dense")
    after, bias = graph.constant(layer.inputs[1]), graph.constant(layer.inputs[2])
    assert after is not None
    assert bias is not None
    after = after if after.shape == before.shape else after.T
    scale = gamma.astype(float) / np.sqrt(var.astype(float) + 0.001)
    np.testing.assert_allclose(after, before * scale[:, None], rtol=1e-6)
    np.testing.assert_allclose(bias, beta - scale * mean, rtol=1e-6)
    assert np.abs(bias - (beta - gamma * mean)).max() > 1  # the script's


def dense_codes() -> tuple[Array, Array, Array]:
    random = np.random.default_rng(0)
    data = random.integers(-128, 128, (40, 17)).astype(np.int8)
    weights = random.integers(-127, 128, (6, 17)).astype(np.int8)
    return data, weights, random.integers(-20000, 20000, 6).astype(np.int32)


@pytest.mark.parametrize("target", ["tflite-micro", "tflite"])
def test_the_kernel_of_a_dense_layer(target: str) -> None:
    """`tflite-micro` multiplies as listed; LiteRT since 1.3 in float64, and `tflite` with it."""
    data, weights, bias = dense_codes()
    sx, zx, sw, sy, zy = np.float32(0.031), 11, np.float32(0.0071), np.float32(0.13), -9
    multiplier, shift = quantize_multiplier(float(sx) * float(sw) / float(sy))
    expected = np.zeros((40, 6), np.int64)
    for b, channel in np.ndindex(expected.shape):
        acc = sum(
            int(weights[channel, d]) * (int(data[b, d]) - zx) for d in range(data.shape[1])
        ) + int(bias[channel])  # no rescaling: it has the scale of the products
        if target == "tflite-micro":
            scaled = multiply(acc, multiplier, shift)
        else:
            exact = acc * (float(sx) * float(sw) / float(sy))
            scaled = int(math.copysign(math.floor(abs(exact) + 0.5), exact))
        expected[b, channel] = max(-128, min(127, scaled + zy))
    gemm = normalize(dense()).node("dense")
    program = one_step(
        FullyConnected(),
        load_target(target).arithmetic_of(gemm),
        [(data.shape, int8(sx, zx)), (weights, int8(sw)), (bias, int32(sx * sw))],
        [((40, 6), int8(sy, zy))],
    )
    feeds = dict(zip(program.inputs, (data,), strict=True))
    (found,) = IntegerEngine(program).run(feeds).outputs.values()
    np.testing.assert_array_equal(found, expected)
