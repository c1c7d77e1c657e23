"""The arithmetic of a target, from the integers of inputs to those of the output.

The integer engine is composed from these fields; no field names a runtime.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

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


class Requantize(enum.StrEnum):
    """How an accumulator is requantized to the output's scale."""

    FIXED_POINT_DOUBLE = "fixed_point_double"
    """Saturating doubling high multiply, rounded, then a rounding shift: rounds twice."""
    FIXED_POINT_SINGLE = "fixed_point_single"
    """64-bit product with an int32 multiplier, shifted and rounded once."""
    FIXED_POINT_WIDE = "fixed_point_wide"
    """64-bit product of a 64-bit accumulator and a multiplier of 15 bits, shifted and rounded once,
    half up (TFLite's int16 products)."""
    FLOAT32 = "float32"
    """Multiplied by a float32 factor and rounded once."""
    FLOAT64 = "float64"
    """Multiplied by a float64 factor and rounded once."""
    SHIFT = "shift"
    """Shifted right and rounded once: all scales are powers of two."""


class ZeroPointOrder(enum.StrEnum):
    """When the output's zero point is added; the results differ on ties if it is odd."""

    AFTER_ROUNDING = "after_rounding"
    BEFORE_ROUNDING = "before_rounding"


class Overflow(enum.StrEnum):
    """What happens when a sum overflows the accumulator."""

    EXACT = "exact"
    """It cannot overflow: the accumulator is wide enough for any layer."""
    WRAP = "wrap"
    """Two's complement."""
    PAIR_SATURATE = "pair_saturate"
    """Products of neighbouring input channels are added in pairs, and each pair saturates at
    ``pair_bits`` before it is accumulated (vpmaddubsw).
    """


class ScalePrecision(enum.StrEnum):
    """How scales are stored in the deployed file."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL6 = "decimal6"
    """As text with six decimals: the truncated value is the effective one (Tengine)."""
    FLOAT32_ENDS = "float32_ends"
    """As float32 ``low`` and ``high``, the values of the lowest and highest code (OpenVINO's
    FakeQuantize). The factor ``codes / (high - low)``, the offset ``-low * codes / (high - low)``,
    which need not be an integer, and the effective scale ``(high - low) / codes`` are computed from
    them in float32.
    """
    FLOAT32_PRODUCT = "float32_product"
    """For multipliers: the input scales are multiplied in float32, the rest is float64 (LiteRT's
    products of two activations).
    """


class Functions(enum.StrEnum):
    """How a nonlinear function (softmax, sigmoid, tanh ...) of codes is computed."""

    FLOAT32 = "float32"
    """In float32 from the dequantized code, or a table of it; rounded to the output's code."""
    FIXED_POINT = "fixed_point"
    """In fixed point only, as in gemmlowp."""
    INTERPOLATED = "interpolated"
    """Of 16-bit codes: tables of some hundred values, with lines between (TFLite's int16)."""
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


class Addition(enum.StrEnum):
    """How codes are added where ``requantize`` is a float type."""

    DEQUANTIZED = "dequantized"
    """Both operands are dequantized, added and quantized."""
    FUSED_MULTIPLY_ADD = "fused_multiply_add"
    """``fma(a, s_a / s_y, fma(b, s_b / s_y, z))`` in float32, where ``z`` is the constant that the
    zero points add up to (ONNX Runtime's QLinearAdd on x86)."""


SUBJECT = ("ops", "when", "instructions")
"""Keys of an override that say when it holds; the others say what."""


class ArithmeticOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Different arithmetic for some operators, optionally under a condition; later entries win.

    Attributes:
        ops: The operators.
        when: Which of their nodes; None for all.
        instructions: The processors whose kernels compute so; () for all. Without a known
            processor, overrides for some processors do not hold.
    """

    ops: tuple[str, ...]
    when: Condition | None = None
    instructions: tuple[InstructionSet, ...] = ()
    requantize: Requantize | None = None
    rounding: Rounding | None = None
    zero_point: ZeroPointOrder | None = None
    accumulator_bits: int | None = None
    accumulator_overflow: Overflow | None = None
    pair_bits: int | None = None
    pair_block: int | None = None
    pair_rows: bool | None = None
    scale_precision: ScalePrecision | None = None
    multiplier_precision: ScalePrecision | None = None
    functions: Functions | None = None
    addition: Addition | None = None
    addition_shift: int | None = None
    multiplier_bits: int | None = None
    reciprocal_scale: bool | None = None
    nan_is_highest: bool | None = None
    scales_in_turn: bool | None = None
    ratio_conversions: bool | None = None
    fused_bias: bool | None = None
    folded_factor: bool | None = None
    folded_ends: bool | None = None
    folded_channels: bool | None = None
    folded_constants: bool | None = None
    integer_whole_windows: bool | None = None
    unsigned_inputs: bool | None = None
    dynamic_factor: Factor | None = None
    dynamic_block_factor: Factor | None = None


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arithmetic of one operator or, with ``overrides``, of a whole target.

    ``pair_bits`` is required with ``pair_saturate``; it, ``pair_block`` and ``pair_rows`` are
    allowed only with it.

    Attributes:
        pair_block: Channels per step of kernels for grouped, not depthwise, convolutions. If it
            does not divide the channels per group of input and output, windows are multiplied as
            rows of a matrix, and pairs cross from tap to tap (oneDNN). None: pairs never cross
            taps.
        pair_rows: The windows of all convolutions but depthwise ones are multiplied as rows of a
            matrix (ONNX Runtime).
        multiplier_precision: Float type in which ``s_x * s_w / s_y`` is computed from the stored
            scales.
        functions: How softmax, sigmoid and similar functions are computed.
        addition: How codes are added and subtracted, with float arithmetic and scales.
        addition_shift: Left shift of both operands of a fixed-point addition, before they are
            rescaled to twice the larger of their scales. With ``fixed_point_single``: fractional
            bits of the larger of two multipliers that share an exponent (XNNPACK).
        multiplier_bits: Fractional bits to which fixed-point multipliers are rounded, half to even
            (8 in XNNPACK's leaky relu and conversions between codes); None for a mantissa of 31
            bits.
        reciprocal_scale: A float is quantized by multiplication with the float32 reciprocal of the
            scale, not by division by the scale. A float result of products is scaled by the
            reciprocal of the product of both reciprocals.
        nan_is_highest: What is no number (0 / 0) gets the highest code where a float is quantized;
            otherwise the lowest.
        fused_bias: A float bias is added to a float result by a fused multiply-add, with one
            rounding.
        folded_factor: With ``float32_ends``, the factor of the output's grid is folded into the
            scale of the sums and into a float bias, and the offset into the bias. Otherwise factor
            and offset are applied afterwards (OpenVINO's dense layers).
        folded_ends: With ``float32_ends``, a sum to which no bias is added is multiplied once: the
            ends are divided by the scale of the sums, or that scale by the residual's (OpenVINO's
            convolutions). Otherwise it is made a real number first.
        folded_channels: With ``folded_ends``, that also holds for sums with a scale for each
            channel. Otherwise those are made real numbers first (OpenVINO's dense layers of which
            the channels are not the second axis).
        folded_constants: With ``float32_ends``, a constant that is added is a real number, counted
            in steps of the other operand. Of one number, or one for each place along the first two
            axes, it is subtracted from the ends of the output's grid (OpenVINO). Otherwise its
            codes are an operand like any other.
        integer_whole_windows: With float arithmetic, the average of a window that is the whole
            input divides a sum of codes, as that of GlobalAveragePool; other windows are averaged
            as floats (ONNX Runtime).
        dynamic_factor: How a value that is quantized while running becomes a number of steps.
        dynamic_block_factor: The same, where rows have a scale for each block.
        unsigned_inputs: Convolutions require unsigned codes. Signed codes are stored as unsigned
            ones by the operator that produces them, also through operators that only move codes.
        scales_in_turn: With float arithmetic, a sum is multiplied by each input scale, divided by
            the count (for a mean) and by the output scale, with rounding to float after each step,
            and element-wise products use dequantized values. Otherwise a sum is multiplied by one
            factor ``s_x * s_w / s_y`` (Tengine's convolutions).
        ratio_conversions: With float arithmetic, codes are rescaled by the ratio of the two scales;
            otherwise they are dequantized and quantized again (Tengine's concat).
    """

    requantize: Requantize
    rounding: Rounding = Rounding.HALF_EVEN
    zero_point: ZeroPointOrder = ZeroPointOrder.AFTER_ROUNDING
    accumulator_bits: int = 32
    accumulator_overflow: Overflow = Overflow.EXACT
    pair_bits: int | None = None
    pair_block: int | None = None
    pair_rows: bool = False
    scale_precision: ScalePrecision = ScalePrecision.FLOAT32
    multiplier_precision: ScalePrecision = ScalePrecision.FLOAT32
    functions: Functions = Functions.FLOAT32
    addition: Addition = Addition.DEQUANTIZED
    addition_shift: int = 20
    multiplier_bits: int | None = None
    reciprocal_scale: bool = False
    nan_is_highest: bool = False
    scales_in_turn: bool = False
    ratio_conversions: bool = False
    fused_bias: bool = False
    folded_factor: bool = False
    folded_ends: bool = False
    folded_channels: bool = False
    folded_constants: bool = False
    integer_whole_windows: bool = False
    unsigned_inputs: bool = False
    dynamic_factor: Factor = Factor.SCALE
    dynamic_block_factor: Factor = Factor.SCALE
    overrides: tuple[ArithmeticOverride, ...] = ()

    def on(self, instructions: InstructionSet | None) -> Arithmetic:
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

    def with_exact_sums(self) -> Arithmetic:
        """The same, of sums that cannot be lost."""
        pairs = {"pair_bits": None, "pair_block": None}
        overrides = tuple(
            msgspec.structs.replace(
                each, accumulator_overflow=None, accumulator_bits=None, pair_rows=None, **pairs
            )
            for each in self.overrides
        )
        return msgspec.structs.replace(
            self,
            accumulator_overflow=Overflow.EXACT,
            accumulator_bits=64,
            pair_rows=False,
            overrides=overrides,
            **pairs,
        )

    def for_op(self, op_type: str, holds: Callable[[Condition], bool]) -> Arithmetic:
        """Return the arithmetic of one operator, with its overrides applied.

        Args:
            op_type: The operator.
            holds: Returns whether a condition holds for it.
        """
        result = msgspec.structs.replace(self, overrides=())
        for override in self.overrides:
            if override.instructions or op_type not in override.ops:
                continue
            if override.when is None or holds(override.when):
                result = msgspec.structs.replace(result, **_given(override))
        if result.accumulator_overflow is not Overflow.PAIR_SATURATE:
            result = msgspec.structs.replace(
                result, pair_bits=None, pair_block=None, pair_rows=False
            )
        return result


def _given(override: ArithmeticOverride) -> dict[str, object]:
    names = (name for name in ArithmeticOverride.__struct_fields__ if name not in SUBJECT)
    return {name: value for name in names if (value := getattr(override, name)) is not None}
