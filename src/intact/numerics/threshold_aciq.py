"""Finds the optimal threshold of a Laplace or a Gaussian distribution (ACIQ).

Source: R. Banner, Y. Nahshan, E. Hoffer, D. Soudry, "ACIQ: Analytical Clipping for Integer
Quantization of neural networks", 2018 (arXiv 1810.05723), equations 5-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme

_LARGEST = 3.4e38
# The factors stand as in the paper's code, so that the product is the same float64.
_FROM_MAXIMUM = 0.5 * 0.35 * (1.0 + math.sqrt(math.pi * math.log(4.0)))
_GAUSSIAN = {
    2: 1.71063519,
    3: 2.15159277,
    4: 2.55913646,
    5: 2.93620062,
    6: 3.28691474,
    7: 3.6151146,
    8: 3.92403714,
}
"""Optimal thresholds in units of sigma by bits, as the tools have them."""


def aciq_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the threshold that is optimal for the better fitting of the two distributions.

    Both are taken around 0, where the range lies, and without the exact zeros, which no threshold
    changes. The better fit is the one of larger likelihood. The threshold never exceeds the
    largest magnitude.

    One-sided codes take the positive values for one half of a two-sided distribution with twice
    the codes: this is also how the authors treat a tensor after a ReLU.
    """
    fit = _fit(distribution, levels)
    if fit is None:
        return 0.0, 0.0
    constant = laplace_constant if fit.is_laplace else gauss_constant
    return levels.range_of_threshold(min(fit.spread * constant(fit.number), fit.largest))


def aciq_loss(distribution: Distribution, levels: Levels, ends: tuple[float, float]) -> float:
    """Return the expected squared error of a threshold, of the distribution that fits better."""
    fit = _fit(distribution, levels)
    return 0.0 if fit is None else fit.error(ends[1])


class _Fit(NamedTuple):
    """The distribution around 0 that fits magnitudes, and the codes that are to hold it.

    Attributes:
        is_laplace: It is a Laplace distribution, else a Gaussian.
        spread: Its b, or sigma.
        number: How many codes, of both signs.
        largest: The largest magnitude.
    """

    is_laplace: bool
    spread: float
    number: int
    largest: float

    def error(self, threshold: float) -> float:
        """Return the expected squared error, rounding and clipping together (equations 5-12)."""
        ratio = threshold / self.spread
        if self.is_laplace:
            clipped = 2.0 * math.exp(-ratio)
        else:
            density = math.exp(-0.5 * ratio * ratio) / math.sqrt(2.0 * math.pi)
            tail = 0.5 * math.erfc(ratio / math.sqrt(2.0))
            clipped = 2.0 * ((1.0 + ratio * ratio) * tail - ratio * density)
        return clipped + ratio * ratio / (3.0 * self.number * self.number)


def _fit(distribution: Distribution, levels: Levels) -> _Fit | None:
    """Fit a distribution to the magnitudes; None where there are none."""
    folded = distribution.absolute() if levels.scheme is Scheme.SYMMETRIC else distribution
    magnitudes = folded.positive()
    if not magnitudes.total:
        return None
    low, high, count = magnitudes.low, magnitudes.high, magnitudes.count
    # Halved before they are added: two of the largest floats would overflow.
    deviation = float(np.dot(count, 0.5 * low + 0.5 * high) / magnitudes.total)
    square = float(np.dot(count, low * low + low * high + high * high) / (3 * magnitudes.total))
    # The formulas are those of both signs.
    number = 2 * levels.number if levels.scheme is Scheme.ONE_SIDED else levels.number
    # Mean log-likelihoods: -log(2 b) - 1 and -log(2 pi sigma^2) / 2 - 1/2.
    sigma = math.sqrt(square)
    # Squares of magnitudes below 1e-154 vanish; their spread is then that of one point.
    sigma = max(sigma, deviation)
    is_laplace = math.log(2.0 * deviation) + 0.5 < 0.5 * math.log(2.0 * math.pi) + math.log(sigma)
    return _Fit(is_laplace, deviation if is_laplace else sigma, number, float(high[-1]))


def aciq_maximum_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the Gaussian's optimal threshold, its deviation estimated from the largest magnitude.

    Of N numbers from a Gaussian the largest is expected near ``sigma * sqrt(2 ln N)``; the paper's
    code, and ncnn's and Tengine's tools, take
    ``sigma = 2 absmax * 0.175 (1 + sqrt(pi ln 4)) / sqrt(2 ln N)`` with N the elements of one
    sample. The threshold is then a multiple of ``absmax`` that depends on N alone, and exceeds
    ``absmax`` for N below 8000 or so at 8 bits: nothing is clipped there, and codes are wasted.
    """
    fit = _fit_maximum(distribution, levels)
    if fit.spread == 0.0:
        return levels.range_of_threshold(fit.largest)
    factor = _GAUSSIAN.get(fit.number.bit_length() - 1) or gauss_constant(fit.number)
    return levels.range_of_threshold(float(np.float32(min(factor * fit.spread, _LARGEST))))


def aciq_maximum_loss(
    distribution: Distribution, levels: Levels, ends: tuple[float, float]
) -> float:
    """Return the expected squared error of a threshold, of that Gaussian."""
    fit = _fit_maximum(distribution, levels)
    if fit.spread == 0.0:
        return ends[1] if ends[1] >= fit.largest else math.inf
    return fit.error(ends[1])


def _fit_maximum(distribution: Distribution, levels: Levels) -> _Fit:
    """Estimate a Gaussian from the largest magnitude; its spread is 0 where nothing tells it."""
    absmax = max(abs(distribution.minimum), abs(distribution.maximum))
    if levels.scheme is Scheme.ONE_SIDED:
        absmax = max(distribution.maximum, 0.0)
    elements = distribution.total / distribution.samples if distribution.samples else 0.0
    # 255 codes of both signs count as 256, as the tools have a constant for 8 bits only.
    number = 1 << math.ceil(math.log2(levels.number))
    if absmax == 0.0 or elements <= 1.0:
        return _Fit(False, 0.0, number, absmax)
    spread = 2.0 * absmax * _FROM_MAXIMUM / math.sqrt(2.0 * math.log(elements))
    return _Fit(False, spread, number, absmax)


@lru_cache
def laplace_constant(number: int) -> float:
    """Return the optimal threshold in units of b for a number of codes (5.03 for 16).

    The error is ``2 b^2 exp(-a/b) + a^2 / (3 n^2)``; its derivative vanishes where
    ``exp(-u) = u / (3 n^2)`` with ``u = a/b``.
    """
    return _root(lambda u: math.exp(-u) - u / (3.0 * number * number))


@lru_cache
def gauss_constant(number: int) -> float:
    """Return the optimal threshold in units of sigma for a number of codes (2.56 for 16).

    The error is twice the squared excess beyond ``a``, plus ``a^2 / (3 n^2)``; its derivative
    vanishes where ``2 (phi(u) - u Q(u)) = u / (3 n^2)`` with ``u = a/sigma``, the normal density
    phi and its upper tail Q.
    """

    def derivative(u: float) -> float:
        density = math.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
        tail = 0.5 * math.erfc(u / math.sqrt(2.0))
        return 2.0 * (density - u * tail) - u / (3.0 * number * number)

    return _root(derivative)


def _root(function: Callable[[float], float]) -> float:
    """Return the root of a falling function on 0..100 by bisection, to the last bit."""
    low, high = 0.0, 100.0
    # 100 * 2**-80 is below the last bit of every root there is.
    for _ in range(80):
        middle = 0.5 * (low + high)
        if function(middle) > 0.0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
