"""Multiply-accumulate kernels against plain integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import DataError, PlanError
from intact.program import Array, Encoding
from intact.program.operations import (
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    TransposedConvolution,
)
from intact.run.integer import IntegerEngine
from intact.targets.arithmetic import Overflow
from tests.program.one_step import int32, one_step
from tests.run.integer.exact_layers import (
    ACCUMULATORS,
    convolve,
    convolve_transposed,
    plain,
    wrap,
)

ONE = np.float32(1)
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def encoding(dtype: str, zero: Any = 0, axis: int | None = None) -> Encoding:
    low, high = RANGES[dtype]
    zeros = np.asarray(zero, np.int64)
    return Encoding(np.ones(zeros.shape, np.float32), zeros, low, high, axis)


@st.composite
def data_kinds(draw: st.DrawFn) -> tuple[str, int]:
    dtype = draw(st.sampled_from(sorted(RANGES)))
    low, high = RANGES[dtype]
    return dtype, draw(st.sampled_from([low, high, 0, min(7, high)]))


def codes(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return random codes, among them many at the ends of the range."""
    low, high = RANGES[dtype]
    drawn = rng.integers(low, high + 1, shape)
    ends = rng.choice([low, high], shape)
    return np.where(rng.random(shape) < 0.3, ends, drawn).astype(dtype)


def run(
    program: Any, *arrays: Array, expect_overflows: bool = False
) -> tuple[Array, IntegerEngine]:
    engine = IntegerEngine(program)
    for array in arrays:
        array.setflags(write=False)
    feeds = dict(zip(program.inputs, arrays, strict=True))
    result = engine.run(feeds).outputs["out0"]
    assert bool(engine.overflows) == expect_overflows
    return result, engine


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool = False) -> Any:
    """Return an operation with shapes of data and weight."""
    axes = draw(st.integers(1, 3))
    small = st.integers(1, 3)

    def several(strategy: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(strategy) for _ in range(axes))

    kernel, strides, dilations = several(small), several(small), several(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs = draw(st.integers(1, 3))
    outputs = draw(st.integers(1, 3))
    sizes = several(st.integers(1, 5))
    shape = (draw(st.integers(0, 3)), *sizes, groups * inputs)
    pads = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(axes))
    weight = (groups * outputs, *kernel, inputs)
    if transposed:
        extra = tuple(draw(st.integers(0, s - 1)) for s in strides)
        return TransposedConvolution(strides, pads, dilations, extra, groups), shape, weight
    return Convolution(strides, pads, dilations, groups), shape, weight


@settings(max_examples=150, deadline=None)
@given(convolutions(), data_kinds(), st.sampled_from(["int8", "uint8"]), st.integers(0, 2**32 - 1))
def test_convolution_equals_plain_integers(
    case: Any, kind: tuple[str, int], weight_dtype: str, seed: int
) -> None:
    operation, shape, weight_shape = case
    rng = np.random.default_rng(seed)
    dtype, zero = kind
    data, weights = codes(rng, dtype, shape), codes(rng, weight_dtype, weight_shape)
    zeros = rng.integers(*RANGES[weight_dtype], len(weights))
    bias = rng.integers(-(2**20), 2**20, len(weights)).astype(np.int32)
    program = one_step(
        operation,
        plain(),
        [
            (shape, encoding(dtype, zero)),
            (weights, encoding(weight_dtype, zeros, 0)),
            (bias, int32(np.ones(len(weights)), 0)),
        ],
        [((None,) * len(shape), ACCUMULATORS)],
    )
    by_channel = zeros.reshape(-1, *(1,) * (weights.ndim - 1))
    expected = convolve(
        operation, data.astype(np.int64) - zero, weights.astype(np.int64) - by_channel
    )
    result, _ = run(program, data)
    np.testing.assert_array_equal(result, expected + bias)


