"""Declares data types, and how a target quantizes activations, weights and biases."""

from __future__ import annotations

import enum

import msgspec

from intact.errors import TargetError
from intact.numerics.levels import Rounding

_MOST_BITS = 64
"""The widest codes there are: biases of 16-bit activations."""


class DType(enum.StrEnum):
    """A data type of inputs or outputs of operators."""

    UINT4 = "uint4"
    INT4 = "int4"
    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"

    @property
    def is_float(self) -> bool:
        """Whether this is the float type."""
        return self is DType.FLOAT32

    @property
    def is_signed(self) -> bool:
        """Whether the type has negative numbers."""
        return not self.value.startswith("u")

    @property
    def bits(self) -> int:
        """Storage width."""
        return int("".join(character for character in self.value if character.isdigit()))

    @classmethod
    def holding(cls, bits: int, *, signed: bool) -> DType:
        """Return the smallest integer type for a width up to 16; int32 for more."""
        family = [cls.INT4, cls.INT8, cls.INT16] if signed else [cls.UINT4, cls.UINT8, cls.UINT16]
        return next((dtype for dtype in family if dtype.bits >= bits), cls.INT32)


class Granularity(enum.StrEnum):
    """How many scales a tensor has; the axis depends on the operator."""

    PER_TENSOR = "per_tensor"
    PER_CHANNEL = "per_channel"
    PER_ROW = "per_row"
    """One for each vector along the last axis, or for each block of it: of activations that are
    quantized while running."""
    PER_BLOCK = "per_block"
    """One for each block of neighbours that are summed; of a table, of neighbours in a row."""


class Spacing(enum.StrEnum):
    """The spacing of the levels."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class DeadChannels(enum.StrEnum):
    """What becomes of the bias of output channels whose weights are all 0."""

    KEEP = "keep"
    """It is added: any weight scale serves."""
    ZERO = "zero"
    """It is lost: their scales are 0 on the hardware, and so are their codes."""


class SchemeOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a :class:`TensorScheme` that an ``[[op]]`` rule replaces."""

    dtype: DType | None = None
    bits: int | None = None
    quant_min: int | None = None
    quant_max: int | None = None
    symmetric: bool | None = None
    granularity: Granularity | None = None
    block: int | None = None
    spacing: Spacing | None = None
    steps_per_octave: int | None = None
    power_of_two: bool | None = None
    rounding: Rounding | None = None


