"""Sums errors between two results from pieces that are not kept."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.numerics.exact_sum import ExactSum
from intact.numerics.metrics import FloatArray, decibels

_Doubles = npt.NDArray[np.float64]


_COMPILED = 1 << 12
"""Elements from which they are summed by compiled code: loading it takes 50 ms."""


class SavedSums(NamedTuple):
    """What `ErrorSums` holds, as plain values that can be sent."""

    exact: tuple[bytes, ...]
    """The saved form of each exact sum."""
    beyond: tuple[float, ...]
    """What was added to each that is not finite."""
    elements: int
    """How many numbers were compared."""
    comparable: bool
    """Whether all pieces were."""


class ErrorSums:
    """SQNR and cosine of two results that arrive piece by piece, without keeping them.

    The sums of a piece are taken in float64, so that float32 pieces of any size neither overflow
    nor vanish, and those of all pieces exactly: the order of pieces, and who summed which, have no
    effect.
    """

    def __init__(self) -> None:
        # reference, actual, product, noise
        self._exact = tuple(ExactSum() for _ in range(4))
        self._beyond = [0.0] * 4
        self._comparable, self._elements = True, 0

    def add(self, reference: FloatArray, actual: FloatArray) -> None:
        """Add two pieces; if their shapes differ or they are no numbers, the whole is NaN."""
        first, second = np.asarray(reference), np.asarray(actual)
        numbers = first.dtype.kind in "biuf" and second.dtype.kind in "biuf"
        self._comparable &= numbers and first.shape == second.shape
        if not self._comparable:
            return
        self._elements += first.size
        # Four numbers of a piece go into exact sums, not its elements: a sum inside a piece has
        # always the same order, that of pieces is whatever threads make it.
        piece = ChannelErrorSums()
        piece.add(first, second)
        for place, value in enumerate(piece.sums):
            if math.isfinite(value):
                self._exact[place].add(value)
            else:
                self._beyond[place] += value

    def join(self, more: ErrorSums) -> None:
        """Add what was summed of other pieces."""
        self._comparable &= more._comparable
        self._elements += more._elements
        for own, other in zip(self._exact, more._exact, strict=True):
            own.merge(other)
        self._beyond = [a + b for a, b in zip(self._beyond, more._beyond, strict=True)]

    def saved(self) -> SavedSums:
        """Return the sums as plain values."""
        exact = tuple(each.to_array().tobytes() for each in self._exact)
        return SavedSums(exact, tuple(self._beyond), self._elements, self._comparable)

    @classmethod
    def of(cls, saved: SavedSums) -> ErrorSums:
        """Return the sums that `saved` gave.

        Raises:
            CalibrationError: They are damaged.
        """
        found = cls()
        words = (np.frombuffer(each, np.int64) for each in saved.exact)
        found._exact = tuple(ExactSum.from_array(each) for each in words)
        found._beyond = list(saved.beyond)
        found._elements, found._comparable = saved.elements, saved.comparable
        return found

    def _sums(self) -> list[float]:
        return [e.value() + b for e, b in zip(self._exact, self._beyond, strict=True)]

    @property
    def sqnr_db(self) -> float:
        """The :func:`sqnr_db` of the whole; NaN where that cannot be said."""
        if not self._comparable or not self._elements:
            return math.nan
        reference, _, _, noise = self._sums()
        return decibels(reference, noise)

    @property
    def cosine(self) -> float:
        """The :func:`cosine` of the whole; NaN where that cannot be said."""
        if not self._comparable or not self._elements:
            return math.nan
        reference, actual, product, _ = self._sums()
        if 0.0 in (reference, actual):
            return 1.0 if reference == actual else 0.0
        # Roots first: the product of two sums of squares may leave float64.
        lengths = math.sqrt(reference) * math.sqrt(actual)
        return min(max(product / lengths, -1.0), 1.0)


class ChannelErrorSums:
    """Cosine, SQNR and mean squared error of two tensors whose samples arrive piece by piece.

    Sums are taken in float64. Two zero vectors are equal, their cosine is 1; that of a zero and
    another vector is 0.

    Args:
        axis: The channel axis; None for one channel, the whole tensor.
    """

    def __init__(self, axis: int | None = None) -> None:
        self._axis = axis
        self._sums: _Doubles = np.zeros((4, 0))  # reference, actual, product, noise by channel
        self._elements = 0

    def add(self, reference: npt.NDArray[Any], actual: npt.NDArray[Any]) -> None:
        """Add some samples of both.

        Raises:
            DataError: Their shapes differ, or the channels are not as many as before.
        """
        first, second = np.asarray(reference), np.asarray(actual)
        channels = 1 if self._axis is None else first.shape[self._axis]
        if first.shape != second.shape or self._channels not in (0, channels):
            raise DataError(
                f"cannot compare shapes {list(first.shape)} and {list(second.shape)}",
                remedy="give both tensors of the same samples",
            )
        if not self._channels:
            self._sums = np.zeros((4, channels))
        shape = _outer_channels_inner(first.shape, self._axis)
        # Half precision is exact in float32; integers and doubles are not, and take numpy's sums.
        is_single = np.result_type(first, second) in (np.float16, np.float32)
        add = _add_compiled if is_single and first.size >= _COMPILED else _add
        add(first.reshape(shape), second.reshape(shape), self._sums)
        self._elements += first.size

    def join(self, more: ChannelErrorSums) -> None:
        """Add what was summed of other samples.

        Raises:
            DataError: The channels are not as many.
        """
        if not more._channels:
            return
        if self._channels not in (0, more._channels):
            raise DataError(f"cannot join {more._channels} channels with {self._channels}")
        self._sums = self._sums + more._sums if self._channels else more._sums.copy()
        self._elements += more._elements

    @property
    def _channels(self) -> int:
        return int(self._sums.shape[1])

    @property
    def cosines(self) -> _Doubles:
        """The cosine of each channel, ``[channels]``."""
        reference, actual, both, _ = self._sums
        return _cosine(both, reference, actual)

    @property
    def cosine(self) -> float:
        """The cosine of the whole tensors; NaN before anything was added."""
        if not self._elements:
            return math.nan
        reference, actual, both, _ = self._sums.sum(axis=1, keepdims=True)
        return float(_cosine(both, reference, actual)[0])

    @property
    def elements(self) -> int:
        """The number of elements of either tensor."""
        return self._elements

    @property
    def sums(self) -> tuple[float, float, float, float]:
        """The sums of all channels: squares of both, products, squared differences."""
        reference, actual, both, noise = self._sums.sum(axis=1).tolist()
        return reference, actual, both, noise

    @property
    def signal(self) -> float:
        """The sum of the squares of the reference."""
        return float(self._sums[0].sum())

    @property
    def noise(self) -> float:
        """The sum of the squared differences."""
        return float(self._sums[3].sum())

    @property
    def mse(self) -> float:
        """The mean squared difference; NaN before anything was added."""
        return self.noise / self._elements if self._elements else math.nan

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise in dB; infinite without noise.

        NaN before anything was added, and where a value is NaN or infinite.
        """
        return _sqnr_db(self.signal, self.noise) if self._elements else math.nan

    @property
    def channel_sqnr_db(self) -> _Doubles:
        """The same of each channel, ``[channels]``."""
        pairs = zip(self._sums[0].tolist(), self._sums[3].tolist(), strict=True)
        return np.array([_sqnr_db(signal, noise) for signal, noise in pairs])


