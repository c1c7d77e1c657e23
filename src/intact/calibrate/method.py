"""Checks the names and options of threshold methods, before samples are run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.thresholds import METHODS, estimate_range, unknown_method
from intact.numerics.weight_range import weight_range
from intact.targets import Target


class Method(msgspec.Struct, frozen=True):
    """How scales are derived.

    Attributes:
        activations: Name of the threshold method.
        fallback: Method for tensors for which ``activations`` is not defined.
        weights: Method for weights.
        options: Parameters of the methods, e.g. ``percentile``.
    """

    activations: str
    fallback: str
    weights: str
    options: Mapping[str, float] = msgspec.field(default_factory=dict)

    @staticmethod
    def candidates(
        target: Target,
        activations: str | None = None,
        weights: str | None = None,
        options: Mapping[str, float] | None = None,
    ) -> tuple[Method, ...]:
        """Return the methods to choose from, the preferred one first; see `of`.

        It is one where the caller names it or gives it options, else the target's and those that
        the target declares beside it.
        """
        first = Method.of(target, activations, weights, options)
        if activations is not None or options:
            return (first,)
        others = target.calibration.alternatives
        return (
            first,
            *(msgspec.structs.replace(first, activations=name, options={}) for name in others),
        )

    @staticmethod
    def of(
        target: Target,
        activations: str | None = None,
        weights: str | None = None,
        options: Mapping[str, float] | None = None,
    ) -> Method:
        """Return the target's method, with what the caller names instead.

        Args:
            target: Declares method, fallback and options.
            activations: Threshold method for activations.
            weights: Threshold method for weights.
            options: Options of the activations' method, on top of the target's.

        Raises:
            CalibrationError: A name is no threshold method, or the method has no such option or
                does not take its value.
        """
        declared = target.calibration
        method = Method(
            activations or declared.method,
            declared.fallback,
            weights or declared.weight_method,
            dict(declared.options),
        )
        # A target may have a variant of its own under a common name (Tengine's kl reads the samples
        # twice).
        named = declared.variants.get(method.activations, method.activations)
        method = msgspec.structs.replace(method, activations=named)
        for name in (method.activations, method.fallback):
            if name not in METHODS:
                raise unknown_method(name)
        # Tried on two numbers, so that a mistake is found before the samples are run.
        sample, levels = np.array([-1, 1], np.float32), Levels(-127, 127, Scheme.SYMMETRIC)
        if weights is not None:
            shifted = Levels(-127, 127, Scheme.ASYMMETRIC)
            weight_range(sample, levels if target.weight.symmetric else shifted, weights, None)
        if options:
            estimate_range(Distribution.from_values(sample), levels, method.activations, **options)
        return msgspec.structs.replace(method, options={**method.options, **(options or {})})


def counted_bins(methods: Iterable[Method]) -> int:
    """Return in how many bins a second pass over the samples counts for methods; 0 for no pass."""
    return max((METHODS[method.activations].counted_bins for method in methods), default=0)