@settings(max_examples=100, deadline=None)
@given(convolutions(transposed=True), data_kinds(), st.integers(0, 2**32 - 1))
def test_transposed_convolution_equals_plain_integers(
    case: Any, kind: tuple[str, int], seed: int
) -> None:
    operation, shape, weight_shape = case
    rng = np.random.default_rng(seed)
    dtype, zero = kind
    data, weights = codes(rng, dtype, shape), codes(rng, "int8", weight_shape)
    bias = rng.integers(-(2**20), 2**20, len(weights)).astype(np.int32)
    program = one_step(
        operation,
        plain(),
        [(shape, encoding(dtype, zero)), (weights, encoding("int8")), (bias, int32(1))],
        [((None,) * len(shape), ACCUMULATORS)],
    )
    expected = convolve_transposed(
        operation, data.astype(np.int64) - zero, weights.astype(np.int64)
    )
    result, _ = run(program, data)
    np.testing.assert_array_equal(result, expected + bias)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([1, 2, 63, 130, 700]),
    st.integers(1, 5),
    data_kinds(),
    st.integers(0, 2**32 - 1),
)
def test_fully_connected_equals_plain_integers(
    leading: list[int], length: int, channels: int, kind: tuple[str, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dtype, zero = kind
    shape = (*leading, length)
    data, weights = codes(rng, dtype, shape), codes(rng, "int8", (channels, length))
    program = one_step(
        FullyConnected(),
        plain(),
        [(shape, encoding(dtype, zero)), (weights, encoding("int8")), None],
        [((*leading, channels), ACCUMULATORS)],
    )
    expected = (data.astype(np.int64) - zero) @ weights.astype(np.int64).T
    engine = IntegerEngine(program)
    result = engine.run({"in0": data}).outputs["out0"]
    np.testing.assert_array_equal(result, np.clip(expected, -(2**31), 2**31 - 1))


def test_sums_beyond_float32_are_exact() -> None:
    """The worst case: every product has the largest magnitude, 2**24 is left far behind."""
    for dtype, length in (("int8", 4608), ("uint8", 4608), ("int16", 250), ("uint16", 250)):
        low, high = RANGES[dtype]
        data = np.stack([np.full(length, high), np.full(length, low)]).astype(dtype)
        data[0, -1], data[1, -1] = high - 1, low + 1
        weights = np.full((2, length), 127, np.int8)
        weights[1] = -127
        weights[:, 0] = 1
        program = one_step(
            FullyConnected(),
            plain(),
            [((2, length), encoding(dtype, low)), (weights, encoding("int8")), None],
            [((2, 2), ACCUMULATORS)],
        )
        expected = (data.astype(np.int64) - low) @ weights.astype(np.int64).T
        assert abs(expected).max() > 2**24
        result, _ = run(program, data, expect_overflows=False)
        np.testing.assert_array_equal(result, expected)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(
        [((2, 3), (3, 4)), ((0, 3), (3, 4)), ((2, 1, 5, 3), (4, 3, 1)), ((2, 0), (0, 3)),
         ((3, 2, 300), (3, 300, 2)), ((5, 7), (2, 7, 3)), ((1, 1), (1, 1))]
    ),
    data_kinds(),
    data_kinds(),
    st.sampled_from([None, 0, 1]),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_batch_matmul_equals_plain_integers(
    shapes: Any, left: tuple[str, int], right: tuple[str, int], constant: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [
        codes(rng, dtype, shape) for shape, (dtype, _) in zip(shapes, (left, right), strict=True)
    ]
    encodings = [encoding(*left), encoding(*right)]
    inputs: list[Any] = [
        (array if slot == constant else array.shape, encodings[slot])
        for slot, array in enumerate(arrays)
    ]
    values = [a.astype(np.int64) - kind[1] for a, kind in zip(arrays, (left, right), strict=True)]
    expected = np.matmul(*values)
    program = one_step(BatchMatMul(), plain(), inputs, [(expected.shape, ACCUMULATORS)])
    fed = {f"in{slot}": array for slot, array in enumerate(arrays) if slot != constant}
    result = IntegerEngine(program).run(fed).outputs["out0"]
    np.testing.assert_array_equal(result, np.clip(expected, -(2**31), 2**31 - 1))


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from(["int8", "uint8"]), st.integers(0, 2**32 - 1))
def test_pairs_saturate_as_the_instruction_does(case: Any, dtype: str, seed: int) -> None:
    """u8 codes with their zero point times s8, pairs clipped to int16, the zero point corrected."""
    operation, shape, weight_shape = case
    rng = np.random.default_rng(seed)
    weight_shape = (*weight_shape[:-1], weight_shape[-1] + 1)
    shape = (*shape[:-1], weight_shape[-1] * operation.groups)
    data, weights = codes(rng, dtype, shape), codes(rng, "int8", weight_shape)
    zero = int(rng.integers(*RANGES[dtype]))
    program = one_step(
        operation,
        plain(Overflow.PAIR_SATURATE, pair_bits=16),
        [(shape, encoding(dtype, zero)), (weights, encoding("int8")), None],
        [((None,) * len(shape), ACCUMULATORS)],
    )
    move = 128 if dtype == "int8" else 0
    wide = weights.astype(np.int64)
    unsigned = data.astype(np.int64) + move
    sums = wide.reshape(len(wide), -1).sum(axis=1)
    raw = convolve(operation, unsigned, wide, zero + move, pair_bits=16)
    engine = IntegerEngine(program)
    result = engine.run({"in0": data}).outputs["out0"]
    np.testing.assert_array_equal(result, raw - (zero + move) * sums)


def test_saturated_pairs_are_counted() -> None:
    data = np.array([[255, 255, 255, 255, 255], [1, 1, 1, 1, 1]], np.uint8)
    weights = np.array([[127, 127, 127, -127, 127]], np.int8)
    program = one_step(
        FullyConnected(),
        plain(Overflow.PAIR_SATURATE, pair_bits=16),
        [((2, 5), encoding("uint8")), (weights, encoding("int8")), None],
        [((2, 1), ACCUMULATORS)],
    )
    result, engine = run(program, data, expect_overflows=True)
    assert result.tolist() == [[32767 + 0 + 255 * 127], [2 * 127 + 0 + 127]]
    counted = engine.overflows["step"]
    assert (counted.sums, counted.overflows) == (6, 1)
    assert (counted.largest, counted.limit) == (2 * 255 * 127, 32767)


@pytest.mark.parametrize("weights", [np.full((1, 4), 64, np.int8), np.full((1, 4), 255, np.uint8)])
def test_pairs_that_cannot_saturate_are_not_counted(weights: Array) -> None:
    """7-bit weights fit; unsigned ones take instructions that do not saturate."""
    program = one_step(
        FullyConnected(),
        plain(Overflow.PAIR_SATURATE, pair_bits=16),
        [((1, 4), encoding("uint8")), (weights, encoding(str(weights.dtype))), None],
        [((1, 1), ACCUMULATORS)],
    )
    result, _ = run(program, np.full((1, 4), 255, np.uint8), expect_overflows=False)
    assert result.item() == 4 * 255 * int(weights[0, 0])


def test_batch_matmul_saturates_pairs() -> None:
    rng = np.random.default_rng(3)
    left, right = codes(rng, "uint8", (2, 3, 5)), codes(rng, "int8", (2, 5, 4))
    program = one_step(
        BatchMatMul(),
        plain(Overflow.PAIR_SATURATE, pair_bits=16),
        [(left.shape, encoding("uint8", 9)), (right.shape, encoding("int8"))],
        [((2, 3, 4), ACCUMULATORS)],
    )
    padded = [np.pad(left, ((0, 0), (0, 0), (0, 1))), np.pad(right, ((0, 0), (0, 1), (0, 0)))]
    products = padded[0].astype(np.int64)[..., None] * padded[1].astype(np.int64)[:, None]
    pairs = np.clip(products[:, :, 0::2] + products[:, :, 1::2], -32768, 32767).sum(axis=2)
    result, engine = run(program, left, right, expect_overflows=True)
    np.testing.assert_array_equal(result, pairs - 9 * right.astype(np.int64).sum(axis=1)[:, None])
    assert engine.overflows["step"].overflows > 0


@pytest.mark.parametrize("kind", [Overflow.WRAP, Overflow.EXACT])
def test_narrow_accumulators_wrap_or_only_count(kind: Overflow) -> None:
    rng = np.random.default_rng(5)
    data, weights = codes(rng, "int8", (4, 6, 6, 3)), codes(rng, "int8", (5, 3, 3, 3))
    bias = rng.integers(-(2**14), 2**14, 5).astype(np.int32)
    operation = Convolution((1, 1), ((1, 1), (1, 1)), (1, 1))
    program = one_step(
        operation,
        plain(kind, bits=16),
        [(data.shape, encoding("int8", 4)), (weights, encoding("int8")), (bias, int32(1))],
        [((4, 6, 6, 5), ACCUMULATORS)],
    )
    sums = convolve(operation, data.astype(np.int64) - 4, weights.astype(np.int64)) + bias
    result, engine = run(program, data, expect_overflows=True)
    np.testing.assert_array_equal(result, wrap(sums, 16) if kind is Overflow.WRAP else sums)
    counted = engine.overflows["step"]
    assert counted.sums == sums.size
    assert counted.overflows == int(((sums > 32767) | (sums < -32768)).sum()) > 0
    assert (counted.largest, counted.limit) == (int(abs(sums).max()), 32767)


def test_wrapping_at_32_bits_is_modular() -> None:
    """The bias alone fits; the sum leaves int32 by one and comes back at the other end."""
    bias = np.array([2**31 - 1, -(2**31)], np.int32)
    program = one_step(
        FullyConnected(),
        plain(Overflow.WRAP),
        [
            ((1, 1), encoding("int8")),
            (np.array([[1], [-1]], np.int8), encoding("int8")),
            (bias, int32(1)),
        ],
        [((1, 2), ACCUMULATORS)],
    )
    result, engine = run(program, np.ones((1, 1), np.int8), expect_overflows=True)
    assert result.tolist() == [[-(2**31), 2**31 - 1]]
    assert engine.overflows["step"].overflows == 2
    assert engine.overflows["step"].largest == 2**31 + 1


def test_float_output_is_scaled_in_float32() -> None:
    rng = np.random.default_rng(6)
    data, weights = codes(rng, "uint8", (3, 7)), codes(rng, "int8", (2, 7))
    scales = np.array([0.013, 0.4], np.float32)
    bias = np.array([0.1, -7.3], np.float32)
    program = one_step(
        FullyConnected(Bounds(low=-100.0)),
        plain(),
        [
            ((3, 7), Encoding(np.array(0.02, np.float32), np.array(3), 0, 255)),
            (weights, Encoding(scales, np.zeros(2, np.int64), -128, 127, 0)),
            (bias, None),
        ],
        [((3, 2), None)],
    )
    sums = (data.astype(np.int64) - 3) @ weights.astype(np.int64).T
    expected = sums.astype(np.float32) * (np.float32(0.02) * scales) + bias
    assert expected.min() < -100.0
    result, _ = run(program, data)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, np.maximum(expected, np.float32(-100)))


def test_layers_of_other_kinds_are_refused() -> None:
    weights = np.ones((2, 3), np.int8)
    two_scales = Encoding(np.ones(3, np.float32), np.zeros(3, np.int64), -128, 127, 1)
    for inputs, message in (
        ([((1, 3), encoding("int8")), ((2, 3), encoding("int8")), None], "no constant codes"),
        ([((1, 3), two_scales), (weights, encoding("int8")), None], "no single scale"),
        ([((1, 3), encoding("int8")), (weights, two_scales), None], "axis 1"),
        ([((1, 3), encoding("int8")), (weights, encoding("int8")),
          (np.ones(2, np.float32), None)], "float bias"),
    ):  # fmt: skip
        program = one_step(FullyConnected(), plain(), inputs, [((1, 2), ACCUMULATORS)])  # type: ignore[arg-type]
        with pytest.raises(PlanError, match=message):
            IntegerEngine(program)


def test_data_of_another_shape_is_refused() -> None:
    operation = Convolution((1, 1), ((0, 0), (0, 0)), (1, 1))
    weights = np.ones((2, 3, 3, 3), np.int8)
    program = one_step(
        operation,
        plain(),
        [((None, 4, 4, 3), encoding("int8")), (weights, encoding("int8")), None],
        [((None, 2, 2, 2), ACCUMULATORS)],
    )
    with pytest.raises(DataError, match="3 channels"):
        IntegerEngine(program).run({"in0": np.zeros((1, 4, 4, 2), np.int8)})


def test_large_layers_are_cut_into_parts_that_fit_the_cache() -> None:
    """Lines of one image, and images of a batch, come from separate products."""
    rng = np.random.default_rng(8)
    operation = Convolution((1, 1), ((1, 1), (1, 1)), (1, 1))
    weights = codes(rng, "int8", (3, 3, 3, 20))
    for shape in ((1, 70, 61, 20), (9, 23, 17, 20)):
        data = codes(rng, "int8", shape)
        program = one_step(
            operation,
            plain(),
            [((None, None, None, 20), encoding("int8", -5)), (weights, encoding("int8")), None],
            [((None, None, None, 3), ACCUMULATORS)],
        )
        filled = np.pad(data.astype(np.int64) + 5, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(filled, (3, 3), axis=(1, 2))
        expected = np.einsum("nhwcij,oijc->nhwo", windows, weights.astype(np.int64))
        result, _ = run(program, data)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("groups", [1, 4])
def test_negative_pads_cut_off(groups: int) -> None:
    rng = np.random.default_rng(9)
    data, weights = codes(rng, "int8", (2, 7, 8, 4)), codes(rng, "int8", (4, 2, 2, 4 // groups))
    operation = Convolution((1, 2), ((-1, 1), (2, -3)), (1, 1), groups)
    program = one_step(
        operation,
        plain(),
        [(data.shape, encoding("int8", 11)), (weights, encoding("int8")), None],
        [((2, 6, 3, 4), ACCUMULATORS)],
    )
    uncut = Convolution((1, 2), ((0, 1), (2, 0)), (1, 1), groups)
    values = data[:, 1:, :-3].astype(np.int64) - 11
    result, _ = run(program, data)
    np.testing.assert_array_equal(result, convolve(uncut, values, weights.astype(np.int64)))


@pytest.mark.parametrize("groups", [1, 6])
def test_data_may_lie_anyhow(groups: int) -> None:
    """A transposed view of the model's layout gives what a copy of it gives."""
    rng = np.random.default_rng(10)
    data = codes(rng, "uint8", (2, 6, 5, 7)).transpose(0, 2, 3, 1)
    weights = codes(rng, "int8", (6, 3, 1, 6 // groups))
    program = one_step(
        Convolution((1, 1), ((1, 1), (0, 0)), (1, 1), groups),
        plain(),
        [(data.shape, encoding("uint8", 200)), (weights, encoding("int8")), None],
        [((2, 5, 7, 6), ACCUMULATORS)],
    )
    result, _ = run(program, data)
    np.testing.assert_array_equal(result, run(program, data.copy())[0])


def test_constant_data() -> None:
    """A step may have nothing but constants."""
    weights = np.array([[1, 2, 3]], np.int8)
    inputs: list[Any] = [
        (np.array([[4, 5, 6]], np.int8), encoding("int8", 1)), (weights, encoding("int8")), None
    ]  # fmt: skip
    program = one_step(FullyConnected(), plain(), inputs, [((1, 1), ACCUMULATORS)])
    assert IntegerEngine(program).run({}).outputs["out0"].tolist() == [[3 + 8 + 15]]
