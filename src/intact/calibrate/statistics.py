"""Declares ``Statistics``: what one pass over the samples leaves behind.

They belong to the float model alone. Every count is an integer and every sum is exact, so
merging is exact too: the order of the samples, the caller's batches and the number of workers
leave no trace.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.archive import read_npz
from intact.errors import CalibrationError, nearest
from intact.numerics.distribution import Distribution
from intact.numerics.exact_sum import ExactSum
from intact.numerics.histogram import SampleStatistics, finite_count, new_counts

STATISTICS_VERSION = 1
_MOMENTS = ("total", "squares", "minima", "maxima")
_COUNTED_AGAIN, _MAGNITUDES = "counted_again", "magnitudes"
"""Arrays that are saved where a second pass has counted: positions of tensors, and counts."""


@dataclass
class TensorStatistics:
    """Statistics of one tensor.

    Attributes:
        counts: Elements in each float-bits bin, int64 [65536].
        zeros: Elements that are exactly 0.
        samples: Samples seen that held a finite element.
        minimum: Smallest finite element, +inf while there is none.
        maximum: Largest finite element, -inf while there is none.
        total: Exact sum of the samples' sums.
        squares: Exact sum of the samples' sums of squares.
        minima: Exact sum of the samples' minima.
        maxima: Exact sum of the samples' maxima.
        magnitudes: Counts of a second pass, int64 [bins] (see `Distribution`); of all samples or
            of none, so that merging drops them.
    """

    counts: npt.NDArray[np.int64] = field(default_factory=new_counts)
    zeros: int = 0
    samples: int = 0
    minimum: float = np.inf
    maximum: float = -np.inf
    total: ExactSum = field(default_factory=ExactSum)
    squares: ExactSum = field(default_factory=ExactSum)
    minima: ExactSum = field(default_factory=ExactSum)
    maxima: ExactSum = field(default_factory=ExactSum)
    magnitudes: npt.NDArray[np.int64] | None = None
    _made: Distribution | None = field(default=None, init=False, repr=False, compare=False)

    def add(self, rows: SampleStatistics) -> None:
        """Add what the histogram kernel found in some samples (``counts`` it has filled)."""
        # The distribution is of the former counts.
        self._made = None
        seen = rows.minimum <= rows.maximum  # samples with a finite element
        self.samples += int(seen.sum())
        self.zeros += int(rows.zeros.sum())
        if seen.any():
            self.minimum = min(self.minimum, float(rows.minimum[seen].min()))
            self.maximum = max(self.maximum, float(rows.maximum[seen].max()))
        # Samples without a finite element have sums of 0, but infinite ends: only those are left
        # out.
        self.total.add(rows.total)
        self.squares.add(rows.total_squares)
        self.minima.add(rows.minimum[seen].astype(np.float64))
        self.maxima.add(rows.maximum[seen].astype(np.float64))

    def merge(self, other: TensorStatistics) -> None:
        """Add the statistics of other samples, exactly."""
        self._made = self.magnitudes = None
        self.counts += other.counts
        self.zeros += other.zeros
        self.samples += other.samples
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        for moment in _MOMENTS:
            getattr(self, moment).merge(getattr(other, moment))

    def merge_saved(
        self,
        *,
        bins: npt.NDArray[np.uint16],
        counts: npt.NDArray[Any],
        zeros: int,
        samples: int,
        minimum: float,
        maximum: float,
        sums: Mapping[str, ExactSum],
    ) -> None:
        """Add statistics of other samples, of which only the bins that are not empty are given."""
        self._made = self.magnitudes = None
        self.counts[bins] += counts.astype(np.int64)  # no bin is given twice
        self.zeros += zeros
        self.samples += samples
        self.minimum = min(self.minimum, minimum)
        self.maximum = max(self.maximum, maximum)
        for moment in _MOMENTS:
            getattr(self, moment).merge(sums[moment])

    def count_again(self, magnitudes: npt.NDArray[np.int64]) -> None:
        """Take what a second pass over the same samples has counted."""
        self._made, self.magnitudes = None, magnitudes

    def distribution(self) -> Distribution:
        """Return the distribution for the threshold methods; made once, each tries it."""
        if self._made is None:
            self._made = self._distribution()
        return self._made

    def _distribution(self) -> Distribution:
        finite = max(finite_count(self.counts), 1)
        samples = max(self.samples, 1)
        return Distribution.from_counts(
            self.counts,
            minimum=self.minimum,
            maximum=self.maximum,
            mean_minimum=self.minima.mean(samples),
            mean_maximum=self.maxima.mean(samples),
            mean=self.total.mean(finite),
            mean_square=self.squares.mean(finite),
            samples=self.samples,
            zeros=self.zeros,
            magnitudes=self.magnitudes,
        )


class Statistics(msgspec.Struct):
    """Statistics of the tensors of one model.

    Attributes:
        model_hash: Hash of the normalized float model.
        tensors: The tensors by value name: those that were observed.
    """

    model_hash: str
    tensors: dict[str, TensorStatistics] = msgspec.field(default_factory=dict)

    def __getitem__(self, name: str) -> TensorStatistics:
        try:
            return self.tensors[name]
        except KeyError:
            raise CalibrationError(
                f"tensor {name!r} was not observed",
                remedy=f"collect it; {nearest(name, self.tensors)}",
            ) from None

    @property
    def samples(self) -> int:
        """How many samples were observed."""
        return max((each.samples for each in self.tensors.values()), default=0)

    def only(self, names: Iterable[str]) -> Statistics:
        """Return the statistics of some of the tensors.

        Raises:
            CalibrationError: One was not observed.
        """
        return Statistics(self.model_hash, {name: self[name] for name in names})

    def merge(self, other: Statistics) -> None:
        """Add the statistics of other samples of the same model, exactly.

        Raises:
            CalibrationError: The statistics are of another model or of other tensors.
        """
        if other.model_hash != self.model_hash:
            raise CalibrationError("statistics of different models cannot be merged")
        if other.tensors.keys() != self.tensors.keys():
            raise CalibrationError("statistics of different tensors cannot be merged")
        for name, tensor in self.tensors.items():
            tensor.merge(other.tensors[name])

    def merge_bytes(self, content: bytes) -> None:
        """Add the statistics that ``to_bytes`` wrote, exactly; what has no tensors yet gets them.

        Only the bins that are not empty are touched, so merging costs little for each tensor.

        Raises:
            CalibrationError: The errors of ``merge`` and ``load``.
        """
        other = _read("statistics of a worker", io.BytesIO(content))
        if other.model_hash != self.model_hash:
            raise CalibrationError("statistics of different models cannot be merged")
        if not self.tensors:
            self.tensors = {name: TensorStatistics() for name in other.names}
        if self.tensors.keys() != set(other.names):
            raise CalibrationError("statistics of different tensors cannot be merged")
        other.merge_into(self.tensors)

    def to_bytes(self, *, compressed: bool = True) -> bytes:
        """Return the ``.npz`` form; equal statistics give equal bytes."""
        buffer = io.BytesIO()
        write = np.savez_compressed if compressed else np.savez
        write(buffer, allow_pickle=False, **self._arrays())
        return buffer.getvalue()

    def hash(self) -> str:
        """Return the SHA-256 of the content, hexadecimal; independent of how it is compressed."""
        digest = hashlib.sha256()
        for name, array in self._arrays().items():
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays: the non-empty bins of all tensors one after the other."""
        # Sorted: equal statistics give equal bytes, in whatever order tensors were observed.
        names = sorted(self.tensors)
        tensors = [self.tensors[name] for name in names]
        bins = [np.flatnonzero(tensor.counts != 0) for tensor in tensors]  # bools scan faster
        counts = _concatenate([t.counts[found] for t, found in zip(tensors, bins, strict=True)])
        # Half the bytes of nearly all files: few calibrations see a value four thousand million
        # times.
        fits = counts.max(initial=0) < 2**32
        arrays: dict[str, npt.NDArray[Any]] = {
            "version": np.array(STATISTICS_VERSION),
            "model_hash": np.array(self.model_hash),
            "names": _pack_names(names),
            "bin_ends": np.cumsum([len(found) for found in bins], dtype=np.int64),
            # There are 2**16 bins, so no index is cut.
            "bins": _concatenate(bins).astype(np.uint16),
            "counts": counts.astype(np.uint32 if fits else np.int64),
            "zeros": np.array([tensor.zeros for tensor in tensors], np.int64),
            "samples": np.array([tensor.samples for tensor in tensors], np.int64),
            "minimum": np.array([tensor.minimum for tensor in tensors], np.float64),
            "maximum": np.array([tensor.maximum for tensor in tensors], np.float64),
        }
        for moment in _MOMENTS:
            sums = [getattr(tensor, moment).to_array() for tensor in tensors]
            arrays[moment] = np.stack(sums) if sums else np.zeros((0, 0), np.int64)
        again = {k: t.magnitudes for k, t in enumerate(tensors) if t.magnitudes is not None}
        if again:
            arrays[_COUNTED_AGAIN] = np.array([*again], np.int64)
            arrays[_MAGNITUDES] = np.stack([*again.values()])
        return arrays

    @staticmethod
    def load(path: Path) -> Statistics:
        """Read what ``to_bytes`` wrote.

        Raises:
            CalibrationError: The file is missing, damaged or of another version.
        """
        found = _read(str(path), path)
        statistics = Statistics(found.model_hash, {n: TensorStatistics() for n in found.names})
        found.merge_into(statistics.tensors)
        for name, magnitudes in found.magnitudes():
            statistics.tensors[name].count_again(magnitudes)
        return statistics


