"""Operations on two operands: every pair of 8-bit codes against the runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
import pytest

from intact.engines.integer import IntegerEngine
from intact.engines.integer.pointwise import elementwise as additions
from intact.errors import ConfigError, PlanError
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Encoding
from intact.program.arithmetic.reals import to_codes, to_reals
from intact.program.operations import Binary, Bounds, Elementwise
from intact.targets import Arithmetic, FloatEnds, FloatOnce, FloatType, Multiplier
from tests.engines.integer.hardware import (
    AFTER,
    BEFORE,
    DOUBLE,
    FUSED,
    SHIFT,
    SINGLE,
    End,
    as_int8,
    computed,
    onnxruntime,
    random_codes,
    run_step,
)
from tests.engines.integer.one_op import REFERENCE, XNNPACK, litert, micro
from tests.program.one_step import int8, one_step, uint8, with_options

CODES = np.arange(-128, 128).astype(np.int8)
FIRST = np.repeat(CODES, 256).reshape(1, 256, 256, 1)
SECOND = np.tile(CODES, 256).reshape(1, 256, 256, 1)
SHAPE = FIRST.shape

IN_FLOAT32 = with_options(DOUBLE, multiplier=Multiplier.FLOAT32)
"""LiteRT's MUL: the multiplier is a quotient of float32."""


@dataclass(frozen=True)
class Ends:
    """Scale and zero point of both operands and the result."""

    first: tuple[float, int]
    second: tuple[float, int]
    output: tuple[float, int]


SUMS = [
    Ends((0.5, 0), (0.25, -3), (1.0, 5)),  # ties abound
    Ends((0.02, 3), (0.031, -5), (0.05, 7)),
    Ends((0.0123, -128), (0.31, 127), (0.27, -17)),
    Ends((0.2104, 123), (0.0526, -118), (0.3156, -5)),
]
PRODUCTS = [
    Ends((0.5, 0), (0.25, -3), (8.0, 5)),
    Ends((0.013, 5), (0.021, -7), (0.00821, 3)),
    # Found by search: the multiplier's precision shows in a few pairs.
    Ends((0.018722575157880783, 0), (0.004108948167413473, 0), (0.0038450390566140413, 0)),
]


def _both(kind: Binary, arithmetic: Arithmetic, ends: Ends, bounds: Bounds) -> tuple[Array, bytes]:
    encodings = [int8(*ends.first), int8(*ends.second)]
    program = one_step(
        Elementwise(kind, bounds),
        arithmetic,
        [(SHAPE, encoding) for encoding in encodings],
        [(SHAPE, int8(*ends.output))],
    )
    return computed(program, FIRST, SECOND), program_to_tflite(program)


@pytest.mark.parametrize("ends", SUMS)
@pytest.mark.parametrize("kind", [Binary.ADD, Binary.SUB])
def test_sums_are_those_of_the_runtimes(kind: Binary, ends: Ends) -> None:
    ours, model = _both(kind, DOUBLE, ends, Bounds())
    np.testing.assert_array_equal(ours, litert(model, FIRST, SECOND, kernels=REFERENCE))
    np.testing.assert_array_equal(ours, micro(model, FIRST, SECOND))
    ours, _ = _both(kind, SINGLE, ends, Bounds())
    np.testing.assert_array_equal(ours, litert(model, FIRST, SECOND, kernels=XNNPACK))


@pytest.mark.parametrize("ends", PRODUCTS)
def test_products_are_those_of_the_runtimes(ends: Ends) -> None:
    ours, model = _both(Binary.MUL, IN_FLOAT32, ends, Bounds())
    np.testing.assert_array_equal(ours, litert(model, FIRST, SECOND, kernels=REFERENCE))
    ours, _ = _both(Binary.MUL, DOUBLE, ends, Bounds())
    np.testing.assert_array_equal(ours, micro(model, FIRST, SECOND))
    ours, _ = _both(Binary.MUL, AFTER, ends, Bounds())
    np.testing.assert_array_equal(ours, litert(model, FIRST, SECOND, kernels=XNNPACK))


