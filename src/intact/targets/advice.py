"""Names the target that fits users whose own does not, by the targets' files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from intact.errors import TargetError
from intact.targets.activations import (
    Activations,
    has_dynamic,
    lacks_dynamic,
    with_activations,
)
from intact.targets.arithmetic import PairSaturate
from intact.targets.load import load_target, target_names, target_source
from intact.targets.schema import Target


def quantize_for(format_name: str, current: str) -> str:
    """Advise the target of a format; nothing where the current one is for it already.

    Args:
        format_name: The format that is to be written.
        current: Name of the target that does not do for it.

    >>> quantize_for("ncnn", "onnxruntime")
    'quantize for --target ncnn'
    >>> quantize_for("ncnn", "ncnn-winograd")
    ''
    """
    found = _first(lambda each: each.formats[:1] == (format_name,), current)
    return f"quantize for --target {found}" if found else ""


def quantize_for_saturating_pairs(target: Target) -> str:
    """Advise the target for processors that saturate pairs of products, in the same runtime.

    Args:
        target: The one that the model was quantized for.

    Returns:
        A phrase; empty where there is no such target, or this is one.
    """
    found = saturating_variant(target)
    return "" if found is None else f"quantize for such processors (--target {found.name})"


def saturating_variant(target: Target) -> Target | None:
    """Return the target for processors that saturate pairs of products, in the same runtime.

    Args:
        target: The one that the model was quantized for.

    Returns:
        None where there is no such target, or this is one.
    """
    found = _first(
        lambda each: each.formats[:1] == target.formats[:1] and each.arithmetic.pairs is not None,
        target.name,
        [name for name in target_names() if name == target.name or _names_pairs(name)],
    )
    return load_target(found) if found else None


def _names_pairs(name: str) -> bool:
    """Tell whether a target's own file names saturating pairs: reading it is quicker than loading.

    One that only inherits them is less general than the file that it extends.
    """
    return str(PairSaturate.__struct_config__.tag) in target_source(name)


def with_dynamic_activations(target: Target) -> Target:
    """Describe a target as it computes with activations that are quantized while running.

    Raises:
        TargetError: It has no kernels for them; those that have are named.
    """
    if has_dynamic(target):
        return with_activations(target, Activations.DYNAMIC)
    able = " or ".join(name for name in target_names() if has_dynamic(load_target(name)))
    raise lacks_dynamic(target, f"leave out --activations dynamic, or give --target {able}")


def with_float16(target: Target) -> Target:
    """Describe a target as it computes in float16 what stays float.

    Raises:
        TargetError: It does not; those that do are named.
    """
    if target.float16 is not None:
        asked = msgspec.structs.replace(target.float16, asked=True)
        return msgspec.structs.replace(target, float16=asked)
    able = {name for name in target_names() if load_target(name).float16 is not None}
    # Those that extend one of them are for cases of their own.
    able = {name for name in able if load_target(name).extends not in able}
    raise TargetError(
        f"target {target.name} computes what stays float in float32 alone",
        remedy=f"leave out --float float16, or give --target {' or '.join(sorted(able))}",
    )


def described_from(target: Target, fits: Callable[[Target], bool]) -> str:
    """Name the nearest target that a target's file extends, in the same runtime, which fits.

    Args:
        target: The one that the model was quantized for.
        fits: Whether a target lacks what is wrong with this one.

    Returns:
        Its name; empty where there is none, or it is no shipped target.
    """
    # Along the chain and no further: a target beside it may compute otherwise in everything.
    name = target.extends
    while name in target_names():
        found = load_target(name)
        if found.formats[:1] == target.formats[:1] and fits(found):
            return name
        name = found.extends
    return ""


def advice(*phrases: str) -> str:
    """Join phrases by "or", without those that are empty.

    >>> advice("keep them float", "", "leave them out")
    'keep them float, or leave them out'
    """
    return ", or ".join(phrase for phrase in phrases if phrase)


def _first(fits: Callable[[Target], bool], current: str, names: Sequence[str] | None = None) -> str:
    """Return the most general of the targets that fit; nothing if the current one is of them."""
    known = target_names() if names is None else names
    fitting = {name: target for name in known if fits(target := load_target(name))}
    if current in fitting:
        return ""
    # A variant is for a case of its own, which whoever asks for a target has not named.
    general = [name for name, target in fitting.items() if target.extends not in fitting]
    return general[0] if general else ""
