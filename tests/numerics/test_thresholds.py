from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from intact.errors import CalibrationError, ConfigError
from intact.numerics.affine import fake_quantize, params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.thresholds import METHODS, estimate_range
from tests.numerics.arrays import float32, float32_of

SIGNED = Levels(-127, 127, Scheme.SYMMETRIC)
SIGNED4 = Levels(-7, 7, Scheme.SYMMETRIC)
POSITIVE = Levels(0, 255, Scheme.ONE_SIDED)
POSITIVE4 = Levels(0, 15, Scheme.ONE_SIDED)
WHOLE = Levels(0, 255, Scheme.ASYMMETRIC)
WHOLE4 = Levels(-8, 7, Scheme.ASYMMETRIC)
BY_SCHEME = {Scheme.SYMMETRIC: SIGNED, Scheme.ONE_SIDED: POSITIVE, Scheme.ASYMMETRIC: WHOLE}
DEFINED = [(m.name, BY_SCHEME[s]) for m in METHODS.values() for s in sorted(m.schemes)]


def squared_error(values: npt.NDArray[np.float32], ends: tuple[float, float], to: Levels) -> float:
    """Measure the error on the values themselves, through the arithmetic that is deployed."""
    params = params_from_range(
        *ends, to.quant_min, to.quant_max, symmetric=to.scheme is not Scheme.ASYMMETRIC
    )
    restored = fake_quantize(values, params.scale, params.zero_point, to.quant_min, to.quant_max)
    return float(np.mean((values.astype(np.float64) - restored) ** 2))


def samples_of(name: str, number: int = 100_000) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(3)
    normal = rng.normal(size=number)
    made = {
        "gauss": normal,
        "laplace": rng.laplace(size=number),
        "relu": np.maximum(normal, 0),
        "relu6": np.clip(2 + 3 * normal, 0, 6),
        "swish": 2 * normal / (1 + np.exp(-2 * normal)),
        "tail": rng.standard_t(3, size=number),
        "negative": -np.abs(normal) - 0.5,
    }
    chosen: npt.NDArray[np.float32] = made[name].astype(np.float32)
    return chosen


def exact_best(values: npt.NDArray[np.float32], to: Levels) -> float:
    """Return the least error over a dense search on the values themselves."""
    if to.scheme is not Scheme.ASYMMETRIC:
        largest = float(np.abs(values).max())
        return min(
            squared_error(values, to.range_of_threshold(largest * 2.0**-octave), to)
            for octave in np.arange(0, 4, 0.02)
        )
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    return min(
        squared_error(values, (low * 2.0**-a, high * 2.0**-b), to)
        for a in np.arange(0, 2.5, 0.125) * (low < 0)
        for b in np.arange(0, 2.5, 0.125)
    )


@pytest.mark.crossed
@pytest.mark.parametrize("levels", [SIGNED, SIGNED4, POSITIVE, POSITIVE4])
@pytest.mark.parametrize("name", ["gauss", "laplace", "relu", "relu6"])
def test_mse_thresholds_are_within_a_percent_of_the_exact_optimum(
    name: str, levels: Levels
) -> None:
    values = samples_of(name)
    if levels.scheme is Scheme.ONE_SIDED:
        values = np.abs(values)
    ends = estimate_range(Distribution.from_values(values), levels, "mse")
    assert squared_error(values, ends, levels) <= 1.01 * exact_best(values, levels)


@pytest.mark.crossed
@pytest.mark.parametrize("levels", [WHOLE, WHOLE4])
@pytest.mark.parametrize("name", ["gauss", "laplace", "swish", "relu6", "negative"])
def test_mse_ranges_are_within_a_percent_of_the_exact_optimum(name: str, levels: Levels) -> None:
    values = samples_of(name, 10_000)
    ends = estimate_range(Distribution.from_values(values), levels, "mse")
    assert squared_error(values, ends, levels) <= 1.01 * exact_best(values, levels)


