"""Multiply-accumulate kernels against plain integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.engines.integer import IntegerEngine
from intact.errors import DataError, PlanError
from intact.program import Encoding
from intact.program.operations import (
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
)
from tests.engines.integer.products.exact_layers import (
    ACCUMULATORS,
    RANGES,
    codes,
    convolutions,
    convolve,
    convolve_transposed,
    data_kinds,
    encoding,
    plain,
    run,
)
from tests.program.one_step import int32, one_step


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


def test_layers_without_constant_codes_raise() -> None:
    weights = np.ones((2, 3), np.int8)
    two_scales = Encoding(np.ones(3, np.float32), np.zeros(3, np.int64), -128, 127, 1)
    for inputs, message in (
        ([((1, 3), encoding("int8")), ((2, 3), encoding("int8")), None], "no constant codes"),
        ([((1, 3), two_scales), (weights, encoding("int8")), None], "no scales by channel"),
        ([((1, 3), encoding("int8")), (weights, two_scales), None], "axis 1"),
    ):  # fmt: skip
        program = one_step(FullyConnected(), plain(), inputs, [((1, 2), ACCUMULATORS)])
        with pytest.raises(PlanError, match=message):
            IntegerEngine(program)


def test_data_of_another_shape_raises() -> None:
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


@pytest.mark.parametrize(("lengths", "taps"), [((9000,), (9,)), ((12, 20, 21), (3, 3, 3))])
def test_long_data_of_other_ranks_is_cut_too(
    lengths: tuple[int, ...], taps: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(11)
    data, weights = codes(rng, "int8", (1, *lengths, 20)), codes(rng, "int8", (1, *taps, 20))
    ones, pads = (1,) * len(taps), ((1, 1),) * len(taps)
    operation = Convolution(ones, pads, ones)
    shape = (None,) * data.ndim
    program = one_step(
        operation,
        plain(),
        [(shape, encoding("int8", 11)), (weights, encoding("int8")), None],
        [(shape, ACCUMULATORS)],
    )
    expected = convolve(operation, data.astype(np.int64) - 11, weights.astype(np.int64))
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
def test_data_may_have_any_strides(groups: int) -> None:
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
