"""Moves what a Relu always lets through into the next layer's bias: bias absorption.

Where a channel never falls below c > 0, a Relu does nothing to c: the layer's bias gives it up, and
the biases of the layers behind take it over, times their weights. The range of the activation
becomes smaller, and its steps finer.

A convolution with zeros as pads sees 0 at the border, and not c. Such ones end the search, as does
all that is neither a Relu nor linear. A Clip counts as a Relu where its upper bound never acts.

Source: [dfq], section 4.1.3: c = max(0, beta - 3 gamma), from BatchNormalization. Where activations
were seen, c is their least value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import onnx_ir as ir

from intact.graph import Graph, facts
from intact.graph.batch_norm import recall, remember
from intact.graph.ops import clamp_bounds, output_channel_axis
from intact.graph.passes.replace import replace_constant
from intact.improve.channels import Channels, Tensor
from intact.improve.layers import Doubles, Layer
from intact.improve.rewrite.ties import POOLS, drops_ones
from intact.ops.declaration import Window
from intact.ops.operators import ConvTranspose, Gemm, MatMul, MaxPool, is_a

DEVIATIONS = 3.0
"""Below the mean by so many, [dfq]: a normal value is there with 0.1 percent."""


@dataclass(frozen=True)
class Absorption:
    """A layer, and those that take over what its Relu lets through.

    Attributes:
        layer: The layer.
        bounds: What the Clip behind it lets through.
        between: The nodes up to the readers.
        readers: The layers that read it.
    """

    layer: Layer
    bounds: tuple[float, float]
    between: tuple[ir.Node, ...]
    readers: tuple[Layer, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all its nodes."""
        own = (self.layer.node, *self.between, *(each.node for each in self.readers))
        return tuple(str(node.name) for node in own)

    @property
    def tensor(self) -> Tensor:
        """The layer's result, to be observed."""
        value = self.layer.node.outputs[0]
        return Tensor(str(value.name), -1 if self.layer.is_dense else 1, self.bounds)

    def shift(self, seen: Mapping[str, Channels] | None) -> Doubles:
        """Return c of each channel; 0 where the range would not become smaller."""
        nothing = np.zeros(self.layer.outputs)
        if seen is not None:
            known = seen.get(self.tensor.name)
            if known is None:
                return nothing
            low, high = known.low, known.high
        else:
            norm = recall(self.layer.node)
            if norm is None:
                return nothing
            beta, reach = norm.beta, DEVIATIONS * np.abs(norm.gamma)
            low, high = (np.asarray(each, np.float64) for each in (beta - reach, beta + reach))
        shift = np.where(high <= self.bounds[1], np.maximum(low, 0.0), 0.0)
        # One scale for the tensor: only what lowers its largest value helps.
        is_smaller = (high - shift).max(initial=0.0) < high.max(initial=0.0)
        return shift if is_smaller and np.isfinite(shift).all() else nothing


def absorptions(graph: Graph) -> list[Absorption]:
    """Find layers whose channels could be shifted."""
    layers = {node: Layer.of(graph, node) for node in graph.nodes}
    found = (_follow(graph, each, layers) for each in layers.values() if each is not None)
    return [each for each in found if each is not None]


def absorb(
    graph: Graph,
    seen: Mapping[str, Channels] | None = None,
    chosen: Collection[str] | None = None,
) -> Graph:
    """Move high biases into the layers behind.

    Nodes and their names do not change; a layer without bias gets one. Results differ only by
    float32 rounding, as long as values lie in the ranges that are given.

    Args:
        graph: The graph; not changed.
        seen: The channels of the layers' results, by name; None takes folded BatchNormalizations.
        chosen: Names of the layers that give up their bias; None for all.
    """
    copy = graph.clone()
    model = copy.model.graph
    for each in absorptions(copy):
        if chosen is not None and str(each.layer.node.name) not in chosen:
            continue
        shift = each.shift(seen)
        if not shift.any():
            continue
        _add(model, each.layer, -shift)
        norm = recall(each.layer.node)
        if norm is not None and norm.beta.size == shift.size:
            beta = (norm.beta - shift).astype(np.float32)
            remember(each.layer.node, msgspec.structs.replace(norm, beta=beta))
        for reader in each.readers:
            wide = reader.view(reader.weight.astype(np.float64)).sum(axis=3)
            taken = np.einsum("goi,gi->go", wide, shift.reshape(reader.groups, -1)).reshape(-1)
            _add(model, reader, taken * Gemm.of(reader.node).alpha)
    return Graph(copy.model)


