"""Distributions and weights of a report against what they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.analyze.report.distributions import channels_of, clipped_share, histogram_of
from intact.calibrate.statistics import TensorStatistics
from intact.numerics.histogram import accumulate, new_workspace


def _observed(values: np.ndarray) -> TensorStatistics:
    found = TensorStatistics()
    rows = np.ascontiguousarray(values.reshape(1, -1), np.float32)
    found.add(accumulate(rows, found.counts, new_workspace()))
    return found


def test_a_histogram_counts_what_was_observed() -> None:
    values = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    found = histogram_of(_observed(values))
    assert found is not None
    wanted, _ = np.histogram(values, bins=len(found.bins))
    np.testing.assert_allclose(found.bins, wanted * 1e6 / values.size, atol=600)
    assert sum(found.bins) == pytest.approx(1e6, abs=100)
    assert found.values == values.size
    assert found.low == pytest.approx(values.min(), rel=1e-3)
    assert found.deviation == pytest.approx(values.std(), rel=1e-3)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50))
def test_every_value_is_in_a_bin(values: list[float]) -> None:
    found = histogram_of(_observed(np.array(values, np.float32)))
    assert found is not None
    assert sum(found.bins) == pytest.approx(1e6, abs=64)
    assert min(found.bins) >= 0


def test_one_value_among_millions_is_shown() -> None:
    values = np.zeros(3_000_000, np.float32)
    values[0], values[1] = 9, 1
    found = histogram_of(_observed(values))
    assert found is not None
    assert found.bins[-1] == 1
    assert found.zeros == pytest.approx(1.0, abs=1e-3)


def test_a_constant_is_one_bin_and_nothing_is_none() -> None:
    constant = histogram_of(_observed(np.full(8, 2.0)))
    assert constant is not None
    assert constant.bins == (1_000_000,)
    assert histogram_of(TensorStatistics()) is None


def test_the_clipped_share_is_what_lies_outside() -> None:
    values = np.linspace(0, 10, 10_001)
    assert clipped_share(_observed(values), 0.0, 9.0) == pytest.approx(0.1, abs=0.004)
    assert clipped_share(_observed(values), -1.0, 11.0) == 0


def test_channels_hold_ranges_and_noise() -> None:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(3, 4, 2)).astype(np.float32)
    weight[1] *= 10
    quantized = np.round(weight * 8) / 8
    quantized[2] = weight[2]
    found = channels_of(weight, quantized.astype(np.float32), 0)
    assert found is not None
    flat = weight.reshape(3, -1)
    np.testing.assert_allclose(np.array(found.low) * found.unit, flat.min(axis=1), atol=found.unit)
    np.testing.assert_allclose(np.array(found.high) * found.unit, flat.max(axis=1), atol=found.unit)
    noise = np.square(weight - quantized).reshape(3, -1).sum(axis=1)[:2]
    wanted = 10 * np.log10(np.square(flat[:2]).sum(axis=1) / noise)
    assert found.sqnr_db[:2] == tuple(np.rint(wanted).astype(int))
    assert found.sqnr_db[2] is None  # the same


def test_many_channels_are_grouped_and_the_worst_is_kept() -> None:
    weight = np.ones((10, 2), np.float32)
    quantized = weight.copy()
    quantized[7] = 0.5
    found = channels_of(weight, quantized, 0, most=5)
    assert found is not None
    assert found.count == 10
    assert found.sqnr_db == (None, None, None, 6, None)
    assert len(found.low) == 5


@pytest.mark.parametrize("weight", [np.zeros((2, 0)), np.zeros(0)])
def test_a_weight_without_elements_has_no_channels(weight: np.ndarray) -> None:
    assert channels_of(weight.astype(np.float32), weight.astype(np.float32), 0) is None
