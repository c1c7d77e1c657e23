"""What a target computes between the integers of its inputs and those of its output.

An integer engine composes itself from these fields; no field names a runtime.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from intact.numerics.levels import Rounding
from intact.targets.rules import Condition


class Requantize(enum.StrEnum):
    """How an accumulator is brought to the output's scale."""

    FIXED_POINT_DOUBLE = "fixed_point_double"
    """Saturating doubling high multiply, rounded, then a rounding shift: rounds twice."""
    FIXED_POINT_SINGLE = "fixed_point_single"
    """64-bit product with an int32 multiplier, shifted and rounded once."""
    FLOAT32 = "float32"
    """Multiplied by a float32 factor and rounded once."""
    FLOAT64 = "float64"
    """Multiplied by a float64 factor and rounded once."""
    SHIFT = "shift"
    """Shifted right and rounded once: all scales are powers of two."""


class ZeroPointOrder(enum.StrEnum):
    """When the output's zero point is added; they differ on ties when it is odd."""

    AFTER_ROUNDING = "after_rounding"
    BEFORE_ROUNDING = "before_rounding"


class Overflow(enum.StrEnum):
    """What happens to a sum that leaves the accumulator."""

    EXACT = "exact"
    """It cannot: the hardware is wide enough for any layer."""
    WRAP = "wrap"
    """Two's complement."""
    PAIR_SATURATE = "pair_saturate"
    """Products are added in pairs of neighbouring input channels, and each pair saturates at
    ``pair_bits`` before it is summed (vpmaddubsw)."""


class ScalePrecision(enum.StrEnum):
    """How scales are stored on the way to the hardware."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL6 = "decimal6"
    """Text with six decimals, read back: the truncated value is the effective one (Tengine)."""
    FLOAT32_ENDS = "float32_ends"
    """As float32 ``low`` and ``high``, what the outermost codes stand for (OpenVINO's
    FakeQuantize). Factor ``codes / (high - low)``, offset ``-low * codes / (high - low)``, which
    need not be whole, and effective scale ``(high - low) / codes`` are computed from them in
    float32."""
    FLOAT32_PRODUCT = "float32_product"
    """Of multipliers: the input scales are multiplied in float32, the rest is float64 (LiteRT's
    products of two activations)."""


class Functions(enum.StrEnum):
    """How a curved function (softmax, sigmoid, tanh ...) of codes is computed."""

    FLOAT32 = "float32"
    """In float32 from the dequantized code, or a table of that; rounded to the output's code."""
    FIXED_POINT = "fixed_point"
    """In fixed point throughout, as gemmlowp does: no float in the kernel."""


class ArithmeticOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What some operators, on some condition, compute differently; later entries win."""

    ops: tuple[str, ...]
    when: Condition | None = None
    requantize: Requantize | None = None
    rounding: Rounding | None = None
    zero_point: ZeroPointOrder | None = None
    accumulator_bits: int | None = None
    accumulator_overflow: Overflow | None = None
    pair_bits: int | None = None
    pair_block: int | None = None
    scale_precision: ScalePrecision | None = None
    multiplier_precision: ScalePrecision | None = None
    functions: Functions | None = None
    addition_shift: int | None = None
    multiplier_bits: int | None = None
    reciprocal_scale: bool | None = None
    scales_in_turn: bool | None = None
    ratio_conversions: bool | None = None
    fused_bias: bool | None = None
    folded_factor: bool | None = None
    unsigned_inputs: bool | None = None


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arithmetic of one operator or, with ``overrides``, of a whole target.

    ``pair_bits`` is given with ``pair_saturate`` and only then; ``pair_block`` only then.

    Attributes:
        pair_block: Channels of a group that kernels of convolutions with groups, but depthwise
            ones, take at a time. Where it does not divide those of input and output, windows are
            multiplied as rows of a matrix, and pairs run on from tap to tap (oneDNN); None keeps
            them in their tap everywhere.
        multiplier_precision: In which floats ``s_x * s_w / s_y`` is computed from the stored
            scales, before anything is made of it.
        functions: How softmax, sigmoid and the like are computed.
        addition_shift: Bits that both operands of a fixed-point addition are shifted left by
            before they are brought to one scale, twice the larger of theirs. With
            ``fixed_point_single``: bits behind the point of the larger of two multipliers that
            share an exponent (XNNPACK).
        multiplier_bits: Bits behind the point that fixed-point multipliers are rounded to, half to
            even (8 in XNNPACK's leaky relu and conversions between codes); None keeps the 31 of
            the mantissa.
        reciprocal_scale: A float is quantized by multiplying it with the float32 reciprocal of
            the scale, not by dividing it by the scale; a float result of products is scaled by
            the reciprocal of the product of both reciprocals.
        fused_bias: A float bias is added to a float result by a fused multiply-add: scaling and
            adding round once.
        folded_factor: With ``float32_ends``, the factor of the output's grid is multiplied into
            the scale of the sums and into a float bias, to which the offset is added; otherwise
            it is applied to what both give (OpenVINO's dense layers).
        unsigned_inputs: Convolutions take codes without a sign. Signed ones are held as unsigned
            ones by whatever makes them for a convolution, also through what only moves them.
        scales_in_turn: With float arithmetic, a sum is multiplied by each input scale, for a mean
            divided by the count, and divided by the output scale, and rounded to the float after
            each, and elements are multiplied as the numbers that they stand for; otherwise it is
            multiplied by one factor ``s_x * s_w / s_y`` (Tengine's convolutions).
        ratio_conversions: With float arithmetic, codes are brought to another scale by the ratio
            of the two; otherwise by the number that they stand for (Tengine's concat).
    """

    requantize: Requantize
    rounding: Rounding = Rounding.HALF_EVEN
    zero_point: ZeroPointOrder = ZeroPointOrder.AFTER_ROUNDING
    accumulator_bits: int = 32
    accumulator_overflow: Overflow = Overflow.EXACT
    pair_bits: int | None = None
    pair_block: int | None = None
    scale_precision: ScalePrecision = ScalePrecision.FLOAT32
    multiplier_precision: ScalePrecision = ScalePrecision.FLOAT32
    functions: Functions = Functions.FLOAT32
    addition_shift: int = 20
    multiplier_bits: int | None = None
    reciprocal_scale: bool = False
    scales_in_turn: bool = False
    ratio_conversions: bool = False
    fused_bias: bool = False
    folded_factor: bool = False
    unsigned_inputs: bool = False
    overrides: tuple[ArithmeticOverride, ...] = ()

    def for_op(self, op_type: str, holds: Callable[[Condition], bool]) -> Arithmetic:
        """Return the arithmetic of one operator, without overrides left.

        Args:
            op_type: The operator.
            holds: Tells whether a condition holds for it.
        """
        result = msgspec.structs.replace(self, overrides=())
        for override in self.overrides:
            if op_type in override.ops and (override.when is None or holds(override.when)):
                result = msgspec.structs.replace(result, **_given(override))
        if result.accumulator_overflow is not Overflow.PAIR_SATURATE:
            result = msgspec.structs.replace(result, pair_bits=None, pair_block=None)
        return result


def _given(override: ArithmeticOverride) -> dict[str, object]:
    fields = (name for name in ArithmeticOverride.__struct_fields__ if name not in ("ops", "when"))
    return {name: value for name in fields if (value := getattr(override, name)) is not None}
