"""Scales that come from outside, from a table or a model's metadata, instead of calibrating."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from intact.config import Grid
from intact.errors import ConfigError, DataError, nearest
from intact.numerics.affine_params import QuantParams

GIVEN = "given"
"""Stands as ``observer`` of a config whose scale was given, in the place of a method's name."""

_MOST_BITS = 32
_MOST_ENTRIES = 1 << 17
"""More tensors than any model has; a table of more would take gigabytes."""


@dataclass(frozen=True, eq=False)
class GivenScale:
    """Scale and zero point of one tensor.

    Attributes:
        scale: float32, ``[]`` per tensor or ``[channels]``.
        zero_point: int64, like ``scale``, in the integers that it was made for.
        bits: Width of those integers.
        signed: Whether they are ``-2^(bits-1)..2^(bits-1)-1``, or ``0..2^bits-1``.
        axis: The channel axis, perhaps counted from the end; None where the source leaves it to
            the operator.

    Raises:
        DataError: A scale is not positive and finite as float32, a zero point is none of the
            integers, the shapes differ, or the width is not 2 to 32.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    bits: int
    signed: bool
    axis: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= _MOST_BITS:
            raise DataError(f"the width is {self.bits} bits", remedy="give 2 to 32")
        if self.scale.shape != self.zero_point.shape or self.scale.ndim > 1 or not self.scale.size:
            raise DataError(
                f"scales of shape {list(self.scale.shape)} with zero points of shape "
                f"{list(self.zero_point.shape)}",
                remedy="give one of each, or one of each for every channel",
            )
        usable = np.isfinite(self.scale) & (self.scale > 0)
        if not usable.all():
            raise DataError(
                f"the scale {float(self.scale[~usable][0])} is not a positive finite float32",
                remedy="mend it, or take it out and let the tensor be calibrated",
            )
        low, high = self._codes()
        outside = (self.zero_point < low) | (self.zero_point > high)
        if outside.any():
            raise DataError(
                f"the zero point {int(self.zero_point[outside][0])} lies outside {low}..{high}",
                remedy="check the table's kind of integers",
            )

    @staticmethod
    def of(
        scale: float | Iterable[float],
        zero_point: int | Iterable[int] = 0,
        *,
        bits: int = 8,
        signed: bool = True,
        axis: int | None = None,
    ) -> GivenScale:
        """Return scales from numbers; one zero point may stand for all channels.

        Raises:
            DataError: As the class.
        """
        numbers = scale if isinstance(scale, int | float) else list(scale)
        zeros = zero_point if isinstance(zero_point, int) else list(zero_point)
        with np.errstate(over="ignore", under="ignore"):  # what leaves float32 is named above
            scales = np.asarray(numbers, np.float64).astype(np.float32)
        try:
            offsets = np.asarray(zeros, np.int64)
        except OverflowError:
            raise DataError("a zero point does not fit 64 bits") from None
        if not offsets.ndim:
            offsets = np.full(scales.shape, offsets)
        return GivenScale(scales, offsets, bits, signed, axis)

    @property
    def kind(self) -> str:
        """The integers in words, ``int8`` for instance."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    def on_grid(self, grid: Grid, shape: tuple[int, ...]) -> QuantParams:
        """Return scale and zero point for the integers of a grid, the scales bit for bit.

        The zero point moves with the lowest integer of the width: 0 of an int8 is 128 of a uint8,
        so that the same integers apart from this shift stand for the same numbers.

        Args:
            grid: Where they are to be used.
            shape: Of the tensor.

        Raises:
            ConfigError: Another width, a logarithmic grid, channels that do not fit, a zero point
                or a scale that the grid does not have.
        """
        if self.bits != grid.bits:
            raise ConfigError(
                f"it is for {self.bits} bits, the plan has {grid.bits}",
                remedy=f"ask for {self.bits} there: --bits, --weight-bits or --activation-bits",
            )
        if grid.exponential:
            raise ConfigError(
                "the plan has logarithmic levels, which no linear scale describes",
                remedy="use a target with linear levels",
            )
        scale, zero_point = self._by_channel(grid, shape)
        lowest = -(1 << (grid.bits - 1)) if grid.quant_min < 0 else 0
        moved = zero_point - self._codes()[0] + lowest
        if grid.symmetric and moved.any():
            raise ConfigError(
                f"its zero point {int(zero_point[moved != 0][0])} of {self.kind} is no zero point "
                "of a symmetric scheme",
                remedy="use a target with asymmetric activations, or calibrate this tensor",
            )
        return grid.check_params(scale, moved)

    def _codes(self) -> tuple[int, int]:
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self.signed else (0, 2 * half - 1)

    def _by_channel(
        self, grid: Grid, shape: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return one number of each, or one a channel, as the grid has it."""
        if grid.axis is None:
            if self.scale.size > 1:
                raise ConfigError(
                    f"it has {self.scale.size} scales, the plan has one for the whole tensor",
                    remedy="give one scale, or use a target with per-channel weights",
                )
            return self.scale.reshape(()), self.zero_point.reshape(())
        channels = shape[grid.axis] if grid.axis < len(shape) else 0
        if self.scale.size == 1:
            return np.full(channels, self.scale), np.full(channels, self.zero_point)
        axis = grid.axis if self.axis is None else self.axis
        if self.scale.size != channels or axis not in (grid.axis, grid.axis - len(shape)):
            raise ConfigError(
                f"it has {self.scale.size} scales along axis {axis}, the plan has {channels} "
                f"along axis {grid.axis}",
                remedy="give one scale for each output channel",
            )
        return self.scale, self.zero_point


@dataclass(frozen=True)
class ScaleTable:
    """Scales by tensor name.

    Attributes:
        source: What to call the table in messages: its file.
        scales: By the names of the float model's tensors.
        ignored: Entries left out because they are not scales of integers, counted by reason.
        parts: The sources of the tables that were joined into this one; empty for one table.
    """

    source: str
    scales: Mapping[str, GivenScale]
    ignored: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The files' names without their folders."""
        return _and(PurePath(part).name for part in self.parts or (self.source,))

    def __contains__(self, name: object) -> bool:
        return name in self.scales

    def __getitem__(self, name: str) -> GivenScale:
        return self.scales[name]

    @staticmethod
    def of(
        source: str,
        entries: Iterable[tuple[str, str, GivenScale]],
        ignored: Mapping[str, int] | None = None,
    ) -> ScaleTable:
        """Collect entries as they are read.

        Args:
            source: What to call the table.
            entries: Place in the table, tensor name, scale; a name may be repeated with the same
                numbers.
            ignored: See the class.

        Raises:
            DataError: A name stands there twice with different numbers, or there is no entry.
        """
        scales: dict[str, GivenScale] = {}
        for place, name, scale in entries:
            first = scales.setdefault(name, scale)
            if first is not scale and _text(first) != _text(scale):
                raise DataError(
                    f"{source}: {place}: a second scale for {name!r}, unlike the first",
                    remedy="keep one",
                )
        if not scales and not ignored:
            raise DataError(f"{source}: holds no scales", remedy="check that this is the table")
        return ScaleTable(source, scales, ignored or {})

    def joined(self, other: ScaleTable) -> ScaleTable:
        """Return both tables as one, say those of activations and of weights.

        Raises:
            DataError: They give one tensor different scales.
        """
        both = [(each.source, *item) for each in (self, other) for item in each.scales.items()]
        ignored = {
            reason: self.ignored.get(reason, 0) + other.ignored.get(reason, 0)
            for reason in (*self.ignored, *other.ignored)
        }
        parts = (*(self.parts or (self.source,)), *(other.parts or (other.source,)))
        return replace(ScaleTable.of(_and(parts), both, ignored), parts=parts)

    def refuse_unknown(self, names: Iterable[str]) -> None:
        """Refuse a table for another model.

        Args:
            names: All tensors of the model as it was read; normalizing drops some.

        Raises:
            DataError: The table has names that are not among them; the first one with the nearest.
        """
        known = set(names)
        unknown = [name for name in self.scales if name not in known]
        if unknown:
            raise DataError(
                f"{self.source}: {len(unknown)} of its {len(self.scales)} names are no tensors of "
                f"the model, first {unknown[0]!r}",
                remedy=nearest(unknown[0], known),
            )

    def hash(self) -> str:
        """Return the SHA-256 of what the table says, whatever file and order it came in."""
        digest = hashlib.sha256()
        for name, scale in sorted(self.scales.items()):
            digest.update(f"{len(name)}:{name}={_text(scale)}\n".encode())
        return digest.hexdigest()


def refuse_too_many(source: str, entries: int) -> None:
    """Refuse a table with more entries than a model has tensors, before they are read.

    Raises:
        DataError: There are too many.
    """
    if entries > _MOST_ENTRIES:
        raise DataError(
            f"{source}: {entries} entries, at most {_MOST_ENTRIES} can be read",
            remedy="this is no table of scales",
        )


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def _text(scale: GivenScale) -> str:
    """Write a scale so that equal texts mean equal bits."""
    numbers = scale.scale.astype("<f4").tobytes().hex(), scale.zero_point.tolist()
    return f"{scale.kind} axis {scale.axis} {numbers[0]} {numbers[1]}"
