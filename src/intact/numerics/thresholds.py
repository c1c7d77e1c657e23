"""Lists the methods that turn a distribution into a range, and computes the simple ones.

A method is imported when it is first used: the table is read without NumPy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import msgspec

from intact.errors import CalibrationError, nearest
from intact.numerics.levels import Levels, Scheme

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from intact.numerics.distribution import Distribution

Ends = TypeVar("Ends", float, "npt.NDArray[np.float64]")

_ALL = frozenset(Scheme)
_AROUND_ZERO = frozenset({Scheme.SYMMETRIC, Scheme.ONE_SIDED})


class ThresholdMethod(msgspec.Struct, frozen=True):
    """One way to choose a range."""

    name: str
    schemes: frozenset[Scheme]
    """The schemes that it is defined for."""
    home: str
    """The module that defines ``NAME_range(distribution, levels, **options)``."""
    source: str
    """Where the method comes from."""
    summary: str
    """One line for a user who has to choose."""
    options: Mapping[str, float] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    """The options that it takes, with their defaults."""
    may_exceed: bool = False
    """Whether its range may reach beyond what was observed."""
    beyond_codes: bool = False
    """Whether its threshold is 2^(bits - sign_bit) steps, one more than the codes reach to."""
    equal_steps: bool = False
    """Whether its formula holds for equally spaced levels only, not for logarithmic ones."""
    counted_bins: int = 0
    """Equal bins in which a second pass over the samples counts magnitudes for it; 0 for a method
    that one pass is enough for."""
    minimizes: bool = False
    """Whether its module defines what it minimizes, ``NAME_loss(distribution, levels, (low, high),
    **options)``, by which it chooses between scales that are powers of two. A method without one
    says which range is to be held."""

    def fits(self, levels: Levels) -> bool:
        """Tell whether it is defined for these levels."""
        return levels.scheme in self.schemes and (
            levels.steps_per_octave is None or not self.equal_steps
        )

    @property
    def function(self) -> Callable[..., tuple[float, float]]:
        """``function(distribution, levels, **options) -> (low, high)``, ``low <= 0 <= high``."""
        found: Callable[..., tuple[float, float]] = getattr(
            importlib.import_module(self.home), f"{self.name}_range"
        )
        return found

    @property
    def loss(self) -> Callable[..., float] | None:
        """``loss(distribution, levels, (low, high), **options)``; None if it minimizes nothing."""
        found: Callable[..., float] | None = getattr(
            importlib.import_module(self.home), f"{self.name}_loss", None
        )
        return found if self.minimizes else None


METHODS: Mapping[str, ThresholdMethod] = MappingProxyType(
    {
        method.name: method
        for method in (
            ThresholdMethod(
                name="minmax",
                schemes=_ALL,
                home=__name__,
                source="common practice",
                summary="the exact extremes; nothing is clipped, one outlier decides",
            ),
            ThresholdMethod(
                name="average",
                schemes=_ALL,
                home=__name__,
                source="HAGO's average range",
                summary="extremes averaged over the samples",
            ),
            ThresholdMethod(
                name="percentile",
                schemes=_ALL,
                home=__name__,
                source="common practice",
                summary="the range that holds a percentage of the values",
                options=MappingProxyType({"percentile": 99.99}),
            ),
            ThresholdMethod(
                name="kl",
                schemes=_AROUND_ZERO,
                home="intact.numerics.threshold_kl",
                source="Migacz, 8-bit Inference with TensorRT, 2017",
                summary="least divergence of the quantized from the original distribution",
                options=MappingProxyType({"bins": 8192.0}),
                equal_steps=True,
                minimizes=True,
            ),
            ThresholdMethod(
                name="mse",
                schemes=_ALL,
                home="intact.numerics.threshold_mse",
                source="closed form over the histogram, see threshold_mse",
                summary="least mean squared error of rounding and clipping together",
                minimizes=True,
            ),
            ThresholdMethod(
                name="aciq",
                schemes=_AROUND_ZERO,
                home="intact.numerics.threshold_aciq",
                source="Banner et al., ACIQ, 2018",
                summary="optimal clip of the better fitting Laplace or Gaussian",
                equal_steps=True,
                minimizes=True,
            ),
            ThresholdMethod(
                name="kl_stepwise",
                schemes=_AROUND_ZERO,
                home="intact.numerics.threshold_kl",
                source="Tengine 1.5, tools/quantize; ncnn's is alike",
                summary="kl as ncnn and Tengine search it: 2048 bins, each of them tried",
                options=MappingProxyType({"bins": 2048.0}),
                equal_steps=True,
                minimizes=True,
            ),
            ThresholdMethod(
                name="kl_counted",
                schemes=frozenset({Scheme.SYMMETRIC}),
                home="intact.numerics.threshold_kl_counted",
                source="Tengine 1.5, tools/quantize",
                summary="kl as Tengine's tool computes it, which reads the samples twice",
                equal_steps=True,
                counted_bins=2048,
            ),
            ThresholdMethod(
                name="aciq_maximum",
                schemes=_AROUND_ZERO,
                home="intact.numerics.threshold_aciq",
                source="Banner et al., ACIQ, 2018; Tengine 1.5, tools/quantize",
                summary="aciq as ncnn and Tengine compute it, from the largest magnitude alone",
                may_exceed=True,
                equal_steps=True,
                minimizes=True,
            ),
            ThresholdMethod(
                name="max_range",
                schemes=_AROUND_ZERO,
                home="intact.numerics.threshold_powers",
                source="[tvm], Threshold Estimation",
                summary="minmax with scale = threshold / 2^(bits - sign), which clips the largest",
                beyond_codes=True,
                equal_steps=True,
            ),
            ThresholdMethod(
                name="power2_range",
                schemes=_AROUND_ZERO,
                home="intact.numerics.threshold_powers",
                source="[tvm], Threshold Estimation",
                summary="max_range with the power of two nearest to the largest magnitude",
                may_exceed=True,
                beyond_codes=True,
                equal_steps=True,
            ),
        )
    }
)
"""Every method by name."""

WEIGHT_METHODS = ("minmax", "mse", "max_range", "power2_range")
"""Those of them that are defined for weights; see ``weight_range``."""

_ELSEWHERE = {
    "entropy": ("kl", "ONNX Runtime and TensorRT"),
    "histogram": ("mse", "PyTorch"),
    "max": ("minmax", "TensorRT"),
    "min_max": ("minmax", "NNCF"),
}
"""What other tools call a method: its name here, and who calls it so."""


def unknown_method(name: str) -> CalibrationError:
    """Return the error of a name that no method has; with the nearest, or what others call so."""
    known = _ELSEWHERE.get(name.lower())
    remedy = nearest(name, METHODS)
    if known is not None:
        remedy = f"{known[0]!r} is what {known[1]} call{'s' * (' and ' not in known[1])} so"
    return CalibrationError(f"unknown threshold method {name!r}", remedy=remedy)


def estimate_range(
    distribution: Distribution, levels: Levels, method: str, **options: float
) -> tuple[float, float]:
    """Return the range that a method chooses, ``low <= 0 <= high``.

    A distribution with nothing to hold (only zeros; only negative values with one-sided codes)
    gives ``(0, 0)``. Where scales are powers of two, it is one of theirs (`best_power_range`).

    Args:
        distribution: What was observed.
        levels: The codes and their scheme.
        method: A name in :data:`METHODS`.
        options: Options of the method in place of its defaults.

    Raises:
        CalibrationError: If the method or an option is unknown, the method is not defined for the
            scheme, an option has an impossible value, or there is no finite value.

    >>> import numpy as np
    >>> from intact.numerics.distribution import Distribution
    >>> distribution = Distribution.from_values(np.array([-1.0, 3.0], dtype=np.float32))
    >>> estimate_range(distribution, Levels(0, 255, Scheme.ASYMMETRIC), "minmax")
    (-1.0, 3.0)
    """
    if method not in METHODS:
        raise unknown_method(method)
    chosen = METHODS[method]
    if not chosen.fits(levels):
        others = ", ".join(sorted(m.name for m in METHODS.values() if m.fits(levels)))
        if levels.scheme in chosen.schemes:
            raise CalibrationError(
                f"threshold method {method!r} is not defined for logarithmic levels",
                remedy=f"use one of {others}",
            )
        defined = " and ".join(sorted(scheme.value for scheme in chosen.schemes))
        raise CalibrationError(
            f"threshold method {method!r} is defined for {defined} schemes, "
            f"not for {levels.scheme.value}",
            remedy=f"use one of {others}",
        )
    for name in options:
        if name not in chosen.options:
            raise CalibrationError(
                f"threshold method {method!r} has no option {name!r}",
                remedy=_options_of_others(name, chosen),
            )
    distribution.refuse_empty()
    options = {**chosen.options, **options}
    low, high = chosen.function(distribution, levels, **options)
    if not levels.power_of_two:
        return low, high
    from intact.numerics.threshold_powers import best_power_range

    loss = chosen.loss and partial(chosen.loss, distribution, levels, **options)
    return best_power_range(distribution, levels, low, high, loss)


def _options_of_others(name: str, chosen: ThresholdMethod) -> str:
    """Say where an option belongs that a method does not have."""
    owners: dict[str, list[str]] = {}
    for method in METHODS.values():
        for each in method.options:
            owners.setdefault(each, []).append(method.name)
    if name in owners:
        have = "has" if len(owners[name]) == 1 else "have"
        return f"give --method {' or '.join(owners[name])}, which {have} it"
    if chosen.options:
        return nearest(name, chosen.options)
    known = (f"{each} of --method {' or '.join(of)}" for each, of in owners.items())
    return f"it has none; known: {', '.join(known)}"


def threshold_of(low: Ends, high: Ends, levels: Levels, method: str) -> Ends:
    """Return the threshold that a method gave, from the range that it returned.

    Args:
        low: The lower end, or one for each channel.
        high: The upper end.
        levels: The codes and their scheme.
        method: A name in :data:`METHODS`.

    Returns:
        The largest magnitude of the range, or its width where codes are asymmetric. ``max_range``
        and ``power2_range`` return a range that is one step shorter than their threshold.

    >>> threshold_of(-127 / 32, 127 / 32, Levels(-127, 127, Scheme.SYMMETRIC), "max_range")
    4.0
    """
    if levels.scheme is Scheme.ASYMMETRIC:
        return high - low
    if not METHODS[method].beyond_codes:
        return high
    return high * (1 << levels.steps.bit_length()) / levels.steps


def fit_scheme(low: float, high: float, levels: Levels) -> tuple[float, float]:
    """Return the smallest range of the scheme that holds 0 and, as far as it can, ``low..high``."""
    low, high = min(low, 0.0), max(high, 0.0)
    if levels.scheme is Scheme.ASYMMETRIC:
        return low, high
    if levels.scheme is Scheme.ONE_SIDED:
        return 0.0, high
    return levels.range_of_threshold(max(-low, high))


def minmax_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the exact extremes: nothing is clipped."""
    return fit_scheme(distribution.minimum, distribution.maximum, levels)


