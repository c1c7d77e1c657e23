"""Equalizing the weights of layers that follow each other, without data.

A channel that one layer makes large and the next one reads with small weights can be made smaller
there and larger here by one positive factor: what the two compute together stays. Where all
operators between them keep positive factors, each channel gets the factor for which its weights
reach equally far in all layers: the square root of the product of two reaches, the cube root of
three with a depthwise layer between them, and so on.

No channel's bias grows beyond the largest of its layer. The source leaves that open, and absorbs
large biases afterwards, where a BatchNormalization tells what can be; of channels that training
left without weights it would make constants larger by orders of magnitude than all other numbers.

Source: Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias
Correction", equation 11; Tengine's DFQ (``tools/quantize/algorithm/quant_dfq.cpp``) for three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from intact.graph import BatchNorm, Graph
from intact.graph.batch_norm import recall, remember
from intact.graph.passes.replace import replace_constant
from intact.improve.rewrite.layers import Doubles, Layer

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
        """Yield layers that are equalized together: two, with depthwise ones between them."""
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


_SWEEPS = 20

"""Chains that share a layer disturb each other: they are gone through until nothing moves."""

_STILL = 1e-3

"""Logarithm of a factor that is no move."""

_LARGEST = 2.0**16

"""Factors are kept within this and its inverse."""


def equalize(graph: Graph) -> Graph:
    """Return a graph that computes the same from weights whose channels reach equally far.

    Convolutions (grouped and transposed ones too), Gemm and MatMul with constant weights take
    part, through Relu, LeakyRelu, PRelu, pools, and a Flatten of single pixels. A Clip with an
    upper bound (Relu6) ends a chain. Shapes, names and order of the nodes stay; a weight or
    bias that is scaled keeps its name. Results differ by float32 rounding only.

    Args:
        graph: Is not changed.
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


def notes(graph: Graph) -> tuple[str, ...]:
    """List parts of a graph that `equalize` leaves alone unexpectedly."""
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
    """The factors of input and output channels of each layer, collected until they are written."""

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
        """Put the factors of a layer into its constants."""
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
    """Compute the factor of each output channel at which its bias is the layer's largest.

    A channel of next to no weights gives its bias alone. Its factor would be large, and with it
    that constant: one scale for all channels would then be spent on it.
    """
    if layer.bias is None:
        return np.full(layer.outputs, _LARGEST)
    biases = np.broadcast_to(np.abs(layer.bias.astype(np.float64)).reshape(-1), layer.outputs)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        room = biases.max(initial=0.0) / biases
    return np.where(np.isnan(room), _LARGEST, np.clip(room, 1.0, _LARGEST))


def _scaled(norm: BatchNorm, factors: Doubles) -> BatchNorm:
    """Scale the memory of a folded BatchNormalization with its outputs."""
    gamma, beta = norm.gamma * factors, norm.beta * factors
    return replace(norm, gamma=gamma.astype(np.float32), beta=beta.astype(np.float32))
