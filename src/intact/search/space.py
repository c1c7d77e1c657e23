"""Declares the search space: for each group of tensor ends, the widths to choose from.

Source: [tvm], "Workflow Overview" and "Hardware Description". The widths of an edge go from the
    widest type that all operators at it declare down to 4 bits. Ends with tied scales and ends of
    fused operators are one group, so that every candidate is legal. A group may also stay float
    where that changes only its own node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import msgspec
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import UsageError
from intact.graph import (
    Graph,
    Role,
    data_slots,
    input_role,
    is_constant,
    moves_values,
    weight_slot,
)
from intact.graph.tied_tables import tied_tables
from intact.plan import Overrides, QuantizedGraph, TensorEnd, build_plan, quantizes
from intact.plan.inference import widest_bits
from intact.plan.stored_weights import is_in_blocks, is_stored
from intact.plan.topology import sole_reader
from intact.targets import Target


def widest(plan: QuantizedGraph, ends: Iterable[TensorEnd]) -> int:
    """Compute the largest width that every end of a group supports."""
    # Ends of a group share their codes, so the end that can hold least decides.
    return min(_widest_at(plan, end) for end in ends)


def _widest_at(plan: QuantizedGraph, end: TensorEnd) -> int:
    found = widest_bits(plan.graph.node(end.node), plan.target, end)
    return plan.configs[end].bits if found is None else found


FLOAT = 32

"""The choice that leaves a group float: the width of float32."""

NARROWEST = 4

Candidate: TypeAlias = tuple[int, ...]

"""One choice (bits, or ``FLOAT``) for each group of a space, in the order of the groups."""


class GroupKind(StrEnum):
    """The kind of tensors in a group."""

    WEIGHT = "weight"
    ACTIVATION = "activation"


@dataclass(frozen=True)
class Group:
    """Tensor ends that share one width.

    Attributes:
        name: The end of the dominator, as text.
        kind: Weights or activations.
        ends: All ends, those inside fused operators too.
        owners: Nodes that stay float with choice ``FLOAT``; empty where that cannot be chosen.
        choices: Widths in bits, widest first.
    """

    name: str
    kind: GroupKind
    ends: tuple[TensorEnd, ...]
    owners: tuple[str, ...]
    choices: tuple[int, ...]

    @property
    def default(self) -> int:
        """The widest integer choice."""
        return next((bits for bits in self.choices if bits != FLOAT), FLOAT)


@dataclass(frozen=True)
class Space:
    """All candidates of a model on a target.

    Attributes:
        plan: The structure with every group at its widest integers, without scales.
        overrides: The user's overrides of the target, the same for every candidate.
        groups: The groups, in topological order of their first ends.
    """

    plan: QuantizedGraph
    overrides: Overrides
    groups: tuple[Group, ...]

    @staticmethod
    def of(
        graph: Graph,
        target: Target,
        overrides: Overrides | None = None,
        *,
        widths: Sequence[int] | None = None,
        allow_float: bool = True,
    ) -> Space:
        """Build the space of all choices that a target supports.

        Args:
            graph: A normalized graph.
            target: The hardware.
            overrides: Nodes that are kept float and widths that are fixed.
            widths: The widths to choose from; None allows every width from 4 up. A group that
                supports none of them keeps its widest one.
            allow_float: Whether groups may stay float.

        Raises:
            UsageError: A width is outside 2..16, or an override names nothing in the graph.
        """
        # Checked before the plan is built, which takes longer.
        for bits in widths or ():
            if not 2 <= bits <= 16:
                raise UsageError(f"a width of {bits} bits", remedy="give widths from 2 to 16")
        overrides = overrides or Overrides()
        plan = build_plan(graph, target, overrides)
        # Patterns become names: a candidate adds names of its own.
        overrides = overrides.resolved(graph).overrides
        chains = _weighted_chains(plan)
        # Nodes that a weight's group owns already; an activation's group must not choose for them
        # again.
        claimed = {name for chain in chains.values() for name in chain}
        groups = []
        for ends in _scale_groups(plan):
            kind = _kind(plan, ends)
            found = _chains_of(chains, ends) if kind is GroupKind.WEIGHT else ()
            owners = (found or _producers(plan, ends, claimed)) if allow_float else ()
            first = plan.configs[ends[0]]
            choices = _choices(widest(plan, ends), widths)
            if is_in_blocks(first):
                choices, owners = _block_widths(target, first.bits, widths), ()
            # A prescribed scale is for one width only, and stored integers have theirs.
            elif first.dominator.detail.get("fixed") or is_stored(first):
                choices = (first.bits,)
            if any(_is_fixed_by_user(plan, end, overrides) for end in ends):
                choices, owners = (first.bits,), ()
            floats = (FLOAT,) if owners else ()
            groups.append(Group(str(ends[0]), kind, ends, owners, (*floats, *choices)))
        return Space(plan, overrides, tuple(groups))

    @staticmethod
    def of_plan(plan: QuantizedGraph) -> Space:
        """Build the space whose only candidate is a plan as it is, to price it."""
        groups = []
        for ends in _scale_groups(plan):
            bits = plan.configs[ends[0]].dominator.bits
            groups.append(Group(str(ends[0]), _kind(plan, ends), ends, (), (bits,)))
        return Space(plan, Overrides(), tuple(groups))

    @property
    def default(self) -> Candidate:
        """The candidate with every group at its widest integers: [tvm]'s default."""
        return tuple(group.default for group in self.groups)

    @cached_property
    def open(self) -> tuple[int, ...]:
        """Indices of the groups with more than one choice."""
        return tuple(index for index, group in enumerate(self.groups) if len(group.choices) > 1)

    @property
    def size(self) -> int:
        """The number of candidates."""
        # Python's integers: the product has hundreds of digits for real models.
        size = 1
        for group in self.groups:
            size *= len(group.choices)
        return size

    def uniform(self, bits: int) -> Candidate:
        """Make the candidate with one width everywhere.

        A group without that width gets the next narrower one, or its narrowest if all are wider.
        """
        return tuple(
            next((choice for choice in group.choices if choice <= bits), group.choices[-1])
            for group in self.groups
        )

    def with_choice(self, candidate: Candidate, index: int, bits: int) -> Candidate:
        """Copy a candidate with another choice for one group."""
        return (*candidate[:index], bits, *candidate[index + 1 :])

    def restricted(self, choices: Mapping[int, tuple[int, ...]]) -> Space:
        """Copy the space with other choices for some groups, given by index."""
        groups = tuple(
            replace(group, choices=choices.get(index, group.choices))
            for index, group in enumerate(self.groups)
        )
        return replace(self, groups=groups)

    def check(self, candidate: Candidate) -> None:
        """Check that a candidate belongs to the space.

        Raises:
            UsageError: The number of groups differs, or a group does not have the choice.
        """
        if len(candidate) != len(self.groups):
            raise UsageError(
                f"a candidate with {len(candidate)} choices for {len(self.groups)} groups"
            )
        for group, bits in zip(self.groups, candidate, strict=True):
            if bits not in group.choices:
                raise UsageError(f"{group.name}: {bits} bits is not one of its choices")

    def kept_float(self, candidate: Candidate) -> frozenset[str]:
        """List the nodes that a candidate leaves float, by name."""
        return frozenset(
            name
            for group, bits in zip(self.groups, candidate, strict=True)
            if bits == FLOAT
            for name in group.owners
        )

    def widths(self, candidate: Candidate) -> dict[TensorEnd, int]:
        """Map every end to its width in a candidate.

        The ends of a float group have its widest integer width: some of them may still be quantized
        because other nodes read them.
        """
        return {
            end: group.default if bits == FLOAT else bits
            for group, bits in zip(self.groups, candidate, strict=True)
            for end in group.ends
            if group.default != FLOAT
        }

    def requests(self, candidate: Candidate) -> Overrides:
        """Convert a candidate to overrides of the target, as `build_plan` takes them."""
        floats = sorted(self.kept_float(candidate))
        return msgspec.structs.replace(
            self.overrides,
            keep_float=(*self.overrides.keep_float, *floats),
            widths=self.widths(candidate),
        )


