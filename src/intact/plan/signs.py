"""Decides which activations get unsigned codes: those that are never negative.

The result of a Relu needs no negative codes: unsigned ones halve its step. But where hardware ties
an unsigned value to a signed one (a Concat of a Relu and a convolution), either all of it gets
signs, or the value stays unsigned and the Concat reads it on the joint signed grid, by a second
quantizer. With a scale ``u = T / 255`` of the unsigned codes the signed ones have ``S >= T / 127``,
so that ``S >= 2 u``: other readers then lose ``u^2 / 12`` instead of ``S^2 / 12``, the Concat
``(S^2 + u^2) / 12`` instead of ``S^2 / 12``. That is less in sum wherever there are at most three
such Concats for each other reader, whatever the ranges are, and more where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import onnx_ir as ir

from intact.graph import Graph, constant_array, data_slots, input_value, is_constant
from intact.graph.graph import IMPLICIT_SLOT
from intact.ops.operators import Clip, is_a
from intact.plan.quantized_graph import Decision
from intact.targets import ScaleRule, Target, Unsigned
from intact.targets.rules import JOINING
from intact.targets.schema import BesideSigned

_JOINS_FOR_EACH = 3
"""Readers on the signed grid that one other reader outweighs."""


class Signs(msgspec.Struct, frozen=True):
    """The decision which tensor ends have unsigned codes.

    Attributes:
        values: Names of the values whose codes are unsigned.
        joins: Names of the nodes that read such values on a signed grid nevertheless.
    """

    values: frozenset[str] = frozenset()
    joins: frozenset[str] = frozenset()

    def is_unsigned(self, node: ir.Node, value: ir.Value | None, *, is_input: bool) -> bool:
        """Tell whether a node reads, or writes, a value in unsigned codes."""
        if is_input and str(node.name) in self.joins:
            return False
        return value is not None and str(value.name) in self.values


def signs_of(graph: Graph, target: Target, decisions: Mapping[str, Decision]) -> Signs:
    """Find the ends with unsigned codes.

    Args:
        graph: A normalized graph.
        target: Its section ``[unsigned]`` and its scale rules decide.
        decisions: Which nodes are quantized, by name.
    """
    # Until nothing is lost any more: a value that gets a sign may be what another was tied to.
    signed: frozenset[str] = frozenset()
    while True:
        found = _without_sign(graph, target.unsigned, signed)
        ties = _Ties(graph, target, decisions, found)
        conflicting = ties.conflicts() if found else {}
        joins = {name for name, node in ties.joins.items() if name in conflicting}
        lost = frozenset(
            value
            for name, values in conflicting.items()
            for value in values
            if name not in joins or not ties.stays_unsigned(value, joins)
        )
        if not lost:
            return Signs(found, frozenset(joins))
        signed |= lost


class _Ties(msgspec.Struct, frozen=True):
    """The nodes of a graph that share one scale, and the values that would have unsigned codes."""

    graph: Graph
    target: Target
    decisions: Mapping[str, Decision]
    found: frozenset[str]

    @property
    def joins(self) -> dict[str, ir.Node]:
        """The quantized nodes that tie inputs to each other, by name."""
        return {str(node.name): node for node, rule in self._ties() if rule in JOINING}

    def conflicts(self) -> dict[str, frozenset[str]]:
        """Find the unsigned values that a node ties to a signed one, by the node's name."""
        conflicts = {}
        for node, rule in self._ties():
            inputs = [node.inputs[slot] for slot in data_slots(node)]
            outputs: list[ir.Value | None] = list(node.outputs)
            tied = {
                ScaleRule.UNIFY_INPUTS: inputs,
                ScaleRule.UNIFY_ALL: inputs + outputs,
            }.get(rule, inputs[:1] + outputs)
            names = {str(value.name) for value in tied if value is not None}
            if names & self.found and not names <= self.found:
                conflicts[str(node.name)] = frozenset(names & self.found)
        return conflicts

    def stays_unsigned(self, value: str, joins: set[str]) -> bool:
        """Tell whether a value keeps unsigned codes where nodes read it on a signed grid."""
        choice = self.target.unsigned.beside_signed
        if choice is not BesideSigned.BY_ERROR:
            return choice is BesideSigned.ALWAYS
        at_joins, others = 0, 0
        family = self._family(value)
        for name in family:
            each = self.graph.value(name)
            others += int(each.is_graph_output())
            # A reader that passes the scale on is no reader of its own: those behind it are
            # counted.
            for node, slot in self.graph.consumers(each):
                if slot == IMPLICIT_SLOT:
                    others += 1
                elif str(node.name) in joins:
                    at_joins += 1
                elif not any(str(output.name) in family for output in node.outputs):
                    others += 1
        return at_joins <= _JOINS_FOR_EACH * others

    def _family(self, value: str) -> set[str]:
        """Find the values that have the scale of one, by nodes that pass it on."""
        family, before = {value}, 0
        while len(family) > before:
            before = len(family)
            for node, rule in self._ties():
                source = node.inputs[0] if node.inputs else None
                if rule in JOINING or source is None:
                    continue
                names = {str(source.name), *(str(output.name) for output in node.outputs)}
                if names & family:
                    family |= names & self.found
        return family

    def _ties(self) -> Iterator[tuple[ir.Node, ScaleRule]]:
        """Yield the quantized nodes with ties."""
        for node in self.graph.nodes:
            rule = self.target.rule_for(node) if self.decisions[str(node.name)].quantized else None
            if rule is not None and rule.scales is not ScaleRule.FREE:
                yield node, rule.scales


def _without_sign(graph: Graph, unsigned: Unsigned, signed: frozenset[str]) -> frozenset[str]:
    """Find the values that are never negative, except ``signed`` ones.

    Nodes are visited in topological order, so the inputs of a node are known before it.
    """
    found: set[str] = set()
    for node in graph.nodes if unsigned.after else ():
        if _is_never_negative(node, unsigned) or _passes_on(node, unsigned, found):
            found.update({str(output.name) for output in node.outputs} - signed)
    return frozenset(found)


def _is_never_negative(node: ir.Node, unsigned: Unsigned) -> bool:
    """Tell whether a node gives no negative values by itself, as Relu does."""
    if node.domain != "" or node.op_type not in unsigned.after:
        return False
    if not is_a(node, Clip):
        return True
    low = constant_array(input_value(node, 1))
    return low is not None and bool((low >= 0).all())


def _passes_on(node: ir.Node, unsigned: Unsigned, found: set[str]) -> bool:
    """Tell whether a node gives no negative values because it reads none, as MaxPool does."""
    if node.domain != "" or node.op_type not in unsigned.through:
        return False
    values = [node.inputs[slot] for slot in data_slots(node)]
    return bool(values) and all(
        value is not None and (str(value.name) in found or _is_constant_without_sign(value))
        for value in values
    )


def _is_constant_without_sign(value: ir.Value) -> bool:
    array = constant_array(value) if is_constant(value) else None
    return array is not None and bool((array >= 0).all())
