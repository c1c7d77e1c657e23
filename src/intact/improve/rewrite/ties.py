"""Finds which channels of layers must be scaled together, so that no result changes.

Every tensor between layers has one factor a channel. Operators that commute with positive factors
pass them on; an Add needs the same factor on both sides, and a Concat passes slices. A product of
a value and its own gate, as HardSwish and ``x * Sigmoid(x)`` are, passes them where the gate reads
the value without its factors. What does not commute, and what is shown as an output, holds its
channels at 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import Graph, facts, is_constant
from intact.graph.graph import values_read_inside
from intact.graph.ops import clamp_bounds
from intact.improve.layers import Layer
from intact.ops import functions
from intact.ops.functions import FUNCTIONS
from intact.ops.operators import Concat, Pad, Resize

Ids = npt.NDArray[np.int64]

_ELEMENTWISE = frozenset({"LeakyRelu", "PRelu", "Identity", "Dropout", "Abs"})
"""Operators with ``f(c * x) = c * f(x)`` for every positive c, for input 0."""
POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
_SPATIAL = POOLS | {"Pad", "Resize"}
"""The same for each channel, of tensors whose channels are axis 1."""
_SUMS = frozenset({"Add", "Sum", "Concat", "Mul"})
_GATED = functions.hard_swish.name
"""A product of a value and its gate in one operator."""


@dataclass(frozen=True)
class TiedTensor:
    """A tensor between layers.

    Attributes:
        value: The tensor.
        ids: Which factor each channel has.
        is_last: Whether the channels are the last axis; else they are axis 1.
        bounds: Those of the Clip that reads it; infinite where none does, and for 0, which scales.
        is_rectified: Whether all that read it take its negative values as 0.
        is_made: Whether a layer or a sum makes it: what other operators make is no larger.
    """

    value: ir.Value
    ids: Ids
    is_last: bool
    bounds: tuple[float, float]
    is_rectified: bool
    is_made: bool


@dataclass(frozen=True)
class Ties:
    """The factors of a graph's channels.

    Attributes:
        layers: The layers, in topological order.
        into: The factor of each input channel of a layer, by node; those of ``-1`` are 1.
        out: The same of its output channels.
        tensors: What lies between layers.
        blocks: A number for each factor: of those that are to be chosen together.
        gates: The factor of each channel that a gate reads, by its node.
    """

    layers: Sequence[Layer]
    into: Mapping[ir.Node, Ids]
    out: Mapping[ir.Node, Ids]
    tensors: Sequence[TiedTensor]
    blocks: Ids
    gates: Mapping[ir.Node, Ids] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph) -> Ties:
        """Find the factors of a graph."""
        tracer = _Tracer(graph)
        for node in graph.nodes:
            tracer.add(node)
        return tracer.finish()

    def nodes_of(self, graph: Graph, block: int) -> list[ir.Node]:
        """Return the nodes of a block in order: its layers, and all between them."""
        own = set(np.flatnonzero(self.blocks == block).tolist())
        values = {each.value for each in self.tensors if own.intersection(each.ids.tolist())}
        writers = {each.node for each in self.layers if own.intersection(self.out[each.node])}
        return [
            node
            for node in graph.nodes
            if node in writers or any(value in values for value in node.inputs)
        ]


@dataclass
class _Tracer:
    """Walks a graph and gives numbers to channels.

    Attributes:
        graph: The graph.
        ids: First number, number of channels, and whether they are the last axis, by tensor.
    """

    graph: Graph
    ids: dict[ir.Value, tuple[int, int, bool]] = field(default_factory=dict)
    layers: dict[ir.Node, Layer] = field(default_factory=dict)
    _count: int = 0
    _equal: list[tuple[Ids, Ids]] = field(default_factory=list)
    _held: list[Ids] = field(default_factory=list)
    _bounds: dict[ir.Value, tuple[float, float]] = field(default_factory=dict)
    _joined: list[tuple[int, int]] = field(default_factory=list)
    _gates: dict[ir.Node, ir.Value] = field(default_factory=dict)

    def add(self, node: ir.Node) -> None:
        layer = Layer.of(self.graph, node)
        # What a body does with a value is not followed.
        for value in values_read_inside(node):
            self._hold(value)
        if layer is not None:
            self._add_layer(layer)
        elif not (node.domain == "" and self._passes(node)):
            for read in node.inputs:
                self._hold(read)

    def _add_layer(self, layer: Layer) -> None:
        node, value = layer.node, layer.node.inputs[0]
        self.layers[node] = layer
        known = None if value is None else self.ids.get(value)
        if value is not None and known is not None:
            is_flat = value.shape is not None and len(value.shape) == 2
            fits = known[1] == layer.inputs and (is_flat or known[2] == layer.is_dense)
            if not fits:
                self._hold(value)
        self._number(node.outputs[0], layer.outputs, is_last=layer.is_dense)
        if layer.is_depthwise and known is not None:
            self._joined.append((known[0], self.ids[node.outputs[0]][0]))

    def _passes(self, node: ir.Node) -> bool:
        """Pass factors through a node; False where it does not commute with them."""
        kind, value = node.op_type, node.inputs[0] if node.inputs else None
        if value is None or len([each for each in node.outputs if each.name]) != 1:
            return False
        if kind in _SUMS:
            return {"Concat": self._concat, "Mul": self._multiply}.get(kind, self._sum)(node)
        if value not in self.ids:
            return False
        # Input 0 alone commutes: a slope that a layer computes has to stay what it is.
        for other in node.inputs[1:]:
            self._hold(other)
        if facts(node).clamps:
            return self._clip(node, value)
        _, channels, is_last = self.ids[value]
        is_gate = self._is_gate(node, value)
        if is_gate or kind == _GATED:
            self._gates[node] = value
        if is_gate:  # its only reader is the product, which passes what it multiplies
            return True
        is_reshape = facts(node).reshapes and drops_ones(value, node.outputs[0], channels)
        is_spatial = kind in _SPATIAL and not is_last
        is_spatial = is_spatial and _keeps_channels(self.graph, node, channels)
        passes = is_reshape or is_spatial or kind in _ELEMENTWISE or kind == _GATED
        if passes:
            self._number(node.outputs[0], channels, is_last=is_last or is_reshape)
            self._tie(value, node.outputs[0])
        return passes

    def _is_gate(self, node: ir.Node, value: ir.Value) -> bool:
        """Tell whether all that reads a function of a value multiplies that value with it."""
        readers = self.graph.consumers(node.outputs[0])
        return (
            node.op_type in FUNCTIONS
            and node.op_type != _GATED
            and bool(readers)
            and not node.outputs[0].is_graph_output()
            and all(
                reader.op_type == "Mul" and reader.inputs[1 - slot] is value
                for reader, slot in readers
            )
        )

    def _clip(self, node: ir.Node, value: ir.Value) -> bool:
        bounds = clamp_bounds(node)
        if bounds is None or not bounds[0] <= 0 <= bounds[1]:
            return False
        low, high = self._bounds.get(value, (-np.inf, np.inf))
        # A bound of 0 scales with everything, and counts as none.
        self._bounds[value] = max(low, bounds[0] or -np.inf), min(high, bounds[1] or np.inf)
        _, channels, is_last = self.ids[value]
        self._number(node.outputs[0], channels, is_last=is_last)
        self._tie(value, node.outputs[0])
        return True

    def _sum(self, node: ir.Node) -> bool:
        values = [value for value in node.inputs if value is not None]
        known = [self._known(value, values) for value in values]
        if len(set(known)) != 1 or known[0] is None:
            return False
        # Operands of a sum share their factors: only then can these be taken out of it.
        channels, is_last, _ = known[0]
        self._number(node.outputs[0], channels, is_last=is_last)
        for value in values:
            self._tie(value, node.outputs[0])
        return True

    def _known(self, value: ir.Value, beside: Sequence[ir.Value]) -> tuple[int, bool, int] | None:
        """Return channels, whether they are the last axis, and the rank.

        What no layer gives, and is no constant, counts like its neighbours and stays as it is.
        """
        rank = None if value.shape is None else len(value.shape)
        if rank is None or is_constant(value):
            return None
        if value not in self.ids:
            first = next((self.ids[each] for each in beside if each in self.ids), None)
            axis = -1 if first is not None and first[2] else 1
            size = value.shape[axis] if value.shape is not None and rank > 1 else None
            if first is None or not isinstance(size, int):
                return None
            self._number(value, size, is_last=first[2])
            self._hold(value)
        _, channels, is_last = self.ids[value]
        return channels, is_last or rank == 2, rank

    def _concat(self, node: ir.Node) -> bool:
        values = [value for value in node.inputs if value is not None]
        known = [self._known(value, values) for value in values]
        if any(each is None for each in known):
            return False
        kinds = {each[1:] for each in known if each is not None}
        if len(kinds) != 1:
            return False
        ((is_last, rank),) = kinds
        axis = Concat.of(node).axis % rank
        sizes = [each[0] for each in known if each is not None]
        if axis == (rank - 1 if is_last else 1):
            self._number(node.outputs[0], sum(sizes), is_last=is_last)
            start = self.ids[node.outputs[0]][0]
            for value, size in zip(values, sizes, strict=True):
                own = self.ids[value][0]
                self._equal.append((np.arange(own, own + size), np.arange(start, start + size)))
                self._joined.append((own, self.ids[node.outputs[0]][0]))
                start += size
            return True
        if axis == 0 or len(set(sizes)) != 1:
            return False
        self._number(node.outputs[0], sizes[0], is_last=is_last)
        for value in values:
            self._tie(value, node.outputs[0])
        return True

    def _multiply(self, node: ir.Node) -> bool:
        """Pass factors through the operand that has the result's shape; the other is a gate."""
        result, (one, other) = node.outputs[0], node.inputs
        for value, gate in ((one, other), (other, one)):
            # A value times itself has the square of its factor.
            if value is None or gate is None or value is gate or value not in self.ids:
                continue
            if value.shape is None or result.shape is None or value.shape != result.shape:
                continue
            _, channels, is_last = self.ids[value]
            self._hold(gate)
            self._number(result, channels, is_last=is_last)
            self._tie(value, result)
            return True
        return False

    def _number(self, value: ir.Value, channels: int, *, is_last: bool) -> None:
        self.ids[value] = self._count, channels, is_last
        self._count += channels
        # What the model gives must not change.
        if value.is_graph_output():
            self._hold(value)

    def _tie(self, one: ir.Value, other: ir.Value) -> None:
        self._equal.append((self._range(one), self._range(other)))
        self._joined.append((self.ids[one][0], self.ids[other][0]))

    def _range(self, value: ir.Value) -> Ids:
        start, channels, _ = self.ids[value]
        return np.arange(start, start + channels)

    def _hold(self, value: ir.Value | None) -> None:
        if value is not None and value in self.ids:
            self._held.append(self._range(value))

    def finish(self) -> Ties:
        roots = _smallest(self._count, self._equal)
        held = np.zeros(self._count, bool)
        for ids in self._held:
            held[roots[ids]] = True
        first = _smallest(self._count, [(np.array([a]), np.array([b])) for a, b in self._joined])
        blocks = np.full(self._count, -1)
        # What is equal to a factor that is held is held too, hence by the roots.
        roots = np.where(held[roots], -1, roots)
        ids_of = {value: roots[self._range(value)] for value in self.ids}
        for value, ids in ids_of.items():
            blocks[ids[ids >= 0]] = first[self.ids[value][0]]
        into = {}
        for node, layer in self.layers.items():
            data = node.inputs[0]
            known = None if data is None else ids_of.get(data)
            fits = known is not None and known.size == layer.inputs
            into[node] = known if known is not None and fits else np.full(layer.inputs, -1)
        out = {node: ids_of[node.outputs[0]] for node in self.layers}
        blocks = _between_layers(blocks, list(into.values()), list(out.values()))
        tensors = [self._describe(value, ids) for value, ids in ids_of.items()]
        gates = {node: ids_of[value] for node, value in self._gates.items()}
        return Ties(list(self.layers.values()), into, out, tensors, blocks, gates)

    def _describe(self, value: ir.Value, ids: Ids) -> TiedTensor:
        producer, readers = value.producer(), self.graph.consumers(value)
        made = producer in self.layers or (
            producer is not None and producer.op_type in {*_SUMS, _GATED}
        )
        bounds = self._bounds.get(value, (-np.inf, np.inf))
        rectified = bool(readers) and all(_rectifies(node) for node, _ in readers)
        return TiedTensor(value, ids, self.ids[value][2], bounds, rectified, made)


