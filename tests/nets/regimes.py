"""Regimes of values: where numbers lie that networks have, and that arithmetic finds hard.

`SAMPLES` are regimes of what a net is fed, `WEIGHTS` of its constants. A regime takes drawn numbers
of about unit spread and returns as many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Regime = Callable[[Array, np.random.Generator, int], Array]
"""Drawn numbers, further random numbers, the axis of channels."""


def _by_channel(array: Array, factors: Array, axis: int) -> Array:
    if array.ndim <= axis:
        return np.asarray(array * factors[0])
    shape = [1] * array.ndim
    shape[axis] = array.shape[axis]
    return np.asarray(array * np.resize(factors, shape))


def _dead(array: Array, random: np.random.Generator, axis: int) -> Array:
    """Some channels are 0."""
    return _by_channel(array, (random.random(8) < 0.6).astype(np.float64), axis)


def _unlike(array: Array, random: np.random.Generator, axis: int) -> Array:
    """Channels spread over three powers of ten."""
    return _by_channel(array, 10.0 ** random.uniform(-2, 1, 8), axis)


def _constant(array: Array, random: np.random.Generator, axis: int) -> Array:
    """One number."""
    return np.full_like(array, random.normal())


def _few(array: Array, random: np.random.Generator, axis: int) -> Array:
    """Mostly 0."""
    return np.where(random.random(array.shape) < 0.9, 0, array)


def _each(function: Callable[[Array], Array]) -> Regime:
    """Return the regime that computes element by element."""
    return lambda array, _random, _axis: function(array)


SAMPLES: Mapping[str, Regime] = {
    "plain": _each(lambda x: x),
    "tiny": _each(lambda x: x * 1e-6),
    "denormal": _each(lambda x: x * 1e-39),
    "huge": _each(lambda x: x * 1e6),
    "biased": _each(lambda x: x + 30),
    "positive": _each(np.abs),
    "constant": _constant,
    "few": _few,
    "dead": _dead,
    "unlike": _unlike,
}
WEIGHTS: Mapping[str, Regime] = {
    "plain": _each(lambda x: x),
    "tiny": _each(lambda x: x * 1e-6),
    "denormal": _each(lambda x: x * 1e-39),
    "huge": _each(lambda x: x * 1e5),
    "biased": _each(lambda x: x + 1),
    "saturating": _each(lambda x: x * 30),
    "constant": _constant,
    "dead": _dead,
    "unlike": _unlike,
}
