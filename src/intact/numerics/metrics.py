"""Metrics: errors between two results, by channel too; accuracy; moments of a tensor."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.numerics.exact_sum import ExactSum

FloatArray = npt.NDArray[np.floating[Any]]

_NORMAL_95 = 1.959963984540054

"""The 97.5 % quantile of the normal distribution."""


def mse(reference: FloatArray, actual: FloatArray) -> float:
    """Return the mean squared difference, computed in float64."""
    first, second = _pair(reference, actual)
    return float(np.mean((first - second) ** 2))


def max_abs(reference: FloatArray, actual: FloatArray) -> float:
    """Return the largest absolute difference."""
    first, second = _pair(reference, actual)
    return float(np.max(np.abs(first - second)))


def sqnr_db(reference: FloatArray, actual: FloatArray) -> float:
    """Return the signal to quantization noise ratio in decibels.

    ``10 log10(sum(reference^2) / sum((reference - actual)^2))``: infinite if the two are equal,
    minus infinity if only the reference is all zero.
    """
    first, second = _pair(reference, actual)
    return decibels(float(np.sum(first**2)), float(np.sum((first - second) ** 2)))


def cosine(reference: FloatArray, actual: FloatArray) -> float:
    """Return the cosine of the angle between the two as vectors, in -1..1.

    Two zero vectors are equal: 1. A zero and another vector: 0.
    """
    first, second = _pair(reference, actual)
    largest = float(np.max(np.abs(first))), float(np.max(np.abs(second)))
    if 0.0 in largest:
        return 1.0 if largest == (0.0, 0.0) else 0.0
    # Scaled first: squares of tiny or huge values would leave float64.
    first, second = first.ravel() / largest[0], second.ravel() / largest[1]
    lengths = math.sqrt(float(first @ first)) * math.sqrt(float(second @ second))
    return min(max(float(first @ second) / lengths, -1.0), 1.0)


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
        """As :func:`sqnr_db` of the whole; NaN where that cannot be said."""
        if not self._comparable or not self._elements:
            return math.nan
        reference, _, _, noise = self._sums()
        return decibels(reference, noise)

    @property
    def cosine(self) -> float:
        """As :func:`cosine` of the whole; NaN where that cannot be said."""
        if not self._comparable or not self._elements:
            return math.nan
        reference, actual, product, _ = self._sums()
        if 0.0 in (reference, actual):
            return 1.0 if reference == actual else 0.0
        lengths = math.sqrt(reference) * math.sqrt(actual)
        return min(max(product / lengths, -1.0), 1.0)


def top_k(scores: FloatArray, labels: npt.NDArray[np.integer[Any]], k: int = 1) -> float:
    """Return the fraction of samples whose label is among the ``k`` highest scores.

    Of equal scores the one of the lower class index counts as higher, as argmax has it.

    Args:
        scores: ``[samples, classes]``.
        labels: ``[samples]``, class indices.
        k: How many guesses are allowed.

    Raises:
        DataError: If the shapes do not fit, a label is no class, ``k`` is not positive, there is
            no sample or a score is NaN.
    """
    return float(np.mean(in_top_k(scores, labels, k)))


def in_top_k(
    scores: FloatArray, labels: npt.NDArray[np.integer[Any]], k: int = 1
) -> npt.NDArray[np.bool_]:
    """Return for each sample whether :func:`top_k` counts it; arguments and errors are the same."""
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not labels.size or k < 1:
        raise DataError(
            f"top-{k} of scores of shape {scores.shape} and labels of shape {labels.shape}",
            remedy="pass [samples, classes] and [samples], k of at least 1",
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise DataError(
            f"labels {labels.min()}..{labels.max()} for {scores.shape[1]} classes",
            remedy="check that labels start at 0 and belong to this model",
        )
    if np.isnan(scores).any():
        raise DataError("a score is NaN", remedy="check the samples and the model")
    chosen = np.take_along_axis(scores, labels[:, None], axis=1)
    earlier = np.arange(scores.shape[1]) < labels[:, None]
    ahead = (scores > chosen) | ((scores == chosen) & earlier)
    return np.asarray(ahead.sum(axis=1) < k)


def agreement(reference: FloatArray, actual: FloatArray) -> float:
    """Return the fraction of samples for which both ``[samples, classes]`` have the same argmax.

    Raises:
        DataError: If the shapes differ or are not of that kind.
    """
    first, second = _pair(reference, actual)
    if first.ndim != 2:
        raise DataError(
            f"agreement of scores of shape {first.shape}", remedy="pass [samples, classes]"
        )
    return float(np.mean(first.argmax(axis=1) == second.argmax(axis=1)))


class AccuracyDifference(NamedTuple):
    """A difference in accuracy on the same samples, with its 95 % confidence interval."""

    difference: float
    """Accuracy of the second minus accuracy of the first, as a fraction."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.low <= 0.0 <= self.high


def accuracy_difference(
    first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]
) -> AccuracyDifference:
    """Compare two models on the same samples.

    Only samples on which exactly one of them is right carry information, so that the interval is
    far narrower than that of two independent accuracies. It is Wald's for paired proportions with
    half an observation added to each of the four cells, which keeps its coverage for few samples
    and few disagreements (A. Agresti, Y. Min, Statistics in Medicine 24, 2005).

    Args:
        first: bool ``[samples]``, whether the first model is right.
        second: bool ``[samples]``, whether the second is.

    Raises:
        DataError: If the arrays are not of one shape ``[samples]`` with at least one sample.
    """
    before, after = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if before.ndim != 1 or before.shape != after.shape or not before.size:
        raise DataError(
            f"paired results of shapes {before.shape} and {after.shape}",
            remedy="pass two equally long, non-empty arrays",
        )
    gained = float(np.sum(~before & after))
    lost = float(np.sum(before & ~after))
    number = before.size + 2.0
    centre = (gained - lost) / number
    spread = (gained + lost + 1.0) / number - centre * centre
    margin = _NORMAL_95 * math.sqrt(spread / number)
    return AccuracyDifference(
        (gained - lost) / before.size, max(centre - margin, -1.0), min(centre + margin, 1.0)
    )


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers, dB: infinite without noise, minus infinity without signal."""
    if noise == 0.0:
        return math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise)) if signal > 0.0 else -math.inf


def _pair(
    reference: FloatArray, actual: FloatArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    first, second = np.asarray(reference), np.asarray(actual)
    if first.shape != second.shape or not first.size:
        raise DataError(
            f"cannot compare shapes {first.shape} and {second.shape}",
            remedy="pass two non-empty arrays of one shape",
        )
    return first.astype(np.float64), second.astype(np.float64)


_Doubles = npt.NDArray[np.float64]


_COMPILED = 1 << 12
"""Elements from which they are summed by compiled code: loading it takes 50 ms."""


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
    """As `_add` in one pass, for values of single precision."""
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
