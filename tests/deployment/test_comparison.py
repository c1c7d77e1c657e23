"""Counting differences."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from intact.errors import DataError
from intact.formats.base.comparison import LayerComparison, OutputComparer, differences
from intact.program import Tensor
from tests.program.one_step import int8

CODES = arrays.arrays(np.int8, 7)


@given(CODES, CODES)
def test_integers_are_counted_exactly(
    first: npt.NDArray[np.int8], second: npt.NDArray[np.int8]
) -> None:
    apart = [abs(int(a) - int(b)) for a, b in zip(first, second, strict=True)]
    assert differences(first, second) == (sum(each > 0 for each in apart), max(apart))


def test_types_of_integers_do_not_matter_but_numbers_do() -> None:
    assert differences(np.array([-1], np.int8), np.array([255], np.uint8)) == (1, 256)
    assert differences(np.array([5], np.int64), np.array([5], np.uint8)) == (0, 0)
    assert differences(np.array([True]), np.array([False])) == (1, 1)


@pytest.mark.parametrize(
    ("first", "second", "count", "largest"),
    [
        (1.0, 1.0, 0, 0.0),
        (0.0, -0.0, 0, 0.0),
        (1.0, 1.25, 1, 0.25),
        (math.nan, math.nan, 0, 0.0),
        (math.nan, 1.0, 1, math.inf),
        (math.inf, math.inf, 0, 0.0),
        (math.inf, -math.inf, 1, math.inf),
    ],
)
def test_floats(first: float, second: float, count: int, largest: float) -> None:
    pair = (np.array([first], np.float32), np.array([second], np.float32))
    assert differences(*pair) == (count, largest)


def test_texts_are_compared_too() -> None:
    assert differences(np.array(["a", "b"]), np.array(["a", "c"])) == (1, math.inf)


def test_batches_add_up() -> None:
    layer = LayerComparison("end")
    layer.add(np.array([1, 2, 3], np.int8), np.array([1, 2, 3], np.int8))
    layer.add(np.array([1, 9], np.int8), np.array([1, 2], np.int8))
    layer.add(np.zeros((0, 4), np.int8), np.zeros((0, 4), np.int8))
    assert (layer.values, layer.mismatches, layer.largest) == (5, 1, 7)
    assert layer.rate == 0.2
    assert LayerComparison("").rate == 0


def test_shapes_must_agree() -> None:
    with pytest.raises(DataError, match=r"here: the deployed model gives \[1, 2\], its plan \[2\]"):
        LayerComparison("here").add(np.zeros((1, 2), np.int8), np.zeros(2, np.int8))
    with pytest.raises(DataError, match="output 'y': the deployed model gives"):
        OutputComparer().add("y", np.zeros((1, 2)), np.zeros(2))


def test_the_noise_of_codes_is_that_of_what_they_stand_for() -> None:
    tensor = Tensor("y", (None,), int8(0.5, 10))
    deployed, expected = np.array([10, 14], np.int8), np.array([10, 12], np.int8)
    comparer = OutputComparer()
    comparer.add("y", deployed, expected, tensor)
    comparer.add("y", deployed, deployed, tensor)
    (found,) = comparer.found()
    # Deployed 0, 2, 0, 2; off by 0, 1, 0, 0.
    assert found.sqnr_db == pytest.approx(10 * math.log10(8 / 1))
    assert (found.values, found.mismatches, found.largest) == (4, 1, 2)


def test_equal_outputs_are_identical_and_empty_ones_too() -> None:
    comparer = OutputComparer()
    comparer.add("zero", np.zeros(3, np.float32), np.zeros(3, np.float32))
    comparer.add("none", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert [each.sqnr_db for each in comparer.found()] == [math.inf, math.inf]
