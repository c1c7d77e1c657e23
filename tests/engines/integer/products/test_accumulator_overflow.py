"""Sums that leave the accumulator: they wrap, saturate in pairs, or are only counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.engines.integer import IntegerEngine
from intact.program import Array
from intact.program.operations import (
    BatchMatMul,
    Convolution,
    FullyConnected,
)
from intact.targets import Exact, PairSaturate, Wrap
from intact.targets.arithmetic import Accumulator
from tests.engines.integer.products.exact_layers import (
    ACCUMULATORS,
    RANGES,
    codes,
    convolutions,
    convolve,
    encoding,
    plain,
    run,
    wrap,
)
from tests.program.one_step import int32, one_step


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
        plain(PairSaturate(pair_bits=16)),
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
        plain(PairSaturate(pair_bits=16)),
        [((2, 5), encoding("uint8")), (weights, encoding("int8")), None],
        [((2, 1), ACCUMULATORS)],
    )
    result, engine = run(program, data, expect_overflows=True)
    assert result.tolist() == [[32767 + 0 + 255 * 127], [2 * 127 + 0 + 127]]
    counted = engine.overflows["step"]
    assert (counted.sums, counted.overflows) == (6, 1)
    assert (counted.largest, counted.limit) == (2 * 255 * 127, 32767)


def test_sums_of_pairs_are_not_counted_beside_the_pairs() -> None:
    """What is counted is one thing, of one limit, also where sums may leave a narrow register."""
    data, weights = np.full((1, 8), 255, np.uint8), np.full((1, 8), 127, np.int8)
    program = one_step(
        FullyConnected(),
        plain(PairSaturate(bits=17, pair_bits=16)),
        [((1, 8), encoding("uint8")), (weights, encoding("int8")), None],
        [((1, 1), ACCUMULATORS)],
    )
    _, engine = run(program, data, expect_overflows=True)
    counted = engine.overflows["step"]
    assert (counted.sums, counted.overflows, counted.limit) == (4, 4, 32767)


@pytest.mark.parametrize("weights", [np.full((1, 4), 64, np.int8), np.full((1, 4), 255, np.uint8)])
def test_pairs_that_cannot_saturate_are_not_counted(weights: Array) -> None:
    """7-bit weights fit; unsigned ones take instructions that do not saturate."""
    program = one_step(
        FullyConnected(),
        plain(PairSaturate(pair_bits=16)),
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
        plain(PairSaturate(pair_bits=16)),
        [(left.shape, encoding("uint8", 9)), (right.shape, encoding("int8"))],
        [((2, 3, 4), ACCUMULATORS)],
    )
    padded = [np.pad(left, ((0, 0), (0, 0), (0, 1))), np.pad(right, ((0, 0), (0, 1), (0, 0)))]
    products = padded[0].astype(np.int64)[..., None] * padded[1].astype(np.int64)[:, None]
    pairs = np.clip(products[:, :, 0::2] + products[:, :, 1::2], -32768, 32767).sum(axis=2)
    result, engine = run(program, left, right, expect_overflows=True)
    np.testing.assert_array_equal(result, pairs - 9 * right.astype(np.int64).sum(axis=1)[:, None])
    assert engine.overflows["step"].overflows > 0


@pytest.mark.parametrize("accumulator", [Wrap(16), Exact(16)])
def test_narrow_accumulators_wrap_or_only_count(accumulator: Accumulator) -> None:
    rng = np.random.default_rng(5)
    data, weights = codes(rng, "int8", (4, 6, 6, 3)), codes(rng, "int8", (5, 3, 3, 3))
    bias = rng.integers(-(2**14), 2**14, 5).astype(np.int32)
    operation = Convolution((1, 1), ((1, 1), (1, 1)), (1, 1))
    program = one_step(
        operation,
        plain(accumulator),
        [(data.shape, encoding("int8", 4)), (weights, encoding("int8")), (bias, int32(1))],
        [((4, 6, 6, 5), ACCUMULATORS)],
    )
    sums = convolve(operation, data.astype(np.int64) - 4, weights.astype(np.int64)) + bias
    result, engine = run(program, data, expect_overflows=True)
    np.testing.assert_array_equal(result, wrap(sums, 16) if isinstance(accumulator, Wrap) else sums)
    counted = engine.overflows["step"]
    assert counted.sums == sums.size
    assert counted.overflows == int(((sums > 32767) | (sums < -32768)).sum()) > 0
    assert (counted.largest, counted.limit) == (int(abs(sums).max()), 32767)


def test_wrapping_at_32_bits_is_modular() -> None:
    """The bias alone fits; the sum leaves int32 by one and comes back at the other end."""
    bias = np.array([2**31 - 1, -(2**31)], np.int32)
    program = one_step(
        FullyConnected(),
        plain(Wrap()),
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