def _scale_groups(plan: QuantizedGraph) -> Iterator[tuple[TensorEnd, ...]]:
    """Yield the groups of ends that share a scale, and so a width; biases belong to none."""
    groups: dict[int, list[TensorEnd]] = {}
    for end, config in plan.configs.items():
        is_hidden = config.state is QuantState.OVERLAPPED
        if (quantizes(config) or is_hidden) and not _is_bias(plan, end, config):
            groups.setdefault(id(config.dominator), []).append(end)
    # A table that a layer multiplies with too is in the file once, where both have one width.
    for table, weight in tied_in_blocks(plan):
        first, second = (id(plan.configs[end].dominator) for end in (table, weight))
        if first != second:
            groups[first] += groups.pop(second)
    for ends in groups.values():
        # Stable: the dominator comes first and names the group, the others keep the graph's order.
        ends.sort(key=lambda end: plan.configs[end].dominator is not plan.configs[end])
        yield tuple(ends)


def tied_in_blocks(plan: QuantizedGraph) -> Iterator[tuple[TensorEnd, TensorEnd]]:
    """Yield where tables in blocks are looked up, and where one layer multiplies with each."""
    # Comparing tables reads them from disk.
    if not any(is_in_blocks(config) for config in plan.configs.values()):
        return
    taken: set[TensorEnd] = set()
    for lookup, layer, _ in tied_tables(plan.graph):
        ends = TensorEnd.input(str(lookup.name), 0), TensorEnd.input(str(layer.name), 1)
        configs = [plan.configs[end] for end in ends if end in plan.configs]
        sizes = [each.grid.block for each in configs if is_in_blocks(each) and quantizes(each)]
        if len(sizes) == 2 and sizes[0] == sizes[1] and ends[0] not in taken:
            taken.add(ends[0])
            yield ends


