"""Results for every code, looked up."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.integer.pointwise.conversions import (
    every_code,
    look_up,
    look_up_pairs,
    table_bits,
)
from intact.program import Array, Encoding
from tests.program.one_step import int8, int32, uint8


def _of_bits(bits: int, *, signed: bool) -> Encoding:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return Encoding(np.ones((), np.float32), np.zeros((), np.int64), low, high)


@pytest.mark.parametrize("bits", [4, 8, 12, 16])
@pytest.mark.parametrize("signed", [False, True])
def test_every_code_is_found_under_itself(bits: int, signed: bool) -> None:
    encoding = _of_bits(bits, signed=signed)
    codes = every_code(encoding)
    assert codes.dtype == encoding.dtype
    assert len(codes) == 2 ** table_bits(encoding)
    shuffled = np.random.default_rng(0).permutation(codes)
    np.testing.assert_array_equal(look_up(codes, shuffled), shuffled)


def test_what_has_no_table() -> None:
    assert table_bits(None) == 0
    assert table_bits(int32(1.0)) == 0
    assert table_bits(int8([1.0, 2.0], axis=0)) == 0


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((), (2,)), ((3, 1), (1, 4))])
def test_pairs_of_unlike_types_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    encodings = int8(1.0), uint8(1.0)
    generator = np.random.default_rng(1)
    first, second = (
        generator.integers(e.quant_min, e.quant_max, shape, endpoint=True).astype(e.dtype)
        for e, shape in zip(encodings, shapes, strict=True)
    )
    rows, columns = (every_code(encoding).astype(np.int32) for encoding in encodings)
    table: Array = rows[:, None] - columns
    found = look_up_pairs(table, np.asarray(first), np.asarray(second))
    np.testing.assert_array_equal(found, np.int32(first) - np.int32(second))


def test_any_memory_order_and_none() -> None:
    table = every_code(int8(1.0))
    codes = np.arange(-60, 60).astype(np.int8).reshape(2, 5, 12)[:, ::2].T
    np.testing.assert_array_equal(look_up(table, codes), codes)
    assert look_up(table, codes[:0]).shape == (0, 3, 2)