_MOST_PADDING = 1 << 20
"""Bytes by which names may be padded to the longest of them."""


def _pack_names(names: list[str]) -> npt.NDArray[Any]:
    """Return names as an array of text, or as JSON where one is much longer than the others."""
    padded = 4 * len(names) * max(map(len, names), default=0)
    if padded > _MOST_PADDING + 16 * sum(map(len, names)):
        return np.frombuffer(json.dumps(names).encode(), np.uint8)
    return np.array(names, dtype=np.str_)


def _unpack_names(array: npt.NDArray[Any]) -> list[str]:
    if array.dtype != np.uint8:
        return [str(name) for name in array.tolist()]
    names = json.loads(array.tobytes())
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("names is no list of texts")
    return names


def _concatenate(arrays: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _check(arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Refuse arrays of other kinds or sizes than ``_arrays`` gives."""
    if int(arrays["version"]) != STATISTICS_VERSION:
        raise ValueError(f"version {arrays['version']}, this intact reads {STATISTICS_VERSION}")
    names = arrays["names"]
    if names.ndim != 1 or (names.dtype.kind != "U" and names.dtype != np.uint8):
        raise ValueError(f"names is {names.dtype} of shape {list(names.shape)}")
    tensors, bins = len(_unpack_names(names)), arrays["bins"].size
    for name, (kind, shape) in {
        "model_hash": ("U", ()),
        "bin_ends": ("i", (tensors,)),
        "bins": ("u", (bins,)),
        "counts": ("iu", (bins,)),
        "zeros": ("i", (tensors,)),
        "samples": ("i", (tensors,)),
        "minimum": ("f", (tensors,)),
        "maximum": ("f", (tensors,)),
    }.items():
        array = arrays[name]
        if array.dtype.kind not in kind or array.shape != shape:
            raise ValueError(f"{name} is {array.dtype} of shape {list(array.shape)}")
    # Ascending ends: each tensor has a stretch of its own, and no index leaves the arrays.
    ends = [0, *arrays["bin_ends"].tolist(), bins]
    if ends != sorted(ends) or len(set(_unpack_names(names))) < tensors:
        raise ValueError("its tensors overlap")
    for name in ("counts", "zeros", "samples"):
        if (arrays[name] < 0).any():
            raise ValueError(f"{name} below 0")
    positions, magnitudes = _again(arrays)
    kinds = positions.dtype.kind + magnitudes.dtype.kind
    sizes = positions.ndim == 1 and magnitudes.ndim == 2 and len(positions) == len(magnitudes)
    known = sizes and kinds == "ii" and np.isin(positions, np.arange(tensors)).all()
    if not known or len(set(positions.tolist())) < len(positions) or (magnitudes < 0).any():
        raise ValueError("magnitudes of other tensors")
    if np.isnan(arrays["minimum"]).any() or np.isnan(arrays["maximum"]).any():
        raise ValueError("a range that is no number")


def _again(
    arrays: Mapping[str, npt.NDArray[Any]],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the positions of tensors that were counted again, and their counts."""
    none = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    if not {_COUNTED_AGAIN, _MAGNITUDES} & arrays.keys():
        return none
    return arrays[_COUNTED_AGAIN], arrays[_MAGNITUDES]


class _Saved:
    """Statistics as they are saved."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        _check(arrays)
        self._arrays = arrays
        self.model_hash = str(arrays["model_hash"])
        self.names = _unpack_names(arrays["names"])
        self._sums = {
            moment: [ExactSum.from_array(words) for words in arrays[moment]] for moment in _MOMENTS
        }
        if any(len(sums) != len(self.names) for sums in self._sums.values()):
            raise ValueError("sums of other tensors")

    def magnitudes(self) -> Iterable[tuple[str, npt.NDArray[np.int64]]]:
        """Return what a second pass has counted, by name."""
        positions, counts = _again(self._arrays)
        return zip((self.names[k] for k in positions.tolist()), counts, strict=True)

    def merge_into(self, tensors: dict[str, TensorStatistics]) -> None:
        """Add them to statistics of these tensors."""
        arrays, start = self._arrays, 0
        for index, name in enumerate(self.names):
            end = int(arrays["bin_ends"][index])
            tensors[name].merge_saved(
                bins=arrays["bins"][start:end],
                counts=arrays["counts"][start:end],
                zeros=int(arrays["zeros"][index]),
                samples=int(arrays["samples"][index]),
                minimum=float(arrays["minimum"][index]),
                maximum=float(arrays["maximum"][index]),
                sums={moment: sums[index] for moment, sums in self._sums.items()},
            )
            start = end


def _read(source: str, file: Path | IO[bytes]) -> _Saved:
    """Read saved statistics.

    Raises:
        CalibrationError: They are missing, damaged or of another version.
    """
    try:
        if isinstance(file, Path):
            return _Saved(read_npz(file))
        with np.load(file, allow_pickle=False) as arrays:
            return _Saved(dict(arrays))
    except Exception as error:  # zipfile, zlib and numpy raise a dozen unrelated classes
        reason = str(error) or type(error).__name__
        raise CalibrationError(
            f"{source}: cannot be read as statistics ({reason})",
            remedy="copy it again, or quantize again",
        ) from error
