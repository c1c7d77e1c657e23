"""Checks schemes, rules, fusions and arithmetic of a target."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable

import msgspec

from intact.errors import TargetError, nearest
from intact.numerics.levels import MOST_STEPS
from intact.ops import IN_BLOCKS, STORABLE
from intact.ops.operators import OPS
from intact.targets.arithmetic import (
    Addition,
    Arithmetic,
    FloatEnds,
    FloatOnce,
    FloatType,
    ScalePrecision,
    Shift,
)
from intact.targets.rules import IN_PLACE, Fusion, OpRule, ScaleRule
from intact.targets.schema import Target
from intact.targets.scheme import (
    BiasScheme,
    DeadChannels,
    DType,
    Granularity,
    SchemeOverride,
    Spacing,
    TensorScheme,
    full_range,
)
from intact.targets.wording import plain, quoted, rule_label


def check_scheme(scheme: TensorScheme, file: str, where: str) -> None:
    """Check a tensor scheme.

    Raises:
        TargetError: It is impossible; the message has file, key and remedy.
    """
    if scheme.is_float:
        return
    if not 2 <= scheme.bits <= scheme.dtype.bits:
        raise TargetError(
            f"{file}: {where} bits is {scheme.bits}, but dtype is {scheme.dtype}",
            remedy=f"use 2 to {scheme.dtype.bits} bits or a wider dtype",
        )
    if scheme.quant_min >= scheme.quant_max:
        raise TargetError(
            f"{file}: {where} quant_min {scheme.quant_min} is not below quant_max "
            f"{scheme.quant_max}",
            remedy="swap or widen them",
        )
    low, high = full_range(scheme.bits, signed=scheme.dtype.is_signed, narrow=False)
    if scheme.quant_min < low or scheme.quant_max > high:
        raise TargetError(
            f"{file}: {where} range {scheme.quant_min}..{scheme.quant_max} does not fit "
            f"{scheme.bits} bits of {scheme.dtype}",
            remedy=f"stay within {low}..{high}",
        )
    if scheme.symmetric and scheme.truncated_zero_point:
        raise TargetError(
            f"{file}: {where} truncated_zero_point requires asymmetric tensors, symmetric is true",
            remedy="remove truncated_zero_point or set symmetric = false",
        )
    _check_zero(scheme, file, where)
    _check_block(scheme, file, where)
    if scheme.spacing is Spacing.EXPONENTIAL:
        _check_exponential(scheme, file, where)
    elif scheme.steps_per_octave is not None:
        raise TargetError(
            f"{file}: {where} steps_per_octave has no effect with linear spacing",
            remedy="set spacing = 'exponential', or remove it",
        )


def check_activation(scheme: TensorScheme, file: str, where: str) -> None:
    """Check the scheme of activations for properties that only weights can have.

    Raises:
        TargetError: It is impossible; the message has file, key and remedy.
    """
    if scheme.granularity in (Granularity.PER_CHANNEL, Granularity.PER_BLOCK):
        raise TargetError(
            f"{file}: {where} granularity is {scheme.granularity}, but an activation's scale must "
            "be common to the sum over input channels",
            remedy="use per_tensor",
        )
    if scheme.granularity is Granularity.PER_ROW and not scheme.dynamic:
        raise TargetError(
            f"{file}: {where} granularity is per_row, but rows have no scales beforehand",
            remedy="use per_tensor, or dynamic = true",
        )


def check_weight(scheme: TensorScheme, file: str, where: str) -> None:
    """Check the scheme of weights for properties that only activations can have.

    Raises:
        TargetError: It is impossible; the message has file, key and remedy.
    """
    if scheme.dynamic or scheme.granularity is Granularity.PER_ROW:
        key = "dynamic" if scheme.dynamic else "per_row"
        raise TargetError(
            f"{file}: {where} is {key}, but the values of a weight are known beforehand",
            remedy="use per_tensor or per_channel, without dynamic",
        )


def check_bias(bias: BiasScheme, file: str) -> None:
    """Check the bias scheme.

    Raises:
        TargetError: It is impossible; the message has file, key and remedy.
    """
    limits = {"quant_min": bias.quant_min, "quant_max": bias.quant_max}
    given = [key for key, value in limits.items() if value is not None]
    if bias.dtype is DType.FLOAT32:
        if given:
            raise TargetError(
                f"{file}: [bias] {given[0]} is given, but dtype is float32",
                remedy=f"remove {given[0]} or use int32",
            )
        if bias.dead_channels is not DeadChannels.KEEP:
            raise TargetError(
                f"{file}: [bias] dead_channels is {bias.dead_channels.value}, but dtype is float32",
                remedy="remove dead_channels or use int32",
            )
        return
    if bias.dtype not in {DType.INT64, DType.INT32, DType.INT16, DType.INT8}:
        raise TargetError(
            f"{file}: [bias] dtype is {bias.dtype}",
            remedy="use int64, int32, int16, int8 or float32",
        )
    low, high = bias.range()
    least, most = full_range(bias.dtype.bits, signed=True, narrow=False)
    if not least <= low < 0 < high <= most:
        raise TargetError(
            f"{file}: [bias] range {low}..{high} is impossible for {bias.dtype}",
            remedy=f"stay within {least}..{most}, around 0",
        )


def _check_block(scheme: TensorScheme, file: str, where: str) -> None:
    kinds = {Granularity.PER_BLOCK: (True,), Granularity.PER_ROW: (True, False)}
    has_block = scheme.block is not None
    if has_block not in kinds.get(scheme.granularity, (False,)) or (scheme.block or 1) < 1:
        raise TargetError(
            f"{file}: {where} block is {scheme.block}, and granularity {scheme.granularity}",
            remedy="give a block of 1 or more with granularity = 'per_block' or 'per_row'",
        )


def _check_zero(scheme: TensorScheme, file: str, where: str) -> None:
    if scheme.symmetric and not scheme.quant_min <= 0 < scheme.quant_max:
        raise TargetError(
            f"{file}: {where} symmetric is true, but {scheme.quant_min}..{scheme.quant_max} does "
            "not contain 0",
            remedy="widen the range or set symmetric = false",
        )


def _check_exponential(scheme: TensorScheme, file: str, where: str) -> None:
    if not scheme.symmetric:
        raise TargetError(
            f"{file}: {where} spacing is 'exponential', which does not support an offset",
            remedy="set symmetric = true",
        )
    if scheme.power_of_two:
        raise TargetError(
            f"{file}: {where} power_of_two needs linear levels", remedy="set spacing = 'linear'"
        )
    if scheme.steps_per_octave is not None and not 1 <= scheme.steps_per_octave <= MOST_STEPS:
        raise TargetError(
            f"{file}: {where} steps_per_octave is {scheme.steps_per_octave}",
            remedy=f"use 1 to {MOST_STEPS}",
        )
    if scheme.quant_min not in (0, -scheme.quant_max):
        raise TargetError(
            f"{file}: {where} range {scheme.quant_min}..{scheme.quant_max} is not symmetric, as "
            "'exponential' spacing requires",
            remedy=f"use quant_min = {-scheme.quant_max} or 0",
        )


def check_rules(target: Target, file: str) -> None:
    """Check for rules without effect, with contradictions or given twice.

    Raises:
        TargetError: There is one; the message has file, operators, key and remedy.
    """
    for rule in target.rules:
        _check_rule(rule, target, file)
    _check_repetition(target.rules, file)


def check_fusions(fusions: tuple[Fusion, ...], file: str) -> None:
    """Check for fusions of one step and of unknown operators.

    Raises:
        TargetError: There is one; the message has file, number of the fusion and remedy.
    """
    for number, fusion in enumerate(fusions, start=1):
        where = f"[[fusion]] number {number}"
        if len(fusion.pattern) < 2:
            raise TargetError(
                f"{file}: {where}: pattern has {len(fusion.pattern)} step"
                f"{'' if fusion.pattern else 's'}",
                remedy="a fusion needs at least two, as in [['Conv'], ['Relu']]",
            )
        for step in fusion.pattern:
            check_ops(step, file, f"{where} pattern")


def check_ops(ops: Iterable[str], file: str, where: str) -> None:
    """Check for an empty list of operators, unknown operators and duplicates.

    Raises:
        TargetError: There is one; the message has file, place and the nearest known operator.
    """
    names = list(ops)
    if not names:
        raise TargetError(f"{file}: {where}: no operator is listed", remedy="list ONNX op types")
    for name in names:
        if name not in OPS:
            raise TargetError(
                f"{file}: {where}: unknown operator {quoted(name)}",
                remedy=nearest_operator(name),
            )
        if names.count(name) > 1:
            raise TargetError(f"{file}: {where}: {name} is listed twice", remedy="list it once")


def nearest_operator(name: str) -> str:
    """Suggest the known operator closest to a misspelt one.

    >>> nearest_operator("ReLU")
    "did you mean 'Relu'?"
    """
    # Operators are often written in the case of other frameworks, which is far off as counted by
    # letters.
    same_letters = [op_type for op_type in OPS if op_type.lower() == name.lower()]
    return nearest(same_letters[0] if same_letters else plain(name), OPS)


def _check_rule(rule: OpRule, target: Target, file: str) -> None:
    where = rule_label(rule.ops)
    check_ops(rule.ops, file, where)
    if rule.when is not None and rule.when.right_zero_point is not None:
        raise TargetError(
            f"{file}: {where}: when has right_zero_point, but there are no zero points yet when "
            "rules are chosen",
            remedy="remove it; it is for [[arithmetic.overrides]]",
        )
    if not rule.quantize:
        _check_float_rule(rule, target, file, where)
        return
    if rule.weights_only:
        raise TargetError(
            f"{file}: {where}: weights_only is true, but quantize too",
            remedy="add quantize = false and a reason",
        )
    for key, override in (("activation", rule.activation), ("weight", rule.weight)):
        _check_override(override, file, f"{where}, {key}")
    activation, weight = target.activation_scheme(rule), target.weight_scheme(rule)
    check_scheme(activation, file, f"{where}, activation")
    check_activation(activation, file, f"{where}, activation")
    check_scheme(weight, file, f"{where}, weight")
    fits = activation.dynamic and activation.block in (None, weight.block)
    if weight.granularity is Granularity.PER_BLOCK and not fits:
        raise TargetError(
            f"{file}: {where}: weight granularity is per_block, which integer sums do not have",
            remedy="use it with quantize = false and weights_only = true, or with dynamic "
            "activations of rows, or of as large blocks",
        )
    _check_fixed_output(rule, activation, file, where)
    _check_stored(rule, target, file, where)
    if rule.max_consumers is not None and rule.scales not in IN_PLACE:
        raise TargetError(
            f"{file}: {where}: max_consumers has no effect without an in-place tie",
            remedy="add scales = 'input_follows_output', or move max_consumers to when",
        )
    slots = rule.quantize_inputs
    if not isinstance(slots, str) and any(slot < 0 for slot in slots):
        raise TargetError(
            f"{file}: {where}: quantize_inputs lists {min(slots)}", remedy="count slots from 0"
        )
    if rule.cost is not None and not (math.isfinite(rule.cost) and rule.cost >= 0):
        raise TargetError(f"{file}: {where}: cost is {rule.cost}", remedy="give 0 or more")


def _check_stored(rule: OpRule, target: Target, file: str, where: str) -> None:
    """Check that a fixed scale does not change when it is stored."""
    if rule.fixed_output is None or target.arithmetic.scale_precision != ScalePrecision.DECIMAL6:
        return
    scale = rule.fixed_output.scale
    stored = max(f"{ctypes.c_float(scale).value:.6f}", f"{1e-6:.6f}")  # as float32
    if float(stored) != scale:
        raise TargetError(
            f"{file}: {where}: fixed_output.scale is {scale}, but scales are stored with six "
            "decimals",
            remedy=f"write {stored}",
        )


def _check_repetition(rules: tuple[OpRule, ...], file: str) -> None:
    seen: set[tuple[frozenset[str], bytes]] = set()
    for rule in rules:
        # A condition holds a dictionary, which no set can hold; encoded in a fixed order it can be
        # compared.
        subject = frozenset(rule.ops), msgspec.json.encode(rule.when, order="deterministic")
        if subject in seen:
            raise TargetError(
                f"{file}: {rule_label(rule.ops)}: defined twice", remedy="merge the entries"
            )
        seen.add(subject)


def _check_override(override: SchemeOverride | None, file: str, where: str) -> None:
    if override is None or override.dtype is not DType.FLOAT32:
        return
    if override != SchemeOverride(dtype=DType.FLOAT32):
        raise TargetError(
            f"{file}: {where} has keys for integers, but dtype is float32", remedy="keep only dtype"
        )


def _check_float_rule(rule: OpRule, target: Target, file: str, where: str) -> None:
    if not rule.reason.strip():
        raise TargetError(
            f"{file}: {where}: quantize is false without reason",
            remedy="add reason, which is shown to users",
        )
    # Compared with a rule that states nothing else, so that a key added to `OpRule` later is
    # refused here without being listed.
    idle = OpRule(ops=rule.ops, when=rule.when, quantize=False, reason=rule.reason)
    if rule.weights_only:
        scheme = target.weight_scheme(rule)
        storable = STORABLE if scheme.granularity is not Granularity.PER_BLOCK else IN_BLOCKS
        for name in rule.ops:
            if name not in storable:
                raise TargetError(
                    f"{file}: {where}: weights_only has no effect on {name}",
                    remedy=f"it is for {', '.join(storable)}",
                )
        _check_override(rule.weight, file, f"{where}, weight")
        check_scheme(scheme, file, f"{where}, weight")
        idle = msgspec.structs.replace(idle, weights_only=True, weight=rule.weight)
    for name in rule.__struct_fields__:
        if getattr(rule, name) != getattr(idle, name):
            raise TargetError(
                f"{file}: {where}: {name} has no effect where quantize is false",
                remedy=f"remove {name}",
            )


def _check_fixed_output(rule: OpRule, scheme: TensorScheme, file: str, where: str) -> None:
    fixed = rule.fixed_output
    if fixed is None:
        return
    if not (math.isfinite(fixed.scale) and fixed.scale > 0):
        raise TargetError(
            f"{file}: {where}: fixed_output.scale is {fixed.scale}", remedy="give a positive number"
        )
    if scheme.symmetric and fixed.offset != 0:
        raise TargetError(
            f"{file}: {where}: fixed_output.offset is {fixed.offset}, but activations "
            "are symmetric",
            remedy="use offset 0, or activation = { symmetric = false }",
        )
    if not scheme.quant_min <= fixed.offset <= scheme.quant_max:
        raise TargetError(
            f"{file}: {where}: fixed_output.offset is {fixed.offset}",
            remedy=f"use {scheme.quant_min} to {scheme.quant_max}",
        )
    # A power of two has the mantissa 0.5; a logarithm would be rounded.
    if scheme.power_of_two and math.frexp(fixed.scale)[0] != 0.5:
        raise TargetError(
            f"{file}: {where}: fixed_output.scale {fixed.scale} is not a power of two",
            remedy="use one, or activation = { power_of_two = false }",
        )
    if rule.scales is not ScaleRule.FREE and rule.scales is not ScaleRule.UNIFY_INPUTS:
        raise TargetError(
            f"{file}: {where}: the output is both fixed and tied by scales = {rule.scales.value!r}",
            remedy="remove one",
        )


def check_arithmetic(target: Target, file: str) -> None:
    """Check the arithmetic of a target and of each operator with overrides.

    Raises:
        TargetError: There is a contradiction.
    """
    _check_together(target.arithmetic, file, "[arithmetic]")
    for override in target.arithmetic.overrides:
        where = "[arithmetic] overrides"
        check_ops(override.ops, file, where)
        if not override.changes:
            raise TargetError(
                f"{file}: {where} for {', '.join(override.ops)} changes nothing",
                remedy="give a key or remove the entry",
            )
        # Each override is checked on a processor where it holds, together with those before it.
        here = target.arithmetic.on(next(iter(override.instructions), None))
        for op_type in override.ops:
            # All conditions are taken to hold: a contradiction that needs a particular node is one
            # too.
            arithmetic = here.for_op(op_type, lambda _: True)
            _check_together(arithmetic, file, f"{where} for {op_type}")
    shifts = isinstance(target.arithmetic.requantize, Shift)
    linear = (target.activation, target.weight)
    if shifts and not all(scheme.power_of_two or scheme.is_float for scheme in linear):
        raise TargetError(
            f"{file}: [arithmetic] requantize is 'shift', which needs power-of-two scales",
            remedy="set power_of_two = true in [activation] and [weight]",
        )


def _check_together(arithmetic: Arithmetic, file: str, where: str) -> None:
    """Check what two options of one operator say together."""
    pairs, way = arithmetic.pairs, arithmetic.requantize
    if pairs is not None and pairs.pair_bits >= pairs.bits:
        raise TargetError(
            f"{file}: {where} accumulator: pair_bits is {pairs.pair_bits}, bits is {pairs.bits}",
            remedy="pairs saturate in fewer bits than sums",
        )
    if isinstance(way, FloatEnds) and arithmetic.reciprocal_scale:
        raise TargetError(
            f"{file}: {where} reciprocal_scale does not apply to requantize of kind 'float_ends'",
            remedy="remove reciprocal_scale, or use kind = 'float_once'",
        )
    fused = isinstance(way, FloatOnce) and way.addition is Addition.FUSED_MULTIPLY_ADD
    if fused and arithmetic.precision is not FloatType.FLOAT32:
        raise TargetError(
            f"{file}: {where} requantize: addition is 'fused_multiply_add', which is in float32",
            remedy="remove addition, or use precision = 'float32'",
        )