def average_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the averages over the samples of each sample's minimum and maximum.

    HAGO's default ("average range"), per tensor: rare extremes of single samples count little.
    """
    return fit_scheme(distribution.mean_minimum, distribution.mean_maximum, levels)


def percentile_range(
    distribution: Distribution, levels: Levels, *, percentile: float
) -> tuple[float, float]:
    """Return the range that holds the given percentage of the values.

    Symmetric: of the absolute values. One-sided: of the values, the negative ones among them.
    Asymmetric: half of the rest is cut off at either end. Exact to the width of a histogram bin
    (2**-7 of the value); 100 gives the exact extremes.

    Raises:
        CalibrationError: If the percentile is not above 0 and at most 100.
    """
    if not 0.0 < percentile <= 100.0:
        raise CalibrationError(
            f"a percentile of {percentile}", remedy="use a number above 0, at most 100"
        )
    kept = percentile / 100.0
    if levels.scheme is Scheme.SYMMETRIC:
        return levels.range_of_threshold(distribution.absolute().quantile(kept))
    if levels.scheme is Scheme.ONE_SIDED:
        return fit_scheme(0.0, distribution.quantile(kept), levels)
    rest = 0.5 - 0.5 * kept
    return fit_scheme(distribution.quantile(rest), distribution.quantile(1.0 - rest), levels)
