"""Which layers hand their channels on to which, through operators that keep a positive factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.graph import Graph
from intact.rewrite.layers import Layer

_ELEMENTWISE = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity", "Dropout", "Abs"})
"""``f(c * x) = c * f(x)`` for every positive c, element by element, of input 0."""
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
"""The same within a channel of images."""
_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze"})


@dataclass(frozen=True)
class Links:
    """Layers that follow each other.

    Attributes:
        layers: By node, in topological order.
        behind: The only reader of a layer's channels.
        stopped: Names of the Clip nodes, such as Relu6, at which a search ended: a bound does not
            scale with what it bounds.
    """

    layers: Mapping[ir.Node, Layer]
    behind: Mapping[ir.Node, Layer]
    stopped: tuple[str, ...]

    @staticmethod
    def of(graph: Graph) -> Links:
        """Return those of a graph."""
        found = ((node, Layer.of(graph, node)) for node in graph.nodes)
        layers = {node: layer for node, layer in found if layer is not None}
        behind: dict[ir.Node, Layer] = {}
        stopped: dict[str, None] = {}
        for node, layer in layers.items():
            last = _search(graph, layer, layers)
            if isinstance(last, Layer):
                behind[node] = last
            elif last is not None:
                stopped[last] = None
        return Links(layers, behind, tuple(stopped))

    def chains(self) -> Iterator[tuple[Layer, ...]]:
        """Yield layers that are equalised together: two, with depthwise ones between them."""
        inside = {layer.node for layer in self.behind.values() if layer.is_depthwise}
        for node, first in self.layers.items():
            if node not in self.behind or (node in inside and first.is_depthwise):
                continue
            chain = [first, self.behind[node]]
            while chain[-1].is_depthwise and chain[-1].node in self.behind:
                chain.append(self.behind[chain[-1].node])
            yield tuple(chain)


def _search(graph: Graph, layer: Layer, layers: Mapping[ir.Node, Layer]) -> Layer | str | None:
    """Return the layer behind, the name of a Clip in the way, or None."""
    value, is_flat = layer.node.outputs[0], layer.is_dense
    while True:
        readers = graph.consumers(value)
        if len(readers) != 1 or value.is_graph_output():
            return None
        node, slot = readers[0]
        if slot != 0 or node.domain:
            return None
        if node in layers:
            reader = layers[node]
            fits = reader.is_dense == is_flat and reader.inputs == layer.outputs
            return reader if fits else None
        if node.op_type == "Clip" and not _is_relu(graph, node):
            return str(node.name)
        if node.op_type in _RESHAPES and _drops_ones(value, node.outputs[0], layer.outputs):
            is_flat = True
        elif not _keeps_factors(node, is_flat=is_flat):
            return None
        value = node.outputs[0]


def _keeps_factors(node: ir.Node, *, is_flat: bool) -> bool:
    if len([output for output in node.outputs if output.name]) != 1:
        return False
    if node.op_type == "Clip":
        return True  # a Relu
    return node.op_type in _ELEMENTWISE or (node.op_type in _POOLS and not is_flat)


def _is_relu(graph: Graph, node: ir.Node) -> bool:
    """Tell whether a Clip has only a lower bound, of 0."""
    bounds = [graph.constant(value) for value in node.inputs[1:3]]
    if any(v is not None and b is None for v, b in zip(node.inputs[1:3], bounds, strict=True)):
        return False
    low = bounds[0] if bounds else None
    high = bounds[1] if len(bounds) > 1 else None
    has_no_top = high is None or bool(np.isposinf(high).all())
    return has_no_top and low is not None and not low.any()


def _drops_ones(before: ir.Value, after: ir.Value, channels: int) -> bool:
    """Tell whether ``[N, channels, 1, 1 ...]`` becomes ``[N, channels]``."""
    if before.shape is None or after.shape is None or len(after.shape) != 2:
        return False
    _, *sizes = before.shape
    return sizes[:1] == [channels] == [after.shape[1]] and all(size == 1 for size in sizes[1:])
