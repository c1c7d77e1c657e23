"""Checks a whole target for contradictions that types cannot exclude."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from intact.errors import TargetError, nearest
from intact.numerics.levels import Scheme
from intact.numerics.thresholds import METHODS, WEIGHT_METHODS
from intact.ops import CACHING, EXPANDABLE
from intact.ops.operators import OPS
from intact.targets.activations import dynamic_target
from intact.targets.check_rules import (
    check_activation,
    check_arithmetic,
    check_bias,
    check_fusions,
    check_ops,
    check_rules,
    check_scheme,
    check_weight,
    nearest_operator,
)
from intact.targets.rules import IN_PLACE
from intact.targets.schema import Dynamic, Target
from intact.targets.scheme import DType
from intact.targets.wording import plain, quoted, rule_label


def check(target: Target, file: str) -> Target:
    """Check a target; return it unchanged.

    Raises:
        TargetError: There is a contradiction; the message has file, key and remedy.
    """
    if not target.name.strip():
        raise TargetError(f"{file}: name is empty", remedy="give a name")
    # Schemes come first: what follows reads ranges and widths that they hold for possible.
    check_scheme(target.activation, file, "[activation]")
    check_scheme(target.weight, file, "[weight]")
    check_activation(target.activation, file, "[activation]")
    check_weight(target.weight, file, "[weight]")
    check_bias(target.bias, file)
    check_arithmetic(target, file)
    check_rules(target, file)
    check_fusions(target.fusions, file)
    _check_unsigned(target, file)
    _check_topology(target, file)
    _check_calibration(target, file)
    _check_cost(target, file)
    _check_runtime_version(target, file)
    _check_expand(target, file)
    _check_blocks(target, file)
    _check_cache(target, file)
    _check_float16(target, file)
    if target.compiler is not None:
        check_ops(target.compiler.unmapped, file, "[compiler] unmapped")
    if target.dynamic is not None and target.dynamic.rules:
        _check_dynamic(target, target.dynamic, file)
    return target


def _check_dynamic(target: Target, dynamic: Dynamic, file: str) -> None:
    if not dynamic.reason.strip():
        raise TargetError(f"{file}: [dynamic] reason is empty", remedy="users are shown it")
    # The target as it computes then is checked like any other: it has no [dynamic] itself, so this
    # ends.
    check(dynamic_target(target, dynamic), f"{file}, [dynamic]")


def _check_blocks(target: Target, file: str) -> None:
    blocks = target.blocks
    if blocks is None:
        return
    limits = (("bits", blocks.bits, 2, 8), ("sizes", blocks.sizes, 2, 1 << 20))
    for key, numbers, least, most in limits:
        odd = [n for n in numbers if not least <= n <= most or numbers.count(n) > 1]
        if odd or not numbers:
            raise TargetError(
                f"{file}: [blocks] {key} is {list(numbers)}",
                remedy=f"list different numbers from {least} to {most}",
            )
    if not blocks.reason.strip():
        raise TargetError(f"{file}: [blocks] reason is empty", remedy="users are shown it")
    if not (blocks.symmetric or blocks.zero_points):
        raise TargetError(
            f"{file}: [blocks] symmetric is false, and zero_points too",
            remedy="set one of them to true",
        )
    if not set(blocks.float_zero_points) <= (set(blocks.bits) if blocks.zero_points else set()):
        raise TargetError(
            f"{file}: [blocks] float_zero_points is {list(blocks.float_zero_points)}",
            remedy="list some of bits, or leave it out where zero_points is false",
        )


def _check_cache(target: Target, file: str) -> None:
    forms = () if target.cache is None else target.cache.forms
    for form in forms:
        where = f"{file}: [[cache.form]] {quoted(form.op)}"
        if form.op not in CACHING:
            raise TargetError(f"{where} has no cache", remedy=nearest(plain(form.op), CACHING))
        if not form.bits or not set(form.bits) <= CACHING[form.op]:
            known = " and ".join(map(str, sorted(CACHING[form.op])))
            raise TargetError(f"{where}: bits is {list(form.bits)}", remedy=f"list some of {known}")
        if not form.reason.strip():
            raise TargetError(f"{where}: reason is empty", remedy="users are shown it")


def _check_float16(target: Target, file: str) -> None:
    found = target.float16
    if found is None:
        return
    if found.float32:
        check_ops(found.float32, file, "[float16] float32")
    for key, text in (("source", found.source), ("reason", found.reason if found.float32 else "-")):
        if not text.strip():
            raise TargetError(f"{file}: [float16] {key} is empty", remedy="say it")


def _check_expand(target: Target, file: str) -> None:
    for name in target.expand:
        if name not in EXPANDABLE:
            raise TargetError(
                f"{file}: expand names {quoted(name)}", remedy=nearest(plain(name), EXPANDABLE)
            )
        if target.describes(name):
            raise TargetError(
                f"{file}: expand names {name}, which an [[op]] computes with integers",
                remedy="leave it out of one of them",
            )


def _check_runtime_version(target: Target, file: str) -> None:
    if target.runtime_version and not re.fullmatch(r"\d+\.\d+\.\d+", target.runtime_version):
        raise TargetError(
            f"{file}: runtime_version is {target.runtime_version!r}",
            remedy='write three numbers, like "8.6.1"',
        )


def _check_unsigned(target: Target, file: str) -> None:
    for key, names in (("after", target.unsigned.after), ("through", target.unsigned.through)):
        if names:
            check_ops(names, file, f"[unsigned] {key}")
    scheme, both = target.activation, set(target.unsigned.after) & set(target.unsigned.through)
    if both:
        raise TargetError(
            f"{file}: [unsigned] has {min(both)} in after and through",
            remedy="leave it in after if it is never negative, else in through",
        )
    if target.unsigned.through and not target.unsigned.after:
        raise TargetError(
            f"{file}: [unsigned] through has no effect without after", remedy="add after"
        )
    if target.unsigned.after and not (scheme.symmetric and scheme.dtype.is_signed):
        kind = scheme.dtype.value if scheme.symmetric else "asymmetric"
        raise TargetError(
            f"{file}: [unsigned] requires symmetric signed activations, these are {kind}",
            remedy="remove [unsigned], or use a signed dtype with symmetric = true",
        )


def _check_topology(target: Target, file: str) -> None:
    ties = [rule for rule in target.rules if rule.scales in IN_PLACE]
    if ties and not target.topology.in_place:
        raise TargetError(
            f"{file}: {rule_label(ties[0].ops)}: scales = {ties[0].scales.value!r} has no effect",
            remedy="set in_place = true in [topology]",
        )


def _check_calibration(target: Target, file: str) -> None:
    chosen = target.calibration
    others = (("alternatives", name) for name in chosen.alternatives)
    for key, name in (("method", chosen.method), ("fallback", chosen.fallback), *others):
        if name not in METHODS:
            raise TargetError(
                f"{file}: [calibration] {key} is {quoted(name)}",
                remedy=nearest(plain(name), METHODS),
            )
    for name, variant in chosen.variants.items():
        for given in (name, variant):
            if given not in METHODS:
                raise TargetError(
                    f"{file}: [calibration.variants] names {quoted(given)}",
                    remedy=nearest(plain(given), METHODS),
                )
        if not METHODS[variant].schemes <= METHODS[name].schemes:
            raise TargetError(
                f"{file}: [calibration.variants] {variant!r} is defined for schemes for which "
                f"{name!r} is not",
                remedy="name a variant of the same method",
            )
    if chosen.weight_method not in WEIGHT_METHODS:
        raise TargetError(
            f"{file}: [calibration] weight_method is {quoted(chosen.weight_method)}",
            remedy=nearest(plain(chosen.weight_method), WEIGHT_METHODS),
        )
    for scheme in sorted(_schemes(target)):
        defined = METHODS[chosen.method].schemes | METHODS[chosen.fallback].schemes
        if scheme not in defined:
            raise TargetError(
                f"{file}: [calibration] fallback {chosen.fallback!r} is not defined for "
                f"{scheme.value} activations",
                remedy="use 'minmax'",
            )
    _check_methods_of_exponents(target, file)
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


def _check_methods_of_exponents(target: Target, file: str) -> None:
    chosen = target.calibration
    methods = (METHODS[chosen.method], METHODS[chosen.fallback])
    if target.is_logarithmic and all(method.equal_steps for method in methods):
        raise TargetError(
            f"{file}: [calibration] fallback {chosen.fallback!r} is not defined for "
            "logarithmic levels",
            remedy="use 'minmax'",
        )
    rules = (rule for rule in target.rules if rule.quantize)
    weights = (target.weight, *map(target.weight_scheme, rules))
    is_logarithmic = any(scheme.is_logarithmic for scheme in weights)
    if is_logarithmic and METHODS[chosen.weight_method].equal_steps:
        raise TargetError(
            f"{file}: [calibration] weight_method {chosen.weight_method!r} is not defined for "
            "logarithmic levels",
            remedy="use 'minmax' or 'mse'",
        )


def _schemes(target: Target) -> Iterator[Scheme]:
    schemes = {target.activation, *(target.activation_scheme(rule) for rule in target.rules)}
    if target.unsigned.after:
        schemes.add(target.activation.unsigned())
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
