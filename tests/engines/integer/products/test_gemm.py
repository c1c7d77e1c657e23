"""Exact matrix products."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.integer.products.gemm import (
    EXACT_FLOAT32,
    EXACT_FLOAT64,
    ExactProduct,
    exact_type,
)


def extreme(rng: np.random.Generator, largest: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return integers up to a magnitude, the last bit in use, many of them extreme."""
    drawn = rng.integers(-largest, largest + 1, shape)
    return np.where(rng.random(shape) < 0.7, rng.choice([-largest, largest], shape), drawn)


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 100])
@pytest.mark.parametrize(
    ("groups", "length", "columns"),
    [
        (1, 1, 1), (1, 9, 4), (3, 5, 7), (1, 0, 3), (1, 3, 0),
        (1, 96, 700), (2, 150, 330), (1, 700, 90), (1, 2000, 40), (1, 300, 17),
    ],
)  # fmt: skip
def test_products_of_any_shape(groups: int, length: int, columns: int, rows: int) -> None:
    """Tiles, their rests, and what is multiplied whole."""
    rng = np.random.default_rng(length)
    weights = extreme(rng, 127, (groups, length, columns))
    data = extreme(rng, 128, (groups, rows, length))
    product = ExactProduct(weights, 128)
    found = product(data.astype(product.dtype))
    assert found.shape == (groups, rows, columns)
    np.testing.assert_array_equal(found, data @ weights)


@pytest.mark.parametrize(
    ("left", "right", "length", "dtype"),
    [
        (128, 127, 1032, np.float32),  # just below 2**24
        (128, 127, 1033, np.float32),  # blocks of K
        (128, 127, 5000, np.float32),
        (127, 127, 2001, np.float32),  # one sum is odd and twice as large as float32 holds
        (32768, 127, 300, np.float64),
        (32768, 32767, 500, np.float64),
        (2**31, 2**24, 3, np.int64),
    ],
)
def test_the_worst_case_is_exact(left: int, right: int, length: int, dtype: type) -> None:
    """All products have one sign, and sums are odd: the lowest bit is there to be lost."""
    weights = np.full((1, length, 3), right)
    weights[0, :, 1] *= -1
    weights[0, -1] = 1
    rows = np.full((1, 2, length), left)
    rows[0, 1, -1] = 1
    product = ExactProduct(weights, left)
    assert product.dtype == dtype
    np.testing.assert_array_equal(product(rows.astype(dtype)), rows @ weights)


def test_large_weights_are_not_put_into_blocks_that_cannot_hold_one() -> None:
    weights = np.zeros((1, 200, 1), np.int64)
    weights[0, 7] = 2**20 + 1
    weights[0, 8] = 1
    product = ExactProduct(weights, 2**10 + 1)
    rows = np.full((1, 1, 200), 2**10 + 1)
    np.testing.assert_array_equal(product(rows.astype(product.dtype)), rows @ weights)


def test_types_change_where_they_stop_being_exact() -> None:
    assert exact_type(EXACT_FLOAT32) == np.float32
    assert int(np.float32(EXACT_FLOAT32 - 1)) == EXACT_FLOAT32 - 1
    assert int(np.float64(EXACT_FLOAT64 - 1)) == EXACT_FLOAT64 - 1
    assert np.float32(EXACT_FLOAT32) + np.float32(1) == np.float32(EXACT_FLOAT32)
    assert exact_type(EXACT_FLOAT32 + 1) == np.float64
    assert exact_type(EXACT_FLOAT64) == np.float64
    assert exact_type(EXACT_FLOAT64 + 1) == np.int64