def _sqnr_db(signal: float, noise: float) -> float:
    is_finite = math.isfinite(signal) and math.isfinite(noise)
    return decibels(signal, noise) if is_finite else math.nan


def _add(first: npt.NDArray[Any], second: npt.NDArray[Any], sums: _Doubles) -> None:
    """Add two tensors ``[outer, channels, inner]`` to the sums ``[4, channels]``."""
    one, other = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # of infinities
        noise = one - other
        for row, pair in enumerate(((one, one), (other, other), (one, other), (noise, noise))):
            sums[row] += np.einsum("ocn,ocn->c", *pair)


def _add_compiled(first: npt.NDArray[Any], second: npt.NDArray[Any], sums: _Doubles) -> None:
    """Do what `_add` does in one pass, for values of single precision."""
    from intact.numerics.comparison_kernel import LANES, SUMS, add_channels

    one, other = (np.ascontiguousarray(each, np.float32) for each in (first, second))
    added = np.zeros((one.shape[1], SUMS))
    add_channels(one, other, np.empty((SUMS, LANES)), added)
    sums += added.T


def _outer_channels_inner(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    if axis is None:
        return 1, 1, math.prod(shape)
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _cosine(product: _Doubles, first: _Doubles, second: _Doubles) -> _Doubles:
    is_zero = (first == 0.0) | (second == 0.0)
    lengths = np.sqrt(np.where(is_zero, 1.0, first)) * np.sqrt(np.where(is_zero, 1.0, second))
    of_zeros = np.where(first == second, 1.0, 0.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(is_zero, of_zeros, np.clip(product / lengths, -1.0, 1.0)))


class Moments:
    """What is known of all values so far; none is kept.

    Means and squared deviations of pieces are put together as Chan, Golub and LeVeque do
    (Technical Report 222, Stanford, 1979), in float64 and relative to the first value: a large
    mean costs no digits of a small deviation, and that of equal values is exactly 0.

    NaN and infinity count as in numpy: the mean of a tensor that holds infinity is infinite or
    NaN, its deviation NaN.
    """

    def __init__(self) -> None:
        self._count = 0
        self._origin = 0.0
        self._mean = 0.0  # relative to the origin
        self._squares = 0.0  # of deviations from the mean
        self._minimum = math.inf
        self._maximum = -math.inf

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add some values, of any real type and shape."""
        wide = np.asarray(values, np.float64).reshape(-1)
        if not wide.size:
            return
        if not self._count and math.isfinite(wide[0]):
            self._origin = float(wide[0])
        with np.errstate(invalid="ignore", over="ignore"):
            shifted = wide - self._origin
            mean = float(shifted.mean())
            squares = float(np.square(shifted - mean).sum())
            least, greatest = float(wide.min()), float(wide.max())
        self._merge(wide.size, mean, squares, least, greatest)

    def join(self, more: Moments) -> None:
        """Add what is known of other values."""
        if not self._count:
            self._origin = more._origin
        mean = (more._origin - self._origin) + more._mean
        if more._count:
            self._merge(more._count, mean, more._squares, more._minimum, more._maximum)

    def _merge(
        self, count: int, mean: float, squares: float, minimum: float, maximum: float
    ) -> None:
        """Add figures of some values; their mean is relative to the origin."""
        self._minimum = float(np.minimum(self._minimum, minimum))
        self._maximum = float(np.maximum(self._maximum, maximum))
        # The weight of the new values. A difference of means times it needs no sum of all values,
        # which would lose the digits of small additions to many.
        share = count / (self._count + count)
        if math.isfinite(self._mean) and math.isfinite(mean):
            gap = mean - self._mean
            self._squares += squares + gap * gap * self._count * share
            self._mean += gap * share
        else:
            self._squares = math.nan
            self._mean += mean  # of different infinities NaN
        self._count += count

    @property
    def count(self) -> int:
        """How many values there were."""
        return self._count

    @property
    def mean(self) -> float:
        """The mean; NaN before anything was added."""
        return self._origin + self._mean if self._count else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the values as a population; NaN before anything was added."""
        return math.sqrt(self._squares / self._count) if self._count else math.nan

    @property
    def minimum(self) -> float:
        """The smallest value; NaN if one is NaN or none was added."""
        return self._minimum if self._count else math.nan

    @property
    def maximum(self) -> float:
        """The largest value; NaN if one is NaN or none was added."""
        return self._maximum if self._count else math.nan
