"""Chooses the ranges of a decoder's caches of keys and values.

Keys are turned by a rotary embedding before they are kept. A key that calibration saw at one place
may come at any other, where its numbers are others: observed numbers alone would clip it (9.3 % of
error at place 32,000, measured). The length of a pair is the same at every place, and bounds both
of its numbers (see `intact.graph.caches.Rotation`).

Other texts give other numbers than those of calibration, and few codes are better spent on the
many than on the largest. How wide a range is best follows from the samples: the range of some,
times a factor, is tried on the others. What is clipped counts by the length of its pair, so that a
range does as well at every place.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.engines.session import Feeds, make_session, run_session
from intact.errors import CalibrationError
from intact.graph.caches import rotation_of
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph
from intact.plan.caches import HALF, CachePoint, CacheRanges, cache_points

_FOLDS = 4
"""Parts of the samples; each is tried with the range of the others."""
_STEPS = 8
"""Bins of magnitudes in an octave."""
_LOWEST, _HIGHEST = -24, 24
"""Octaves of magnitudes that have bins of their own."""
_BINS = (_HIGHEST - _LOWEST) * _STEPS
_FACTORS = 2.0 ** (np.arange(-8, 9) / 4)
"""Of ranges, that are tried: a quarter to four times the largest magnitude."""

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
    points = list(cache_points(plan))
    editor = Editor(plan.graph.model)
    names = [str(point.cache.appended.name) for point in points]
    editor.model.graph.outputs[:] = [editor.value(name) for name in dict.fromkeys(names)]
    session = make_session(editor.finish(), threads=threads)
    wanted = {each.name for each in session.get_inputs()}
    found = [_Observed(point) for point in points]
    for batch, count in batches:
        folds = list(_folds(batch, count))
        feeds = {name: array for name, array in batch.items() if name in wanted}
        for each, values in zip(found, run_session(session, feeds, names), strict=True):
            each.add(values, folds)
    return {each.point.end: each.range() for each in found}


def _folds(batch: Feeds, count: int) -> Iterator[int]:
    """Yield the part of each sample; the same sample is always in the same."""
    whole = sorted(batch.items())
    is_split = all(array.ndim and len(array) >= count for _, array in whole)
    for row in range(count) if is_split else range(1):
        digest = 0
        for _, array in whole:
            part = array[row] if is_split else array
            digest = zlib.crc32(np.ascontiguousarray(part).tobytes(), digest)
        yield digest % _FOLDS


class _Observed:
    """Magnitudes in one cache, counted for each channel and part of the samples."""

    def __init__(self, point: CachePoint) -> None:
        self.point = point
        self._rotation = rotation_of(point.cache.appended, point.cache.size)
        channels = point.cache.channels
        self._largest = np.zeros((_FOLDS, channels))
        self._counts: _Counts = np.zeros((_FOLDS, channels, _BINS), np.int64)

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
        magnitudes = (
            np.abs(heads.astype(np.float64))
            if self._rotation is None
            else self._rotation.envelope(heads)
        ).reshape(len(values), -1, cache.channels)
        rows = magnitudes if len(folds) > 1 else magnitudes.reshape(1, -1, cache.channels)
        for fold, row in zip(folds, rows, strict=False):
            self._largest[fold] = np.maximum(self._largest[fold], row.max(axis=0, initial=0.0))
            self._count(fold, row)

    def _count(self, fold: int, row: _Numbers) -> None:
        with np.errstate(divide="ignore"):
            octaves = np.log2(row) * _STEPS - _LOWEST * _STEPS
        bins = np.clip(octaves, 0, _BINS - 1).astype(np.int64)
        places = bins + np.arange(row.shape[1]) * _BINS
        counts = np.bincount(places.reshape(-1), minlength=self._counts[fold].size)
        self._counts[fold] += counts.reshape(self._counts[fold].shape)

    def range(self) -> _Numbers:
        """Return the largest magnitudes in range."""
        largest = self._shared(self._largest.max(axis=0))
        errors = np.zeros(len(_FACTORS))
        for fold, counts in enumerate(self._counts):
            others = self._shared(np.delete(self._largest, fold, axis=0).max(axis=0))
            if counts.any() and others.any():
                errors += [self._error(counts, others * factor) for factor in _FACTORS]
        if not errors.any():  # there is but one part
            return largest
        return np.asarray(largest * float(_FACTORS[int(np.argmin(errors))]))

    def _shared(self, largest: _Numbers) -> _Numbers:
        is_one = self.point.config.granularity.axis is None
        return np.full_like(largest, largest.max()) if is_one else largest

    def _error(self, counts: _Counts, most: _Numbers) -> float:
        """Estimate the squared error of counted numbers: what is clipped, and what is rounded."""
        middles = 2.0 ** ((np.arange(_BINS) + 0.5) / _STEPS + _LOWEST)
        steps = np.where(most > 0, most, 1.0) / (self.point.config.quant_max + HALF)
        beyond = np.maximum(middles - most[:, None], 0.0) ** 2
        rounded = np.minimum(steps[:, None] ** 2 / 12, middles**2)
        return float((counts * np.where(beyond > 0, beyond, rounded)).sum())
