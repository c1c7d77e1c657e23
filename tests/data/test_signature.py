"""A batch is taken as the model wants it, or refused with the number of the sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact.data.signature import InputSpec, check_batch
from intact.errors import DataError


def check(dtype: str, array: Any, *, first: int = 0) -> np.ndarray:
    spec = InputSpec(np.dtype(dtype), (None, 2))
    return check_batch("data", {"x": spec}, {"x": np.asarray(array)}, first=first)["x"]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64", "bool", ">f4"])
def test_numbers_become_floats(dtype: str) -> None:
    ready = check("float32", np.array([[0, 1]], dtype=dtype))
    assert ready.dtype == np.float32
    assert ready.dtype.isnative
    assert ready.tolist() == [[0, 1]]


def test_integers_keep_their_values_or_are_refused() -> None:
    assert check("uint8", np.array([[0, 255]])).dtype == np.uint8
    assert check("int64", np.array([[0, 255]], np.uint8)).dtype == np.int64
    for value in (256, -1):
        with pytest.raises(DataError, match="sample 11 holds a number outside the range of uint8"):
            check("uint8", [[0, 0], [0, value]], first=10)
    with pytest.raises(DataError, match="dtype float64, the model takes int64"):
        check("int64", [[0.0, 1.0]])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(value: float) -> None:
    with pytest.raises(DataError, match="sample 12 holds NaN or infinity"):
        check("float32", [[0, 1], [2, 3], [value, value]], first=10)


def test_what_float32_cannot_hold_is_named() -> None:
    with pytest.raises(DataError, match="sample 1 holds a number that is too large for float32"):
        check("float32", [[0, 1], [1e39, 0]])
    with pytest.raises(DataError, match="too large for float16"):
        check("float16", [[0, 70_000]])


@pytest.mark.parametrize("shape", [(), (2,), (1, 3), (1, 2, 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"the model takes \[N, 2\]"):
        check("float32", np.zeros(shape))


def test_a_free_dimension_takes_any_size() -> None:
    spec = InputSpec(np.dtype(np.float32), (4, None, 3))
    assert spec.fixed_batch == 4
    for size in (0, 1, 9):
        batch = {"x": np.zeros((2, size, 3))}
        assert check_batch("data", {"x": spec}, batch, first=0)["x"].shape == (2, size, 3)
