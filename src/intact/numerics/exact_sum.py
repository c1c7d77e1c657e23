"""Sums of float64 numbers without any rounding, so that order and splitting cannot matter.

Every finite float64 is a whole number of 2**-1074. The sum is kept as one Python integer on that
grid; arrays are reduced to 32-bit digits by numpy first (about 11 M numbers a second).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.errors import CalibrationError

_GRID_EXPONENT = 1074
"""The grid is 2**-1074, the smallest positive float64."""
_DIGIT_BITS = 32
_DIGITS = 68
"""float64 spans 2098 bits above the grid: 66 digits, and two that shifting may reach."""
_CHUNK = 1 << 20
"""2**20 digits below 2**32 sum below 2**53, where the float64 sums of bincount are exact."""
_BUFFERED = 4096
"""Small arrays are gathered up to this many numbers: a reduction costs some 50 us however small."""
_WORDS = 36
"""int64 words of the saved form: 2304 bits hold the sum of 2**200 of the largest numbers."""


class ExactSum:
    """An exact sum of float64 numbers.

    Equal multisets of numbers give equal sums, bit for bit, in whatever order they were added and
    however they were split over sums merged later.

    >>> total = ExactSum()
    >>> total.add(np.array([1e100, 1.0, -1e100]))
    >>> total.value()
    1.0
    """

    __slots__ = ("_buffer", "_buffered", "_units")

    def __init__(self) -> None:
        self._units = 0
        self._buffer: list[npt.NDArray[np.float64]] = []
        self._buffered = 0

    def add(self, values: npt.NDArray[np.float64] | float) -> None:
        """Add every element of an array of any shape, or one number.

        Raises:
            CalibrationError: If a number is infinite or NaN; nothing is added then.
        """
        array = np.array(values, dtype=np.float64, ndmin=1).ravel()  # a copy: it may be kept
        if not np.isfinite(array).all():
            raise CalibrationError(
                "an exact sum was given a number that is not finite",
                remedy="leave such values out and count them",
            )
        self._buffer.append(array)
        self._buffered += array.size
        if self._buffered > _BUFFERED:
            self._reduce()

    def merge(self, other: ExactSum) -> None:
        """Add everything that another sum holds; the other is unchanged in value."""
        # Python integers never overflow: merging is exact, however many sums there are.
        self._units += other._units
        self._buffer += other._buffer
        self._buffered += other._buffered
        if self._buffered > _BUFFERED:
            self._reduce()

    def value(self) -> float:
        """Return the sum, correctly rounded to float64; an infinity if it is out of range."""
        return self.mean(1)

    def mean(self, count: int) -> float:
        """Return the sum divided by a count, correctly rounded once.

        Raises:
            CalibrationError: If the count is not positive.
        """
        if count <= 0:
            raise CalibrationError(f"a mean over {count} numbers", remedy="collect samples first")
        units = self._reduce()
        try:
            return units / (count << _GRID_EXPONENT)  # Python rounds this division correctly
        except OverflowError:
            return float("inf") if units > 0 else float("-inf")

    def to_array(self) -> npt.NDArray[np.int64]:
        """Return the sum as int64 ``[36]``: one two's-complement integer, least word first."""
        # A fixed byte order, so that saved statistics are the same file on every machine.
        data = self._reduce().to_bytes(_WORDS * 8, "little", signed=True)
        return np.frombuffer(data, dtype="<i8").astype(np.int64)

    @classmethod
    def from_array(cls, words: npt.NDArray[np.int64]) -> ExactSum:
        """Return the sum that :meth:`to_array` wrote.

        Raises:
            CalibrationError: If the array is not int64 ``[36]``.
        """
        if words.dtype != np.int64 or words.shape != (_WORDS,):
            raise CalibrationError(
                f"an exact sum saved as {words.dtype} of shape {words.shape}",
                remedy=f"it must be int64 of shape ({_WORDS},): collect the statistics again",
            )
        total = cls()
        total._units = int.from_bytes(words.astype("<i8").tobytes(), "little", signed=True)
        return total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactSum) and self._reduce() == other._reduce()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"ExactSum({self.value()!r})"

    def _reduce(self) -> int:
        """Move the buffer into the integer and return it, in units of 2**-1074."""
        if self._buffered:
            numbers = np.concatenate(self._buffer)
            for start in range(0, numbers.size, _CHUNK):
                self._units += _units_of(numbers[start : start + _CHUNK])
        self._buffer.clear()
        self._buffered = 0
        return self._units


def _units_of(numbers: npt.NDArray[np.float64]) -> int:
    """Return the exact sum of at most ``_CHUNK`` finite numbers in units of 2**-1074."""
    bits = numbers.view(np.uint64)
    field = ((bits >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64)
    mantissa = bits & np.uint64((1 << 52) - 1)
    mantissa |= (field > 0).astype(np.uint64) << np.uint64(52)  # denormals have no hidden bit
    # Denormals and the smallest normals have the same weight of the last bit.
    position = np.maximum(field - 1, 0)
    digit, shift = position >> 5, (position & 31).astype(np.uint64)
    # mantissa << shift has up to 84 bits: three digits, the upper two from the upper half.
    mask = np.uint64(0xFFFFFFFF)
    lower = (mantissa & mask) << shift
    upper = ((mantissa >> np.uint64(32)) << shift) + (lower >> np.uint64(32))
    signs = np.where(np.signbit(numbers), -1.0, 1.0)
    sums = np.zeros(_DIGITS, dtype=np.int64)
    for place, part in enumerate((lower & mask, upper & mask, upper >> np.uint64(32))):
        # bincount sums floats only; digits below 2**32 are exact in them, and so are 2**20 of them.
        weights = part.astype(np.float64) * signs
        counted = np.bincount(digit, weights=weights, minlength=_DIGITS - place)
        sums[place:] += counted[: _DIGITS - place].astype(np.int64)
    return sum(int(total) << (_DIGIT_BITS * place) for place, total in enumerate(sums) if total)
