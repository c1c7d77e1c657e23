"""How far two tensors are apart, by channel, from pieces that are not kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError

_Doubles = npt.NDArray[np.float64]


class ChannelErrorSums:
    """Cosine, SQNR and mean squared error of two tensors whose samples arrive piece by piece.

    Sums are taken in float64. Two zero vectors are equal, their cosine is 1; that of a zero and
    another vector is 0.

    Args:
        axis: The channel axis; None for one channel, the whole tensor.
    """

    def __init__(self, axis: int | None = None) -> None:
        self._axis = axis
        self._reference: _Doubles = np.zeros(0)
        self._actual: _Doubles = np.zeros(0)
        self._product: _Doubles = np.zeros(0)
        self._noise: _Doubles = np.zeros(0)
        self._elements = 0

    def add(self, reference: npt.NDArray[Any], actual: npt.NDArray[Any]) -> None:
        """Add some samples of both.

        Raises:
            DataError: Their shapes differ, or the channels are not as many as before.
        """
        first, second = self._rows(reference), self._rows(actual)
        channels = self._reference.size or first.shape[0]
        if reference.shape != actual.shape or first.shape[0] != channels:
            raise DataError(
                f"cannot compare shapes {list(reference.shape)} and {list(actual.shape)}",
                remedy="give both tensors of the same samples",
            )
        if not self._reference.size:
            sums = np.zeros((4, channels))
            self._reference, self._actual, self._product, self._noise = sums
        self._reference += np.einsum("ij,ij->i", first, first)
        self._actual += np.einsum("ij,ij->i", second, second)
        self._product += np.einsum("ij,ij->i", first, second)
        with np.errstate(invalid="ignore"):  # of infinities
            self._noise += np.einsum("ij,ij->i", first - second, first - second)
        self._elements += first.size

    @property
    def cosines(self) -> _Doubles:
        """The cosine of each channel, ``[channels]``."""
        return _cosine(self._product, self._reference, self._actual)

    @property
    def cosine(self) -> float:
        """The cosine of the whole tensors; NaN before anything was added."""
        if not self._elements:
            return math.nan
        sums = (part.sum(keepdims=True) for part in (self._product, self._reference, self._actual))
        return float(_cosine(*sums)[0])

    @property
    def mse(self) -> float:
        """The mean squared difference; NaN before anything was added."""
        return float(self._noise.sum()) / self._elements if self._elements else math.nan

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise in dB; infinite without noise.

        NaN before anything was added, and where a value is NaN or infinite.
        """
        signal, noise = float(self._reference.sum()), float(self._noise.sum())
        if not self._elements or not (math.isfinite(signal) and math.isfinite(noise)):
            return math.nan
        if noise == 0.0:
            return math.inf
        return 10.0 * (math.log10(signal) - math.log10(noise)) if signal > 0.0 else -math.inf

    def _rows(self, values: npt.NDArray[Any]) -> _Doubles:
        """Return values as float64 ``[channels, elements]``."""
        wide = np.asarray(values, np.float64)
        if self._axis is None:
            return wide.reshape(1, -1)
        moved = np.moveaxis(wide, self._axis, 0)
        return moved.reshape(moved.shape[0], -1)


def _cosine(product: _Doubles, first: _Doubles, second: _Doubles) -> _Doubles:
    is_zero = (first == 0.0) | (second == 0.0)
    lengths = np.sqrt(np.where(is_zero, 1.0, first)) * np.sqrt(np.where(is_zero, 1.0, second))
    of_zeros = np.where(first == second, 1.0, 0.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(is_zero, of_zeros, np.clip(product / lengths, -1.0, 1.0)))
