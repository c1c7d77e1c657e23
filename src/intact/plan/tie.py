"""Ties tensor ends that must share one scale because the hardware has one for them.

A MaxPool gives the codes that it reads, for example, so its input and output have one scale.

This is ``threshold_rectify`` of [tvm] with a union-find: tied ends have one dominator and read its
scale; functions registered with `rectifies` compute its range. Ends with different grids (another
width) cannot share a scale: they are not tied, and the plan gets a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import data_slots
from intact.plan.quantized_graph import Note, NoteKind, QuantizedGraph, quantizes
from intact.targets import OpRule, ScaleRule
from intact.targets.rules import IN_PLACE

Range: TypeAlias = tuple[float, float]

"""The lowest and the highest value of a range."""

Rectify: TypeAlias = Callable[[Sequence[int], Sequence[Range]], list[Range]]

"""Computes ranges on one scale, from widths in bits and ranges of tied ends, the master's first."""


class Follows(StrEnum):
    """How the range of a tied group is computed; stored in plan files."""

    MASTER = "master"
    """From the master's tensor."""
    UNION = "union"
    """From all tied tensors."""


THRESHOLD_RECTIFY: dict[str, Rectify] = {}

"""The functions by `Follows`, which a target's rule for the operator implies, and by operator type,
which comes first.
"""


def rectifies(*names: str) -> Callable[[Rectify], Rectify]:
    """Register a function for operator types, or for a value of `Follows`; a later registration
    replaces an earlier one.

    The ends that it unifies are those that the target ties at the operator. Plans that are built
    from then on use it, and their files name the operator instead of the rule.
    """

    def register(function: Rectify) -> Rectify:
        THRESHOLD_RECTIFY.update(dict.fromkeys(names, function))
        return function

    return register


