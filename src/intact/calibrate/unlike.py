"""Breaks ties that cost more than they save: inputs of joins are requantized instead.

A step ``s`` costs each reader a noise of ``s^2 / 12``. A tensor of step ``a`` that a join ties to
others of step ``b > a`` costs ``b^2`` for the join and for each other reader. With a scale of its
own it costs ``a^2`` for the others, and ``a^2 + b^2`` for the join, which reads it requantized. So
a tie is broken where ``n`` others read the tensor too, and ``n (b^2 - a^2) > a^2``. Where nobody
else reads it nothing is gained, whatever the ranges are.

That is an estimate: what readers make of noise it does not know. So the outputs decide, for the
ties of each join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

import msgspec
import onnx_ir as ir

from intact.calibrate.assign import Points, activation_scales, assign
from intact.calibrate.choice import Choice
from intact.calibrate.method import Method
from intact.calibrate.statistics import Statistics
from intact.config import TensorQuantConfig
from intact.graph import is_constant
from intact.graph.graph import IMPLICIT_SLOT
from intact.plan import QuantizedGraph, TensorEnd, quantization_points
from intact.plan.float16 import with_float32_of
from intact.plan.untie import RequantizeReason, breakable, codes_of, requantized

_TRIED = 8
"""Joins, or parts of them, whose ties are tried alone."""


Apart: TypeAlias = Callable[[Collection[TensorEnd]], QuantizedGraph]
"""Makes a plan, without scales, in which some ties are broken."""


def fully_untied(plan: QuantizedGraph, apart: Apart) -> QuantizedGraph | None:
    """Return the plan in which all ties are broken that may be; None where there are none.

    Args:
        plan: Tied.
        apart: Makes it with some ties broken.
    """
    ends = breakable(plan)
    return apart(ends) if ends else None


def broken_ties(
    untied: QuantizedGraph,
    statistics: Statistics,
    choice: Choice,
    apart: Apart,
) -> frozenset[TensorEnd]:
    """Find the ties that the outputs gain by breaking.

    All that `unlike` finds are broken at first. Where the outputs gain by that, a join is tied
    again if they gain by that too. Where they do not, joins are untied one by one, the most unlike
    first, as long as they gain. At most nine plans are simulated.

    Args:
        untied: The result of `fully_untied`; not changed.
        statistics: The statistics of the tensors that it and the tied plan quantize.
        choice: The tied plan with scales, and what it loses.
        apart: Makes it with some ties broken.
    """
    parts = _parts_by_join(unlike(untied, statistics, choice.method))

    def gains(chosen: Sequence[_Part], now: Choice) -> Choice | None:
        plan = apart([end for part in chosen for end in part])
        found = choice.changed(
            assign(with_float32_of(plan, choice.plan), statistics, choice.method)
        )
        return found if now.is_worse_than(found) else None

    whole = gains(parts, choice) if parts else None
    kept, best = ([], choice) if whole is None else (parts, whole)
    # From all or from none, whichever was better: each part is turned the other way once.
    for part in parts if len(parts) > 1 else ():
        changed = [each for each in parts if (each in kept) is not (each == part)]
        found = gains(changed, best)
        if found is not None:
            kept, best = changed, found
    return frozenset(end for part in kept for end in part)


_Part: TypeAlias = tuple[TensorEnd, ...]
"""Ends of one join, or of several that stand together."""


def _parts_by_join(ends: Sequence[TensorEnd]) -> list[_Part]:
    """Divide ends by their joins, into as many parts as are tried alone."""
    joins: dict[str, list[TensorEnd]] = {}
    for end in ends:
        joins.setdefault(end.node, []).append(end)
    found = list(joins.values())
    size = -(-len(found) // _TRIED) or 1
    parts = [found[at : at + size] for at in range(0, len(found), size)]
    return [tuple(end for join in part for end in join) for part in parts]


def unlike(plan: QuantizedGraph, statistics: Statistics, method: Method) -> tuple[TensorEnd, ...]:
    """Find the ties that are better broken, those of the most unlike scales first.

    Ties are made one by one, those of the most alike scales first, while that does not raise the
    noise over all readers.

    Args:
        plan: Without scales, in which all ties are broken that may be; not changed.
        statistics: The statistics of the tensors that it needs.
        method: How scales follow from them.
    """
    plan = plan.copy()
    configs = plan.configs.items()
    ends = frozenset(end for end, each in configs if requantized(each) is RequantizeReason.UNLIKE)
    groups = _Groups.of(plan, ends)
    if not groups.ties:
        return ()
    points = Points.of(quantization_points(plan)).activations
    ranged = [point for point in points if id(point.config.dominator) in groups.weights]
    activation_scales(plan, ranged, statistics, method)
    return tuple(groups.broken())[::-1]


class _Tie(msgspec.Struct, frozen=True):
    """A join that reads a tensor: the end, the tensor's own group, and the join's."""

    end: TensorEnd
    own: TensorQuantConfig
    join: TensorQuantConfig


class _Groups(msgspec.Struct, frozen=True):
    """Groups of tensors with one scale, and the ties between them.

    Attributes:
        weights: Readers of each group, by the number of its dominator, those by ties included.
        ties: Ends of joins.
    """

    weights: Counter[int]
    ties: list[_Tie]

    @staticmethod
    def of(plan: QuantizedGraph, ends: Collection[TensorEnd]) -> _Groups:
        """Count the readers of a plan whose ties are broken at some ends."""
        weights: Counter[int] = Counter()
        ties: list[_Tie] = []
        for value in plan.graph.values:
            reading = list(_readers_of(plan, value, ends))
            own, first = None if is_constant(value) else codes_of(plan, value, ends), None
            if own is None:  # of floats that only joins read: as the first of them
                first = next((end for end, _ in reading if end in ends), None)
                if first is None:
                    continue
                own = plan.configs[first].dominator
            weights[id(own)] += int(value.is_graph_output())
            for end, node in reading:
                weights[id(own)] += int(node is None or not _passes_on(plan, node, own))
                if end in ends and end != first:
                    join = plan.configs[end].dominator
                    ties.append(_Tie(end, own, join))
                    weights[id(join)] += 1
        is_read_elsewhere = any(weights[id(tie.own)] > 1 for tie in ties)
        return _Groups(weights, ties if is_read_elsewhere else [])

    def broken(self) -> Iterator[TensorEnd]:
        """Yield the ends at which a tie would raise the noise."""
        roots = {id(each): each for tie in self.ties for each in (tie.own, tie.join)}
        noise = {key: _noise(root) for key, root in roots.items()}
        group = {key: key for key in roots}
        weights = dict(self.weights)
        # Greedy from the most alike on, as in Kruskal's spanning tree: a group that has grown has
        # the noise of its widest member.
        for tie in sorted(self.ties, key=lambda tie: _unlikeness(noise, tie)):
            own, join = group[id(tie.own)], group[id(tie.join)]
            # Joined already by other ties: this one is free, and the reader is not counted twice.
            if own == join:
                weights[own] -= 1
                continue
            tied, weight = max(noise[own], noise[join]), weights[own] + weights[join] - 1
            if weight * tied > weights[own] * noise[own] + weights[join] * noise[join]:
                yield tie.end
                continue
            for key, at in group.items():
                group[key] = own if at == join else at
            noise[own], weights[own] = tied, weight


def _noise(root: TensorQuantConfig) -> float:
    """Return the square of a step; 0 for what has none that could be compared."""
    params = root.params
    return 0.0 if params is None or params.scale.ndim else float(params.scale) ** 2


def _unlikeness(noise: dict[int, float], tie: _Tie) -> float:
    least, most = sorted((noise[id(tie.own)], noise[id(tie.join)]))
    return most / least if least > 0 else float("inf")


def _readers_of(
    plan: QuantizedGraph, value: ir.Value, ends: Collection[TensorEnd]
) -> Iterator[tuple[TensorEnd, ir.Node | None]]:
    """Yield the ends that read a value, each with the node that may pass the scale on."""
    for node, slot in plan.graph.consumers(value):
        end = TensorEnd.input(str(node.name), slot)
        yield end, None if slot == IMPLICIT_SLOT or end in ends else node


def _passes_on(plan: QuantizedGraph, node: ir.Node, root: TensorQuantConfig) -> bool:
    """Tell whether a node's result has the same scale, as that of one that moves codes has."""
    slots = range(len(node.outputs))
    return any(plan.output_config(node, slot).dominator is root for slot in slots)
