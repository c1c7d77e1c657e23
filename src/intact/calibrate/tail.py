"""Finds the nodes behind the last layers of a net: joins, and the decoding of boxes.

These nodes cost little, and what they compute is what a user reads. Where they decode, eight bits
may be too few: boxes of 0 to 640 pixels that are joined with scores of 0 to 1 on one scale leave
nothing of the scores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import prod

import msgspec
import onnx_ir as ir

from intact.calibrate.statistics import Statistics
from intact.graph import (
    Graph,
    OpKind,
    constant_array,
    data_slots,
    facts,
    is_constant,
    moves_values,
    op_spec,
    output_channels,
    weight_slot,
)
from intact.ops import RECURRENT, functions
from intact.ops.operators import (
    QUANTIZERS,
    Attention,
    Concat,
    Einsum,
    NonMaxSuppression,
    Softmax,
    TopK,
    is_a,
    types_of,
)
from intact.plan import QuantizedGraph

UNLIKE = 8.0
"""Times by which ranges differ that are called unlike: of eight bits three are lost."""
_FEW = 256
"""Elements of a weight that is no layer's, but that of an expectation over bins."""
_CHEAP = 0.1
"""Share of all multiplications that nodes in float may be as many as, to cost nothing."""
_LAYERS = QUANTIZERS.union(RECURRENT, types_of(Attention, Einsum))
_DECODERS = types_of(functions.exp, NonMaxSuppression, TopK)
SIGNS_OF_DECODING = _DECODERS | types_of(Concat, Softmax)
"""Operators without which nothing decodes or joins behind the last layers."""


class Join(msgspec.Struct, frozen=True):
    """A join of values that have one scale.

    Attributes:
        node: The Concat.
        small: Name of the input of the smallest range.
        large: Name of the input of the largest range.
        reach: The largest magnitudes of both.
    """

    node: ir.Node
    small: str
    large: str
    reach: tuple[float, float]

    def __str__(self) -> str:
        """Say what is joined."""
        small, large = self.reach
        return (
            f"joins {self.large!r}, up to {large:.3g}, with {self.small!r}, up to {small:.3g}, "
            "on one scale"
        )


