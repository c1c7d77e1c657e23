"""Contradictions that types cannot rule out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from intact.errors import TargetError, nearest
from intact.graph import OPS
from intact.numerics.levels import Scheme
from intact.numerics.thresholds import METHODS
from intact.targets.arithmetic import Arithmetic, Overflow, Requantize
from intact.targets.check_rules import check_fusions, check_ops, check_rules, nearest_operator
from intact.targets.check_scheme import check_activation, check_bias, check_scheme
from intact.targets.rules import ScaleRule
from intact.targets.schema import FORMAT, Target
from intact.targets.scheme import DType
from intact.targets.wording import plain, quoted, rule_label

_WEIGHT_METHODS = ("minmax", "mse")


def check(target: Target, file: str) -> Target:
    """Return the target unchanged if its parts agree.

    Raises:
        TargetError: For the first contradiction: file, key and remedy.
    """
    if target.format != FORMAT:
        raise TargetError(
            f"{file}: format is {target.format}", remedy=f"this version reads format {FORMAT}"
        )
    if not target.name.strip():
        raise TargetError(f"{file}: name is empty", remedy="give the name users will type")
    check_scheme(target.activation, file, "[activation]")
    check_scheme(target.weight, file, "[weight]")
    check_activation(target.activation, file, "[activation]")
    check_bias(target.bias, file)
    _check_all_arithmetic(target, file)
    check_rules(target, file)
    check_fusions(target.fusions, file)
    _check_topology(target, file)
    _check_calibration(target, file)
    _check_cost(target, file)
    return target


def _check_all_arithmetic(target: Target, file: str) -> None:
    _check_arithmetic(target.arithmetic, file, "[arithmetic]")
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
            _check_arithmetic(arithmetic, file, f"{where} for {op_type}")
    shifts = target.arithmetic.requantize is Requantize.SHIFT
    linear = (target.activation, target.weight)
    if shifts and not all(scheme.power_of_two or scheme.is_float for scheme in linear):
        raise TargetError(
            f"{file}: [arithmetic] requantize is 'shift', which needs power-of-two scales",
            remedy="set power_of_two = true in [activation] and [weight]",
        )


def _check_arithmetic(arithmetic: Arithmetic, file: str, where: str) -> None:
    if not 8 <= arithmetic.accumulator_bits <= 64:
        raise TargetError(
            f"{file}: {where} accumulator_bits is {arithmetic.accumulator_bits}",
            remedy="use 8 to 64",
        )
    saturates = arithmetic.accumulator_overflow is Overflow.PAIR_SATURATE
    if saturates and arithmetic.pair_bits is None:
        raise TargetError(
            f"{file}: {where} accumulator_overflow is 'pair_saturate' without pair_bits",
            remedy="add pair_bits, for instance 16",
        )
    if not saturates and arithmetic.pair_bits is not None:
        raise TargetError(
            f"{file}: {where} pair_bits is given, but accumulator_overflow is "
            f"{arithmetic.accumulator_overflow.value!r}",
            remedy="remove pair_bits or use 'pair_saturate'",
        )
    if arithmetic.pair_bits and not 8 <= arithmetic.pair_bits < arithmetic.accumulator_bits:
        raise TargetError(
            f"{file}: {where} pair_bits is {arithmetic.pair_bits}",
            remedy=f"use 8 to {arithmetic.accumulator_bits - 1}, below accumulator_bits",
        )


def _check_topology(target: Target, file: str) -> None:
    ties = [rule for rule in target.rules if rule.scales is ScaleRule.INPUT_FOLLOWS_OUTPUT]
    if ties and not target.topology.in_place:
        raise TargetError(
            f"{file}: {rule_label(ties[0].ops)}: scales = 'input_follows_output' has no effect",
            remedy="set in_place = true in [topology]",
        )


def _check_calibration(target: Target, file: str) -> None:
    chosen = target.calibration
    for key, name in (("method", chosen.method), ("fallback", chosen.fallback)):
        if name not in METHODS:
            raise TargetError(
                f"{file}: [calibration] {key} is {quoted(name)}",
                remedy=nearest(plain(name), METHODS),
            )
    if chosen.weight_method not in _WEIGHT_METHODS:
        raise TargetError(
            f"{file}: [calibration] weight_method is {quoted(chosen.weight_method)}",
            remedy=nearest(plain(chosen.weight_method), _WEIGHT_METHODS),
        )
    for scheme in sorted(_schemes(target)):
        defined = METHODS[chosen.method].schemes | METHODS[chosen.fallback].schemes
        if scheme not in defined:
            raise TargetError(
                f"{file}: [calibration] fallback {chosen.fallback!r} is not defined for "
                f"{scheme.value} activations",
                remedy="use 'minmax'",
            )
    known = METHODS[chosen.method].options
    for name, value in chosen.options.items():
        if name not in known:
            raise TargetError(
                f"{file}: [calibration.options] {chosen.method!r} has no option {quoted(name)}",
                remedy=nearest(plain(name), known),
            )
        if not math.isfinite(value):
            raise TargetError(
                f"{file}: [calibration.options] {name} is {value}", remedy="give a finite number"
            )


def _schemes(target: Target) -> Iterator[Scheme]:
    schemes = {target.activation, *(target.activation_scheme(rule) for rule in target.rules)}
    for scheme in schemes:
        if scheme.is_float:
            continue
        if not scheme.symmetric:
            yield Scheme.ASYMMETRIC
        else:
            yield Scheme.ONE_SIDED if scheme.quant_min >= 0 else Scheme.SYMMETRIC


def _check_cost(target: Target, file: str) -> None:
    dtypes = {dtype.value for dtype in DType}
    for key, cost in target.cost.items():
        op_type, _, dtype = key.partition(".")
        if op_type not in OPS:
            raise TargetError(
                f"{file}: [cost] names operator {quoted(op_type)}",
                remedy=nearest_operator(op_type),
            )
        if dtype not in dtypes:
            raise TargetError(
                f"{file}: [cost] {quoted(key)} does not end in a data type",
                remedy=f'write "{op_type}.uint8" = ...; {nearest(plain(dtype), dtypes)}',
            )
        if not (math.isfinite(cost) and cost >= 0):
            raise TargetError(f"{file}: [cost] {quoted(key)} is {cost}", remedy="give 0 or more")