def _add(graph: ir.Graph, layer: Layer, shift: Doubles) -> None:
    """Add to the result of a layer; its bias may have been changed before."""
    node = layer.node
    # Read anew: the layer may itself have taken over a shift of one in front.
    value = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = None if value is None else value.const_value
    before = np.zeros(layer.outputs, np.float32) if tensor is None else tensor.numpy()
    moved = shift / Gemm.of(node).beta
    bias = before.astype(np.float64) + moved.reshape(before.shape)
    replace_constant(graph, node, 2, bias.astype(np.float32), f"{node.name}_bias")


def _can_shift(layer: Layer) -> bool:
    """Tell whether a layer has a bias of one number a channel, or may get one."""
    node = layer.node
    if output_channel_axis(node) is None or Gemm.of(node).beta == 0:
        return False
    # A MatMul has no place for a bias.
    return not is_a(node, MatMul) if layer.bias is None else layer.bias.size == layer.outputs


def _follow(
    graph: Graph, layer: Layer, layers: Mapping[ir.Node, Layer | None]
) -> Absorption | None:
    """Follow a layer's result through a Relu to layers without pads."""
    value, between, bounds = layer.node.outputs[0], list[ir.Node](), None
    if layer.bias is None or not _can_shift(layer):
        return None
    while not value.is_graph_output():
        users = graph.consumers(value)
        readers = [layers.get(node) for node, _ in users]
        fit = [
            each
            for each, (_, slot) in zip(readers, users, strict=True)
            if each is not None and slot == 0 and _takes(each, layer, value)
        ]
        if users and len(fit) == len(users):
            done = bounds is not None
            return (
                Absorption(layer, bounds, tuple(between), tuple(fit)) if done and bounds else None
            )
        node, slot = users[0] if len(users) == 1 else (None, 0)
        if node is None or slot != 0 or node.domain or readers[0] is not None:
            return None
        own = _bounds(node) if bounds is None else None
        if own is None and not (bounds is not None and _passes(node, value, layer.outputs)):
            return None
        bounds = own or bounds
        between.append(node)
        value = node.outputs[0]
    return None


def _bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a Relu, or of a Clip that is one below."""
    found = clamp_bounds(node)
    return found if found is not None and found[0] == 0 else None


def _passes(node: ir.Node, value: ir.Value, channels: int) -> bool:
    """Tell whether a shift of the input is a shift of the result."""
    if len([output for output in node.outputs if output.name]) != 1:
        return False
    if facts(node).reshapes:
        return drops_ones(value, node.outputs[0], channels)
    # The pads of a mean are zeros, which do not shift; a maximum ignores them.
    return node.op_type in POOLS and (node.op_type.endswith(MaxPool.name) or not _pads(node))


def _takes(reader: Layer, layer: Layer, value: ir.Value) -> bool:
    """Tell whether a layer sees the shift everywhere."""
    # At its border fewer windows overlap, so that a constant is not the same everywhere.
    if is_a(reader.node, ConvTranspose) or reader.inputs != layer.outputs:
        return False
    is_flat = value.shape is not None and len(value.shape) == 2
    same_axis = is_flat or reader.is_dense == layer.is_dense
    return same_axis and _can_shift(reader) and not _pads(reader.node)


def _pads(node: ir.Node) -> bool:
    window = Window.of(node)
    return window.pads_to_same or (window.auto_pad == "NOTSET" and any(window.pads))
