"""Declares the arithmetic of a target, from the integers of inputs to those of the output.

Where hardware computes in one of several ways, each way is a type of its own with the options that
it has, told apart by ``kind`` in a file: an option of another way cannot be written. The integer
engine is composed from these values; none names a runtime.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import msgspec

from intact.numerics.levels import Factor, Rounding
from intact.targets.rules import Condition


class InstructionSet(enum.StrEnum):
    """What a processor computes 8-bit products with; the best for it first."""

    AMX = "AMX"
    AVX512_VNNI = "AVX-512 VNNI"
    AVX_VNNI = "AVX-VNNI"
    AVX512 = "AVX-512"
    AVX2 = "AVX2"
    I8MM = "Arm I8MM"
    DOT_PRODUCT = "Arm dot product"
    NEON = "Arm Neon"


class _Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """One of several ways to compute."""

    @property
    def kind(self) -> str:
        """Its name in files."""
        return str(self.__struct_config__.tag)


# ---- sums -------------------------------------------------------------------------------------

Width = Annotated[int, msgspec.Meta(ge=8, le=64)]


class _Sums(_Kind, frozen=True):
    bits: Width = 32


class Exact(_Sums, frozen=True, tag="exact"):
    """The accumulator is wide enough for any layer."""


class Wrap(_Sums, frozen=True, tag="wrap"):
    """Sums that are too large wrap, in two's complement."""


class PairSaturate(_Sums, frozen=True, kw_only=True, tag="pair_saturate"):
    """Products of neighbouring input channels are added in pairs, and each pair saturates at
    ``pair_bits`` before it is accumulated (vpmaddubsw).

    Attributes:
        block: Channels per step of kernels for grouped, not depthwise, convolutions. If it does not
            divide the channels per group of input and output, windows are multiplied as rows of a
            matrix, and pairs cross from tap to tap (oneDNN). None: pairs never cross taps.
        rows: The windows of all convolutions but depthwise ones are multiplied as rows of a matrix
            (ONNX Runtime).
        halves: No pair of signed codes saturates: the weights are halved, half to even, and the
            sums doubled (oneDNN's transposed convolutions on AVX-512 without VNNI).
    """

    pair_bits: Width
    block: Annotated[int, msgspec.Meta(ge=1)] | None = None
    rows: bool = False
    halves: bool = False


Accumulator: TypeAlias = Exact | Wrap | PairSaturate

# ---- from sums to codes -----------------------------------------------------------------------


class Product(enum.StrEnum):
    """How an accumulator and an integer multiplier are multiplied."""

    DOUBLE = "double"
    """Saturating doubling high multiply, rounded, then a rounding shift: rounds twice."""
    SINGLE = "single"
    """64-bit product with an int32 multiplier, shifted and rounded once."""
    WIDE = "wide"
    """64-bit product of a 64-bit accumulator and a multiplier of 15 bits, shifted and rounded once,
    half up (TFLite's int16 products)."""


class FloatType(enum.StrEnum):
    """The type that floats are computed in."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Multiplier(enum.StrEnum):
    """What ``s_x * s_w / s_y`` is computed in, from the stored scales."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT32_PRODUCT = "float32_product"
    """The input scales are multiplied in float32, the rest is float64 (LiteRT's products of two
    activations)."""


class Addition(enum.StrEnum):
    """How codes are added in floats."""

    DEQUANTIZED = "dequantized"
    """Both operands are dequantized, added and quantized."""
    FUSED_MULTIPLY_ADD = "fused_multiply_add"
    """``fma(a, s_a / s_y, fma(b, s_b / s_y, z))`` in float32, where ``z`` is the constant that the
    zero points add up to (ONNX Runtime's QLinearAdd on x86)."""


class FoldedEnds(enum.StrEnum):
    """Which sums without a bias are multiplied once on their way to a grid given by its ends.

    The ends are divided by the scale of the sums then, or that scale by the residual's. Other sums
    are made real numbers first.
    """

    NONE = "none"
    PER_TENSOR = "per_tensor"
    """Those with one scale."""
    PER_CHANNEL = "per_channel"
    """Those with a scale for each channel too (OpenVINO's convolutions, and its dense layers of
    which the channels are the second axis)."""


class Shift(_Kind, frozen=True, tag="shift"):
    """Shifted right and rounded once: all scales are powers of two."""


class FixedPoint(_Kind, frozen=True, tag="fixed_point"):
    """Multiplied by an integer and shifted.

    Attributes:
        multiplier: What the multiplier is computed in before it becomes an integer.
        multiplier_bits: Fractional bits to which multipliers are rounded, half to even (8 in
            XNNPACK's leaky relu and conversions between codes); None for a mantissa of 31 bits.
        addition_shift: Left shift of both operands of an addition, before they are rescaled to
            twice the larger of their scales. With ``single``: fractional bits of the larger of two
            multipliers that share an exponent (XNNPACK).
    """

    product: Product
    multiplier: Multiplier = Multiplier.FLOAT32
    multiplier_bits: Annotated[int, msgspec.Meta(ge=1)] | None = None
    addition_shift: Annotated[int, msgspec.Meta(ge=0)] = 20