def test_the_precision_of_multipliers_shows() -> None:
    found = [_both(Binary.MUL, each, PRODUCTS[-1], Bounds())[0] for each in (DOUBLE, IN_FLOAT32)]
    assert np.count_nonzero(found[0] != found[1]) == 24


@pytest.mark.parametrize("ends", PRODUCTS)
def test_squared_differences_are_those_of_the_runtimes(ends: Ends) -> None:
    ours, model = _both(Binary.SQUARED_DIFFERENCE, DOUBLE, ends, Bounds())
    np.testing.assert_array_equal(ours, litert(model, FIRST, SECOND, kernels=REFERENCE))
    np.testing.assert_array_equal(ours, micro(model, FIRST, SECOND))


@pytest.mark.parametrize("kind", [Binary.ADD, Binary.MUL])
@pytest.mark.parametrize("bounds", [Bounds(0), Bounds(0, 6), Bounds(-1, 1)])
def test_fused_activations_clamp_as_in_the_runtime(kind: Binary, bounds: Bounds) -> None:
    arithmetic = DOUBLE if kind is Binary.ADD else IN_FLOAT32
    ours, model = _both(kind, arithmetic, Ends((0.05, 3), (0.07, -5), (0.06, -20)), bounds)
    np.testing.assert_array_equal(ours, litert(model, FIRST, SECOND, kernels=REFERENCE))
    assert len(np.unique(ours)) < 200


@pytest.mark.parametrize("kind", [Binary.MINIMUM, Binary.MAXIMUM])
def test_extremes_of_one_scale_are_those_of_the_codes(kind: Binary) -> None:
    end = (0.1, 4)
    ours, model = _both(kind, DOUBLE, Ends(end, end, end), Bounds())
    np.testing.assert_array_equal(ours, litert(model, FIRST, SECOND, kernels=REFERENCE))


_ORT = {
    Binary.ADD: ("Add", FUSED),
    Binary.MUL: ("Mul", BEFORE),
    Binary.SUB: ("Sub", AFTER),
    Binary.MINIMUM: ("Min", AFTER),
    Binary.MAXIMUM: ("Max", AFTER),
    Binary.DIV: ("Div", AFTER),
}


@pytest.mark.crossed
@pytest.mark.parametrize("kind", list(_ORT))
@pytest.mark.parametrize("encode", [int8, uint8])
def test_pairs_are_those_of_onnxruntime(kind: Binary, encode: object) -> None:
    op_type, arithmetic = _ORT[kind]
    shift = 0 if encode is int8 else 128
    for ends in (*SUMS, Ends((0.007710014, -34), (0.008467087, 32), (0.0066986056, 91))):
        first, second, output = (
            (uint8 if shift else int8)(np.float32(scale), zero + shift)
            for scale, zero in (ends.first, ends.second, ends.output)
        )
        codes = [(each.astype(np.int64) + shift).astype(first.dtype) for each in (FIRST, SECOND)]
        given = [(SHAPE, first), (SHAPE, second)]
        ours = run_step(Elementwise(kind), arithmetic, given, (SHAPE, output), *codes)
        theirs = onnxruntime(op_type, [(codes[0], first), (codes[1], second)], output)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 1, 1, 5), (1, 3, 4, 5), (4, 1), ()])
@pytest.mark.parametrize("constant", [False, True])
def test_operands_broadcast(shape: tuple[int, ...], constant: bool) -> None:
    first, second, output = int8(0.02, 3), int8(0.031, -5), int8(0.05, 7)
    data, other = random_codes((2, 3, 4, 5), first), random_codes(shape, second, 1)
    whole = run_step(
        Elementwise(Binary.SUB),
        DOUBLE,
        [(data.shape, first), (data.shape, second)],
        (data.shape, output),
        data,
        np.ascontiguousarray(np.broadcast_to(other, data.shape)),
    )
    given: End = (other, second) if constant else (shape, second)
    arrays = [data] if constant else [data, other]
    ends: list[End] = [(data.shape, first), given]
    ours = run_step(Elementwise(Binary.SUB), DOUBLE, ends, (data.shape, output), *arrays)
    np.testing.assert_array_equal(ours, whole)
    assert ours.dtype == np.int8


