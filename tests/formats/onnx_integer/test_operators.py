"""Every operation as ONNX operators on integers in ONNX Runtime, against the integer engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.formats.onnx_integer.run import OnnxIntegerRuntime
from intact.formats.onnx_integer.write import write_onnx_integer
from intact.ops import functions
from intact.program import Array, Program
from intact.program import operations as ops
from intact.program.operations import Binary
from intact.targets import Arithmetic, FixedPoint, Functions, Product, Wrap
from intact.targets import ZeroPointOrder as Order
from tests.formats.c import cases, window_cases
from tests.program.one_step import int8, int32, one_step, uint8, with_options

DOUBLE, SHIFT = cases.DOUBLE, cases.SHIFT
SINGLE = with_options(DOUBLE, product=Product.SINGLE)
POWERS, ANY = cases.Scales(powers=True), cases.Scales()
Cases = Callable[[Arithmetic, cases.Scales], dict[str, Program]]
MAKERS = (cases.convolutions, cases.pairs, window_cases.windows)
each_maker = pytest.mark.parametrize("make", MAKERS)


def run(program: Program, fed: Mapping[str, Array]) -> dict[str, Array]:
    return OnnxIntegerRuntime(write_onnx_integer(program), threads=1).run(fed)


def assert_same(program: Program, fed: Mapping[str, Array]) -> None:
    """Compare all outputs with the engine's, types and shapes too."""
    found, wanted = run(program, fed), IntegerEngine(program).run(fed).outputs
    wrong = {}
    for name, codes in wanted.items():
        assert (found[name].dtype, found[name].shape) == (codes.dtype, codes.shape), name
        if not np.array_equal(found[name], codes):
            wrong[name] = int(np.count_nonzero(found[name] != codes))
    assert wrong == {}


def assert_all_same(programs: Mapping[str, Program], count: int = 20) -> None:
    """Compare many as one model; each must be able to fail."""
    program = cases.joined(programs)
    fed = cases.feeds(program, count)
    assert_same(program, fed)
    for name, codes in IntegerEngine(program).run(fed).outputs.items():
        assert len(np.unique(codes)) > 3, f"{name} can hardly fail"


@each_maker
@pytest.mark.parametrize("arithmetic", [DOUBLE, SINGLE], ids=["double", "single"])
def test_fixed_point(make: Cases, arithmetic: Arithmetic) -> None:
    programs = make(arithmetic, ANY)
    if arithmetic is SINGLE:  # which interpolates with floats
        programs = {name: each for name, each in programs.items() if "linear" not in name}
    assert_all_same(programs)


@each_maker
@pytest.mark.parametrize(
    "rounding", [Rounding.HALF_UP, Rounding.HALF_EVEN, Rounding.HALF_TOWARD_ZERO]
)
def test_shifts(make: Cases, rounding: Rounding) -> None:
    assert_all_same(make(msgspec.structs.replace(SHIFT, rounding=rounding), POWERS))


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (window_cases.windows, {"zero_point": Order.BEFORE_ROUNDING}),
        (cases.convolutions, {"rounding": Rounding.HALF_UP}),
        (cases.convolutions, {"requantize": FixedPoint(Product.DOUBLE)}),
        (cases.convolutions, {"accumulator": Wrap(16)}),
    ],
)
def test_other_arithmetic(make: Cases, fields: dict[str, object]) -> None:
    assert_all_same(make(msgspec.structs.replace(DOUBLE, **fields), ANY))


@each_maker
def test_a_zero_point_before_rounding(make: Cases) -> None:
    arithmetic = msgspec.structs.replace(
        SHIFT, zero_point=Order.BEFORE_ROUNDING, rounding=Rounding.HALF_AWAY_FROM_ZERO
    )
    assert_all_same(make(arithmetic, POWERS))


def test_moves() -> None:
    assert_all_same(window_cases.moves())


def test_functions_are_tables_and_softmax_is_integers() -> None:
    programs = window_cases.functions()
    logarithms = [name for name in programs if name.startswith("log_softmax")]
    assert logarithms
    assert_all_same({name: each for name, each in programs.items() if name not in logarithms})


@pytest.mark.parametrize("length", [1, 2, 3, 1000])
def test_softmax_of_rows(length: int) -> None:
    program = one_step(
        ops.Softmax(1),
        DOUBLE,
        [((None, length), int8(0.07, 3))],
        [((None, length), int8(2**-8, -128))],
    )
    rng = np.random.default_rng(length)
    codes = rng.integers(-128, 128, (40, length)).astype(np.int8)
    codes[0], codes[1], codes[2] = -128, 127, rng.choice([-128, 127], length)
    assert_same(program, {"in0": codes})


def test_unsigned_codes() -> None:
    weight = np.arange(-60, 60, 10, dtype=np.int8).reshape(4, 3)
    program = one_step(
        ops.FullyConnected(),
        DOUBLE,
        [((None, 3), uint8(0.02, 77)), (weight, int8(0.01)), None],
        [((None, 4), uint8(0.03, 120))],
    )
    codes = np.random.default_rng(0).integers(0, 256, (50, 3)).astype(np.uint8)
    assert_same(program, {"in0": codes})


@pytest.mark.parametrize("zero", [-128, -3, 127])
def test_weights_with_a_zero_point(zero: int) -> None:
    weight = np.random.default_rng(1).integers(-128, 128, (4, 3, 3, 2)).astype(np.int8)
    conv = ops.Convolution((1, 1), ((1, 1), (0, 2)), (1, 1))
    program = one_step(
        conv,
        DOUBLE,
        [((None, 5, 5, 2), int8(0.02, 7)), (weight, int8(0.01, zero)), None],
        [((None, 5, 5, 4), int8(0.1, -9))],
    )
    codes = np.random.default_rng(2).integers(-128, 128, (9, 5, 5, 2)).astype(np.int8)
    assert_same(program, {"in0": codes})


