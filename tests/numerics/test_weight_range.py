from __future__ import annotations

import numpy as np
import pytest

from intact.errors import CalibrationError, ConfigError
from intact.numerics.affine import fake_quantize, params_from_range
from intact.numerics.levels import Levels, Scheme
from intact.numerics.weight_range import weight_range

SIGNED4 = Levels(-7, 7, Scheme.SYMMETRIC)
WHOLE4 = Levels(0, 15, Scheme.ASYMMETRIC)
ALL = [
    SIGNED4,
    WHOLE4,
    Levels(-8, 7, Scheme.ASYMMETRIC),
    Levels(-127, 127, Scheme.SYMMETRIC),
    Levels(0, 255, Scheme.ONE_SIDED),
]


def test_minmax_per_tensor_and_per_channel_on_every_axis() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    low, high = weight_range(values, SIGNED4, "minmax", None)
    assert low.shape == high.shape == ()
    assert (low, high) == (-np.abs(values).max(), np.abs(values).max())
    for axis in (0, 1, 2, -1):
        others = tuple(a for a in range(3) if a != axis % 3)
        low, high = weight_range(values, WHOLE4, "minmax", axis)
        assert low.tolist() == np.minimum(values.min(axis=others), 0).tolist()
        assert high.tolist() == np.maximum(values.max(axis=others), 0).tolist()


@pytest.mark.crossed
@pytest.mark.parametrize("levels", ALL)
@pytest.mark.parametrize("elements", [1, 9, 63, 64, 65, 1000])
def test_mse_is_near_the_exact_optimum_and_never_worse_than_minmax(
    levels: Levels, elements: int
) -> None:
    values = np.random.default_rng(elements).laplace(size=(4, elements)).astype(np.float32)

    def errors(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        codes = levels.quant_min, levels.quant_max
        params = params_from_range(
            low, high, *codes, symmetric=levels.scheme is not Scheme.ASYMMETRIC
        )
        restored = fake_quantize(values, params.scale, params.zero_point, *codes, axis=0)
        return np.asarray(np.mean((values.astype(np.float64) - restored) ** 2, axis=1))

    widest = weight_range(values, levels, "minmax", 0)
    found = errors(*weight_range(values, levels, "mse", 0))
    dense = np.min([errors(widest[0] * f, widest[1] * f) for f in np.geomspace(1, 1 / 8, 200)], 0)
    assert (found <= errors(*widest) * 1.0001 + 1e-12).all()
    if elements >= 1000:  # few values give a jagged error, which no grid follows to a percent
        assert (found <= dense * 1.02 + 1e-12).all()


def test_channels_do_not_depend_on_each_other() -> None:
    values = np.random.default_rng(2).normal(size=(6, 50)).astype(np.float32)
    together = weight_range(values, SIGNED4, "mse", 0)
    for channel in range(6):
        alone = weight_range(values[channel], SIGNED4, "mse", None)
        assert (together[0][channel], together[1][channel]) == alone


@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("levels", ALL)
def test_degenerate_channels(method: str, levels: Levels) -> None:
    values = np.array([[0.0, -0.0], [1e-45, 1e-42], [3e38, -3e38], [-1.0, -1.0]], dtype=np.float32)
    low, high = weight_range(values, levels, method, 0)
    assert (low[0], high[0]) == (0.0, 0.0)
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    assert (low <= 0).all()
    assert (high >= 0).all()
    params_from_range(low, high, levels.quant_min, levels.quant_max, symmetric=False)


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_empty_tensors_have_an_empty_range(method: str) -> None:
    low, high = weight_range(np.zeros((3, 0), dtype=np.float32), SIGNED4, method, 0)
    assert low.tolist() == high.tolist() == [0.0, 0.0, 0.0]
    low, high = weight_range(np.zeros((0, 3), dtype=np.float32), SIGNED4, method, 0)
    assert low.shape == (0,)


def test_a_read_only_transposed_weight_is_accepted() -> None:
    values = np.random.default_rng(3).normal(size=(5, 7)).astype(np.float32)
    values.flags.writeable = False
    by_column = weight_range(values.T, SIGNED4, "mse", 1)
    assert by_column[1].tolist() == weight_range(values, SIGNED4, "mse", 0)[1].tolist()


def test_what_cannot_be_ranged_is_refused() -> None:
    good = np.ones((2, 2), dtype=np.float32)
    with pytest.raises(CalibrationError, match="did you mean 'minmax'"):
        weight_range(good, SIGNED4, "minmx", None)
    with pytest.raises(ConfigError, match="axis 2"):
        weight_range(good, SIGNED4, "minmax", 2)
    for bad in (np.nan, np.inf):
        with pytest.raises(CalibrationError, match="not finite"):
            weight_range(np.array([1.0, bad], dtype=np.float32), SIGNED4, "minmax", None)