@pytest.mark.crossed
@pytest.mark.parametrize("shape", [(1,), (1, 16, 1, 1), (33, 1), (31,), (2, 1, 33, 31)])
@pytest.mark.parametrize("first", [False, True])
def test_sums_with_repeated_elements_are_those_of_onnxruntime(
    shape: tuple[int, ...], first: bool
) -> None:
    # Found by search: ties abound, and the order of the operands decides 13 % of all pairs.
    encodings = uint8(0.2104, 251), uint8(0.0526, 10)
    data = random_codes((2, 16, 33, 31), encodings[0])
    given = [(data, encodings[0]), (random_codes(shape, encodings[1], 1), encodings[1])]
    if first:
        given.reverse()
    output = uint8(0.3156, 123)
    ends: list[End] = [(codes.shape, encoding) for codes, encoding in given]
    arrays = [codes for codes, _ in given]
    ours = run_step(Elementwise(Binary.ADD), FUSED, ends, (data.shape, output), *arrays)
    np.testing.assert_array_equal(ours, onnxruntime("Add", given, output))


def test_a_constant_may_come_first() -> None:
    encoding = int8(0.5)
    ends: list[End] = [(as_int8([10]), encoding), ((3,), encoding)]
    codes = as_int8([-2, 0, 2])
    ours = run_step(Elementwise(Binary.SUB), DOUBLE, ends, ((3,), encoding), codes)
    assert ours.tolist() == [12, 10, 8]


def test_empty_batches_pass() -> None:
    encoding = int8(0.5)
    codes = np.empty((0, 4), np.int8)
    for kind in Binary:
        arithmetic = AFTER if kind is Binary.DIV else DOUBLE
        ends: list[End] = [((None, 4), encoding), (as_int8([1, 2, 3, 4]), encoding)]
        assert run_step(
            Elementwise(kind), arithmetic, ends, ((None, 4), encoding), codes
        ).shape == (
            0,
            4,
        )


def _int16(scale: float, zero_point: int = 0) -> Encoding:
    scales, zeros = np.asarray(scale, np.float32), np.asarray(zero_point, np.int64)
    return Encoding(scales, zeros, -32768, 32767)


def _half_up(value: Fraction) -> int:
    return floor(value + Fraction(1, 2))


def _exact(kind: Binary, first: Fraction, second: Fraction) -> Fraction:
    if kind is Binary.MUL:
        return first * second
    if kind is Binary.SQUARED_DIFFERENCE:
        return (first - second) ** 2
    return first + second if kind is Binary.ADD else first - second


@pytest.mark.parametrize("exponents", [(-3, -5, -4), (0, 0, 2), (-7, 2, -1)])
@pytest.mark.parametrize("kind", [Binary.ADD, Binary.SUB, Binary.MUL, Binary.SQUARED_DIFFERENCE])
def test_power_of_two_scales_are_shifted_and_rounded_once(
    kind: Binary, exponents: tuple[int, int, int]
) -> None:
    first, second, output = (_int16(2.0**exponent) for exponent in exponents)
    codes = [random_codes((50,), int8(1.0), seed).astype(np.int16) for seed in (0, 1)]
    scales = [Fraction(2) ** exponent for exponent in exponents]
    wanted = [
        max(
            -32768,
            min(32767, _half_up(_exact(kind, int(a) * scales[0], int(b) * scales[1]) / scales[2])),
        )
        for a, b in zip(*codes, strict=True)
    ]
    ends: list[End] = [((50,), first), ((50,), second)]
    ours = run_step(Elementwise(kind), SHIFT, ends, ((50,), output), *codes)
    assert ours.dtype == np.int16
    assert ours.tolist() == wanted