def test_sums_that_leave_32_bits_wrap() -> None:
    weight = np.full((2, 140_000), 127, np.int8)
    weight[1] = -127
    arithmetic = msgspec.structs.replace(SHIFT, accumulator=Wrap())
    bias = np.array([7, -9], np.int32)
    program = one_step(
        ops.FullyConnected(),
        arithmetic,
        [((None, 140_000), int8(1.0)), (weight, int8(1.0)), (bias, int32(1.0))],
        [((None, 2), int8(2.0**25))],
    )
    codes = np.full((3, 140_000), 127, np.int8)
    codes[1], codes[2, ::2] = -128, -128
    engine = IntegerEngine(program)
    assert_same(program, {"in0": codes})
    engine.run({"in0": codes})
    assert sum(each.overflows for each in engine.overflows.values()) >= 4


@settings(max_examples=40, deadline=None)
@given(
    ratio=st.floats(2.0**-40, 2.0**12),
    source=st.integers(-128, 127),
    target=st.integers(-128, 127),
    product=st.sampled_from([Product.DOUBLE, Product.SINGLE]),
    rounding=st.sampled_from([Rounding.HALF_AWAY_FROM_ZERO, Rounding.HALF_UP]),
)
def test_every_multiplier(
    ratio: float, source: int, target: int, product: Product, rounding: Rounding
) -> None:
    arithmetic = msgspec.structs.replace(with_options(DOUBLE, product=product), rounding=rounding)
    codes = np.arange(-128, 128, dtype=np.int8)[:, None]
    ends = int8(np.float32(ratio), source), int8(np.float32(1), target)
    program = one_step(ops.Requantize(), arithmetic, [((None, 1), ends[0])], [((None, 1), ends[1])])
    assert_same(program, {"in0": codes})


@settings(max_examples=40, deadline=None)
@given(
    exponent=st.integers(-45, 20),
    bias=st.integers(-(2**31), 2**31 - 1),
    rounding=st.sampled_from(list(Rounding)),
    zero=st.integers(-128, 127),
    order=st.sampled_from(list(Order)),
)
@example(  # 2**31, which ONNX Runtime's own Clip takes for less than 127
    exponent=15, bias=49280, rounding=Rounding.HALF_EVEN, zero=0, order=Order.AFTER_ROUNDING
)
def test_every_shift(exponent: int, bias: int, rounding: Rounding, zero: int, order: Order) -> None:
    arithmetic = msgspec.structs.replace(
        SHIFT, rounding=rounding, zero_point=order, accumulator=Wrap()
    )
    weight = np.array([[127], [-127], [1], [0]], np.int8)
    program = one_step(
        ops.FullyConnected(),
        arithmetic,
        [
            ((None, 1), int8(1.0)),
            (weight, int8(2.0**exponent)),
            (np.full(4, bias, np.int32), int32(2.0**exponent)),
        ],
        [((None, 4), int8(1.0, zero))],
    )
    assert_same(program, {"in0": np.arange(-128, 128, dtype=np.int8)[:, None]})


@settings(max_examples=25, deadline=None)
@given(
    scales=st.tuples(*[st.floats(1e-4, 1.0)] * 3),
    zeros=st.tuples(*[st.integers(-128, 127)] * 3),
    kind=st.sampled_from([Binary.ADD, Binary.SUB, Binary.MUL]),
    single=st.booleans(),
)
def test_all_pairs_of_codes(
    scales: tuple[float, ...], zeros: tuple[int, ...], kind: Binary, single: bool
) -> None:
    first, second, output = (
        int8(np.float32(scale), zero) for scale, zero in zip(scales, zeros, strict=True)
    )
    program = one_step(
        ops.Elementwise(kind),
        SINGLE if single else DOUBLE,
        [((None, 256, 1), first), ((None, 1, 256), second)],
        [((None, 256, 256), output)],
    )
    codes = np.arange(-128, 128, dtype=np.int8)
    assert_same(program, {"in0": codes[None, :, None], "in1": codes[None, None, :]})


def test_functions_of_16_bits_are_tables_too() -> None:
    wide = msgspec.structs.replace(DOUBLE, functions=Functions.FLOAT32)
    source, output = (
        replace(encoding, quant_min=-(2**15), quant_max=2**15 - 1)
        for encoding in (int8(1e-4, 12), int8(2.0**-15))
    )
    program = one_step(
        ops.Function(functions.tanh), wide, [((None, 4), source)], [((None, 4), output)]
    )
    codes = np.arange(-(2**15), 2**15, dtype=np.int16).reshape(-1, 4)
    assert_same(program, {"in0": codes})


def test_lookups_count_from_both_ends() -> None:
    table = np.arange(-40, 44, 7, dtype=np.int8).reshape(6, 2)
    program = one_step(
        ops.Lookup(0), DOUBLE, [(table, int8(0.1)), ((None, 3), None)], [((None, 3, 2), int8(0.1))]
    )
    (step,) = program.steps
    index = replace(step.activations[0], plain=np.dtype(np.int64))
    step = replace(step, inputs=(step.inputs[0], index))
    program = replace(program, inputs={"in1": index}, steps=(step,))
    assert_same(program, {"in1": np.array([[0, 5, -6], [-1, 2, 3]])})
