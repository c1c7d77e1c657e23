from __future__ import annotations

import numpy as np
import pytest

from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.threshold_aciq import gauss_constant, laplace_constant
from intact.numerics.thresholds import estimate_range


@pytest.mark.parametrize(("bits", "constant"), [(2, 2.83), (3, 3.89), (4, 5.03), (8, 9.89)])
def test_laplace_constants_are_the_published_ones(bits: int, constant: float) -> None:
    # The paper cuts its digits, it does not round them.
    assert laplace_constant(2**bits) == pytest.approx(constant, abs=0.008)


@pytest.mark.parametrize(("bits", "constant"), [(2, 1.71), (3, 2.15), (4, 2.55), (8, 3.92)])
def test_gauss_constants_are_the_published_ones(bits: int, constant: float) -> None:
    assert gauss_constant(2**bits) == pytest.approx(constant, abs=0.012)


@pytest.mark.parametrize("constant", [laplace_constant, gauss_constant])
def test_constants_minimize_the_published_error(constant: object) -> None:
    rng = np.random.default_rng(0)
    number = 32
    if constant is laplace_constant:
        values = np.abs(rng.laplace(size=400_000))
    else:
        values = np.abs(rng.normal(size=400_000))

    def error(threshold: float) -> float:
        excess = np.maximum(values - threshold, 0.0)
        return float(np.mean(excess**2)) + threshold**2 / (3 * number**2)

    best = constant(number)  # type: ignore[operator]
    assert error(best) < min(error(best * 0.9), error(best * 1.1))


def test_the_better_fitting_distribution_is_chosen() -> None:
    rng = np.random.default_rng(1)
    levels = Levels(-128, 127, Scheme.SYMMETRIC)
    gauss = Distribution.from_values(rng.normal(scale=3, size=300_000).astype(np.float32))
    laplace = Distribution.from_values(rng.laplace(scale=3, size=300_000).astype(np.float32))
    assert estimate_range(gauss, levels, "aciq")[1] == pytest.approx(
        3 * gauss_constant(256), rel=0.01
    )
    assert estimate_range(laplace, levels, "aciq")[1] == pytest.approx(
        3 * laplace_constant(256), rel=0.01
    )


def test_one_sided_codes_see_half_a_distribution_with_twice_the_codes() -> None:
    values = np.maximum(np.random.default_rng(2).normal(size=300_000), 0).astype(np.float32)
    distribution = Distribution.from_values(values)
    _, threshold = estimate_range(distribution, Levels(0, 15, Scheme.ONE_SIDED), "aciq")
    assert threshold == pytest.approx(gauss_constant(32), rel=0.01)


def test_the_threshold_never_exceeds_the_largest_magnitude() -> None:
    values = np.random.default_rng(3).uniform(-1, 1, size=10_000).astype(np.float32)
    distribution = Distribution.from_values(values)
    levels = Levels(-127, 127, Scheme.SYMMETRIC)
    assert estimate_range(distribution, levels, "aciq")[1] == np.abs(values).max()
