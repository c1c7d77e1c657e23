"""Chooses the ranges of a decoder's caches of keys and values.

Keys are turned by a rotary embedding before they are kept. A key that calibration saw at one place
may come at any other, where its numbers are others: observed numbers alone would clip it (9.3 % of
error at place 32,000, measured). The length of a pair is the same at every place, and bounds both
of its numbers (see `intact.graph.caches.Rotation`).

Caches of steps (see `intact.graph.key_basis`) have the range of their codes.

Other texts give other numbers than those of calibration, and few codes are better spent on the
many than on the largest: each scale takes the range of least error on the samples. How much wider
or narrower all of a cache are best follows from them too: the ranges of some, times a factor, are
tried on the others. What is clipped counts by the length of its pair, so that a range does as well
at every place.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.engines.session import Feeds, FloatModel
from intact.errors import CalibrationError
from intact.graph.caches import rotation_of
from intact.graph.key_basis import is_key, steps_of
from intact.plan import QuantizedGraph, TensorEnd
from intact.plan.caches import HALF, CachePoint, CacheRanges, cache_points

_FOLDS = 4
"""Parts of the samples; each is tried with the range of the others."""
_STEPS = 8
"""Bins of magnitudes in an octave."""
_LOWEST, _HIGHEST = -24, 24
"""Octaves of magnitudes that have bins of their own."""
_BINS = (_HIGHEST - _LOWEST) * _STEPS
_PARTS = 2.0 ** (-np.arange(17) / 8)
"""Of the largest magnitude, that are tried: down to a quarter."""
_FACTORS = 2.0 ** (np.arange(-4, 9) / 4)
"""Of the best ranges of some samples, that are tried on others: half to four times."""

_Counts = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64]


def cache_ranges(
    plan: QuantizedGraph, batches: Iterable[tuple[Batch, int]], *, threads: int = 0
) -> CacheRanges:
    """Run the float model, and return the ranges of what it appends to its caches.

    Args:
        plan: With the caches; scales are not needed.
        batches: Inputs by name, and how many of the samples count. The result depends neither on
            the order of samples nor on how they are batched.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Returns:
        The largest magnitudes in range, ``[channels]``, of each cache that holds codes; all are
        equal where there is one scale.

    Raises:
        CalibrationError: There is NaN or infinity.
    """
    ranges: dict[TensorEnd, _Numbers] = {}
    found: list[_Observed] = []
    for point in cache_points(plan):
        steps = steps_of(point.cache.node)
        if steps is None:
            found.append(_Observed(point))
        else:
            own = np.ones(point.cache.channels) if is_key(point.cache) else np.array(steps.values)
            ranges[point.end] = own * (steps.codes[1] + HALF)
    if not found:
        return ranges
    names = [each.name for each in found]
    model = FloatModel(plan.graph, list(dict.fromkeys(names)), threads=threads)
    for batch, count in batches:
        folds = list(folds_of(batch, count))
        values = model.run(batch)
        for each in found:
            each.add(values[each.name], folds)
    return {**ranges, **{each.point.end: each.range() for each in found}}


def folds_of(batch: Feeds, count: int) -> Iterator[int]:
    """Yield the part of each sample; the same sample is always in the same."""
    whole = sorted(batch.items())
    is_split = all(array.ndim and len(array) >= count for _, array in whole)
    for row in range(count) if is_split else range(1):
        digest = 0
        for _, array in whole:
            part = array[row] if is_split else array
            digest = zlib.crc32(np.ascontiguousarray(part).tobytes(), digest)
        yield digest % _FOLDS


class Magnitudes:
    """Magnitudes in a cache, counted for each channel and part of the samples.

    Args:
        channels: How many channels there are.
    """

    def __init__(self, channels: int) -> None:
        self._largest = np.zeros((_FOLDS, channels))
        self._counts: _Counts = np.zeros((_FOLDS, channels, _BINS), np.int64)

    def add(self, fold: int, rows: _Numbers) -> None:
        """Count magnitudes of a part of the samples, ``[rows, channels]``."""
        self._largest[fold] = np.maximum(self._largest[fold], rows.max(axis=0, initial=0.0))
        with np.errstate(divide="ignore"):
            octaves = np.log2(rows) * _STEPS - _LOWEST * _STEPS
        bins = np.clip(octaves, 0, _BINS - 1).astype(np.int64)
        places = bins + np.arange(rows.shape[1]) * _BINS
        counts = np.bincount(places.reshape(-1), minlength=self._counts[fold].size)
        self._counts[fold] += counts.reshape(self._counts[fold].shape)

    def range(self, highest: int, *, is_one: bool = False, finer: npt.ArrayLike = 1) -> _Numbers:
        """Return the largest magnitudes in range, ``[channels]``.

        Args:
            highest: The highest code.
            is_one: Whether there is one range for all.
            finer: By what a second code of each channel's error is finer; 1 where there is none.
        """
        given = _Codes(highest, is_one, np.asarray(finer, np.float64))
        best = given.best(self._counts.sum(axis=0), self._largest.max(axis=0))
        errors = np.zeros(len(_FACTORS))
        for fold, counts in enumerate(self._counts):
            kept = np.arange(_FOLDS) != fold
            others = self._counts[kept].sum(axis=0), self._largest[kept].max(axis=0)
            if counts.any() and others[0].any():
                reach = given.best(*others)
                errors += [given.errors(counts, reach * factor).sum() for factor in _FACTORS]
        if not errors.any():  # there is but one part
            return best
        return np.asarray(best * float(_FACTORS[int(np.argmin(errors))]))


class _Codes(NamedTuple):
    """The codes that a range is chosen for; see `Magnitudes.range`."""

    highest: int
    is_one: bool
    finer: _Numbers

    def best(self, counts: _Counts, largest: _Numbers) -> _Numbers:
        """Return the ranges of least error of what was counted."""
        most = np.full_like(largest, largest.max()) if self.is_one else largest
        errors = np.array([self.errors(counts, most * part) for part in _PARTS])
        errors = errors.sum(axis=-1, keepdims=True) if self.is_one else errors
        return np.asarray(most * _PARTS[np.argmin(errors, axis=0)])

    def errors(self, counts: _Counts, most: _Numbers) -> _Numbers:
        """Estimate each channel's squared error: of what is clipped, and of what is rounded."""
        middles = 2.0 ** ((np.arange(_BINS) + 0.5) / _STEPS + _LOWEST)
        steps = np.where(most > 0, most, 1.0) / (self.highest + HALF)
        reach = steps * (self.highest + HALF * (1 - 1 / self.finer))
        clipped = (middles - reach[:, None]) ** 2
        rounded = np.minimum((steps / self.finer)[:, None] ** 2 / 12, middles**2)
        is_beyond = middles > most[:, None]
        return np.asarray((counts * np.where(is_beyond, clipped, rounded)).sum(axis=-1))