@pytest.mark.parametrize("levels", [SIGNED, SIGNED4, WHOLE, WHOLE4, POSITIVE])
@pytest.mark.parametrize("name", ["gauss", "tail", "swish", "relu"])
def test_mse_never_loses_more_than_minmax(name: str, levels: Levels) -> None:
    values = samples_of(name)
    distribution = Distribution.from_values(values)
    by_error = squared_error(values, estimate_range(distribution, levels, "mse"), levels)
    by_extremes = squared_error(values, estimate_range(distribution, levels, "minmax"), levels)
    assert by_error <= by_extremes * 1.001


def test_mse_keeps_a_clipped_maximum_where_much_mass_lies() -> None:
    values = samples_of("relu6")
    assert estimate_range(Distribution.from_values(values), POSITIVE, "mse") == (0.0, 6.0)


def test_minmax_is_exact() -> None:
    distribution = Distribution.from_values(float32(-1.25, 3.1, 0.0))
    high = float(np.float32(3.1))
    assert estimate_range(distribution, WHOLE, "minmax") == (-1.25, high)
    assert estimate_range(distribution, SIGNED, "minmax") == (-high, high)
    assert estimate_range(distribution, POSITIVE, "minmax") == (0.0, high)


def test_average_is_the_mean_of_the_samples_extremes() -> None:
    rows = np.array([[-1.0, 2.0], [-3.0, 8.0]], dtype=np.float32)
    distribution = Distribution.from_values(rows)
    assert estimate_range(distribution, WHOLE, "average") == (-2.0, 5.0)
    assert estimate_range(distribution, SIGNED, "average") == (-5.0, 5.0)
    assert estimate_range(distribution, POSITIVE, "average") == (0.0, 5.0)


def test_percentile_keeps_what_it_says() -> None:
    # Powers of two are the lower ends of their bins: each value is alone in its bin.
    values = float32_of([2.0**k for k in range(10)] + [-(2.0**k) for k in range(10)])
    distribution = Distribution.from_values(values)
    for percentile in (50.0, 80.0, 90.0):
        _, high = estimate_range(distribution, SIGNED, "percentile", percentile=percentile)
        assert np.sum(np.abs(values) <= high) == 20 * percentile / 100
        low, high = estimate_range(distribution, WHOLE, "percentile", percentile=percentile)
        assert abs(np.sum(values > high) - 10 * (1 - percentile / 100)) <= 1
        assert abs(np.sum(values < low) - 10 * (1 - percentile / 100)) <= 1
    _, high = estimate_range(distribution, POSITIVE, "percentile", percentile=75.0)
    assert np.sum(values > high) == 5  # of the 20 values, the negative ones included


def test_percentile_100_is_minmax() -> None:
    distribution = Distribution.from_values(samples_of("tail", 1000))
    for levels in (SIGNED, POSITIVE, WHOLE):
        by_extremes = estimate_range(distribution, levels, "minmax")
        assert estimate_range(distribution, levels, "percentile", percentile=100.0) == by_extremes


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.1, float("nan")])
def test_impossible_percentiles_are_refused(percentile: float) -> None:
    distribution = Distribution.from_values(float32(1.0))
    with pytest.raises(CalibrationError, match="percentile"):
        estimate_range(distribution, SIGNED, "percentile", percentile=percentile)


