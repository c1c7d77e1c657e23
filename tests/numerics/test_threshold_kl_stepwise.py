"""KL as ncnn's and Tengine's tools search it, against their procedure written out."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import CalibrationError
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.threshold_kl import least_divergent
from intact.numerics.thresholds import estimate_range

SIGNED = Levels(-127, 127, Scheme.SYMMETRIC)
ONE_SIDED = Levels(0, 255, Scheme.ONE_SIDED)


def published(shares: list[Fraction], groups: int) -> tuple[int, dict[int, float]]:
    """Follow the published procedure in exact shares, bin by bin; return all divergences."""
    found = {}
    for kept in range(groups, len(shares)):
        reference = shares[:kept]
        reference[-1] += sum(shares[kept:], Fraction(0))
        expanded = [Fraction(0)] * kept
        for group in range(groups):
            start, stop = Fraction(group * kept, groups), Fraction((group + 1) * kept, groups)
            parts = [
                (b, min(stop, Fraction(b + 1)) - max(start, Fraction(b)))
                for b in range(math.floor(start), math.ceil(stop))
            ]
            mass = sum((shares[b] * part for b, part in parts), Fraction(0))
            filled = sum((part for b, part in parts if shares[b]), Fraction(0))
            for b, part in parts:
                if shares[b]:
                    expanded[b] += mass / filled * part
        found[kept] = sum(
            float(p) * math.log(p / q) if q else 1.0
            for p, q in zip(reference, expanded, strict=True)
            if p
        )
    return min(found, key=lambda kept: found[kept]), found


@given(st.lists(st.integers(0, 9), min_size=6, max_size=16), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_the_search_is_the_published_one(counts: list[int], groups: int) -> None:
    total = sum(counts[1:])
    if not total:
        return
    shares = [Fraction(0), *(Fraction(count, total) for count in counts[1:])]
    _, divergences = published(shares, groups)
    kept = int(least_divergent(np.array([float(share) for share in shares]), groups))
    least = min(divergences.values())
    if least > 1 - 1e-9:  # each try costs an empty bin: none tells more than another
        assert kept == len(shares) - 1 or divergences[kept] <= least + 1e-9
    else:
        assert divergences[kept] <= least + 1e-9


def test_where_each_try_costs_an_empty_bin_all_bins_are_kept() -> None:
    shares = [Fraction(0)] * 4 + [Fraction(1, 3), Fraction(2, 3)]
    assert min(published(shares, 2)[1].values()) == 1
    assert least_divergent(np.array([float(share) for share in shares]), 2) == len(shares) - 1


def test_the_threshold_is_the_middle_of_a_bin() -> None:
    values = np.random.default_rng(1).laplace(size=(8, 40_000)).astype(np.float32)
    distribution = Distribution.from_values(values)
    low, high = estimate_range(distribution, SIGNED, "kl_stepwise")
    absmax = float(np.abs(values).max())
    position = high / (absmax / 2048)
    assert low == -high
    assert 128 <= position - 0.5 < 2048
    assert abs(position - 0.5 - round(position - 0.5)) < 1e-6
    assert 0.3 * absmax < high < 0.95 * absmax


def test_exact_zeros_and_all_that_is_near_them_count_nothing() -> None:
    values = np.abs(np.random.default_rng(2).normal(size=50_000)).astype(np.float32)
    plain = estimate_range(Distribution.from_values(values), SIGNED, "kl_stepwise")
    tiny = np.full(400_000, values.max() / 5000, np.float32)
    padded = np.concatenate([values, np.zeros(400_000, np.float32), tiny])
    assert estimate_range(Distribution.from_values(padded), SIGNED, "kl_stepwise") == plain


@pytest.mark.parametrize(
    ("values", "levels", "expected"),
    [
        ([0.0, 0.0], SIGNED, 0.0),
        ([-1.0, -2.0], ONE_SIDED, 0.0),
        ([3.0, 3.0], SIGNED, None),
        ([3.0, -3.0], Levels(-32767, 32767, Scheme.SYMMETRIC), 3.0),
    ],
)
def test_degenerate_distributions(
    values: list[float], levels: Levels, expected: float | None
) -> None:
    distribution = Distribution.from_values(np.array(values, np.float32))
    _, high = estimate_range(distribution, levels, "kl_stepwise")
    assert high == expected if expected is not None else 0.0 < high <= 3.0


@pytest.mark.parametrize("bins", [0, 2.5, -1])
def test_impossible_bins(bins: float) -> None:
    distribution = Distribution.from_values(np.ones(3, np.float32))
    with pytest.raises(CalibrationError, match="whole number"):
        estimate_range(distribution, SIGNED, "kl_stepwise", bins=bins)
