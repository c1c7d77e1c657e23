from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import DataError
from intact.numerics.histogram import (
    BINS,
    Accumulator,
    SampleStatistics,
    accumulate,
    bin_edges,
    is_finite_bin,
    merge,
    new_counts,
    new_workspace,
)

Rows = npt.NDArray[np.float32]
PATTERNS = st.integers(0, 2**32 - 1) | st.sampled_from(
    [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x0000FFFF, 0x00010000, 0x7F7FFFFF,
     0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F800001, 0x3F800000]
)  # fmt: skip


def collect(rows: Rows) -> tuple[npt.NDArray[np.int64], SampleStatistics]:
    counts, workspace = new_counts(), new_workspace()
    statistics = accumulate(rows, counts, workspace)
    assert not workspace.any()
    return counts, statistics


def rows_of(patterns: list[int], samples: int) -> Rows:
    elements = len(patterns) // samples
    bits = np.array(patterns[: samples * elements], dtype=np.uint32)
    return bits.reshape(samples, elements).view(np.float32)


@given(st.lists(PATTERNS, min_size=1, max_size=300), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_every_bit_pattern_is_counted_where_it_belongs(patterns: list[int], samples: int) -> None:
    rows = rows_of(patterns, samples)
    counts, found = collect(rows)
    expected = np.bincount((rows.view(np.uint32) >> 16).ravel(), minlength=BINS)
    assert counts.tolist() == expected.tolist()
    for index, row in enumerate(rows):
        finite = row[np.isfinite(row)]
        assert found.minimum[index] == (finite.min() if finite.size else np.inf)
        assert found.maximum[index] == (finite.max() if finite.size else -np.inf)
        assert found.zeros[index] == np.sum(row == 0)
        exact = sum((Fraction(float(x)) for x in finite), Fraction(0))
        scale = sum((abs(float(x)) for x in finite), 0.0)
        assert abs(found.total[index] - float(exact)) <= scale * len(row) * 2.0**-52
        squares = math.fsum(float(x) ** 2 for x in finite)
        assert abs(found.total_squares[index] - squares) <= squares * len(row) * 2.0**-52


@pytest.mark.parametrize("elements", [1, 3, 4, 127, 128, 129, 4095, 4096, 4097, 20_000])
def test_block_and_lane_boundaries(elements: int) -> None:
    rows = np.random.default_rng(elements).normal(size=(3, elements)).astype(np.float32)
    counts, found = collect(rows)
    assert counts.sum() == rows.size
    assert found.minimum.tolist() == rows.min(axis=1).tolist()
    assert found.maximum.tolist() == rows.max(axis=1).tolist()
    assert np.allclose(found.total, rows.astype(np.float64).sum(axis=1), rtol=1e-12, atol=1e-10)
    squares = (rows.astype(np.float64) ** 2).sum(axis=1)
    assert np.allclose(found.total_squares, squares, rtol=1e-13)


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 5001)).astype(np.float32)
    _, together = collect(rows)
    for index in range(7):
        _, alone = collect(rows[index : index + 1].copy())
        for name in SampleStatistics._fields:
            assert getattr(together, name)[index].tobytes() == getattr(alone, name)[0].tobytes()


@given(st.lists(PATTERNS, min_size=1, max_size=200), st.integers(0, 200))
@settings(deadline=None)
def test_merging_halves_gives_the_whole(patterns: list[int], cut: int) -> None:
    rows = rows_of(patterns, 1)
    whole, _ = collect(rows)
    first, _ = collect(np.ascontiguousarray(rows[:, :cut]))
    second, _ = collect(np.ascontiguousarray(rows[:, cut:]))
    assert merge(first, second).tolist() == merge(second, first).tolist() == whole.tolist()


def test_counts_are_added_to_and_the_workspace_is_used_again() -> None:
    counts, workspace = new_counts(), new_workspace()
    rows = np.array([[1.0, -1.0, 0.0, 2.0]], dtype=np.float32)
    for _ in range(3):
        accumulate(rows, counts, workspace)
    assert counts[0x3F80] == 3
    assert counts.sum() == 12


def test_zeros_are_positive_and_both_are_counted() -> None:
    rows = np.full((1, 200), -0.0, dtype=np.float32)
    _, found = collect(rows)
    assert not np.signbit(found.minimum[0])
    assert not np.signbit(found.maximum[0])
    assert found.zeros[0] == 200


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_inputs(shape: tuple[int, int]) -> None:
    counts, found = collect(np.zeros(shape, dtype=np.float32))
    assert not counts.any()
    assert found.minimum.tolist() == [np.inf] * shape[0]
    assert found.maximum.tolist() == [-np.inf] * shape[0]
    assert found.total.tolist() == [0.0] * shape[0]