def _rectifies(node: ir.Node) -> bool:
    bounds = clamp_bounds(node)
    return bounds is not None and bounds[0] == 0


def _between_layers(blocks: Ids, into: Sequence[Ids], out: Sequence[Ids]) -> Ids:
    """Leave the blocks of factors that a layer writes and a layer reads; the others get ``-1``."""
    sides = []
    for ids in (into, out):
        # The last place is that of -1, and is dropped.
        seen = np.zeros(len(blocks) + 1, bool)
        seen[np.concatenate([*ids, np.array([-1])])] = True
        sides.append(seen[:-1])
    return np.where(sides[0] & sides[1], blocks, -1)


def _smallest(count: int, pairs: Sequence[tuple[Ids, Ids]]) -> Ids:
    """Return for each number the smallest one that pairs lead to."""
    found = np.arange(count)
    if not pairs:
        return found
    one, other = (np.concatenate(each) for each in zip(*pairs, strict=True))
    while True:
        least = np.minimum(found[one], found[other])
        after = found.copy()
        np.minimum.at(after, one, least)
        np.minimum.at(after, other, least)
        # Each looks where its number leads to, so that long chains take few rounds.
        after = after[after]
        if np.array_equal(after, found):
            return found
        found = after


def drops_ones(before: ir.Value, after: ir.Value, channels: int) -> bool:
    """Tell whether ``[N, channels, 1, 1 ...]`` becomes ``[N, channels]``."""
    if before.shape is None or after.shape is None or len(after.shape) != 2:
        return False
    _, *sizes = before.shape
    return sizes[:1] == [channels] == [after.shape[1]] and all(size == 1 for size in sizes[1:])


def _keeps_channels(graph: Graph, node: ir.Node, channels: int) -> bool:
    """Tell whether a pool, Pad or Resize computes each channel of itself, and 0 from 0."""
    shape = node.outputs[0].shape
    if node.op_type in ("Pad", "Resize") and (shape is None or shape[1] != channels):
        return False
    if node.op_type == Resize.name:
        options = Resize.of(node)
        crops = options.coordinate_transformation_mode == "tf_crop_and_resize"
        return not crops and options.mode in ("nearest", "linear", "cubic")
    if node.op_type == Pad.name and Pad.of(node).mode == "constant":
        filling = node.inputs[2] if len(node.inputs) > 2 else None
        array = graph.constant(filling)
        return filling is None or (array is not None and not array.any())
    return True