class Float(_Kind, frozen=True, kw_only=True):
    """What the ways that compute in floats have in common.

    Attributes:
        fused_bias: A float bias is added to a float result by a fused multiply-add, with one
            rounding.
    """

    fused_bias: bool = False


class _ByScale(Float, frozen=True, kw_only=True):
    """In floats, to a grid given by scale and zero point.

    Attributes:
        precision: The floats.
        ratio_conversions: Codes are rescaled by the ratio of the two scales; otherwise they are
            dequantized and quantized again (Tengine's concat).
    """

    precision: FloatType = FloatType.FLOAT32
    ratio_conversions: bool = False


class FloatOnce(_ByScale, frozen=True, kw_only=True, tag="float_once"):
    """Multiplied by one factor ``s_x * s_w / s_y`` and rounded once.

    Attributes:
        multiplier: What the factor is computed in.
        addition: How codes are added and subtracted.
        integer_whole_windows: The average of a window that is the whole input divides a sum of
            codes, as that of GlobalAveragePool; other windows are averaged as floats (ONNX
            Runtime).
    """

    multiplier: Multiplier = Multiplier.FLOAT32
    addition: Addition = Addition.DEQUANTIZED
    integer_whole_windows: bool = False


class FloatInTurn(_ByScale, frozen=True, kw_only=True, tag="float_in_turn"):
    """Multiplied by each input scale, divided by the count (for a mean) and by the output scale,
    with rounding to float after each step; element-wise products use dequantized values (Tengine's
    convolutions).
    """


class FloatEnds(Float, frozen=True, kw_only=True, tag="float_ends"):
    """Sums become real numbers, which are quantized by the ends of a range (OpenVINO's
    FakeQuantize).

    Files hold float32 ``low`` and ``high``, the values of the lowest and highest code. The factor
    ``codes / (high - low)``, the offset ``-low * codes / (high - low)``, which need not be an
    integer, and the effective scale ``(high - low) / codes`` are computed from them in float32.

    Attributes:
        folded_factor: The factor of the output's grid is folded into the scale of the sums and into
            a float bias, and the offset into the bias (OpenVINO's dense layers). Otherwise factor
            and offset are applied afterwards.
        folded_ends: Which sums are multiplied once.
        folded_constants: A constant that is added is a real number, counted in steps of the other
            operand. Of one number, or one for each place along the first two axes, it is subtracted
            from the ends of the output's grid (OpenVINO). Otherwise its codes are an operand like
            any other.
    """

    folded_factor: bool = False
    folded_ends: FoldedEnds = FoldedEnds.NONE
    folded_constants: bool = False


Requantization: TypeAlias = Shift | FixedPoint | FloatOnce | FloatInTurn | FloatEnds

# ---- the rest ---------------------------------------------------------------------------------


class ZeroPointOrder(enum.StrEnum):
    """When the output's zero point is added; the results differ on ties if it is odd."""

    AFTER_ROUNDING = "after_rounding"
    BEFORE_ROUNDING = "before_rounding"


