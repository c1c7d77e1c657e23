"""Makes the dynamic variant of a target: activations get their scales while the model runs.

With ``--activations dynamic`` there is no calibration: a dense layer takes the scale of its input
from the values at hand, multiplies integers and gives floats, and everything else computes with
floats. Which operators do so stands in the section ``[dynamic]`` of the target's file; here it is
laid over the rest of the target.
"""

from __future__ import annotations

import enum

import msgspec

from intact.errors import TargetError
from intact.targets.rules import OpRule
from intact.targets.schema import Dynamic, Target, Unsigned
from intact.targets.scheme import BiasScheme, DType


class Activations(enum.StrEnum):
    """Where the scales of activations come from."""

    STATIC = "static"
    """From calibration."""
    DYNAMIC = "dynamic"
    """From their values, while the model runs."""
    FLOAT = "float"
    """There are none: they are not quantized."""


def with_activations(target: Target, activations: Activations) -> Target:
    """Describe a target as it computes with activations of a kind.

    Raises:
        TargetError: It has no kernels for them.
    """
    if activations is Activations.STATIC:
        return target
    if not has_dynamic(target):
        raise lacks_dynamic(target, "choose a target whose file has [dynamic]")
    return dynamic_target(target, target.dynamic or Dynamic())


def lacks_dynamic(target: Target, remedy: str) -> TargetError:
    """Return the error of a target whose file has no section ``[dynamic]``."""
    return TargetError(
        f"target {target.name} describes no activations that are quantized while running",
        remedy=remedy,
    )


def has_dynamic(target: Target) -> bool:
    """Tell whether a target has kernels that quantize activations while they run."""
    return target.dynamic is not None and bool(target.dynamic.rules)


def dynamic_target(target: Target, dynamic: Dynamic) -> Target:
    """Describe a target by its section of activations that are quantized while the model runs."""
    activation = target.activation.overridden(dynamic.activation)
    return msgspec.structs.replace(
        with_overrides(target, dynamic),
        activation=msgspec.structs.replace(activation, dynamic=True),
        weight=target.weight.overridden(dynamic.weight),
        # An integer bias has the scale of the input, which is not known beforehand.
        bias=BiasScheme(dtype=DType.FLOAT32),
        # The last rule that matches governs a node, so that those with kernels come last.
        rules=(*_in_float(target, dynamic), *dynamic.rules),
        # Chains that end in codes of a known scale do not exist then: every layer gives floats.
        fusions=(),
        unsigned=Unsigned(),
        # Made once: asked for the same again, the target would replace its own rules.
        dynamic=None,
    )


def with_overrides(target: Target, dynamic: Dynamic) -> Target:
    """Add the section's overrides of the arithmetic to those of the target."""
    overrides = (*target.arithmetic.overrides, *dynamic.overrides)
    return msgspec.structs.replace(
        target, arithmetic=msgspec.structs.replace(target.arithmetic, overrides=overrides)
    )


def _in_float(target: Target, dynamic: Dynamic) -> tuple[OpRule, ...]:
    """Return the target's rules with every operator in float that would need calibration."""
    replaced = [(rule.ops, rule.when) for rule in dynamic.rules]
    return tuple(
        OpRule(ops=rule.ops, when=rule.when, quantize=False, reason=dynamic.reason)
        if rule.quantize
        else rule
        for rule in target.rules
        if (rule.ops, rule.when) not in replaced
    )