class Tail(msgspec.Struct, frozen=True):
    """What stands behind the last layers, as far as it is more than activations.

    Attributes:
        plan: The plan.
        nodes: All of it, in topological order.
        joins: The nodes of it that join computed values, and are quantized.
        decoders: The nodes that decode: exponentials, expectations over bins, choices.
        parts: Names of the tensors to judge it by: those that reach the outputs as they are, joined
            with others or chosen from. An output of the graph that reads no tail is its own part.
        refined: The nodes in front of it that reach an output through no layer, but are also read
            by layers: boxes that each layer of a decoder reads and moves on. None of what is no
            detector by its outputs.
    """

    plan: QuantizedGraph
    nodes: Sequence[ir.Node]
    joins: Sequence[ir.Node]
    decoders: Sequence[ir.Node]
    parts: Sequence[str]
    refined: Sequence[ir.Node]

    @staticmethod
    def of(plan: QuantizedGraph) -> Tail | None:
        """Find it; None where it neither joins nor decodes, or nothing of it is quantized."""
        # The cheap look first: which nodes are fused is only asked of nets that have a tail.
        if not any(_is_join(plan, n) or _decodes(n) for n in _behind_layers(plan, set())):
            return None
        from intact.data.detections import DetectionMetric  # with much else
        from intact.program.lower.chains import Points, chains

        fused = {n for chain in chains(plan, Points.of(plan)) if _has_layer(chain) for n in chain}
        nodes = tuple(_behind_layers(plan, fused))
        joins = tuple(n for n in nodes if _is_join(plan, n))
        decoders = tuple(n for n in nodes if _decodes(n))
        if not (joins or decoders) or not any(plan.is_quantized(node) for node in nodes):
            return None
        parts = tuple(_parts(plan.graph, nodes))
        refined: tuple[ir.Node, ...] = ()
        # Only boxes that are compared as such show what their refinement loses.
        if DetectionMetric.of_model(plan.graph) is not None:
            refined = tuple(n for n in _reaching(plan, fused) if n not in set(nodes))
        return Tail(plan, nodes, joins, decoders, parts, refined)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the activations that it reads, whose ranges have to be known."""
        values = (each for node in (*self.refined, *self.nodes) for each in node.inputs)
        read = (v for v in values if self.plan.graph.is_float(v) and not is_constant(v))
        return tuple(dict.fromkeys(str(value.name) for value in read if value is not None))

    def unlike(self, statistics: Statistics) -> list[Join]:
        """Find the joins of unlike ranges, the worst first.

        Args:
            statistics: The statistics of the `tensors`.
        """
        found = []
        for node in self.joins:
            reaches = {}
            for name in _computed_inputs(node):
                seen = statistics[name]
                reaches[name] = max(-seen.minimum, seen.maximum)
            reaches = {name: reach for name, reach in reaches.items() if reach > 0}
            small = min(reaches, key=lambda name: reaches[name], default="")
            large = max(reaches, key=lambda name: reaches[name], default="")
            if small and reaches[large] >= UNLIKE * reaches[small]:
                found.append(Join(node, small, large, (reaches[small], reaches[large])))
        return sorted(found, key=lambda join: join.reach[0] / join.reach[1])

    def candidates(self, unlike: Iterable[ir.Node]) -> Iterator[tuple[str, ...]]:
        """Yield names of quantized nodes to keep in float, fewer first.

        Those are joins of unlike ranges, what decodes, or the whole tail, each with all that reads
        it. What would cost more than a tenth of the layers is left out.

        Args:
            unlike: The joins of unlike ranges.
        """
        joins = list(unlike)
        seen: set[tuple[str, ...]] = set()
        for first in (joins, [*joins, *self.decoders], self.nodes):
            kept = self.behind(first)
            names = tuple(str(node.name) for node in kept if self.plan.is_quantized(node))
            if names and names not in seen and is_cheap(self.plan, kept):
                seen.add(names)
                yield names

    def with_refined(self) -> tuple[str, ...]:
        """Return the names of the whole tail's quantized nodes and of what refines values for it;
        none where it refines nothing, or that would cost more than a tenth of the layers."""
        kept = [*self.refined, *self.nodes]
        if not self.refined or not is_cheap(self.plan, kept):
            return ()
        return tuple(str(node.name) for node in kept if self.plan.is_quantized(node))

    def unmeasured(self, unlike: Iterable[ir.Node]) -> tuple[str, ...]:
        """Return names of quantized nodes that no comparison can judge, and that lose by rule.

        Those are joins of unlike ranges of what was chosen, with all that reads them. A choice that
        changes with the last bit puts other rows in other places, so that nothing behind it can
        be compared with the float model.

        Args:
            unlike: The joins of unlike ranges.
        """
        chosen = _chosen(self.nodes)
        kept = self.behind([node for node in unlike if node in chosen])
        names = tuple(str(node.name) for node in kept if self.plan.is_quantized(node))
        return names if is_cheap(self.plan, kept) else ()

    def behind(self, first: Collection[ir.Node]) -> list[ir.Node]:
        """Return nodes with all that reads them."""
        found: dict[ir.Node, None] = {}
        for node in self.nodes:
            if node in first or any(_producer(value) in found for value in node.inputs):
                found[node] = None
        return list(found)


def is_cheap(plan: QuantizedGraph, kept: Iterable[ir.Node]) -> bool:
    """Tell whether nodes have a tenth of the results that layers have multiplications, at most."""
    layers = sum(products(node) for node in plan.graph.nodes)
    return layers == 0 or sum(_results(node) for node in kept) <= _CHEAP * layers


def _behind_layers(plan: QuantizedGraph, fused: Collection[ir.Node]) -> Iterator[ir.Node]:
    """Yield the nodes of which all that is computed reaches outputs without another layer.

    Args:
        plan: The plan.
        fused: What is computed inside a layer, and costs nothing as integers.
    """
    behind: set[ir.Node] = set()
    for node in reversed(plan.graph.nodes):
        readers = [reader for value in node.outputs for reader, _ in plan.graph.consumers(value)]
        computes = node in fused or is_layer(node) or _averages(node)
        if not computes and all(reader in behind for reader in readers):
            behind.add(node)
    return (node for node in plan.graph.nodes if node in behind)


def _reaching(plan: QuantizedGraph, fused: Collection[ir.Node]) -> Iterator[ir.Node]:
    """Yield the nodes from which some way leads to an output without a layer on it."""
    found: set[ir.Node] = set()
    for node in reversed(plan.graph.nodes):
        if node in fused or is_layer(node) or _averages(node):
            continue
        readers = (reader for value in node.outputs for reader, _ in plan.graph.consumers(value))
        if any(value.is_graph_output() for value in node.outputs) or any(
            reader in found for reader in readers
        ):
            found.add(node)
    return (node for node in plan.graph.nodes if node in found)


def _has_layer(chain: Iterable[ir.Node]) -> bool:
    return any(is_layer(node) for node in chain)


def is_layer(node: ir.Node) -> bool:
    """Tell whether a node is one that a tail stands behind."""
    spec = op_spec(node)
    if spec is None or spec.kind is OpKind.NORMALIZATION or node.op_type in _LAYERS:
        return True
    if spec.kind is OpKind.COMPUTE:
        return not _is_expectation(node)
    return spec.kind is OpKind.POOL and not moves_values(node)


def _averages(node: ir.Node) -> bool:
    """Tell whether a node sums so many numbers that their errors average out.

    The noise of a mean falls with the root of how many it is of; of few, as of the bins of an
    expectation, too much is left.
    """
    spec = op_spec(node)
    if spec is None or spec.kind is not OpKind.REDUCE or moves_values(node):
        return False
    values = node.inputs[0], node.outputs[0]
    shapes = [value.shape for value in values if value is not None and value.shape is not None]
    if len(shapes) != 2:
        return False
    sizes = [prod(axis for axis in shape if isinstance(axis, int)) for shape in shapes]
    return sizes[0] >= sizes[1] * UNLIKE**2


def _is_expectation(node: ir.Node) -> bool:
    """Tell whether a node sums a few numbers that are weighted by a Softmax."""
    slot = weight_slot(node)
    weight = None if slot is None else constant_array(node.inputs[slot])
    if weight is None or weight.size > _FEW:
        return False
    source = _producer(node.inputs[0])
    while source is not None and moves_values(source):
        source = _producer(source.inputs[0])
    return is_a(source, Softmax)


def _decodes(node: ir.Node) -> bool:
    is_expectation = not is_layer(node) and weight_slot(node) is not None
    return node.op_type in _DECODERS or is_expectation


def _is_join(plan: QuantizedGraph, node: ir.Node) -> bool:
    joins = is_a(node, Concat) and len(set(_computed_inputs(node))) > 1
    return joins and plan.is_quantized(node)


def _computed_inputs(node: ir.Node) -> list[str]:
    """Return the names of the inputs that are no constants."""
    values = (node.inputs[slot] for slot in data_slots(node))
    return [str(value.name) for value in values if value is not None and not is_constant(value)]


def _parts(graph: Graph, nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Yield the tensors that reach the outputs as they are, joined or chosen from.

    Those that are joined are taken as the join reads them, which may requantize them.
    """
    tail, chosen = set(nodes), _chosen(nodes)
    found: dict[ir.Value, None] = {}
    joined = {value for node in nodes if is_a(node, Concat) for value in node.inputs}
    open_values = list(graph.outputs)
    seen: set[ir.Value] = set()
    # Backwards from the outputs through what only moves, joins or chooses: the values where that
    # ends are the parts.
    while open_values:
        value = open_values.pop()
        if value in seen:
            continue
        seen.add(value)
        maker: ir.Node | None = value.producer()
        if maker is None:
            continue
        if maker in chosen:
            open_values += [each for each in maker.inputs if each is not None]
        elif maker in tail and _passes(maker) and (value not in joined or _is_whole(value, tail)):
            slots = data_slots(maker)[:1] if moves_values(maker) else data_slots(maker)
            open_values += [each for slot in slots if (each := maker.inputs[slot]) is not None]
        elif graph.is_float(value) and not is_constant(value):
            found[value] = None
    return (str(value.name) for value in graph.values if value in found)


