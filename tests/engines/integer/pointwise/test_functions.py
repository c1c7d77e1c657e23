"""Functions of one operand against the real functions, and what no runtime has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intact.engines.integer.kernel import Overflows
from intact.engines.integer.pointwise.functions import prepare_function, prepare_prelu
from intact.errors import IntactError
from intact.ops import functions
from intact.ops.functions import Unary
from intact.program import Encoding
from intact.program.operations import Bounds, Function, PRelu
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


def _real(function: Function, x: Array) -> Array:
    """What a function is in float64, by formulas of its own."""
    from scipy.special import erf

    normal = x * 0.5 * (1 + erf(x / np.sqrt(2)))
    tanh_like = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    values: dict[Unary, Array] = {
        functions.leaky_relu: np.where(x < 0, 0.2 * x, x),
        functions.sigmoid: 1 / (1 + np.exp(-x)),
        functions.tanh: np.tanh(x),
        functions.hard_swish: x * np.clip(x + 3, 0, 6) / 6,
        functions.hard_sigmoid: np.clip(0.2 * x + 0.4, 0, 1),
        functions.gelu: tanh_like if function.options else normal,
        functions.elu: np.where(x < 0, 0.2 * np.expm1(x), x),
        functions.mish: x * np.tanh(np.log(1 + np.exp(x))),
        functions.softplus: np.log(1 + np.exp(x)),
        functions.rsqrt: 1 / np.sqrt(x),
        functions.sqrt: np.sqrt(x),
        functions.exp: np.exp(x),
        functions.log: np.log(x),
        functions.absolute: np.abs(x),
        functions.negative: -x,
        functions.erf: erf(x),
        functions.reciprocal: 1 / x,
    }
    return values[function.kind]


_PLAIN = (
    *(functions.sigmoid, functions.tanh, functions.hard_swish, functions.gelu, functions.mish),
    *(functions.softplus, functions.rsqrt, functions.sqrt, functions.exp, functions.log),
    *(functions.absolute, functions.negative, functions.erf, functions.reciprocal),
)
EVERY = (
    *map(Function, _PLAIN),
    Function(functions.gelu, ("tanh",)),
    Function(functions.leaky_relu, (0.2,)),
    Function(functions.elu, (0.2,)),
    Function(functions.hard_sigmoid, (0.2, 0.4)),
)


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
@pytest.mark.parametrize("function", EVERY, ids=lambda each: str(each.kind))
def test_every_function_is_within_a_step_of_the_real_one(
    function: Function, arithmetic: Arithmetic
) -> None:
    data, output = int8(0.03, -100), int8(0.02, -20)
    real = (CODES.astype(np.float64) + 100) * float(data.scale)
    if function.kind in (functions.rsqrt, functions.sqrt, functions.log, functions.reciprocal):
        data, real = int8(0.03, -128), (CODES.astype(np.float64) + 128) * float(data.scale)
    found = run(function, arithmetic, CODES, data, output)
    with np.errstate(all="ignore"):
        exact = _real(function, real) / float(output.scale) - 20
    rounded_otherwise = (functions.hard_swish, functions.leaky_relu)
    allowed = 1.01 if function.kind in rounded_otherwise else 0.51
    assert np.abs(found - np.clip(exact, -128, 127)).max() <= allowed


@pytest.mark.parametrize("kind", [functions.sqrt, functions.log, functions.rsqrt])
@pytest.mark.parametrize("arithmetic", [TABLES, FLOATS])
def test_what_is_not_defined_is_the_lowest_code(kind: Unary, arithmetic: Arithmetic) -> None:
    codes = np.array([-128, -1], np.int8)
    found = run(Function(kind), arithmetic, codes, int8(0.1), int8(0.1, 5))
    assert found.tolist() == [-128, -128]


@pytest.mark.parametrize("arithmetic", [TABLES, FLOATS])
def test_infinities_saturate(arithmetic: Arithmetic) -> None:
    zero = np.zeros(1, np.int8)
    for kind, expected in (
        (functions.reciprocal, 127),
        (functions.rsqrt, 127),
        (functions.log, -128),
    ):
        found = run(Function(kind), arithmetic, zero, int8(0.1), int8(0.1, 5))
        assert found.tolist() == [expected]


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
def test_other_output_encodings_than_the_prescribed_ones(arithmetic: Arithmetic) -> None:
    for output in (int8(1 / 200, -100), int8(1 / 256, -100), uint8(1 / 256, 0)):
        found = run(Function(functions.sigmoid), arithmetic, CODES, int8(0.05, 3), output)
        exact = 1 / (1 + np.exp(-(CODES.astype(np.float64) - 3) * 0.05))
        steps = exact / float(output.scale) + int(output.zero_point)
        assert np.abs(found - np.clip(steps, output.quant_min, output.quant_max)).max() <= 0.51


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
def test_bounds_of_a_fused_activation(arithmetic: Arithmetic) -> None:
    data, output = int8(0.05, 3), int8(0.02, -5)
    leaky = Function(functions.leaky_relu, (0.5,))
    for function in (Function(functions.tanh), leaky, Function(functions.hard_swish)):
        free = run(function, arithmetic, CODES, data, output)
        fused = replace(function, bounds=Bounds(-0.1, 0.4))
        bound = run(fused, arithmetic, CODES, data, output)
        assert np.array_equal(bound, np.clip(free, -10, 15))


@pytest.mark.parametrize("arithmetic", [TABLES, FIXED, FLOATS])
def test_wide_codes_are_computed_and_not_looked_up(arithmetic: Arithmetic) -> None:
    codes = np.arange(-128, 128).astype(np.int32)
    function = Function(functions.tanh)
    wide = run(function, arithmetic, codes, int32(0.05), TANH_END)
    assert np.array_equal(wide, run(function, arithmetic, CODES, int8(0.05), TANH_END))
    sixteen = Encoding(np.array(0.05, np.float32), np.array(0), -(2**15), 2**15 - 1)
    found = run(function, arithmetic, codes.astype(np.int16), sixteen, TANH_END)
    assert np.array_equal(found, wide)


def test_a_code_outside_the_range_is_taken_for_the_nearest() -> None:
    narrow = Encoding(np.array(0.05, np.float32), np.array(0), -127, 127)
    found = run(Function(functions.absolute), TABLES, CODES, narrow, int8(0.05))
    assert found[0] == found[1] == 127


@pytest.mark.parametrize("shape", [(0, 3), (), (1,), (2, 1, 3, 5), (2, 0)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    codes = np.full(shape, 7, np.int8)
    assert run(Function(functions.tanh), TABLES, codes, int8(0.05), TANH_END).shape == shape


def test_strides_are_indifferent() -> None:
    square = CODES.reshape(16, 16)
    found = run(Function(functions.tanh), TABLES, square.T, int8(0.05), TANH_END)
    assert np.array_equal(
        found, run(Function(functions.tanh), TABLES, square, int8(0.05), TANH_END).T
    )


@pytest.mark.parametrize("encoding", [None, int8([0.1, 0.2], axis=1)])
def test_codes_of_one_scale_are_needed(encoding: Encoding | None) -> None:
    program = one_step(Function(functions.tanh), TABLES, [((1, 2), encoding)], [((1, 2), TANH_END)])
    with pytest.raises(
        IntactError, match=r"'step' (takes no scales by channel|computes on integers)"
    ):
        prepare_function(program.steps[0], Overflows())


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
    kernel = prepare_prelu(program.steps[0], Overflows())
    codes, slope = np.array([[-50, -50], [50, 7]], np.int8), np.array([20, -10], np.int8)
    assert kernel(codes, slope)[0].tolist() == [[-100, 50], [50, 7]]


def test_prelu_needs_one_scale_for_the_slope() -> None:
    slope = np.ones(2, np.int8), int8([0.1, 0.2], axis=0)
    program = one_step(PRelu(), TABLES, [((1, 2), int8(0.1)), slope], [((1, 2), int8(0.1))])
    with pytest.raises(IntactError, match="no scales by channel, but 'in1'"):
        prepare_prelu(program.steps[0], Overflows())
