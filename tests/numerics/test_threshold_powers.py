"""Methods on grids whose scales are powers of two choose between the powers that there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.numerics.affine import QuantParams, fake_quantize, params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.thresholds import METHODS, estimate_range
from intact.numerics.weight_range import weight_range
from tests.numerics.arrays import float32

LEVELS = [
    Levels(-127, 127, Scheme.SYMMETRIC, power_of_two=True),
    Levels(-128, 127, Scheme.SYMMETRIC, power_of_two=True),
    Levels(-7, 7, Scheme.SYMMETRIC, power_of_two=True),
    Levels(0, 255, Scheme.ONE_SIDED, power_of_two=True),
    Levels(0, 255, Scheme.ASYMMETRIC, power_of_two=True),
    Levels(-128, 127, Scheme.ASYMMETRIC, power_of_two=True),
]
AROUND_ZERO = [each for each in LEVELS if each.scheme is not Scheme.ASYMMETRIC]
HOLDING = [name for name, method in METHODS.items() if not method.minimizes]
ENDS = st.floats(0.01, 100.0)


def drawn(end: float, kind: str, levels: Levels, number: int = 4000) -> np.ndarray:
    """Values up to an end, of both signs where the codes have them."""
    random = np.random.default_rng(7)
    made = {
        "uniform": random.uniform(0, 1, number),
        "gauss": np.abs(random.normal(size=number)) / 4,
        "tail": np.abs(random.standard_t(2, size=number)),
    }[kind]
    made *= end / made.max()
    signs = 1.0 if levels.scheme is Scheme.ONE_SIDED else random.choice([1.0, -0.5], number)
    return (made * signs).astype(np.float32)


def params_of(ends: tuple[float, float], levels: Levels) -> QuantParams:
    symmetric = levels.scheme is not Scheme.ASYMMETRIC
    codes = levels.quant_min, levels.quant_max
    return params_from_range(*ends, *codes, symmetric=symmetric, power_of_two=True)


def error(values: np.ndarray, params: QuantParams, levels: Levels) -> float:
    """Measure the error on the values themselves, through the arithmetic that is deployed."""
    restored = fake_quantize(values, *params, levels.quant_min, levels.quant_max)
    return float(np.mean((values.astype(np.float64) - restored) ** 2))


@pytest.mark.parametrize("levels", LEVELS, ids=str)
@given(end=ENDS, other=ENDS)
@settings(max_examples=30, deadline=None)
def test_minmax_never_clips_and_wastes_no_octave(levels: Levels, end: float, other: float) -> None:
    low = 0.0 if levels.scheme is Scheme.ONE_SIDED else -other
    values = float32(low, low / 3, end / 2, end)
    ends = estimate_range(Distribution.from_values(values), levels, "minmax")
    params = params_of(ends, levels)
    scale = float(params.scale)
    assert np.frexp(scale)[0] == 0.5
    restored = fake_quantize(values, *params, levels.quant_min, levels.quant_max)
    assert np.abs(values - restored).max() <= scale * (0.5 + 1e-6)
    wide = end - low if levels.scheme is Scheme.ASYMMETRIC else max(end, -low)
    assert scale / 2 * levels.steps < wide * (1 + 1e-6)


@pytest.mark.parametrize("method", HOLDING)
@given(end=ENDS)
@settings(max_examples=10, deadline=None)
def test_what_a_method_wants_held_is_held(method: str, end: float) -> None:
    """power2_range has rounded by itself, to the power that its document prescribes."""
    values = drawn(end, "tail", LEVELS[0])
    distribution = Distribution.from_values(values.reshape(8, -1))
    wanted = estimate_range(distribution, Levels(-127, 127, Scheme.SYMMETRIC), method)
    found = estimate_range(distribution, LEVELS[0], method)
    assert wanted[1] <= found[1] < 2 * wanted[1] * (1 + 1e-9)
    assert found[1] == float(params_of(found, LEVELS[0]).scale) * 127


@pytest.mark.crossed
@pytest.mark.parametrize("levels", LEVELS, ids=str)
@pytest.mark.parametrize("kind", ["uniform", "gauss", "tail"])
@given(end=ENDS)
@settings(max_examples=10, deadline=None)
def test_mse_takes_no_power_whose_neighbour_loses_less(
    levels: Levels, kind: str, end: float
) -> None:
    values = drawn(end, kind, levels)
    ends = estimate_range(Distribution.from_values(values), levels, "mse")
    params = params_of(ends, levels)
    lost = error(values, params, levels)
    for factor in (0.5, 2.0):
        others = (ends[0] * factor, ends[1] * factor)
        assert lost <= 1.01 * error(values, params_of(others, levels), levels), factor
    holding = estimate_range(Distribution.from_values(values), levels, "minmax")
    assert lost <= 1.01 * error(values, params_of(holding, levels), levels)


@pytest.mark.crossed
@pytest.mark.parametrize("levels", AROUND_ZERO, ids=str)
@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.minimizes])
@given(end=ENDS)
@settings(max_examples=8, deadline=None)
def test_a_method_that_minimizes_takes_no_power_whose_neighbour_is_better(
    levels: Levels, method: str, end: float
) -> None:
    distribution = Distribution.from_values(drawn(end, "tail", levels))
    chosen, loss = METHODS[method], METHODS[method].loss
    assert loss is not None
    ends = estimate_range(distribution, levels, method)
    assert ends == estimate_range(distribution, levels, method)
    best = loss(distribution, levels, ends, **chosen.options)
    assert np.frexp(ends[1] / levels.steps)[0] == 0.5
    below = ends[0] / 2, ends[1] / 2
    assert best <= loss(distribution, levels, below, **chosen.options)
    if ends[1] < end:
        above = ends[0] * 2, ends[1] * 2
        assert best <= loss(distribution, levels, above, **chosen.options)


@pytest.mark.parametrize("method", ["kl", "mse", "aciq", "kl_stepwise"])
@pytest.mark.parametrize("end", [5.0, 5.5])
def test_values_up_to_an_end_that_many_reach_are_not_clipped(method: str, end: float) -> None:
    levels = LEVELS[0]
    values = np.random.default_rng(0).uniform(0, end, 10_000).astype(np.float32)
    params = params_of(estimate_range(Distribution.from_values(values), levels, method), levels)
    assert 10 * np.log10(np.mean(values**2) / error(values, params, levels)) > 43


@pytest.mark.parametrize("levels", LEVELS, ids=str)
@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_weights_take_the_power_that_loses_least(levels: Levels, method: str) -> None:
    channels = [
        drawn(end, kind, levels, 500) for end in (0.9, 1.1, 5.0) for kind in ("gauss", "tail")
    ]
    values = np.stack([*channels, np.zeros(500, np.float32)])
    low, high = weight_range(values, levels, method, 0)
    assert low[-1] == high[-1] == 0
    for row, *ends in zip(values[:-1], low.tolist(), high.tolist(), strict=False):
        params = params_of((ends[0], ends[1]), levels)
        lost = error(row, params, levels)
        if method == "minmax":
            assert np.abs(row).max() <= max(-ends[0], ends[1]) + 0.5 * float(params.scale)
            continue
        for factor in (0.5, 2.0):
            others = params._replace(scale=params.scale * np.float32(factor))
            assert lost <= error(row, others, levels) * 1.0001