def _chosen(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """Find the nodes that choose, and those that read what was chosen."""
    chosen: set[ir.Node] = set()
    for node in nodes:
        if facts(node).decides or any(_producer(value) in chosen for value in node.inputs):
            chosen.add(node)
    return chosen


def _is_whole(value: ir.Value, tail: Collection[ir.Node]) -> bool:
    """Tell whether a value is itself joined, whatever moves it."""
    node = value.producer()
    while node is not None and node in tail and moves_values(node):
        node = _producer(node.inputs[0])
    return node is not None and node in tail and _passes(node)


def _passes(node: ir.Node) -> bool:
    spec = op_spec(node)
    return moves_values(node) or (spec is not None and spec.kind in (OpKind.JOIN, OpKind.MOVE))


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def products(node: ir.Node) -> float:
    """Count the multiplications of a layer with a constant weight; open axes count as 1."""
    slot = weight_slot(node)
    weight = None if slot is None else node.inputs[slot]
    if weight is None or weight.const_value is None or not is_layer(node):
        return 0.0
    channels = output_channels(node) or weight.const_value.shape.numpy()[-1]
    return _results(node) * weight.const_value.size / max(channels, 1)


def _results(node: ir.Node) -> int:
    """Count the results of a node; open axes count as 1."""
    shapes = [value.shape for value in node.outputs if value.shape is not None]
    return sum(prod(axis for axis in shape if isinstance(axis, int)) for shape in shapes)
