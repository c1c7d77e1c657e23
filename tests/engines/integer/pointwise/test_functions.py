"""Functions of one operand against the real functions, and what no runtime has."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.integer.kernel import Overflows
from intact.engines.integer.pointwise import functions
from intact.errors import IntactError
from intact.program import Encoding
from intact.program.operations import Bounds, Function, PRelu, Unary
from intact.targets import Arithmetic
from tests.engines.integer.one_op import Array
from tests.engines.integer.pointwise.one_function import (
    CODES,
    FIXED,
    FLOATS,
    TABLES,
    TANH_END,
    run,
    run_prelu,
)
from tests.program.one_step import int8, int32, one_step, uint8


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
@pytest.mark.parametrize("kind", [kind for kind in Unary if kind is not Unary.CLAMP])
def test_every_function_is_within_a_step_of_the_real_one(
    kind: Unary, arithmetic: Arithmetic
) -> None:
    data, output = int8(0.03, -100), int8(0.02, -20)
    real = (CODES.astype(np.float64) + 100) * float(data.scale)
    if kind in (Unary.RSQRT, Unary.SQRT, Unary.LOG, Unary.RECIPROCAL):
        data, real = int8(0.03, -128), (CODES.astype(np.float64) + 128) * float(data.scale)
    found = run(Function(kind, 0.2), arithmetic, CODES, data, output)
    with np.errstate(all="ignore"):
        exact = real_values(kind, real, 0.2) / float(output.scale) - 20
    rounded_otherwise = (Unary.HARD_SWISH, Unary.LEAKY_RELU)
    allowed = 1.01 if kind in rounded_otherwise else 0.51
    assert np.abs(found - np.clip(exact, -128, 127)).max() <= allowed


def real_values(kind: Unary, x: Array, parameter: float) -> Array:
    from scipy.special import erf

    normal = x * 0.5 * (1 + erf(x / np.sqrt(2)))
    tanh_like = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    values: dict[Unary, Array] = {
        Unary.LEAKY_RELU: np.where(x < 0, parameter * x, x),
        Unary.SIGMOID: 1 / (1 + np.exp(-x)),
        Unary.TANH: np.tanh(x),
        Unary.HARD_SWISH: x * np.clip(x + 3, 0, 6) / 6,
        Unary.HARD_SIGMOID: np.clip(parameter * x + 0.5, 0, 1),
        Unary.GELU: normal,
        Unary.GELU_TANH: tanh_like,
        Unary.ELU: np.where(x < 0, parameter * np.expm1(x), x),
        Unary.RSQRT: 1 / np.sqrt(x),
        Unary.SQRT: np.sqrt(x),
        Unary.EXP: np.exp(x),
        Unary.LOG: np.log(x),
        Unary.ABS: np.abs(x),
        Unary.NEG: -x,
        Unary.ERF: erf(x),
        Unary.RECIPROCAL: 1 / x,
    }
    return values[kind]


@pytest.mark.parametrize("kind", [Unary.SQRT, Unary.LOG, Unary.RSQRT])
@pytest.mark.parametrize("arithmetic", [TABLES, FLOATS])
def test_what_is_not_defined_is_the_lowest_code(kind: Unary, arithmetic: Arithmetic) -> None:
    codes = np.array([-128, -1], np.int8)
    found = run(Function(kind), arithmetic, codes, int8(0.1), int8(0.1, 5))
    assert found.tolist() == [-128, -128]


@pytest.mark.parametrize("arithmetic", [TABLES, FLOATS])
def test_infinities_saturate(arithmetic: Arithmetic) -> None:
    zero = np.zeros(1, np.int8)
    for kind, expected in ((Unary.RECIPROCAL, 127), (Unary.RSQRT, 127), (Unary.LOG, -128)):
        found = run(Function(kind), arithmetic, zero, int8(0.1), int8(0.1, 5))
        assert found.tolist() == [expected]


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
def test_other_output_encodings_than_the_prescribed_ones(arithmetic: Arithmetic) -> None:
    for output in (int8(1 / 200, -100), int8(1 / 256, -100), uint8(1 / 256, 0)):
        found = run(Function(Unary.SIGMOID), arithmetic, CODES, int8(0.05, 3), output)
        exact = 1 / (1 + np.exp(-(CODES.astype(np.float64) - 3) * 0.05))
        steps = exact / float(output.scale) + int(output.zero_point)
        assert np.abs(found - np.clip(steps, output.quant_min, output.quant_max)).max() <= 0.51


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
def test_bounds_of_a_fused_activation(arithmetic: Arithmetic) -> None:
    data, output = int8(0.05, 3), int8(0.02, -5)
    for kind in (Unary.TANH, Unary.LEAKY_RELU, Unary.HARD_SWISH):
        free = run(Function(kind, 0.5), arithmetic, CODES, data, output)
        bound = run(Function(kind, 0.5, Bounds(-0.1, 0.4)), arithmetic, CODES, data, output)
        assert np.array_equal(bound, np.clip(free, -10, 15))


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
def test_wide_codes_are_computed_and_not_looked_up(arithmetic: Arithmetic) -> None:
    codes = np.arange(-128, 128).astype(np.int32)
    function = Function(Unary.TANH)
    wide = run(function, arithmetic, codes, int32(0.05), TANH_END)
    assert np.array_equal(wide, run(function, arithmetic, CODES, int8(0.05), TANH_END))
    sixteen = Encoding(np.array(0.05, np.float32), np.array(0), -(2**15), 2**15 - 1)
    found = run(function, arithmetic, codes.astype(np.int16), sixteen, TANH_END)
    assert np.array_equal(found, wide)


def test_a_code_outside_the_range_is_taken_for_the_nearest() -> None:
    narrow = Encoding(np.array(0.05, np.float32), np.array(0), -127, 127)
    found = run(Function(Unary.ABS), TABLES, CODES, narrow, int8(0.05))
    assert found[0] == found[1] == 127


@pytest.mark.parametrize("shape", [(0, 3), (), (1,), (2, 1, 3, 5), (2, 0)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    codes = np.full(shape, 7, np.int8)
    assert run(Function(Unary.TANH), TABLES, codes, int8(0.05), TANH_END).shape == shape


def test_strides_are_indifferent() -> None:
    square = CODES.reshape(16, 16)
    found = run(Function(Unary.TANH), TABLES, square.T, int8(0.05), TANH_END)
    assert np.array_equal(found, run(Function(Unary.TANH), TABLES, square, int8(0.05), TANH_END).T)


@pytest.mark.parametrize("encoding", [None, int8([0.1, 0.2], axis=1)])
def test_codes_of_one_scale_are_needed(encoding: Encoding | None) -> None:
    program = one_step(Function(Unary.TANH), TABLES, [((1, 2), encoding)], [((1, 2), TANH_END)])
    with pytest.raises(
        IntactError, match=r"'step' (takes no scales by channel|computes on integers)"
    ):
        functions.prepare_function(program.steps[0], Overflows())


def test_prelu_of_hardware_with_floats() -> None:
    codes, slope = CODES.reshape(16, 16), np.arange(-8, 8).astype(np.int8)
    ends = [int8(0.05, 3), int8(0.1), int8(0.07, -5)]
    real = (codes.astype(np.float32) - 3) * np.float32(0.05)
    sloped = np.where(real < 0, real * (slope * np.float32(0.1)), real)
    expected = np.clip(np.rint(sloped / np.float32(0.07)) - 5, -128, 127)
    assert np.array_equal(run_prelu(FLOATS, codes, slope, ends), expected)
    assert run_prelu(FLOATS, codes[:0], slope, ends).shape == (0, 16)


def test_prelu_takes_a_computed_slope_too() -> None:
    end = int8(0.1)
    program = one_step(PRelu(), TABLES, [((2, 2), end), ((2,), end)], [((2, 2), end)])
    kernel = functions.prepare_prelu(program.steps[0], Overflows())
    codes, slope = np.array([[-50, -50], [50, 7]], np.int8), np.array([20, -10], np.int8)
    assert kernel(codes, slope)[0].tolist() == [[-100, 50], [50, 7]]


def test_prelu_needs_one_scale_for_the_slope() -> None:
    slope = np.ones(2, np.int8), int8([0.1, 0.2], axis=0)
    program = one_step(PRelu(), TABLES, [((1, 2), int8(0.1)), slope], [((1, 2), int8(0.1))])
    with pytest.raises(IntactError, match="no scales by channel, but 'in1'"):
        functions.prepare_prelu(program.steps[0], Overflows())
