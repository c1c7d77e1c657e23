"""Makes the variant of a target whose weights are stored in blocks.

Products of matrices and tables that are looked up then read weights that are stored as integers,
each block of neighbours with a scale of its own. Products compute with floats, or quantize their
input while they run; all else is float. Such a target is made of another: no pass, engine or format
asks how it came to be.
"""

from __future__ import annotations

import msgspec

from intact.errors import UsageError
from intact.ops import DENSE, IN_BLOCKS
from intact.targets.activations import with_overrides
from intact.targets.blocks import BlockActivations
from intact.targets.rules import Condition, OpRule
from intact.targets.schema import Target, Unsigned
from intact.targets.scheme import BiasScheme, DType, Granularity, SchemeOverride


def in_blocks(
    target: Target,
    size: int,
    bits: int | None = None,
    *,
    zero_points: bool = False,
    dynamic: bool | None = None,
) -> Target:
    """Describe a target as one that stores weights in blocks.

    Args:
        target: Whose ``[blocks]`` say what it can hold.
        size: How many neighbours have a scale together.
        bits: Width of the codes; None for the target's usual one.
        zero_points: Give blocks zero points.
        dynamic: Activations are quantized while the model runs, or are floats; None for floats
            where the target computes with them beside blocks.

    Raises:
        UsageError: The target has no weights in blocks, or none of these.
    """
    blocks = target.blocks
    if blocks is None:
        raise UsageError(
            f"--block {size}: target {target.name} has no weights in blocks",
            remedy=f"leave it out, or give --target {able_in_blocks(target)}",
        )
    width = blocks.bits[0] if bits is None else bits
    check_size(f"--block {size}", size, target)
    if dynamic and blocks.dynamic is None:
        raise UsageError(
            f"--activations dynamic: target {target.name} computes with floats beside blocks",
            remedy="leave it out",
        )
    always = blocks.dynamic is not None and blocks.dynamic.always
    if always and dynamic is False:
        raise UsageError(
            f"--activations float: target {target.name} quantizes them beside blocks, unasked",
            remedy="leave it out",
        )
    if not (dynamic or always):
        # Passes see by the target alone whether layers with blocks quantize their input.
        blocks = msgspec.structs.replace(blocks, dynamic=None)
        target = msgspec.structs.replace(target, blocks=blocks)
    check_width("--weight-bits", width, target, size)
    if zero_points and not blocks.zero_points:
        raise UsageError(
            f"--zero-points: blocks of target {target.name} have none", remedy="leave it out"
        )
    symmetric = blocks.symmetric and not zero_points
    scheme = SchemeOverride(
        dtype=DType.INT8 if symmetric else DType.UINT8,
        bits=width,
        quant_min=-(1 << width - 1) if symmetric else 0,
        quant_max=(1 << width - 1) - 1 if symmetric else (1 << width) - 1,
        symmetric=symmetric,
        granularity=Granularity.PER_BLOCK,
        block=size,
    )
    rules = [
        # In front: the last rule that matches a node governs it.
        *in_float(target, "it computes in float beside such weights").rules,
        OpRule(
            ops=IN_BLOCKS if blocks.tables else DENSE,
            quantize=False,
            weights_only=True,
            reason=blocks.reason,
            weight=scheme,
        ),
        OpRule(
            ops=DENSE,
            when=Condition(weight_slot=0),
            quantize=False,
            reason="blocks are for a constant factor on the right",
        ),
    ]
    if blocks.dynamic is not None and not blocks.dynamic.per_block and target.dynamic is not None:
        target = with_overrides(target, target.dynamic)
    made = msgspec.structs.replace(target, rules=tuple(rules), fusions=(), dynamic=None)
    return made if blocks.dynamic is None else _dynamic(made, blocks.dynamic, scheme)


def able_in_blocks(target: Target, *, between: int | None = None) -> str:
    """Name the shipped targets that have weights in blocks: of the same formats, if there are.

    Those that extend one of them are left out.

    Args:
        target: What has none.
        between: Only those whose zero points may lie between codes of that width.
    """
    from intact.targets.load import load_target, target_names  # for an error alone

    known = [load_target(name) for name in target_names()]
    names = {
        each.name
        for each in known
        if each.blocks is not None and (between is None or each.blocks.holds_between(between))
    }
    able = [each for each in known if each.name in names and each.extends not in names]
    alike = [each for each in able if each.formats == target.formats]
    return " or ".join(each.name for each in alike or able)


def in_float(target: Target, reason: str = "only caches are kept as codes") -> Target:
    """Describe a target as one that computes all in float.

    Args:
        target: The target.
        reason: Why, for users.
    """
    named = {name: None for rule in target.rules for name in rule.ops}
    rule = OpRule(ops=tuple(named), quantize=False, reason=reason)
    return msgspec.structs.replace(target, rules=(rule,), fusions=(), dynamic=None)


def _dynamic(target: Target, dynamic: BlockActivations, weight: SchemeOverride) -> Target:
    """Describe a target whose layers with weights in blocks quantize their input while running."""
    activation = target.activation.overridden(dynamic.scheme)
    dense = OpRule(
        ops=DENSE,
        when=Condition(weight_slot=1, weight_ranks=(2,)),
        outputs=(DType.FLOAT32,),
        weight=weight,
    )
    return msgspec.structs.replace(
        target,
        activation=msgspec.structs.replace(
            activation, dynamic=True, block=weight.block if dynamic.per_block else None
        ),
        bias=BiasScheme(dtype=DType.FLOAT32),
        rules=(*target.rules, dense),
        unsigned=Unsigned(),
    )


def check_size(place: str, size: int, target: Target) -> None:
    """Refuse a size of blocks that a target does not have.

    Raises:
        UsageError: It has others.
    """
    sizes = () if target.blocks is None else target.blocks.sizes
    if sizes and size not in sizes:
        raise UsageError(
            f"{place}: target {target.name} has blocks of {_listed(sizes)}",
            remedy="give one of them",
        )


def check_width(place: str, bits: int, target: Target, size: int) -> None:
    """Refuse a width of codes that a target has no blocks of, or computes otherwise than asked.

    Raises:
        UsageError: It has none.
    """
    blocks = target.blocks
    if blocks is not None and not 2 <= bits <= max(blocks.bits):
        raise UsageError(
            f"{place}: target {target.name} stores codes of {_listed(sorted(blocks.bits))} bits in "
            f"blocks, {bits} were asked for",
            remedy=f"give 2 to {max(blocks.bits)}",
        )
    dynamic = None if blocks is None else blocks.dynamic
    if blocks is not None and dynamic and (blocks.stored_bits(bits), size) in dynamic.in_float:
        raise UsageError(
            f"{place}: target {target.name} computes with floats where blocks of {size} have codes "
            f"of {blocks.stored_bits(bits)} bits",
            remedy="give another width or --block, or leave out --activations dynamic",
        )


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
