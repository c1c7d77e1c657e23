from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import CalibrationError
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.threshold_kl import divergences
from intact.numerics.thresholds import estimate_range

SIGNED = Levels(-127, 127, Scheme.SYMMETRIC)


def reference_divergence(mass: npt.NDArray[np.float64], groups: int, kept: int) -> float:
    """Follow the published procedure step by step, bin by bin."""
    reference = mass[:kept].copy()
    reference[-1] += mass[kept:].sum()
    quantized = np.zeros(kept)
    for group in range(groups):
        start, stop = kept * group // groups, kept * (group + 1) // groups
        filled = reference[start:stop] > 0
        if filled.any():
            quantized[start:stop][filled] = mass[start:stop].sum() / filled.sum()
    if not quantized.sum() or ((reference > 0) & (quantized == 0)).any():
        return float("inf")
    reference /= reference.sum()
    quantized /= quantized.sum()
    filled = reference > 0
    return float(np.sum(reference[filled] * np.log(reference[filled] / quantized[filled])))


@given(
    mass=st.lists(st.integers(0, 20) | st.just(0), min_size=8, max_size=80),
    groups=st.integers(1, 8),
)
@settings(max_examples=200, deadline=None)
def test_prefix_sums_give_the_published_divergence(mass: list[int], groups: int) -> None:
    if not any(mass):
        return
    array = np.array(mass, dtype=np.float64)
    kept = np.arange(groups, array.size + 1)
    expected = [reference_divergence(array, groups, int(k)) for k in kept]
    assert np.allclose(divergences(array, groups, kept), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("levels", [SIGNED, Levels(-7, 7, Scheme.SYMMETRIC)])
@pytest.mark.parametrize("name", ["gauss", "laplace", "tail"])
def test_the_search_finds_nearly_the_least_divergence(name: str, levels: Levels) -> None:
    rng = np.random.default_rng(4)
    number = 200_000
    values = {
        "gauss": rng.normal(size=number),
        "laplace": rng.laplace(size=number),
        "tail": rng.standard_t(3, size=number),
    }[name].astype(np.float32)
    distribution = Distribution.from_values(values)
    groups, bins = levels.quant_max + 1, 4096
    maximum = float(np.abs(values).max())
    exact_mass = np.histogram(np.abs(values), bins, (0.0, maximum))[0].astype(np.float64)
    least = divergences(exact_mass, groups, np.arange(groups, bins + 1)).min()
    _, threshold = estimate_range(distribution, levels, "kl", bins=bins)
    # Single candidates of the exact, sparse tail jump to infinity; the histogram resolves 1 %.
    kept = round(threshold / maximum * bins)
    around = np.arange(kept - kept // 100 - 1, min(kept + kept // 100 + 1, bins) + 1)
    assert divergences(exact_mass, groups, around[around >= groups]).min() <= 1.1 * least


def test_long_tails_are_clipped_where_minmax_keeps_them() -> None:
    rng = np.random.default_rng(0)
    bulk_and_outlier = np.append(rng.normal(size=100_000), 100.0).astype(np.float32)
    heavy = rng.standard_t(3, size=100_000).astype(np.float32)
    for values, factor in ((bulk_and_outlier, 10.0), (heavy, 1.5)):
        distribution = Distribution.from_values(values)
        for levels in (SIGNED, Levels(0, 255, Scheme.ONE_SIDED)):
            _, by_divergence = estimate_range(distribution, levels, "kl")
            _, by_extremes = estimate_range(distribution, levels, "minmax")
            assert by_divergence < by_extremes / factor


def test_as_many_bins_as_groups_do_not_turn_it_into_minmax() -> None:
    values = np.random.default_rng(1).standard_t(3, size=50_000).astype(np.float32)
    distribution = Distribution.from_values(values)
    _, threshold = estimate_range(distribution, SIGNED, "kl", bins=128)
    assert threshold < np.abs(values).max() / 1.5


def test_zeros_change_nothing() -> None:
    values = np.maximum(np.random.default_rng(2).normal(size=50_000), 0).astype(np.float32)
    levels = Levels(0, 255, Scheme.ONE_SIDED)
    with_zeros = estimate_range(Distribution.from_values(values), levels, "kl")
    without = estimate_range(Distribution.from_values(values[values > 0]), levels, "kl")
    assert with_zeros == without


@given(
    low=st.floats(0.05, 3),
    width=st.floats(0.5, 5),
    number=st.sampled_from([300, 1000, 20_000]),
    seed=st.integers(0, 20),
)
@settings(max_examples=40, deadline=None)
def test_values_that_are_all_far_from_zero_are_not_clipped_away(
    low: float, width: float, number: int, seed: int
) -> None:
    values = low + width * np.random.default_rng(seed).beta(2, 5, number)
    distribution = Distribution.from_values(values.astype(np.float32))
    for levels in (SIGNED, Levels(0, 255, Scheme.ONE_SIDED)):
        _, threshold = estimate_range(distribution, levels, "kl")
        assert np.mean(values > threshold) < 0.5


@pytest.mark.parametrize("bins", [0, -5, 10.5])
def test_impossible_numbers_of_bins_are_refused(bins: float) -> None:
    distribution = Distribution.from_values(np.ones(1, dtype=np.float32))
    with pytest.raises(CalibrationError, match="bins"):
        estimate_range(distribution, SIGNED, "kl", bins=bins)