@pytest.mark.parametrize(("method", "levels"), DEFINED)
class TestDegenerate:
    def test_all_zeros(self, method: str, levels: Levels) -> None:
        distribution = Distribution.from_values(float32(0.0, -0.0, 0.0))
        assert estimate_range(distribution, levels, method) == (0.0, 0.0)

    @pytest.mark.parametrize("value", [1.7, 1e-30, 1e30, 3.4e38])
    def test_one_positive_value(self, method: str, levels: Levels, value: float) -> None:
        array = float32(value, value)
        low, high = estimate_range(Distribution.from_values(array), levels, method)
        assert low == (-high if levels.scheme is Scheme.SYMMETRIC else 0.0)
        assert (0.7 if method == "power2_range" else 0.9) * value <= high
        assert high <= 1.001 * value or METHODS[method].may_exceed

    def test_only_negative_values(self, method: str, levels: Levels) -> None:
        low, high = estimate_range(
            Distribution.from_values(float32(-1.0, -2.0, -2.0)), levels, method
        )
        if levels.scheme is Scheme.ONE_SIDED:
            assert (low, high) == (0.0, 0.0)
        else:
            assert low < -1.5
            assert low >= -2.001 or METHODS[method].may_exceed
            assert high == (-low if levels.scheme is Scheme.SYMMETRIC else 0.0)

    @pytest.mark.parametrize("values", [(1e-45, -1e-45), (3.4e38, -3.4e38), (0.0, 1e-38, 1e38)])
    def test_extreme_magnitudes(
        self, method: str, levels: Levels, values: tuple[float, ...]
    ) -> None:
        low, high = estimate_range(Distribution.from_values(float32_of(values)), levels, method)
        assert np.isfinite([low, high]).all()
        assert low <= 0.0 <= high
        assert high <= np.float32(3.4e38)
        params_from_range(low, high, levels.quant_min, levels.quant_max, symmetric=False)

    def test_the_range_never_leaves_the_extremes(self, method: str, levels: Levels) -> None:
        for name in ("gauss", "tail", "swish", "negative", "relu"):
            distribution = Distribution.from_values(samples_of(name, 5000))
            low, high = estimate_range(distribution, levels, method)
            widest = estimate_range(distribution, levels, "minmax")
            assert low <= 0.0 <= high
            if not METHODS[method].may_exceed:
                assert widest[0] <= low
                assert high <= widest[1]


def test_nothing_observed_is_refused() -> None:
    empty = np.zeros(0)
    distribution = Distribution(
        low=empty, high=empty, count=np.zeros(0, dtype=np.int64), minimum=np.inf, maximum=-np.inf,
        mean_minimum=0.0, mean_maximum=0.0, mean=0.0, mean_square=0.0, samples=0, zeros=0,
    )  # fmt: skip
    for method in METHODS:
        with pytest.raises(CalibrationError, match="no finite value"):
            estimate_range(distribution, SIGNED, method)


def test_refusals_name_the_method_its_schemes_and_the_alternatives() -> None:
    distribution = Distribution.from_values(float32(1.0))
    for method in ("kl", "aciq"):
        with pytest.raises(CalibrationError, match=f"'{method}'.*one_sided and symmetric.*mse"):
            estimate_range(distribution, WHOLE, method)
    with pytest.raises(CalibrationError, match="did you mean 'percentile'"):
        estimate_range(distribution, WHOLE, "percentil")
    with pytest.raises(CalibrationError, match="no option 'percent'"):
        estimate_range(distribution, WHOLE, "percentile", percent=99.0)
    with pytest.raises(CalibrationError, match="no option 'bins'"):
        estimate_range(distribution, WHOLE, "mse", bins=99.0)


def test_every_method_is_described() -> None:
    assert sorted(METHODS) == [
        "aciq",
        "aciq_maximum",
        "average",
        "kl",
        "kl_counted",
        "kl_stepwise",
        "max_range",
        "minmax",
        "mse",
        "percentile",
        "power2_range",
    ]
    for name, method in METHODS.items():
        assert method.name == name
        assert method.source
        assert method.summary


@pytest.mark.parametrize(
    ("codes", "scheme"),
    [((0, 255), Scheme.SYMMETRIC), ((-1, 255), Scheme.ONE_SIDED), ((5, 5), Scheme.ASYMMETRIC)],
)
def test_codes_that_do_not_fit_the_scheme_are_refused(
    codes: tuple[int, int], scheme: Scheme
) -> None:
    with pytest.raises(ConfigError, match=scheme.value):
        Levels(*codes, scheme)