def _block_widths(target: Target, own: int, widths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the widths that codes in blocks are stored in, or those that are asked for."""
    held = () if target.blocks is None else target.blocks.bits
    allowed = [bits for bits in held if bits >= NARROWEST] if widths is None else widths
    found = {bits for bits in allowed if bits <= max(held, default=own)}
    return tuple(sorted(found, reverse=True)) or (own,)


def _is_bias(plan: QuantizedGraph, end: TensorEnd, config: TensorQuantConfig) -> bool:
    return (
        end.direction == "input"
        and config.bits > 16
        and input_role(plan.graph.node(end.node), end.slot) is Role.BIAS
    )


def _kind(plan: QuantizedGraph, ends: Iterable[TensorEnd]) -> GroupKind:
    for end in ends:
        node = plan.graph.node(end.node)
        value = node.inputs[end.slot] if end.direction == "input" else None
        if value is None or not is_constant(value):
            return GroupKind.ACTIVATION
    return GroupKind.WEIGHT


def _is_fixed_by_user(plan: QuantizedGraph, end: TensorEnd, overrides: Overrides) -> bool:
    """Tell whether the user fixed the width of an end."""
    node = plan.graph.node(end.node)
    is_weight = end.direction == "input" and input_role(node, end.slot) is Role.WEIGHT
    has_weight = weight_slot(node) is not None
    return overrides.bits_at(end, is_weight=is_weight, has_weight=has_weight) is not None


def _choices(limit: int, widths: Sequence[int] | None) -> tuple[int, ...]:
    allowed = range(NARROWEST, 17) if widths is None else widths
    return tuple(sorted({bits for bits in allowed if bits <= limit}, reverse=True)) or (limit,)


def _weighted_chains(plan: QuantizedGraph) -> dict[str, tuple[str, ...]]:
    """Map each quantized node with a constant weight to it and the nodes fused behind it."""
    chains = {}
    for node in plan.graph.nodes:
        weights = [
            slot
            for slot, value in enumerate(node.inputs)
            if value is not None and is_constant(value) and input_role(node, slot) is Role.WEIGHT
        ]
        if plan.is_quantized(node) and weights:
            chains[str(node.name)] = tuple(_chain(plan, node))
    return chains


def _chain(plan: QuantizedGraph, node: ir.Node) -> Iterator[str]:
    """Yield a node and the one-input operators that are fused behind it."""
    while True:
        yield str(node.name)
        reader = sole_reader(plan.graph, node)
        # Only what is fused behind it goes to float with it. An operator with a second data input
        # meets another chain there.
        hidden = plan.output_config(node).state is QuantState.OVERLAPPED
        if not hidden or reader is None or _data_inputs(reader[0]) > 1:
            return
        node = reader[0]


def _data_inputs(node: ir.Node) -> int:
    values = (node.inputs[slot] for slot in data_slots(node))
    return sum(value is not None and not is_constant(value) for value in values)


def _chains_of(chains: Mapping[str, tuple[str, ...]], ends: Iterable[TensorEnd]) -> tuple[str, ...]:
    names = dict.fromkeys(name for end in ends for name in chains.get(end.node, ()))
    return tuple(names)


def _producers(
    plan: QuantizedGraph, ends: Iterable[TensorEnd], claimed: set[str]
) -> tuple[str, ...]:
    """List the nodes without weights that compute the tensors of a group of activations."""
    found: dict[str, None] = {}
    for end in ends:
        node = plan.graph.node(end.node)
        # An operator that only moves values computes nothing in float.
        if end.direction == "output" and end.node not in claimed and not moves_values(node):
            found[end.node] = None
    return tuple(found)


def deployable(
    space: Space,
    *,
    weight_bits: Collection[int],
    activation_bits: Collection[int],
    floats: bool,
    mixes: bool = True,
) -> Space:
    """Restrict a space to the choices that the formats of a deployment can express.

    A target describes its operators, a format its files: a full-integer format has no float
    operators, and a format of int8 tensors has no 4-bit codes.

    Args:
        space: The choices of the target.
        weight_bits: Widths that weights may have.
        activation_bits: Widths that activations may have.
        floats: Whether operators may stay float.
        mixes: Whether activations of several widths may meet; else all have the target's.

    Returns:
        The space. A group that would have no choice left keeps the target's own width.
    """

    def choices_left(group: Group) -> tuple[int, ...]:
        is_weight = group.kind is GroupKind.WEIGHT
        widths = weight_bits if is_weight else activation_bits
        # Where all activations must have one width, the default is the one that every group has.
        if not is_weight and not mixes and group.default in widths:
            widths = (group.default,)
        found = (bits for bits in group.choices if (floats if bits == FLOAT else bits in widths))
        return tuple(found) or (group.default,)

    return space.restricted(
        {index: choices_left(group) for index, group in enumerate(space.groups)}
    )
