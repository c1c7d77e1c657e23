"""Cross-layer equalization of weights, without data.

If a channel has large weights in one layer and small ones in the next, a positive factor moves
magnitude from one to the other; the result of both together does not change. If all operators
between them commute with positive factors, the factor of each channel makes its largest weight
equal in all layers: the geometric mean of two layers, of three with a depthwise layer between, and
so on.

No channel's bias may exceed the largest of its layer. The source has no such limit and absorbs
large biases afterwards, using BatchNormalization. Without the limit, a channel with almost no
weights would get a constant that is larger by orders of magnitude than all other values.

Source: Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias
Correction", equation 11; Tengine's DFQ (``tools/quantize/algorithm/quant_dfq.cpp``) for three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import onnx_ir as ir

from intact.data.stream import Samples
from intact.graph import BatchNorm, Graph
from intact.graph.batch_norm import recall, remember
from intact.graph.passes.replace import replace_constant
from intact.improve.gains import Report, unreported
from intact.improve.layers import Doubles, Layer
from intact.plan import QuantizedGraph

_ELEMENTWISE = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity", "Dropout", "Abs"})

"""Element-wise operators with ``f(c * x) = c * f(x)`` for every positive c, for input 0."""

_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})

"""Pools with the same property for each channel."""

_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze"})


@dataclass(frozen=True)
class Links:
    """Pairs of consecutive layers.

    Attributes:
        layers: Layers by node, in topological order.
        behind: The next layer of each layer, if it is the only reader.
        stopped: Names of Clip nodes (Relu6) that end a search: an upper bound does not scale.
    """

    layers: Mapping[ir.Node, Layer]
    behind: Mapping[ir.Node, Layer]
    stopped: tuple[str, ...]

    @staticmethod
    def of(graph: Graph) -> Links:
        """Find the pairs of a graph."""
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
        """Yield layers that are equalized together: two, with any depthwise ones between them."""
        inside = {layer.node for layer in self.behind.values() if layer.is_depthwise}
        for node, first in self.layers.items():
            if node not in self.behind or (node in inside and first.is_depthwise):
                continue
            chain = [first, self.behind[node]]
            while chain[-1].is_depthwise and chain[-1].node in self.behind:
                chain.append(self.behind[chain[-1].node])
            yield tuple(chain)


def _search(graph: Graph, layer: Layer, layers: Mapping[ir.Node, Layer]) -> Layer | str | None:
    """Find the next layer, or the name of a Clip that ends the search, or None."""
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


_SWEEPS = 20

"""Maximum number of sweeps. Chains that share a layer affect each other, so they are repeated."""

_STILL = 1e-3

"""Sweeps end when the logarithms of all factors are below this."""

_LARGEST = 2.0**16

"""Factors are limited to this and its inverse."""


def equalize(graph: Graph) -> Graph:
    """Equalize the weights of consecutive layers.

    This applies to convolutions (also grouped and transposed), Gemm and MatMul with constant
    weights, through Relu, LeakyRelu, PRelu, pools, and Flatten of single pixels. A Clip with an
    upper bound (Relu6) ends a chain. Shapes, names and order of the nodes do not change; a scaled
    weight or bias keeps its name. Results differ only by float32 rounding.

    Args:
        graph: The graph; not changed.
    """
    model = graph.clone().model
    twin = Graph(model)
    links = Links.of(twin)
    scales = _Scales(links)
    chains = list(links.chains())
    for _ in range(_SWEEPS):
        moved = max((scales.equalize(chain) for chain in chains), default=0.0)
        if moved < _STILL:
            break
    for layer in links.layers.values():
        scales.write(model.graph, layer)
    return Graph(model)


def equalized(plan: QuantizedGraph, samples: Samples, *, report: Report = unreported) -> Graph:
    """Equalize the graph of a plan; neither scales nor samples are looked at."""
    del samples, report
    return equalize(plan.graph)


def notes(graph: Graph) -> tuple[str, ...]:
    """List parts of a graph that `equalize` cannot change."""
    links = Links.of(graph)
    lines = []
    if not links.behind:
        lines.append("no two layers follow each other so that their channels could be equalized")
    if links.stopped:
        lines.append(
            f"{len(links.stopped)} Clip node(s), such as Relu6, end a chain of layers: an upper "
            f"bound does not scale (first: {links.stopped[0]})"
        )
    return tuple(lines)


class _Scales:
    """The factors of input and output channels of each layer, until they are written."""

    def __init__(self, links: Links) -> None:
        self._into = {node: np.ones(layer.inputs) for node, layer in links.layers.items()}
        self._out = {node: np.ones(layer.outputs) for node, layer in links.layers.items()}
        self._most = {node: _largest_factors(layer) for node, layer in links.layers.items()}

    def equalize(self, chain: tuple[Layer, ...]) -> float:
        """Equalize the channels of a chain; return the largest logarithm of a factor."""
        first, *rest = chain
        reaches = [first.reach_of_outputs(*self._of(first))]
        reaches += [layer.reach_of_inputs(*self._of(layer)) for layer in rest]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            logarithms = np.log(np.stack(reaches))
            moves = logarithms.mean(axis=0) - logarithms
            moves[:, ~np.isfinite(logarithms).all(axis=0)] = 0.0
        moved = 0.0
        total = np.zeros(first.outputs)
        for layer, behind, move in zip(chain, rest, moves, strict=False):
            limits = -np.log(_LARGEST), np.log(self._most[layer.node])
            wanted = np.log(self._out[layer.node]) + total + move
            total = np.clip(wanted, *limits) - np.log(self._out[layer.node])
            moved = max(moved, float(np.abs(total).max(initial=0.0)))
            factor = np.exp(total)
            self._out[layer.node] = self._out[layer.node] * factor
            self._into[behind.node] = self._into[behind.node] / factor
        return moved

    def write(self, graph: ir.Graph, layer: Layer) -> None:
        """Multiply the constants of a layer by its factors."""
        into, out = self._of(layer)
        if (into == 1.0).all() and (out == 1.0).all():
            return
        node = layer.node
        replace_constant(graph, node, 1, layer.scaled(into, out), f"{node.name}_weight")
        bias = layer.scaled_bias(out)
        if bias is not None:
            replace_constant(graph, node, 2, bias, f"{node.name}_bias")
        norm = recall(node)
        if norm is not None and norm.gamma.size == out.size:
            remember(node, _scaled(norm, out))

    def _of(self, layer: Layer) -> tuple[Doubles, Doubles]:
        return self._into[layer.node], self._out[layer.node]


def _largest_factors(layer: Layer) -> Doubles:
    """Compute the factor of each output channel for which its bias is the layer's largest.

    A channel with almost no weights outputs its bias only. A large factor would make this constant
    large, and it would dominate a scale common to all channels.
    """
    if layer.bias is None:
        return np.full(layer.outputs, _LARGEST)
    biases = np.broadcast_to(np.abs(layer.bias.astype(np.float64)).reshape(-1), layer.outputs)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        room = biases.max(initial=0.0) / biases
    return np.where(np.isnan(room), _LARGEST, np.clip(room, 1.0, _LARGEST))


def _scaled(norm: BatchNorm, factors: Doubles) -> BatchNorm:
    """Scale the stored parameters of a folded BatchNormalization."""
    gamma, beta = norm.gamma * factors, norm.beta * factors
    return msgspec.structs.replace(
        norm, gamma=gamma.astype(np.float32), beta=beta.astype(np.float32)
    )