@rectifies(Follows.UNION)
def largest_threshold(bits: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
    """Give tied ends the scale of the one with the largest threshold (add, concat and the like).

    With widths ``b_i`` and thresholds ``t_i`` a scale is ``t_i / 2^(b_i - 1)``. The end ``*`` of
    the largest threshold, the first of equal ones, keeps it; the others get
    ``t_i = 2^(b_i - b*) t*``: an end of fewer bits is clipped. Asymmetric ranges get this on both
    sides. With equal widths, which are all that is tied so far, the result is the union of the
    ranges. Source: [tvm], "Threshold Estimation".

    >>> largest_threshold([8, 8], [(-1.0, 0.5), (-0.25, 2.0)])
    [(-1.0, 2.0), (-1.0, 2.0)]
    >>> largest_threshold([8, 6], [(-4.0, 4.0), (-2.0, 2.0)])
    [(-4.0, 4.0), (-1.0, 1.0)]
    """
    thresholds = [max(-low, high) for low, high in ranges]
    widest = bits[thresholds.index(max(thresholds))]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    steps = [2.0 ** (widest - width) for width in bits]
    return [(low / step, high / step) for step in steps]


@rectifies(Follows.MASTER)
def master_scale(bits: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
    """Give tied ends the master's scale (relu, clip and operators that move codes).

    >>> master_scale([8, 6], [(-4.0, 4.0), (-2.0, 2.0)])
    [(-4.0, 4.0), (-1.0, 1.0)]
    """
    steps = [2.0 ** (bits[0] - width) for width in bits]
    return [(ranges[0][0] / step, ranges[0][1] / step) for step in steps]


TieFunction: TypeAlias = Callable[[QuantizedGraph, ir.Node], bool]

"""Ties the ends of one node in place; returns whether the rule is fulfilled."""

TIES: dict[ScaleRule, TieFunction] = {}

"""The functions by rule. Rules for in-place operators depend on later nodes and are not here."""


def ties(rule: ScaleRule) -> Callable[[TieFunction], TieFunction]:
    """Register the function of a rule."""

    def register(function: TieFunction) -> TieFunction:
        TIES[rule] = function
        return function

    return register


def tie(plan: QuantizedGraph, *, in_place: bool = False) -> QuantizedGraph:
    """Tie scales by the target's rules, node by node.

    A tied end still quantizes but owns no scale: it is PASSIVE_INIT until its master is calibrated.
    ``detail["follows"]`` tells how the master's range is computed: a value of `Follows`, or the
    operator type whose own function does (`rectifies`).

    Args:
        plan: Annotated and fused.
        in_place: Whether the plan's configs are changed, which nobody else has.

    Returns:
        A new plan, with a note for each operator whose scales could not be tied.
    """
    plan = plan if in_place else plan.copy()
    tied = [(node, _tie_node(plan, node, rule)) for node, rule in _rules(plan, plan.graph.nodes)]
    if plan.target.topology.in_place:
        # From the outputs upwards, so that a scale propagates through a whole chain (Tengine's
        # recursion).
        backwards = _rules(plan, reversed(plan.graph.nodes))
        tied += [(node, _input_follows(plan, node, rule)) for node, rule in backwards]
    return plan.with_notes(tuple(_note(plan, node) for node, agrees in tied if not agrees))


def _rules(plan: QuantizedGraph, nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, OpRule]]:
    for node in nodes:
        rule = plan.target.rule_for(node) if plan.is_quantized(node) else None
        if rule is not None:
            yield node, rule


def _tie_node(plan: QuantizedGraph, node: ir.Node, rule: OpRule) -> bool:
    """Tie the ends of a node if this does not depend on later nodes; return whether it is
    fulfilled.
    """
    function = TIES.get(rule.scales)
    return function is None or function(plan, node)


def _stored_inputs(
    plan: QuantizedGraph, node: ir.Node, slots: Iterable[int]
) -> list[TensorQuantConfig]:
    """List the configs of inputs that exist on the hardware, including overlapped ones."""
    found = []
    for slot in slots:
        value, config = node.inputs[slot], plan.input_config(node, slot)
        producer = None if value is None else plan.producer_config(value)
        fused_away = producer is not None and producer.state is QuantState.OVERLAPPED
        if not fused_away and (quantizes(config) or config.state is QuantState.OVERLAPPED):
            found.append(config)
    return found


@ties(ScaleRule.OUTPUT_FOLLOWS_INPUT)
def _outputs_follow(plan: QuantizedGraph, node: ir.Node) -> bool:
    outputs = [plan.output_config(node, slot) for slot, _ in enumerate(node.outputs)]
    master = _stored_inputs(plan, node, data_slots(node)[:1])
    if not master:
        return True
    follows = _rectifier_in(node, Follows.MASTER)
    tied = [_follow(master[0], each, follows) for each in outputs if quantizes(each)]
    return all(tied)


@ties(ScaleRule.UNIFY_INPUTS)
def _unify_inputs(plan: QuantizedGraph, node: ir.Node) -> bool:
    return _unify(node, _stored_inputs(plan, node, data_slots(node)))


@ties(ScaleRule.UNIFY_ALL)
def _unify_all(plan: QuantizedGraph, node: ir.Node) -> bool:
    outputs = (plan.output_config(node, slot) for slot, _ in enumerate(node.outputs))
    stored = [each for each in outputs if quantizes(each) or _is_governed(each)]
    return _unify(node, _stored_inputs(plan, node, data_slots(node)) + stored)


def _unify(node: ir.Node, configs: list[TensorQuantConfig]) -> bool:
    # A fixed scale comes first, and the others follow it.
    configs.sort(key=lambda config: not _is_fixed(config))
    follows = _rectifier_in(node, Follows.UNION)
    tied = [_follow(configs[0], config, follows) for config in configs[1:]]
    return all(tied)


def _input_follows(plan: QuantizedGraph, node: ir.Node, rule: OpRule) -> bool:
    if rule.scales not in IN_PLACE:
        return True
    value, output = node.inputs[0], plan.output_config(node)
    configs = _stored_inputs(plan, node, data_slots(node)[:1])
    if value is None or not configs or not quantizes(output):
        return True
    # An in-place operator overwrites its input: who else reads it would read the result.
    used = len(plan.graph.consumers(value)) + int(value.is_graph_output())
    shared = rule.max_consumers is not None and used > rule.max_consumers
    follows = _rectifier_in(node, Follows.MASTER)
    if rule.scales is ScaleRule.INPUT_FOLLOWS_OUTPUT:
        return shared or _follow(output, configs[0], follows)
    return (not shared and _follow(output, configs[0], follows)) or _outputs_follow(plan, node)


def _rectifier_in(node: ir.Node, follows: Follows) -> str:
    """Return the name under which the function of a tie at a node is registered."""
    has_own = node.domain == "" and node.op_type in THRESHOLD_RECTIFY
    return node.op_type if has_own else follows.value


def _follow(master: TensorQuantConfig, follower: TensorQuantConfig, follows: str) -> bool:
    """Add the follower's group to the master's; its root loses its own scale.

    Returns:
        Whether both share a scale now.
    """
    root, old = master.dominator, follower.dominator
    if root is old:
        return True
    # Codes of another width cannot share a scale: the caller makes a note.
    if not root.same_grid(old):
        return False
    if _is_fixed(old):
        # Two prescribed scales are tied only if they are equal already.
        return _is_fixed(root) and all(
            np.array_equal(*pair) for pair in ((root.scale, old.scale), (root.offset, old.offset))
        )
    root.dominate(old)
    old.detail["follows"] = follows
    if old.state is QuantState.INITIAL:
        old.transition(QuantState.PASSIVE_INIT)
    return True


def _is_fixed(config: TensorQuantConfig) -> bool:
    return bool(config.dominator.detail.get("fixed"))


def _is_governed(config: TensorQuantConfig) -> bool:
    return config.state is QuantState.OVERLAPPED


def _note(plan: QuantizedGraph, node: ir.Node) -> Note:
    return Note(
        NoteKind.TIE,
        str(node.name),
        f"target {plan.target.name} has one scale around {node.op_type}, but its ends differ in "
        "width or have prescribed scales",
        "give its inputs and output the same width, or keep it float",
    )
