"""ACIQ from the largest magnitude alone, with the constants of ncnn's and Tengine's tools."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.thresholds import estimate_range

SIGNED = Levels(-127, 127, Scheme.SYMMETRIC)


def clip(absmax: float, elements: int, alpha: float) -> float:
    """The tools' formula, in their order."""
    constant = (0.5 * 0.35) * (1 + math.sqrt(3.14159265358979323846 * math.log(4)))
    deviation = (absmax * 2 * constant) / math.sqrt(2 * math.log(elements))
    return float(np.float32(alpha * deviation))


@pytest.mark.parametrize("elements", [2, 100, 16384, 602112])
@pytest.mark.parametrize("samples", [1, 3])
def test_by_the_formula(elements: int, samples: int) -> None:
    values = np.random.default_rng(elements).normal(size=(samples, elements)).astype(np.float32)
    low, high = estimate_range(Distribution.from_values(values), SIGNED, "aciq_maximum")
    absmax = float(np.abs(values).max())
    assert high == pytest.approx(clip(absmax, elements, 3.92403714), rel=1e-7)
    assert low == -high


def test_other_widths_have_their_own_constant() -> None:
    distribution = Distribution.from_values(np.linspace(-2, 2, 5000, dtype=np.float32))
    for bits, alpha in ((4, 2.55913646), (7, 3.6151146)):
        levels = Levels(-(1 << (bits - 1)) + 1, (1 << (bits - 1)) - 1, Scheme.SYMMETRIC)
        _, high = estimate_range(distribution, levels, "aciq_maximum")
        assert high == pytest.approx(clip(2.0, 5000, alpha), rel=1e-7)
    _, wide = estimate_range(distribution, Levels(-2047, 2047, Scheme.SYMMETRIC), "aciq_maximum")
    assert wide > clip(2.0, 5000, 3.92403714)


@pytest.mark.parametrize(("values", "expected"), [([0.0, 0.0], 0.0), ([-5.0], 5.0)])
def test_without_a_spread_nothing_is_clipped(values: list[float], expected: float) -> None:
    distribution = Distribution.from_values(np.array(values, np.float32))
    assert estimate_range(distribution, SIGNED, "aciq_maximum") == (-expected, expected)


def test_one_sided_codes_see_the_positive_side() -> None:
    distribution = Distribution.from_values(np.linspace(-9, 1, 1000, dtype=np.float32))
    low, high = estimate_range(distribution, Levels(0, 255, Scheme.ONE_SIDED), "aciq_maximum")
    assert low == 0.0
    assert high == pytest.approx(clip(1.0, 1000, 3.92403714), rel=1e-6)