def test_read_only_rows_are_accepted() -> None:
    rows = np.ones((2, 3), dtype=np.float32)
    rows.flags.writeable = False
    assert collect(rows)[0][0x3F80] == 6


def test_edges_enclose_exactly_the_values_of_their_bin() -> None:
    low, high = bin_edges()
    finite = is_finite_bin()
    bins = np.arange(BINS, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signalling NaN
        first = (bins << 16).view(np.float32).astype(np.float64)
        last = ((bins << 16) | 0xFFFF).view(np.float32).astype(np.float64)
    positive, negative = finite & (bins < 0x8000), finite & (bins >= 0x8000)
    assert np.array_equal(low[positive], first[positive])
    assert (last[positive] < high[positive]).all()
    assert np.array_equal(high[negative], first[negative])
    assert (low[negative] < last[negative]).all()
    assert np.array_equal(low[0x8001:0xFF80], -high[0x0001:0x7F80])
    assert np.isnan(low[~finite]).all()
    assert np.isfinite(first[finite]).all()
    assert not np.isfinite(first[~finite]).any()
    normal = positive & (bins >= 0x80)
    assert ((high[normal] - low[normal]) / low[normal] <= 2.0**-7).all()


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((2, 3)),
        np.zeros(3, dtype=np.float32),
        np.zeros((4, 4), dtype=np.float32)[:, ::2],
        np.zeros((4, 4), dtype=np.float32).T[1:],
    ],
)
def test_rows_of_another_kind_are_refused(rows: npt.NDArray[np.float32]) -> None:
    with pytest.raises(DataError, match="rows"):
        accumulate(rows, new_counts(), new_workspace())


def test_tables_of_another_kind_are_refused() -> None:
    rows = np.zeros((1, 1), dtype=np.float32)
    with pytest.raises(DataError, match="new_counts"):
        accumulate(rows, np.zeros(10, dtype=np.int64), new_workspace())
    with pytest.raises(DataError, match="new_workspace"):
        accumulate(rows, new_counts(), np.zeros((4, BINS), dtype=np.int32))


def test_many_tensors_in_one_array_are_counted_as_each_alone() -> None:
    random = np.random.default_rng(11)
    sizes = np.array([5, 1, 4100, 0, 257], dtype=np.int64)
    batches = [3, 1, 4]
    accumulator = Accumulator(len(sizes))
    expected = [new_counts() for _ in sizes]
    for samples in batches:
        tensors = [random.normal(size=(samples, n)).astype(np.float32) for n in sizes]
        tensors[2][0, :9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e38, 1e-30, 7.0]
        starts = np.cumsum(samples * sizes) - samples * sizes
        values = np.concatenate([tensor.ravel() for tensor in tensors])
        found = accumulator.add(values, starts, sizes, samples)
        for position, tensor in enumerate(tensors):
            alone = accumulate(tensor, expected[position], new_workspace())
            for field in SampleStatistics._fields:
                together: npt.NDArray[np.floating] = getattr(found, field)
                np.testing.assert_array_equal(together[position], getattr(alone, field))
    np.testing.assert_array_equal(accumulator.counts(), expected)
    np.testing.assert_array_equal(accumulator.counts(), expected)  # reading moves nothing twice


@pytest.mark.parametrize("flush_first", [False, True])
def test_absorbing_another_is_counting_both(flush_first: bool) -> None:
    random = np.random.default_rng(12)
    sizes = np.array([300, 7], dtype=np.int64)
    both, first, second = Accumulator(2), Accumulator(2), Accumulator(2)
    for accumulator in (first, second):
        values = random.normal(size=307 * 2).astype(np.float32)
        starts = np.array([0, 600], dtype=np.int64)
        accumulator.add(values, starts, sizes, 2)
        both.add(values, starts, sizes, 2)
        if flush_first:
            accumulator.counts()
    first.absorb(second)
    np.testing.assert_array_equal(first.counts(), both.counts())
    assert not second.counts().any()
    first.absorb(second)
    np.testing.assert_array_equal(first.counts(), both.counts())


@pytest.mark.parametrize(
    ("starts", "sizes", "samples"),
    [([8], [4], 1), ([-1], [4], 1), ([0], [4], 3), ([0, 0], [1, 1], 1), ([0], [-1], 1)],
)
def test_a_tensor_outside_the_array_is_refused(
    starts: list[int], sizes: list[int], samples: int
) -> None:
    values = np.zeros(10, dtype=np.float32)
    with pytest.raises(DataError):
        Accumulator(1).add(values, np.array(starts), np.array(sizes), samples)
