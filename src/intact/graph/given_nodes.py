"""Traces what became of the nodes of the given model: passes fold, join and split them.

Users name nodes as their model does. A tensor that keeps its name keeps its values, so what lies
between such tensors, in the given graph and in the one that was made of it, belongs together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import onnx_ir as ir

from intact.graph.metadata import metadata_of, set_metadata
from intact.graph.ops import OPS
from intact.graph.traversal import nodes_of

METADATA_KEY = "intact.given_nodes"

_MOST_PARTS = 32
"""What reaches more nodes than that computes sizes or constants, and belongs to none of them."""


class GivenNode(msgspec.Struct, frozen=True):
    """A node of the given model that is gone, or of another type; one without a name is known by
    that of what computes its result.

    Attributes:
        op_type: Its type in the given model.
        nodes: What it became part of, or its own name; empty where nothing of it is left.
    """

    op_type: str
    nodes: tuple[str, ...]

    @property
    def computes(self) -> bool:
        """Whether it does more than move values: an Identity is part of whatever reads it."""
        spec = OPS.get(self.op_type)
        return spec is None or not (spec.moves_values or spec.converts)


class GivenNodes:
    """The nodes of a model before passes change it, bodies included.

    Args:
        model: Names of nodes and tensors need not be unique.
    """

    def __init__(self, model: ir.Model) -> None:
        self._nodes = [_Given(node) for node in nodes_of(model.graph)]
        self._known = dict(given_nodes_of(model))

    def follow(self, model: ir.Model) -> None:
        """Note in the metadata of what was made of the model what became of each node."""
        changed = self._find_changed(model)
        names = {str(node.name) for node in model.graph}
        found = {
            name: GivenNode(
                each.op_type, tuple(dict.fromkeys(_find_left(each.nodes, changed, names)))
            )
            for name, each in self._known.items()
            if name not in names or each.nodes == (name,)
        }
        found = {**changed, **found}
        set_metadata(
            model, METADATA_KEY, {name: [g.op_type, list(g.nodes)] for name, g in found.items()}
        )
        if not found:
            model.metadata_props.pop(METADATA_KEY, None)

    def _find_changed(self, model: ir.Model) -> dict[str, GivenNode]:
        after = {str(node.name): node.op_type for node in model.graph}
        writers = {str(value.name): node for node in model.graph for value in node.outputs}
        reached = self._find_reached(writers)
        tensors = {name for given in self._nodes for name in given.writes}
        given_names = {given.name for given in self._nodes}
        found = {}
        for given in self._nodes:
            if not given.name:
                writer = given.writer(writers)
                if writer is not None and writer.op_type != given.op_type:
                    found[str(writer.name)] = GivenNode(given.op_type, (str(writer.name),))
            elif given.name in after:
                if after[given.name] != given.op_type:
                    found[given.name] = GivenNode(given.op_type, (given.name,))
            else:
                parts = reached[id(given)]
                # A node that reaches too many computes sizes or constants for all of them.
                behind = [] if parts is None else _behind(parts, writers, tensors)
                new = [name for name in behind if name not in given_names]
                found[given.name] = GivenNode(given.op_type, tuple(new or behind))
        return found

    def _find_reached(self, writers: Mapping[str, ir.Node]) -> dict[int, frozenset[str] | None]:
        """Return the tensors that are left and first reached from each node; None where many."""
        by_tensor: dict[str, frozenset[str] | None] = {}
        found: dict[int, frozenset[str] | None] = {}
        # From the outputs on: what a node leads to is known before the node itself is asked.
        for given in reversed(self._nodes):
            parts: frozenset[str] | None = frozenset()
            for name in given.writes:
                ahead = frozenset({name}) if name in writers else by_tensor.get(name, frozenset())
                parts = _unite(parts, ahead)
            found[id(given)] = parts
            for name in given.reads:
                by_tensor[name] = _unite(by_tensor.get(name, frozenset()), parts)
        return found


def note_given_nodes(before: ir.Model, after: ir.Model) -> ir.Model:
    """Note in the metadata of what was made of a model what became of its nodes; return it."""
    GivenNodes(before).follow(after)
    return after


class _Given:
    """A node by the names of what it reads, bodies included, and writes."""

    __slots__ = ("name", "op_type", "reads", "writes")

    def __init__(self, node: ir.Node) -> None:
        self.name = node.name or ""
        self.op_type = node.op_type
        self.writes = [value.name for value in node.outputs if value.name]
        self.reads = [value.name for value in node.inputs if value is not None and value.name]
        for attribute in node.attributes.values():
            if not attribute.is_ref() and attribute.type is ir.AttributeType.GRAPH:
                # The results of a body are read by the node that it belongs to.
                results = attribute.as_graph().outputs
                self.reads += [value.name for value in results if value.name]

    def writer(self, writers: Mapping[str, ir.Node]) -> ir.Node | None:
        """Return what computes all of its results now; None where several do, or none."""
        found = {writers.get(name) for name in self.writes}
        return found.pop() if len(found) == 1 else None


def _unite(left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
    if left is None or right is None:
        return None
    # Sharing one set where the other is empty spares a copy for each node.
    both = left | right if left and right else left or right
    return both if len(both) <= _MOST_PARTS else None


def _behind(tensors: Iterable[str], writers: Mapping[str, ir.Node], given: set[str]) -> list[str]:
    """Return the nodes that compute tensors from others of the given model."""
    found: dict[str, None] = {}
    ahead = sorted(tensors)
    while ahead:
        node = writers[ahead.pop()]
        if str(node.name) not in found:
            found[str(node.name)] = None
            names = [str(value.name) for value in node.inputs if value is not None]
            ahead += [name for name in names if name in writers and name not in given]
    return list(found)


def _find_left(
    nodes: Iterable[str], changed: Mapping[str, GivenNode], names: set[str]
) -> Iterable[str]:
    for name in nodes:
        yield from [name] if name in names else (changed[name].nodes if name in changed else ())


def given_nodes_of(model: ir.Model) -> dict[str, GivenNode]:
    """Return the nodes of the given model that are gone or of another type, by name.

    Raises:
        ModelError: The metadata does not hold what `GivenNodes.follow` writes.
    """

    def read(stored: Mapping[str, tuple[str, list[str]]]) -> dict[str, GivenNode]:
        return {
            name: msgspec.convert({"op_type": op_type, "nodes": nodes}, GivenNode)
            for name, (op_type, nodes) in stored.items()
        }

    return metadata_of(model, METADATA_KEY, read, {})
