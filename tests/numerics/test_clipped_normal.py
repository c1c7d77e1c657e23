"""Moments of clipped normals against sums over many points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intact.numerics.clipped_normal import clipped_moments


@pytest.mark.parametrize(
    ("low", "high"), [(0, math.inf), (0, 6), (-1, 1), (-math.inf, 2), (-math.inf, math.inf)]
)
def test_against_integration(low: float, high: float) -> None:
    mean, deviation = np.array([-3.0, 0.0, 1.0, 5.5]), np.array([0.5, 1.0, 3.0, 2.0])
    found, spread = clipped_moments(mean, deviation**2, low, high)
    steps = np.linspace(-12, 12, 200_001)
    weights = np.exp(-(steps**2) / 2)
    weights /= weights.sum()
    values = np.clip(mean[:, None] + deviation[:, None] * steps, low, high)
    wanted = values @ weights
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(spread, (values**2) @ weights - wanted**2, atol=1e-5)


def test_no_variance_is_the_clipped_mean() -> None:
    found, spread = clipped_moments(np.array([-1.0, 0.5, 9.0]), np.zeros(3), 0, 6)
    np.testing.assert_array_equal(found, [0, 0.5, 6])
    np.testing.assert_array_equal(spread, 0)
