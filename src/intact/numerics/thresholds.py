"""The methods that turn a distribution into a range: the registry and its two entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from intact.errors import CalibrationError, nearest
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.threshold_aciq import aciq_maximum_range, aciq_range
from intact.numerics.threshold_kl import kl_range
from intact.numerics.threshold_kl_stepwise import kl_stepwise_range
from intact.numerics.threshold_mse import mse_range
from intact.numerics.threshold_simple import average_range, minmax_range, percentile_range
from intact.numerics.weight_range import weight_range

__all__ = [
    "METHODS",
    "Levels",
    "Scheme",
    "ThresholdMethod",
    "estimate_range",
    "weight_range",
]

_ALL = frozenset(Scheme)
_AROUND_ZERO = frozenset({Scheme.SYMMETRIC, Scheme.ONE_SIDED})


@dataclass(frozen=True)
class ThresholdMethod:
    """One way to choose a range."""

    name: str
    schemes: frozenset[Scheme]
    """The schemes that it is defined for."""
    function: Callable[..., tuple[float, float]]
    """``function(distribution, levels, **options) -> (low, high)`` with ``low <= 0 <= high``."""
    source: str
    """Where the method comes from."""
    summary: str
    """One line for a user who has to choose."""
    options: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """The options that it takes, with their defaults."""
    may_exceed: bool = False
    """Whether its range may reach beyond what was observed."""


METHODS: Mapping[str, ThresholdMethod] = MappingProxyType(
    {
        method.name: method
        for method in (
            ThresholdMethod(
                name="minmax",
                schemes=_ALL,
                function=minmax_range,
                source="common practice",
                summary="the exact extremes; nothing is clipped, one outlier decides",
            ),
            ThresholdMethod(
                name="average",
                schemes=_ALL,
                function=average_range,
                source="HAGO's average range",
                summary="extremes averaged over the samples",
            ),
            ThresholdMethod(
                name="percentile",
                schemes=_ALL,
                function=percentile_range,
                source="common practice",
                summary="the range that holds a percentage of the values",
                options=MappingProxyType({"percentile": 99.99}),
            ),
            ThresholdMethod(
                name="kl",
                schemes=_AROUND_ZERO,
                function=kl_range,
                source="Migacz, 8-bit Inference with TensorRT, 2017",
                summary="least divergence of the quantized from the original distribution",
                options=MappingProxyType({"bins": 8192.0}),
            ),
            ThresholdMethod(
                name="mse",
                schemes=_ALL,
                function=mse_range,
                source="closed form over the histogram, see threshold_mse_kernel",
                summary="least mean squared error of rounding and clipping together",
            ),
            ThresholdMethod(
                name="aciq",
                schemes=_AROUND_ZERO,
                function=aciq_range,
                source="Banner et al., ACIQ, 2018",
                summary="optimal clip of the better fitting Laplace or Gaussian",
            ),
            ThresholdMethod(
                name="kl_stepwise",
                schemes=_AROUND_ZERO,
                function=kl_stepwise_range,
                source="Tengine 1.5, tools/quantize; ncnn's is alike",
                summary="kl as ncnn and Tengine search it: 2048 bins, each of them tried",
                options=MappingProxyType({"bins": 2048.0}),
            ),
            ThresholdMethod(
                name="aciq_maximum",
                schemes=_AROUND_ZERO,
                function=aciq_maximum_range,
                source="Banner et al., ACIQ, 2018; Tengine 1.5, tools/quantize",
                summary="aciq as ncnn and Tengine compute it, from the largest magnitude alone",
                may_exceed=True,
            ),
        )
    }
)
"""Every method by name."""


def estimate_range(
    distribution: Distribution, levels: Levels, method: str, **options: float
) -> tuple[float, float]:
    """Return the range that a method chooses, ``low <= 0 <= high``.

    A distribution with nothing to hold (only zeros; only negative values with one-sided codes)
    gives ``(0, 0)``.

    Args:
        distribution: What was observed.
        levels: The codes and their scheme.
        method: A name in :data:`METHODS`.
        options: Options of the method in place of its defaults.

    Raises:
        CalibrationError: If the method or an option is unknown, the method is not defined for the
            scheme, an option has an impossible value, or there is no finite value.

    >>> import numpy as np
    >>> distribution = Distribution.from_values(np.array([-1.0, 3.0], dtype=np.float32))
    >>> estimate_range(distribution, Levels(0, 255, Scheme.ASYMMETRIC), "minmax")
    (-1.0, 3.0)
    """
    if method not in METHODS:
        raise CalibrationError(
            f"unknown threshold method {method!r}", remedy=nearest(method, METHODS)
        )
    chosen = METHODS[method]
    if levels.scheme not in chosen.schemes:
        defined = " and ".join(sorted(scheme.value for scheme in chosen.schemes))
        others = ", ".join(sorted(m.name for m in METHODS.values() if levels.scheme in m.schemes))
        raise CalibrationError(
            f"threshold method {method!r} is defined for {defined} schemes, "
            f"not for {levels.scheme.value}",
            remedy=f"use one of {others}",
        )
    for name in options:
        if name not in chosen.options:
            raise CalibrationError(
                f"threshold method {method!r} has no option {name!r}",
                remedy=nearest(name, chosen.options),
            )
    distribution.refuse_empty()
    return chosen.function(distribution, levels, **{**chosen.options, **options})
