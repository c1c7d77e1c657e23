"""Declares tables of scales that are given in place of calibration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import PurePath

import msgspec
import numpy as np
import numpy.typing as npt

from intact.config import Grid
from intact.errors import ConfigError, DataError, nearest
from intact.numerics.affine_params import QuantParams

GIVEN = "given"
"""The ``observer`` of a config whose scale was given."""

_MOST_BITS = 32
_MOST_ENTRIES = 1 << 17
"""Limit for the entries of a table: more tensors than any model has."""


class GivenScale(msgspec.Struct, frozen=True, eq=False):
    """Scale and zero point of one tensor.

    Attributes:
        scale: float32, ``[]`` per tensor or ``[channels]``.
        zero_point: int64, shaped like ``scale``, in the given integer type.
        bits: Width of the integer type.
        signed: ``-2^(bits-1)..2^(bits-1)-1`` if true, else ``0..2^bits-1``.
        axis: The channel axis, may be negative; None if the operator decides.

    Raises:
        DataError: A scale is not positive and finite as float32, a zero point is outside the
            integer type, the shapes differ, or the width is not 2 to 32.
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
                remedy="correct it, or remove it so that the tensor is calibrated",
            )
        low, high = self._codes()
        outside = (self.zero_point < low) | (self.zero_point > high)
        if outside.any():
            raise DataError(
                f"the zero point {int(self.zero_point[outside][0])} is outside {low}..{high}",
                remedy="check the integer type of the table",
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
        """Make scales from numbers; one zero point may apply to all channels.

        Raises:
            DataError: See the class.
        """
        numbers = scale if isinstance(scale, int | float) else list(scale)
        zeros = zero_point if isinstance(zero_point, int) else list(zero_point)
        with np.errstate(over="ignore", under="ignore"):  # overflow is reported above
            scales = np.asarray(numbers, np.float64).astype(np.float32)
        try:
            offsets = np.asarray(zeros, np.int64)
        except OverflowError:
            raise DataError("a zero point does not fit 64 bits") from None
        # One zero point for all channels, as tables of symmetric weights have it.
        if not offsets.ndim:
            offsets = np.full(scales.shape, offsets)
        return GivenScale(scales, offsets, bits, signed, axis)

    @property
    def kind(self) -> str:
        """The integer type as text, for example ``int8``."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    def on_grid(self, grid: Grid, shape: tuple[int, ...]) -> QuantParams:
        """Convert scale and zero point to a grid; the scales do not change.

        The zero point shifts with the lowest integer of the type: 0 in int8 is 128 in uint8.

        Args:
            grid: The grid.
            shape: Shape of the tensor.

        Raises:
            ConfigError: The width differs, the grid is logarithmic, the channels do not match, or a
                zero point or scale does not fit the grid.
        """
        if self.bits != grid.bits:
            raise ConfigError(
                f"it is for {self.bits} bits, the plan has {grid.bits}",
                remedy=f"ask for {self.bits} there: --bits, --weight-bits or --activation-bits",
            )
        if grid.exponential:
            raise ConfigError(
                "the plan has logarithmic levels, the given scale is linear",
                remedy="use a target with linear levels",
            )
        scale, zero_point = self._by_channel(grid, shape)
        # The same numbers under codes of another sign: int8 and uint8 differ by 128 in code and
        # zero point.
        lowest = -(1 << (grid.bits - 1)) if grid.quant_min < 0 else 0
        moved = zero_point - self._codes()[0] + lowest
        if grid.symmetric and moved.any():
            raise ConfigError(
                f"its zero point {int(zero_point[moved != 0][0])} of {self.kind} does not fit "
                "a symmetric scheme",
                remedy="use a target with asymmetric activations, or calibrate this tensor",
            )
        return grid.check_params(scale, moved)

    def _codes(self) -> tuple[int, int]:
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self.signed else (0, 2 * half - 1)

    def _by_channel(
        self, grid: Grid, shape: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return one number of each, or one per channel, as the grid requires."""
        if grid.axis is None:
            if self.scale.size > 1:
                raise ConfigError(
                    f"it has {self.scale.size} scales, the plan has one for the whole tensor",
                    remedy="give one scale, or use a target with per-channel weights",
                )
            return self.scale.reshape(()), self.zero_point.reshape(())
        channels = shape[grid.axis] if grid.axis < len(shape) else 0
        # One scale holds for every channel alike; the reverse would have to choose among them.
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


class ScaleTable(msgspec.Struct, frozen=True):
    """Scales by tensor name.

    Attributes:
        source: The file of the table, for messages.
        scales: Scales by name of the float model's tensors.
        ignored: Number of entries that are not integer scales, by reason.
        parts: Sources of the tables that were joined; empty for a single table.
    """

    source: str
    scales: Mapping[str, GivenScale]
    ignored: Mapping[str, int] = msgspec.field(default_factory=dict)
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file names without folders."""
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
        """Make a table from entries.

        Args:
            source: The file of the table, for messages.
            entries: Place in the file, tensor name, scale; duplicates must be equal.
            ignored: See the class.

        Raises:
            DataError: A name has two different scales, or there is no entry.
        """
        scales: dict[str, GivenScale] = {}
        for place, name, scale in entries:
            first = scales.setdefault(name, scale)
            # Tables of several tools repeat entries: equal ones are no conflict.
            if first is not scale and _text(first) != _text(scale):
                raise DataError(
                    f"{source}: {place}: a second, different scale for {name!r}",
                    remedy="keep one",
                )
        if not scales and not ignored:
            raise DataError(f"{source}: contains no scales", remedy="check that this is the table")
        return ScaleTable(source, scales, ignored or {})

    def joined(self, other: ScaleTable) -> ScaleTable:
        """Join two tables, for example of activations and of weights.

        Raises:
            DataError: They have different scales for one tensor.
        """
        both = [(each.source, *item) for each in (self, other) for item in each.scales.items()]
        ignored = {
            reason: self.ignored.get(reason, 0) + other.ignored.get(reason, 0)
            for reason in (*self.ignored, *other.ignored)
        }
        parts = (*(self.parts or (self.source,)), *(other.parts or (other.source,)))
        return msgspec.structs.replace(ScaleTable.of(_and(parts), both, ignored), parts=parts)

    def refuse_unknown(self, names: Iterable[str]) -> None:
        """Check that the table belongs to the model.

        Args:
            names: All tensor names of the model before normalization, which removes some.

        Raises:
            DataError: The table has other names; the message has the first one and the nearest
                match.
        """
        known = set(names)
        unknown = [name for name in self.scales if name not in known]
        if unknown:
            raise DataError(
                f"{self.source}: {len(unknown)} of its {len(self.scales)} names are not tensors of "
                f"the model, first {unknown[0]!r}",
                remedy=nearest(unknown[0], known),
            )

    def hash(self) -> str:
        """Compute the SHA-256 of the scales, independent of file and order."""
        digest = hashlib.sha256()
        for name, scale in sorted(self.scales.items()):
            # With the length: a name may hold what separates the fields.
            digest.update(f"{len(name)}:{name}={_text(scale)}\n".encode())
        return digest.hexdigest()


def refuse_too_many(source: str, entries: int) -> None:
    """Check the number of entries before they are read.

    Raises:
        DataError: There are more than any model has tensors.
    """
    if entries > _MOST_ENTRIES:
        raise DataError(
            f"{source}: {entries} entries, at most {_MOST_ENTRIES} can be read",
            remedy="this is not a table of scales",
        )


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def _text(scale: GivenScale) -> str:
    """Format a scale so that equal texts mean equal bits."""
    # Bytes in one order on every machine: hashes are compared across them.
    numbers = scale.scale.astype("<f4").tobytes().hex(), scale.zero_point.tolist()
    return f"{scale.kind} axis {scale.axis} {numbers[0]} {numbers[1]}"