def test_scales_too_far_apart_to_shift_are_refused() -> None:
    ends: list[End] = [((2,), int8(2.0**30)), ((2,), int8(2.0**-30))]
    with pytest.raises(ConfigError, match="too far apart"):
        run_step(
            Elementwise(Binary.ADD),
            SHIFT,
            ends,
            ((2,), int8(1.0)),
            as_int8([1, 2]),
            as_int8([1, 2]),
        )


def test_a_float_operand_is_refused() -> None:
    ends: list[End] = [((2,), int8(1.0)), ((2,), None)]
    program = one_step(Elementwise(Binary.ADD), DOUBLE, ends, [((2,), int8(1.0))])
    with pytest.raises(PlanError, match="in1"):
        IntegerEngine(program)


def test_scales_by_channel_are_dequantized() -> None:
    by_channel = int8([0.5, 2.0], axis=1)
    ends: list[End] = [((2, 2), int8(0.25)), (as_int8([[4, 4]]), by_channel)]
    codes = as_int8([[8, 8], [-8, 127]])
    ours = run_step(Elementwise(Binary.ADD), AFTER, ends, ((2, 2), int8(1.0)), codes)
    assert ours.tolist() == [[4, 10], [0, 40]]


def test_float64_rounds_the_exact_quotient() -> None:
    arithmetic = Arithmetic(
        requantize=FloatOnce(precision=FloatType.FLOAT64, multiplier=Multiplier.FLOAT64)
    )
    ends: list[End] = [((256,), int8(0.3, 3)), ((256,), int8(0.7, -9))]
    codes = [random_codes((256,), int8(1.0), seed) for seed in (0, 1)]
    ours = run_step(Elementwise(Binary.MUL), arithmetic, ends, ((256,), int8(9.1)), *codes)
    scales = [Fraction(float(np.float32(scale))) for scale in (0.3, 0.7, 9.1)]
    reals = [
        (int(a) - 3) * scales[0] * (int(b) + 9) * scales[1] / scales[2]
        for a, b in zip(*codes, strict=True)
    ]
    assert ours.tolist() == [max(-128, min(127, round(real))) for real in reals]


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_by_ends_are_the_nearest_but_next_to_ties(sign: int) -> None:
    ends = Arithmetic(requantize=FloatEnds())
    first, second, output = int8(0.031, 3), uint8(0.017, 100), int8(0.043, -7)
    left, right = (grid.ravel() for grid in np.meshgrid(np.arange(-128, 128), np.arange(256)))
    compute = additions.addition(ends, first, second, output, Bounds(), sign=sign)
    assert compute is not None
    found = compute(left.astype(np.int8), right.astype(np.uint8))
    exact = ((left - 3) * 0.031 + sign * (right - 100) * 0.017) / 0.043 - 7
    assert np.abs(found - np.clip(exact, -128, 127)).max() < 0.5 + 1e-4


def test_a_zero_point_before_rounding_says_nothing_about_how_codes_are_added() -> None:
    left, right = (grid.ravel().astype(np.uint8) for grid in np.meshgrid(*[np.arange(256)] * 2))
    different = 0
    for scale in (0.1, 0.3, 0.7):  # of which 0.1 and 0.2 give ties
        first, second, output = uint8(scale, 3), uint8(0.2, 100), uint8(0.4, 7)
        ends: list[End] = [((65536,), first), ((65536,), second)]
        found = run_step(Elementwise(Binary.ADD), BEFORE, ends, ((65536,), output), left, right)
        reals = to_reals(left, first, np.float32) + to_reals(right, second, np.float32)
        np.testing.assert_array_equal(found, to_codes(reals, BEFORE, output, Bounds()))
        fused = run_step(Elementwise(Binary.ADD), FUSED, ends, ((65536,), output), left, right)
        different += int(np.count_nonzero(found != fused))
    assert different > 0