class _Observed:
    """What is appended to one cache."""

    def __init__(self, point: CachePoint) -> None:
        self.point = point
        self.name = str(point.cache.appended.name)
        self._rotation = rotation_of(point.cache.appended, point.cache.size)
        self._magnitudes = Magnitudes(point.cache.channels)

    def add(self, values: npt.NDArray[np.float32], folds: list[int]) -> None:
        """Count a batch; the first samples belong to these parts."""
        if not np.isfinite(values).all():
            raise CalibrationError(
                f"what {self.point.end.node} appends to {self.point.cache.ports[0]} holds NaN or "
                "infinity",
                remedy="mend the model or the samples, or keep the node float",
            )
        cache = self.point.cache
        heads = values.reshape(*values.shape[:-1], cache.heads, cache.size)
        found = np.abs(heads.astype(np.float64))
        if self._rotation is not None:
            found = self._rotation.envelope(heads)
        found = found.reshape(len(values), -1, cache.channels)
        rows = found if len(folds) > 1 else found.reshape(1, -1, cache.channels)
        for fold, row in zip(folds, rows, strict=False):
            self._magnitudes.add(fold, row)

    def range(self) -> _Numbers:
        """Return the largest magnitudes in range."""
        config = self.point.config
        return self._magnitudes.range(config.quant_max, is_one=config.granularity.axis is None)