class TensorScheme(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a kind of tensor is quantized.

    In a file ``bits``, ``quant_min`` and ``quant_max`` are optional: they follow from ``dtype`` and
    ``bits``. A ``float32`` scheme has only ``dtype``.

    ``steps_per_octave`` is for ``exponential`` spacing: levels between a magnitude and its double,
    16 (NNIE's) unless given. Codes up to ``quant_max`` span ``(quant_max - 1) / steps_per_octave``
    octaves.

    With ``dynamic`` an activation's scale is computed from its values while the model runs (see
    ``Arithmetic.dynamic_factor``); otherwise calibration gives it.

    ``block`` is the size of blocks, for ``per_block``, and for ``per_row`` where rows have several
    scales.

    With ``truncated_zero_point`` the zero point of an asymmetric scheme is ``-min / scale``
    truncated to an integer, in float32 (Tengine); otherwise it is rounded.
    """

    dtype: DType
    bits: int
    quant_min: int
    quant_max: int
    symmetric: bool
    granularity: Granularity = Granularity.PER_TENSOR
    block: int | None = None
    spacing: Spacing = Spacing.LINEAR
    steps_per_octave: int | None = None
    power_of_two: bool = False
    rounding: Rounding = Rounding.HALF_EVEN
    truncated_zero_point: bool = False
    dynamic: bool = False

    @property
    def is_float(self) -> bool:
        """Whether tensors of this kind stay float."""
        return self.dtype.is_float

    @property
    def is_logarithmic(self) -> bool:
        """Whether the levels are spaced logarithmically."""
        return not self.is_float and self.spacing is Spacing.EXPONENTIAL

    @property
    def is_narrow(self) -> bool:
        """Whether the range does not use the lowest code, as -127..127."""
        return self.quant_min == -self.quant_max

    def range_for(self, bits: int | None = None) -> tuple[int, int]:
        """Return (quant_min, quant_max) for a width; None for the scheme's own.

        A narrow range stays narrow: -127..127 becomes -7..7 at 4 bits. Any other range becomes the
        full range of the width. The width may exceed that of ``dtype``; the format then decides the
        type of the codes.

        Raises:
            TargetError: If the width is outside 2..32 or the scheme is float.
        """
        if bits is None or bits == self.bits:
            return self.quant_min, self.quant_max
        if self.is_float or not 2 <= bits <= 32:
            kind = "a float tensor" if self.is_float else f"a tensor of {self.dtype}"
            raise TargetError(f"{kind} cannot have {bits} bits", remedy="use 2 to 32")
        return full_range(bits, signed=self.dtype.is_signed, narrow=self.is_narrow)

    def unsigned(self) -> TensorScheme:
        """Convert the scheme to unsigned codes of the same width."""
        if self.is_float or not self.dtype.is_signed:
            return self
        # A narrow range avoids a code without a positive counterpart; unsigned codes have none of
        # these.
        low, high = full_range(self.bits, signed=False, narrow=False)
        dtype = DType.holding(self.dtype.bits, signed=False)
        return msgspec.structs.replace(self, dtype=dtype, quant_min=low, quant_max=high)

    def overridden(self, override: SchemeOverride | None) -> TensorScheme:
        """Copy the scheme with some fields replaced.

        A replaced dtype or width without a range takes the range that :meth:`range_for` gives.
        """
        if override is None:
            return self
        given = {
            name: value
            for name in SchemeOverride.__struct_fields__
            if (value := getattr(override, name)) is not None
        }
        if given.get("spacing") is Spacing.LINEAR:
            # Inherited from a logarithmic scheme, the number would be refused beside linear levels.
            given.setdefault("steps_per_octave", None)
        if "dtype" in given or "bits" in given:
            dtype = given.get("dtype", self.dtype)
            if dtype.is_float:
                return float_scheme()
            bits = given.setdefault("bits", dtype.bits)
            # An operator with other bits keeps the habit of its target: if no tensor uses the
            # lowest code, its codes do not either.
            narrow = self.is_narrow or given.get("spacing", self.spacing) is Spacing.EXPONENTIAL
            low, high = full_range(bits, signed=dtype.is_signed, narrow=narrow)
            given.setdefault("quant_min", low)
            given.setdefault("quant_max", high)
        return msgspec.structs.replace(self, **given)


class BiasScheme(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How biases are added: as integers of scale ``s_x * s_w`` and offset 0, or as floats.

    The range is that of the dtype unless the accumulator is narrower (30 bits on a DSP). With
    ``dead_channels = "zero"`` channels without weights have no bias either (Tengine's tool).
    """

    dtype: DType = DType.INT32
    quant_min: int | None = None
    quant_max: int | None = None
    dead_channels: DeadChannels = DeadChannels.KEEP

    def range(self) -> tuple[int, int]:
        """Return (quant_min, quant_max) of an integer bias."""
        low, high = full_range(self.dtype.bits, signed=True, narrow=False)
        return (
            low if self.quant_min is None else self.quant_min,
            high if self.quant_max is None else self.quant_max,
        )


def full_range(bits: int, *, signed: bool, narrow: bool) -> tuple[int, int]:
    """Return the lowest and highest code of a width; ``narrow`` excludes the lowest signed one.

    >>> full_range(8, signed=True, narrow=True)
    (-127, 127)
    >>> full_range(4, signed=False, narrow=False)
    (0, 15)

    Raises:
        TargetError: No codes have so few bits, or so many.
    """
    if not 1 <= bits <= _MOST_BITS:
        raise TargetError(f"codes of {bits} bits", remedy="use 2 to 32, 48 or 64")
    if not signed:
        return 0, (1 << bits) - 1
    high = (1 << (bits - 1)) - 1
    return (-high if narrow else -high - 1), high


def float_scheme() -> TensorScheme:
    """Make the scheme of float tensors."""
    return TensorScheme(dtype=DType.FLOAT32, bits=32, quant_min=0, quant_max=0, symmetric=True)