class ScalePrecision(enum.StrEnum):
    """How scales are stored in the deployed file."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL6 = "decimal6"
    """As text with six decimals: the truncated value is the effective one (Tengine)."""


class Functions(enum.StrEnum):
    """How a nonlinear function (softmax, sigmoid, tanh ...) of codes is computed."""

    FLOAT32 = "float32"
    """In float32 from the dequantized code, or a table of it; rounded to the output's code."""
    FIXED_POINT = "fixed_point"
    """In fixed point only, as in gemmlowp."""
    INTERPOLATED = "interpolated"
    """16-bit codes have tables of some hundred values, with lines between (TFLite's int16)."""
    TABLE = "table"
    """The runtime has no kernel for it: the file has a table of the float32 results, in which the
    runtime looks up codes."""
    TRUNCATED = "truncated"
    """In fixed point too; what is a table there is divided by the output's scale and cast to an
    integer (LiteRT's int8 SQRT)."""
    COMPOSED = "composed"
    """HardSwish of 8-bit codes is two kernels of codes, as the file has it: a sum that saturates
    where the gate does, in steps of 1/255, and a product. AveragePool of images, if all its windows
    count as many elements, is a depthwise convolution of ones. Others are as in ``float32``."""


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arithmetic of one operator.

    Attributes:
        requantize: How sums become codes.
        rounding: To whole codes.
        zero_point: When the output's zero point is added.
        accumulator: What becomes of sums.
        scale_precision: How scales are stored.
        functions: How softmax, sigmoid and similar functions are computed.
        reciprocal_scale: A float is quantized by multiplication with the float32 reciprocal of the
            scale, not by division by the scale. A float result of products is scaled by the
            reciprocal of the product of both reciprocals.
        nan_is_highest: NaN (0 / 0) gets the highest code where a float is quantized;
            otherwise the lowest.
        unsigned_inputs: Convolutions require unsigned codes. Signed codes are stored as unsigned
            ones by the operator that produces them, also through operators that only move codes.
        dynamic_factor: How a value that is quantized while running becomes a number of steps.
        dynamic_block_factor: The same, where rows have a scale for each block.
    """

    requantize: Requantization
    rounding: Rounding = Rounding.HALF_EVEN
    zero_point: ZeroPointOrder = ZeroPointOrder.AFTER_ROUNDING
    accumulator: Accumulator = Exact()
    scale_precision: ScalePrecision = ScalePrecision.FLOAT32
    functions: Functions = Functions.FLOAT32
    reciprocal_scale: bool = False
    nan_is_highest: bool = False
    unsigned_inputs: bool = False
    dynamic_factor: Factor = Factor.SCALE
    dynamic_block_factor: Factor = Factor.SCALE

    @property
    def multiplier(self) -> Multiplier:
        """What a factor of several scales is computed in."""
        how = self.requantize
        return how.multiplier if isinstance(how, FixedPoint | FloatOnce) else Multiplier.FLOAT32

    @property
    def precision(self) -> FloatType:
        """The floats that it computes in, where it does."""
        how = self.requantize
        return how.precision if isinstance(how, _ByScale) else FloatType.FLOAT32

    @property
    def product(self) -> Product | None:
        """How fixed point multiplies; None for other arithmetic."""
        return self.requantize.product if isinstance(self.requantize, FixedPoint) else None

    @property
    def fuses_bias(self) -> bool:
        """Whether a float bias is added with one rounding."""
        return isinstance(self.requantize, Float) and self.requantize.fused_bias

    @property
    def pairs(self) -> PairSaturate | None:
        """How pairs of products saturate; None where they do not."""
        return self.accumulator if isinstance(self.accumulator, PairSaturate) else None

    @property
    def wraps(self) -> bool:
        """Whether sums wrap."""
        return isinstance(self.accumulator, Wrap)

    def with_exact_sums(self) -> Self:
        """The same, of sums that cannot be lost."""
        return msgspec.structs.replace(self, accumulator=Exact(64))


class _Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Different arithmetic for some operators, optionally under a condition; later entries win.

    What it states beside these keys replaces the same field of `Arithmetic` as a whole.

    Attributes:
        ops: The operators.
        when: Which of their nodes; None for all.
        instructions: The processors whose kernels compute so; () for all. Without a known
            processor, overrides for some processors do not hold.
    """

    ops: tuple[str, ...]
    when: Condition | None = None
    instructions: tuple[InstructionSet, ...] = ()

    @property
    def changes(self) -> dict[str, Any]:
        """What it states, by field of `Arithmetic`."""
        # None says that nothing is stated; no field of `Arithmetic` has it as a value.
        stated = ((name, getattr(self, name)) for name in Arithmetic.__struct_fields__)
        return {name: value for name, value in stated if value is not None}


if TYPE_CHECKING:

    class ArithmeticOverride(_Override, frozen=True):
        """What is made below, which no type checker can follow."""

        def __init__(self, **given: Any) -> None: ...

else:
    # Made of the fields of Arithmetic, each or None, so that neither can lack one of the other.
    ArithmeticOverride = msgspec.defstruct(
        "ArithmeticOverride",
        [(each.name, each.type | None, None) for each in msgspec.structs.fields(Arithmetic)],
        bases=(_Override,),
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )


class TargetArithmetic(Arithmetic, frozen=True, kw_only=True):
    """The arithmetic of a whole target: that of most operators, and what differs for others."""

    overrides: tuple[ArithmeticOverride, ...] = ()

    def on(self, instructions: InstructionSet | None) -> TargetArithmetic:
        """The arithmetic of the kernels for a processor.

        Args:
            instructions: The best that they use; None for the target's own.
        """
        kept = tuple(
            msgspec.structs.replace(override, instructions=())
            for override in self.overrides
            if not override.instructions or instructions in override.instructions
        )
        return msgspec.structs.replace(self, overrides=kept)

    def with_exact_sums(self) -> Self:
        """The same, of sums that cannot be lost."""
        no_change: dict[str, Any] = {"accumulator": None}
        # An override would bring back the narrow sums of its operator.
        overrides = tuple(msgspec.structs.replace(each, **no_change) for each in self.overrides)
        return msgspec.structs.replace(self, accumulator=Exact(64), overrides=overrides)

    def for_op(self, op_type: str, holds: Callable[[Condition], bool]) -> Arithmetic:
        """Return the arithmetic of one operator, with its overrides applied.

        Args:
            op_type: The operator.
            holds: Returns whether a condition holds for it.
        """
        fields = {name: getattr(self, name) for name in Arithmetic.__struct_fields__}
        for override in self.overrides:
            # `on` clears the processors of those that hold: what still names some is for others.
            if override.instructions or op_type not in override.ops:
                continue
            if override.when is None or holds(override.when):
                fields |= override.changes
        return Arithmetic(**fields)
