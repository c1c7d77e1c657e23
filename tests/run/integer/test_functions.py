"""Functions of one operand: all 256 codes against LiteRT, TFLM, XNNPACK and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact.config import Rounding
from intact.errors import IntactError
from intact.program import Encoding
from intact.program.operations import Bounds, Function, Operation, PRelu, Unary
from intact.run.integer import functions
from intact.run.integer.kernel import Overflows
from intact.targets import Arithmetic, Functions, Requantize, ScalePrecision
from tests.program.one_step import int8, int32, one_step, uint8
from tests.run.integer.one_op import (
    OPTIMIZED,
    REFERENCE,
    XNNPACK,
    Array,
    End,
    litert,
    micro,
    one_op,
)

TABLES = Arithmetic(requantize=Requantize.FIXED_POINT_DOUBLE, rounding=Rounding.HALF_AWAY_FROM_ZERO)
FIXED = msgspec.structs.replace(TABLES, functions=Functions.FIXED_POINT)
WIDE = msgspec.structs.replace(FIXED, multiplier_precision=ScalePrecision.FLOAT64)
FLOATS = Arithmetic(requantize=Requantize.FLOAT32)
EIGHT_BIT = Arithmetic(requantize=Requantize.FIXED_POINT_SINGLE, multiplier_bits=8)

CODES = np.arange(-128, 128).astype(np.int8)
LOGISTIC_END, TANH_END = int8(1 / 256, -128), int8(1 / 128, 0)


@dataclass(frozen=True)
class Case:
    """An operator of TFLite and what it is here."""

    function: Function
    code: str
    options: Mapping[str, Any] = field(default_factory=dict)
    options_type: str = ""
    version: int = 2

    def model(self, data: Encoding, output: Encoding) -> bytes:
        shape = (1, 256)
        ends = ([End(shape, data)], End(shape, output))
        return one_op(self.code, *ends, self.options, self.options_type, self.version)


def leaky(alpha: float) -> Case:
    function = Function(Unary.LEAKY_RELU, float(np.float32(alpha)))
    return Case(function, "LEAKY_RELU", {"alpha": alpha}, "LeakyReluOptions")


CASES = {
    "relu": Case(Function(Unary.CLAMP, bounds=Bounds(0)), "RELU"),
    "relu6": Case(Function(Unary.CLAMP, bounds=Bounds(0, 6)), "RELU6"),
    "relu_n1_to_1": Case(Function(Unary.CLAMP, bounds=Bounds(-1, 1)), "RELU_N1_TO_1", version=1),
    "relu_0_to_1": Case(Function(Unary.CLAMP, bounds=Bounds(0, 1)), "RELU_0_TO_1", version=1),
    "leaky": leaky(0.13),
    "leaky_negative": leaky(-0.4),
    "logistic": Case(Function(Unary.SIGMOID), "LOGISTIC"),
    "tanh": Case(Function(Unary.TANH), "TANH"),
    "hard_swish": Case(Function(Unary.HARD_SWISH), "HARD_SWISH", version=1),
    "gelu": Case(Function(Unary.GELU), "GELU", {}, "GeluOptions"),
    "gelu_tanh": Case(Function(Unary.GELU_TANH), "GELU", {"approximate": True}, "GeluOptions"),
    "elu": Case(Function(Unary.ELU, 1.0), "ELU", version=1),
    "exp": Case(Function(Unary.EXP), "EXP", {}, "ExpOptions"),
    "log": Case(Function(Unary.LOG), "LOG"),
    "sqrt": Case(Function(Unary.SQRT), "SQRT"),
    "rsqrt": Case(Function(Unary.RSQRT), "RSQRT"),
    "abs": Case(Function(Unary.ABS), "ABS", {}, "AbsOptions"),
}
NOT_NEGATIVE = {"log", "sqrt", "rsqrt"}
"""Their kernels refuse a tensor with a negative number."""
LITERT = dict.fromkeys(CASES, TABLES) | dict.fromkeys(("hard_swish", "rsqrt"), FIXED)
NO_REFERENCE = {"elu"}
MICRO_FUNCTIONS = [
    "relu",
    "leaky",
    "leaky_negative",
    "logistic",
    "tanh",
    "hard_swish",
    "elu",
    "rsqrt",
    "abs",
]


def ends_of(name: str) -> list[tuple[Encoding, Encoding]]:
    """Pairs of encodings: odd ratios, zero points at the ends, equal scales, coarse and fine."""
    pairs = [
        (int8(0.05, 3), int8(0.06, -5)),
        (int8(0.0117, -128), int8(0.0431, 127)),
        (int8(0.1, 127), int8(0.0039, -128)),
        (int8(0.25, 0), int8(0.25, 0)),
        (int8(1 / 64, -60), int8(1 / 128, 31)),
        (int8(0.31, 11), int8(0.2, -90)),
    ]
    if name in NOT_NEGATIVE:
        pairs = [(int8(data.scale, -128), output) for data, output in pairs]
    fixed = {"logistic": LOGISTIC_END, "tanh": TANH_END}.get(name)
    return [(data, fixed or output) for data, output in pairs]


def run(
    operation: Operation, arithmetic: Arithmetic, codes: Array, data: Encoding, output: Encoding
) -> Array:
    program = one_step(operation, arithmetic, [(codes.shape, data)], [(codes.shape, output)])
    kernel = functions.KERNELS[type(operation)](program.steps[0], Overflows())
    (result,) = kernel(codes)
    assert isinstance(result, np.ndarray)
    assert result.dtype == output.dtype
    return result


@pytest.mark.parametrize("kernels", [REFERENCE, OPTIMIZED])
@pytest.mark.parametrize("name", CASES)
def test_litert(name: str, kernels: str) -> None:
    if name in NO_REFERENCE and kernels == REFERENCE:
        pytest.skip("LiteRT has no such reference kernel")
    case = CASES[name]
    for data, output in ends_of(name):
        expected = litert(case.model(data, output), CODES[None], kernels=kernels)
        found = run(case.function, LITERT[name], CODES[None], data, output)
        assert np.array_equal(found, expected), (data, output)


@pytest.mark.parametrize("name", MICRO_FUNCTIONS)
def test_micro(name: str) -> None:
    case = CASES[name]
    for data, output in ends_of(name):
        expected = micro(case.model(data, output), CODES[None])
        found = run(case.function, WIDE, CODES[None], data, output)
        assert np.array_equal(found, expected), (data, output)


def test_micro_clips_at_six_without_a_change_of_scale() -> None:
    case = CASES["relu6"]
    for data in (int8(0.05, 3), int8(0.03, -128)):
        expected = micro(case.model(data, data), CODES[None])
        assert np.array_equal(run(case.function, WIDE, CODES[None], data, data), expected)


@pytest.mark.parametrize(
    ("name", "right", "wrong", "data", "output"),
    [
        ("logistic", TABLES, FIXED, (256, -104), (256, -128)),
        ("logistic", TABLES, FLOATS, (3627, 50), (256, -128)),
        ("tanh", TABLES, FIXED, (32, 69), (512, 0)),
        ("hard_swish", FIXED, TABLES, (2232, -86), (176, -114)),
        ("rsqrt", FIXED, TABLES, (3082, -128), (938, -106)),
        ("gelu", TABLES, FLOATS, (2275, -87), (2338, -84)),
        ("exp", TABLES, FLOATS, (1934, -60), (794, -96)),
        ("log", TABLES, FLOATS, (1860, -128), (1348, -72)),
        ("relu", TABLES, WIDE, (40964 / 16, -128), (40376 / 16, -7)),
        ("leaky", TABLES, WIDE, (40964 / 16, -128), (40376 / 16, -7)),
        ("abs", TABLES, WIDE, (21571 / 16, -128), (28490 / 16, -7)),
    ],
)
def test_where_ways_to_compute_differ_litert_has_this_one(
    name: str,
    right: Arithmetic,
    wrong: Arithmetic,
    data: tuple[float, int],
    output: tuple[float, int],
) -> None:
    """Scales in 65536ths for which at least one code tells the two apart."""
    case = CASES[name]
    ends = int8(data[0] / 65536, data[1]), int8(output[0] / 65536, output[1])
    expected = litert(case.model(*ends), CODES[None])
    assert np.array_equal(run(case.function, right, CODES[None], *ends), expected)
    assert not np.array_equal(run(case.function, wrong, CODES[None], *ends), expected)


@pytest.mark.parametrize(
    ("name", "wrong", "data", "output"),
    [
        ("logistic", TABLES, (256, -104), (256, -128)),
        ("tanh", TABLES, (32, 69), (512, 0)),
        ("relu", FIXED, (40964 / 16, -128), (40376 / 16, -7)),
        ("leaky", FIXED, (40964 / 16, -128), (40376 / 16, -7)),
        ("abs", FIXED, (21571 / 16, -128), (28490 / 16, -7)),
    ],
)
def test_where_ways_to_compute_differ_micro_has_float64_and_fixed_point(
    name: str, wrong: Arithmetic, data: tuple[float, int], output: tuple[float, int]
) -> None:
    case = CASES[name]
    ends = int8(data[0] / 65536, data[1]), int8(output[0] / 65536, output[1])
    expected = micro(case.model(*ends), CODES[None])
    assert np.array_equal(run(case.function, WIDE, CODES[None], *ends), expected)
    assert not np.array_equal(run(case.function, wrong, CODES[None], *ends), expected)


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [("logistic", FLOATS), ("tanh", FLOATS), ("leaky", EIGHT_BIT), ("leaky_negative", EIGHT_BIT)],
)
def test_xnnpack(name: str, arithmetic: Arithmetic) -> None:
    case = CASES[name]
    pairs = ends_of(name)
    if name == "logistic":
        pairs.append((int8(3627 / 65536, 50), LOGISTIC_END))
    for data, output in pairs:
        expected = litert(case.model(data, output), CODES[None], kernels=XNNPACK)
        found = run(case.function, arithmetic, CODES[None], data, output)
        assert np.array_equal(found, expected), (data, output)


@pytest.mark.parametrize(
    ("code", "attributes", "function"),
    [
        ("QLinearSigmoid", {}, Function(Unary.SIGMOID)),
        ("QLinearLeakyRelu", {"alpha": 0.13}, Function(Unary.LEAKY_RELU, float(np.float32(0.13)))),
        ("QLinearLeakyRelu", {"alpha": -0.4}, Function(Unary.LEAKY_RELU, float(np.float32(-0.4)))),
    ],
)
def test_onnx_runtime(code: str, attributes: dict[str, Any], function: Function) -> None:
    import onnxruntime

    codes = np.arange(256).astype(np.uint8)[None]
    for data, output in [
        (uint8(0.05, 128), uint8(1 / 256, 0)),
        (uint8(0.031, 3), uint8(0.0123, 77)),
        (uint8(1 / 64, 200), uint8(1 / 128, 255)),
    ]:
        model = qlinear(code, attributes, data, output)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x": codes})
        assert np.array_equal(run(function, FLOATS, codes, data, output), expected)


def qlinear(code: str, attributes: dict[str, Any], data: Encoding, output: Encoding) -> bytes:
    constants = [
        helper.make_tensor("a", TensorProto.FLOAT, [], [float(data.scale)]),
        helper.make_tensor("b", TensorProto.UINT8, [], [int(data.zero_point)]),
        helper.make_tensor("c", TensorProto.FLOAT, [], [float(output.scale)]),
        helper.make_tensor("d", TensorProto.UINT8, [], [int(output.zero_point)]),
    ]
    names = ["x", "a", "b", "c", "d"]
    node = helper.make_node(code, names, ["y"], domain="com.microsoft", **attributes)
    ends = [helper.make_tensor_value_info(n, TensorProto.UINT8, [1, 256]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(model.SerializeToString())


# ---- what no runtime has -------------------------------------------------------------------------


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
    rounded_otherwise = (Unary.SQRT, Unary.HARD_SWISH, Unary.LEAKY_RELU)
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
        IntactError, match=r"'step' (takes codes of one scale|computes on integers)"
    ):
        functions.prepare_function(program.steps[0], Overflows())


# ---- PRelu ---------------------------------------------------------------------------------------


def prelu(arithmetic: Arithmetic, codes: Array, slope: Array, ends: list[Encoding]) -> Array:
    program = one_step(
        PRelu(), arithmetic, [(codes.shape, ends[0]), (slope, ends[1])], [(codes.shape, ends[2])]
    )
    (found,) = functions.prepare_prelu(program.steps[0], Overflows())(codes)
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("runtime", [REFERENCE, OPTIMIZED, XNNPACK, "micro"])
def test_prelu(runtime: str) -> None:
    generator = np.random.default_rng(3)
    codes = generator.integers(-128, 128, (1, 7, 5, 16)).astype(np.int8)
    slope = generator.integers(-128, 128, (1, 1, 16)).astype(np.int8)
    for ends in (
        [int8(0.05, 3), int8(0.01, 5), int8(0.043, -17)],
        [int8(0.02, -128), int8(0.004, -9), int8(0.007, 100)],
        [int8(7421 / 2**20, -128), int8(0.004, -9), int8(36562 / 2**20, -7)],
    ):
        inputs = [End(codes.shape, ends[0]), End(slope.shape, ends[1], slope)]
        model = one_op("PRELU", inputs, End(codes.shape, ends[2]), version=1)
        if runtime == "micro":
            expected, arithmetic = micro(model, codes), WIDE
        else:
            expected, arithmetic = litert(model, codes, kernels=runtime), TABLES
        assert np.array_equal(prelu(arithmetic, codes, slope, ends), expected)


def test_prelu_of_hardware_with_floats() -> None:
    codes, slope = CODES.reshape(16, 16), np.arange(-8, 8).astype(np.int8)
    ends = [int8(0.05, 3), int8(0.1), int8(0.07, -5)]
    real = (codes.astype(np.float32) - 3) * np.float32(0.05)
    sloped = np.where(real < 0, real * (slope * np.float32(0.1)), real)
    expected = np.clip(np.rint(sloped / np.float32(0.07)) - 5, -128, 127)
    assert np.array_equal(prelu(FLOATS, codes, slope, ends), expected)
    assert prelu(FLOATS, codes[:0], slope, ends).shape == (0, 16)


def test_prelu_takes_a_computed_slope_too() -> None:
    end = int8(0.1)
    program = one_step(PRelu(), TABLES, [((2, 2), end), ((2,), end)], [((2, 2), end)])
    kernel = functions.prepare_prelu(program.steps[0], Overflows())
    codes, slope = np.array([[-50, -50], [50, 7]], np.int8), np.array([20, -10], np.int8)
    assert kernel(codes, slope)[0].tolist() == [[-100, 50], [50, 7]]


def test_prelu_needs_one_scale_for_the_slope() -> None:
    slope = np.ones(2, np.int8), int8([0.1, 0.2], axis=0)
    program = one_step(PRelu(), TABLES, [((1, 2), int8(0.1)), slope], [((1, 2), int8(0.1))])
    with pytest.raises(IntactError, match="'in1' has one a channel"):
        functions.prepare_prelu(program.steps[0], Overflows())
