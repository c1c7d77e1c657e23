"""Functions of one operand: all 256 codes against LiteRT, TFLM, XNNPACK and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact.ops import functions
from intact.program import Encoding
from intact.program.operations import Bounds, Function
from intact.targets import Arithmetic
from tests.engines.integer.one_op import OPTIMIZED, REFERENCE, XNNPACK, End, litert, micro, one_op
from tests.engines.integer.pointwise.one_function import (
    CODES,
    EIGHT_BIT,
    FIXED,
    FLOATS,
    LOGISTIC_END,
    TABLES,
    TANH_END,
    TRUNCATED,
    WIDE,
    run,
    run_prelu,
)
from tests.program.one_step import int8, uint8

pytestmark = pytest.mark.runtime_fact("onnxruntime")


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
    function = Function(functions.leaky_relu, (float(np.float32(alpha)),))
    return Case(function, "LEAKY_RELU", {"alpha": alpha}, "LeakyReluOptions")


CASES = {
    "relu": Case(Function(functions.clamp, bounds=Bounds(0)), "RELU"),
    "relu6": Case(Function(functions.clamp, bounds=Bounds(0, 6)), "RELU6"),
    "relu_n1_to_1": Case(
        Function(functions.clamp, bounds=Bounds(-1, 1)), "RELU_N1_TO_1", version=1
    ),
    "relu_0_to_1": Case(Function(functions.clamp, bounds=Bounds(0, 1)), "RELU_0_TO_1", version=1),
    "leaky": leaky(0.13),
    "leaky_negative": leaky(-0.4),
    "logistic": Case(Function(functions.sigmoid), "LOGISTIC"),
    "tanh": Case(Function(functions.tanh), "TANH"),
    "hard_swish": Case(Function(functions.hard_swish), "HARD_SWISH", version=1),
    "gelu": Case(Function(functions.gelu), "GELU", {}, "GeluOptions"),
    "gelu_tanh": Case(
        Function(functions.gelu, ("tanh",)), "GELU", {"approximate": True}, "GeluOptions"
    ),
    "elu": Case(Function(functions.elu, (1.0,)), "ELU", version=1),
    "exp": Case(Function(functions.exp), "EXP", {}, "ExpOptions"),
    "log": Case(Function(functions.log), "LOG"),
    "sqrt": Case(Function(functions.sqrt), "SQRT"),
    "rsqrt": Case(Function(functions.rsqrt), "RSQRT"),
    "abs": Case(Function(functions.absolute), "ABS", {}, "AbsOptions"),
}
NOT_NEGATIVE = {"log", "sqrt", "rsqrt"}
"""Their kernels refuse a tensor with a negative number."""
LITERT = (
    dict.fromkeys(CASES, TABLES)
    | dict.fromkeys(("hard_swish", "rsqrt"), FIXED)
    | {"sqrt": TRUNCATED}
)
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


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        (name, kernels)
        for name in CASES
        for kernels in (REFERENCE, OPTIMIZED)
        if not (name in NO_REFERENCE and kernels == REFERENCE)
    ],
)
def test_litert(name: str, kernels: str) -> None:
    case = CASES[name]
    for data, output in ends_of(name):
        expected = litert(case.model(data, output), CODES[None], kernels=kernels)
        found = run(case.function, LITERT[name], CODES[None], data, output)
        assert np.array_equal(found, expected), (data, output)


@pytest.mark.parametrize("name", ["relu", "leaky", "logistic", "tanh", "hard_swish"])
def test_litert_with_unsigned_codes(name: str) -> None:
    case = CASES[name]
    codes = np.arange(256).astype(np.uint8)[None]
    fixed = {"logistic": uint8(1 / 256, 0), "tanh": uint8(1 / 128, 128)}.get(name)
    for data, output in [(uint8(0.05, 131), uint8(0.06, 90)), (uint8(0.013, 0), uint8(0.007, 255))]:
        expected = litert(case.model(data, fixed or output), codes)
        found = run(case.function, LITERT[name], codes, data, fixed or output)
        assert np.array_equal(found, expected), data


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
        ("QLinearSigmoid", {}, Function(functions.sigmoid)),
        (
            "QLinearLeakyRelu",
            {"alpha": 0.13},
            Function(functions.leaky_relu, (float(np.float32(0.13)),)),
        ),
        (
            "QLinearLeakyRelu",
            {"alpha": -0.4},
            Function(functions.leaky_relu, (float(np.float32(-0.4)),)),
        ),
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
        assert np.array_equal(run_prelu(arithmetic, codes, slope, ends), expected)
