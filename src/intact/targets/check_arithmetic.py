"""Fields of an arithmetic that contradict each other, or that nothing reads."""

from __future__ import annotations

from intact.errors import TargetError
from intact.targets.arithmetic import Arithmetic, Overflow, Requantize, ScalePrecision
from intact.targets.check_rules import check_ops
from intact.targets.schema import Target

_FLOATS = (Requantize.FLOAT32, Requantize.FLOAT64)

_IN_FLOATS = ("scales_in_turn", "ratio_conversions", "fused_bias")
"""Ways to order operations on floats."""

_OF_SCALES = ("scales_in_turn", "ratio_conversions", "reciprocal_scale")
"""Ways to use the scale of an output, of which a grid told by its ends has none."""

_PRECISIONS = {
    "scale_precision": frozenset(ScalePrecision) - {ScalePrecision.FLOAT32_PRODUCT},
    "multiplier_precision": frozenset(
        {ScalePrecision.FLOAT32, ScalePrecision.FLOAT64, ScalePrecision.FLOAT32_PRODUCT}
    ),
}
_WHOLE = {"pair_block": 1, "multiplier_bits": 1, "addition_shift": 0}
"""Fields that count something, and the least of it."""


def check_arithmetic(target: Target, file: str) -> None:
    """Check what a target computes, and what its overrides make of that for each operator.

    Raises:
        TargetError: For the first contradiction.
    """
    _check_fields(target.arithmetic, file, "[arithmetic]")
    for override in target.arithmetic.overrides:
        where = "[arithmetic] overrides"
        check_ops(override.ops, file, where)
        given = [name for name in override.__struct_fields__ if name not in ("ops", "when")]
        if all(getattr(override, name) is None for name in given):
            raise TargetError(
                f"{file}: {where} for {', '.join(override.ops)} changes nothing",
                remedy="give a key or remove the entry",
            )
        for op_type in override.ops:
            arithmetic = target.arithmetic.for_op(op_type, lambda _: True)
            _check_fields(arithmetic, file, f"{where} for {op_type}")
    shifts = target.arithmetic.requantize is Requantize.SHIFT
    linear = (target.activation, target.weight)
    if shifts and not all(scheme.power_of_two or scheme.is_float for scheme in linear):
        raise TargetError(
            f"{file}: [arithmetic] requantize is 'shift', which needs power-of-two scales",
            remedy="set power_of_two = true in [activation] and [weight]",
        )


def _check_fields(arithmetic: Arithmetic, file: str, where: str) -> None:
    if not 8 <= arithmetic.accumulator_bits <= 64:
        raise TargetError(
            f"{file}: {where} accumulator_bits is {arithmetic.accumulator_bits}",
            remedy="use 8 to 64",
        )
    for key in _IN_FLOATS:
        if getattr(arithmetic, key) and arithmetic.requantize not in _FLOATS:
            raise TargetError(
                f"{file}: {where} {key} is about floats, but requantize is "
                f"{arithmetic.requantize.value!r}",
                remedy=f"remove {key}, or requantise with 'float32'",
            )
    for key, allowed in _PRECISIONS.items():
        given = getattr(arithmetic, key)
        if given not in allowed:
            raise TargetError(
                f"{file}: {where} {key} is {given.value!r}",
                remedy=f"use one of {', '.join(sorted(repr(each.value) for each in allowed))}",
            )
    for key, least in _WHOLE.items():
        number = getattr(arithmetic, key)
        if number is not None and number < least:
            raise TargetError(f"{file}: {where} {key} is {number}", remedy=f"give {least} or more")
    _check_ends(arithmetic, file, where)
    _check_pairs(arithmetic, file, where)


def _check_pairs(arithmetic: Arithmetic, file: str, where: str) -> None:
    saturates = arithmetic.accumulator_overflow is Overflow.PAIR_SATURATE
    if saturates and arithmetic.pair_bits is None:
        raise TargetError(
            f"{file}: {where} accumulator_overflow is 'pair_saturate' without pair_bits",
            remedy="add pair_bits, for instance 16",
        )
    for key in ("pair_bits", "pair_block"):
        if not saturates and getattr(arithmetic, key) is not None:
            raise TargetError(
                f"{file}: {where} {key} is given, but accumulator_overflow is "
                f"{arithmetic.accumulator_overflow.value!r}",
                remedy=f"remove {key} or use 'pair_saturate'",
            )
    if arithmetic.pair_bits and not 8 <= arithmetic.pair_bits < arithmetic.accumulator_bits:
        raise TargetError(
            f"{file}: {where} pair_bits is {arithmetic.pair_bits}",
            remedy=f"use 8 to {arithmetic.accumulator_bits - 1}, below accumulator_bits",
        )


def _check_ends(arithmetic: Arithmetic, file: str, where: str) -> None:
    """Refuse what goes only with grids that are told by their ends, and what never does."""
    has_ends = arithmetic.scale_precision is ScalePrecision.FLOAT32_ENDS
    if has_ends and arithmetic.requantize is not Requantize.FLOAT32:
        raise TargetError(
            f"{file}: {where} scale_precision is 'float32_ends', but requantize is "
            f"{arithmetic.requantize.value!r}",
            remedy="requantise with 'float32'",
        )
    if arithmetic.folded_factor and not has_ends:
        raise TargetError(
            f"{file}: {where} folded_factor has no effect with scale_precision = "
            f"{arithmetic.scale_precision.value!r}",
            remedy="remove it, or use 'float32_ends'",
        )
    for key in _OF_SCALES:
        if has_ends and getattr(arithmetic, key):
            raise TargetError(
                f"{file}: {where} {key} is about scales, but scale_precision is 'float32_ends'",
                remedy=f"remove {key}, or use scale_precision = 'float32'",
            )
