"""The arithmetic that a target's file says, against the runtime that it describes.

On scales for which ways to compute differ: a field of the file that is wrong or missing shows.
Whole plans of every operator are compared in ``tests/deployment/test_operators.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Encoding
from intact.program.operations import (
    Binary,
    Elementwise,
    Quantize,
    Reduce,
    Reduction,
    Requantize,
)
from intact.targets import Arithmetic, load_target
from tests.engines.integer import test_reductions as means
from tests.engines.integer.hardware import computed, random_codes
from tests.engines.integer.one_op import REFERENCE, XNNPACK, litert, micro
from tests.engines.integer.pointwise import test_elementwise as pairs
from tests.engines.integer.pointwise import test_functions_runtimes as functions
from tests.engines.integer.pointwise.one_function import CODES, run
from tests.engines.integer.products import test_products_runtimes as products
from tests.program.one_step import int8, one_step

RUNTIMES: dict[str, Callable[..., Array]] = {
    "tflite": lambda model, *feeds: litert(model, *feeds, kernels=REFERENCE),
    "tflite-xnnpack": lambda model, *feeds: litert(model, *feeds, kernels=XNNPACK),
    "tflite-micro": micro,
}
each_target = pytest.mark.parametrize("target", RUNTIMES)


def arithmetic(target: str, op_type: str, *, has_matrix: bool = False) -> Arithmetic:
    """Return the arithmetic of an operator; ``has_matrix``: one of its operands is a weight."""
    return load_target(target).arithmetic.for_op(op_type, lambda _: has_matrix)


# ---- products -----------------------------------------------------------------------------------


@pytest.mark.crossed
@each_target
@pytest.mark.parametrize("exponent", [2, 12, 22])
@pytest.mark.parametrize("kind", products.LAYERS)
def test_products_with_constants(kind: str, exponent: int, target: str) -> None:
    described = products.Runtime(
        RUNTIMES[target],
        arithmetic(target, "ConvTranspose" if kind == "transposed" else "Conv"),
        arithmetic(target, "Gemm", has_matrix=True),
        arithmetic(target, "MatMul"),
    )
    products.test_accumulators_next_to_ties(kind, exponent, described)


@each_target
@pytest.mark.parametrize("seed", range(3))
def test_products_of_activations(seed: int, target: str) -> None:
    own = load_target(target).arithmetic.for_op("MatMul", lambda when: when.right_zero_point == 0)
    products.test_products_of_activations_next_to_ties(
        seed, products.Runtime(RUNTIMES[target], own, own, own)
    )


# ---- two operands -------------------------------------------------------------------------------

SENSITIVE = {
    Binary.ADD: ("Add", pairs.SUMS),
    Binary.SUB: ("Sub", pairs.SUMS),
    Binary.MUL: ("Mul", pairs.PRODUCTS),
}


@each_target
@pytest.mark.parametrize("kind", SENSITIVE)
def test_every_pair_of_codes(kind: Binary, target: str) -> None:
    op_type, cases = SENSITIVE[kind]
    for ends in cases:
        inputs = [(pairs.SHAPE, int8(*ends.first)), (pairs.SHAPE, int8(*ends.second))]
        output = (pairs.SHAPE, int8(*ends.output))
        own = arithmetic(target, op_type)
        program = one_step(Elementwise(kind), own, inputs, [output])
        expected = RUNTIMES[target](program_to_tflite(program), pairs.FIRST, pairs.SECOND)
        found = computed(program, pairs.FIRST, pairs.SECOND)
        np.testing.assert_array_equal(found, expected, err_msg=str(ends))


# ---- means --------------------------------------------------------------------------------------


@each_target
@pytest.mark.parametrize("shape", means.SHAPES)
@pytest.mark.parametrize("pair", means.ENDS)
def test_means(shape: tuple[int, ...], pair: tuple[Encoding, Encoding], target: str) -> None:
    codes = random_codes(shape, pair[0])
    ends = [(shape, pair[0])], [((shape[0], shape[3]), pair[1])]
    operation = Reduce(Reduction.MEAN, (1, 2), keep_dims=False)
    program = one_step(operation, arithmetic(target, "ReduceMean"), *ends)
    expected = RUNTIMES[target](program_to_tflite(program), codes)
    np.testing.assert_array_equal(computed(program, codes), expected)


# ---- one operand --------------------------------------------------------------------------------

FUNCTIONS = {
    "relu": "Relu",
    "relu6": "Clip",
    "leaky": "LeakyRelu",
    "leaky_negative": "LeakyRelu",
    "logistic": "Sigmoid",
    "tanh": "Tanh",
    "hard_swish": "HardSwish",
    "gelu": "Gelu",
    "gelu_tanh": "Gelu",
    "elu": "Elu",
    "exp": "Exp",
    "log": "Log",
    "rsqrt": "Sqrt",
    "abs": "Abs",
}
"""Operators by the name of their case."""

ABSENT = {
    "tflite": {"elu"},
    "tflite-xnnpack": set[str](),
    # No change of scale in its RELU6: none is written with one.
    "tflite-micro": {"relu6", "gelu", "gelu_tanh", "exp", "log"},
}
TELLING: dict[str, list[tuple[tuple[float, int], tuple[float, int]]]] = {
    "logistic": [((256, -104), (256, -128)), ((3627, 50), (256, -128))],
    "tanh": [((32, 69), (512, 0))],
    "hard_swish": [((2232, -86), (176, -114))],
    "rsqrt": [((3082, -128), (938, -106))],
    "elu": [
        ((0.218 * 65536, -32), (0.16 * 65536, -49)),
        ((0.035 * 65536, 67), (0.19 * 65536, 109)),
    ],
    "gelu": [((2275, -87), (2338, -84))],
    "exp": [((1934, -60), (794, -96))],
    "log": [((1860, -128), (1348, -72))],
    "relu": [((40964 / 16, -128), (40376 / 16, -7))],
    "leaky": [((40964 / 16, -128), (40376 / 16, -7))],
    "abs": [((21571 / 16, -128), (28490 / 16, -7))],
}
"""Scales in 65536ths, and zero points, for which at least one code tells two arithmetics apart."""


@pytest.mark.parametrize(
    ("name", "target"), [(n, t) for t in RUNTIMES for n in FUNCTIONS if n not in ABSENT[t]]
)
def test_every_code(name: str, target: str) -> None:
    case, own = functions.CASES[name], arithmetic(target, FUNCTIONS[name])
    ends = functions.ends_of(name)
    for data, output in TELLING.get(name, ()):
        first, last = (int8(scale / 65536, zero) for scale, zero in (data, output))
        ends.append((first, last))
    for one, other in ends:
        expected = RUNTIMES[target](case.model(one, other), CODES[None])
        found = run(case.function, own, CODES[None], one, other)
        np.testing.assert_array_equal(found, expected, err_msg=f"{one} {other}")


@each_target
@pytest.mark.parametrize("seed", range(4))
def test_conversions(seed: int, target: str) -> None:
    random = np.random.default_rng(seed)
    scales = random.uniform(0.01, 0.3, 2).astype(np.float32)
    zeros = random.integers(-128, 128, 2)
    rounding = load_target(target).activation.rounding
    data, output = (
        replace(int8(scale, zero), rounding=rounding)
        for scale, zero in zip(scales, zeros, strict=True)
    )
    own = arithmetic(target, "QuantizeLinear")
    program = one_step(Requantize(), own, [((1, 256), data)], [((1, 256), output)])
    expected = RUNTIMES[target](program_to_tflite(program), CODES[None])
    np.testing.assert_array_equal(computed(program, CODES[None]), expected)
    if target == "tflite-micro":
        return  # its programs take codes
    steps = random.integers(-100, 100, 4096) + np.float32(0.5)
    floats = (steps * scales[1]).astype(np.float32)[None]
    program = one_step(Quantize(), own, [((1, 4096), None)], [((1, 4096), output)])
    expected = RUNTIMES[target](program_to_tflite(program), floats)
    np.testing.assert_array_equal(computed(program, floats), expected)
