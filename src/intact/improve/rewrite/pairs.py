"""Finds tensors whose channels can be scaled by constants in front of them and behind.

In front are scale and bias of a normalization (also as Mul and Add), or weight and bias of a layer,
directly or through one operand of a Mul; behind are weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import Graph
from intact.graph.batch_norm import recall, remember
from intact.graph.passes.replace import replace_constant
from intact.improve.layers import Doubles, Layer
from intact.ops.operators import Add, LayerNormalization, Mul, RMSNormalization, is_a

Floats = npt.NDArray[np.float32]

_NORMS = {
    ("", LayerNormalization.name): (1, 2),
    ("", RMSNormalization.name): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    ("com.microsoft", "SkipLayerNormalization"): (2, 3),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): (2,),
}
"""Where normalizations over the last axis have scale and bias."""


@dataclass(frozen=True)
class Pair:
    """A tensor between constants that can be divided and weights that can be multiplied.

    Attributes:
        value: The tensor.
        channels: How many it has.
        constants: Nodes and slots of the constants in front, ``[channels]`` each.
        producer: The layer in front instead, if it is one.
        readers: All that reads it.
    """

    value: ir.Value
    channels: int
    constants: tuple[tuple[ir.Node, int], ...]
    producer: Layer | None
    readers: Sequence[Layer]

    def renewed(self, graph: Graph) -> Pair | None:
        """Return it as the graph is now: a pair in front may have changed weights of this one.

        Returns:
            None where a layer can no longer be scaled.
        """
        readers = [Layer.of(graph, layer.node) for layer in self.readers]
        found = [layer for layer in readers if layer is not None]
        producer = None if self.producer is None else Layer.of(graph, self.producer.node)
        if len(found) < len(readers) or (producer is None) is not (self.producer is None):
            return None
        return replace(self, producer=producer, readers=found)

    def divide(self, graph: Graph, factors: Doubles) -> None:
        """Divide what is in front, and multiply what is behind, in place."""
        put = partial(replace_constant, graph.model.graph)
        for node, slot in self.constants:
            array = graph.constant(node.inputs[slot])
            if array is not None:
                divided = (array.astype(np.float64) / factors).astype(np.float32)
                put(node, slot, divided, f"{node.name}_{slot}")
        if self.producer is not None:
            _write_layer(put, self.producer, np.ones(self.producer.inputs), 1 / factors)
        for layer in self.readers:
            _write_layer(put, layer, factors, np.ones(layer.outputs))


def pairs_of(graph: Graph) -> Iterator[Pair]:
    """Find the tensors of a graph whose channels can be scaled."""
    for value in graph.values:
        readers = [Layer.of(graph, node) for node, slot in graph.consumers(value) if slot == 0]
        layers = [layer for layer in readers if layer is not None]
        node = value.producer()
        if not layers or len(layers) != len(graph.consumers(value)) or value.is_graph_output():
            continue
        sizes = {(layer.inputs, layer.is_dense) for layer in layers}
        if node is None or len(sizes) > 1:
            continue
        (channels, is_dense) = sizes.pop()
        constants = _constants(graph, node, channels) if is_dense else ()
        producer = None if constants else _layer_in_front(graph, node, channels, is_dense)
        if (constants or producer is not None) and value is node.outputs[0]:
            yield Pair(value, channels, constants, producer, layers)


def _constants(graph: Graph, node: ir.Node, channels: int) -> tuple[tuple[ir.Node, int], ...]:
    """Find scale and bias of a normalization over the last axis; empty where there are none."""
    # 1. An operator has them all.
    known = _NORMS.get((node.domain, node.op_type))
    if known is not None:
        slots = [(node, slot) for slot in known if slot < len(node.inputs) and node.inputs[slot]]
        is_last = node.attributes.get_int("axis", -1) == -1
        fits = is_last and all(_is_own(graph, *each, channels) for each in slots)
        return tuple(slots) if fits else ()
    bias = _operand(graph, node, Add.name, channels)
    if bias is None:
        # 2. A Mul alone.
        scale = _operand(graph, node, Mul.name, channels)
        return () if scale is None else ((node, scale),)
    # 3. An Add behind a Mul: both have to be divided.
    before = node.inputs[1 - bias]
    front = None if before is None else before.producer()
    if before is None or front is None or not _is_own_result(graph, before):
        return ()
    scale = _operand(graph, front, Mul.name, channels)
    return () if scale is None else ((front, scale), (node, bias))


def _operand(graph: Graph, node: ir.Node, kind: str, channels: int) -> int | None:
    """Return which input of a Mul or Add is a constant for each channel."""
    if node.domain or node.op_type != kind:
        return None
    return next((slot for slot in (0, 1) if _is_own(graph, node, slot, channels)), None)


def _is_own_result(graph: Graph, value: ir.Value) -> bool:
    """Tell whether exactly one node reads a value."""
    return len(graph.consumers(value)) == 1 and not value.is_graph_output()


def _is_own(graph: Graph, node: ir.Node, slot: int, channels: int) -> bool:
    value = node.inputs[slot]
    array = graph.constant(value)
    return (
        value is not None
        and array is not None
        and array.dtype == np.float32
        and array.shape[-1:] == (channels,)
        and array.size == channels
        # Others that read it would get it divided too.
        and len(value.uses()) == 1
        and not value.is_graph_output()
    )


def _layer_in_front(graph: Graph, node: ir.Node, channels: int, is_dense: bool) -> Layer | None:
    """Find the layer whose channels can be divided: directly, or as one operand of a Mul."""
    layer = Layer.of(graph, node)
    if layer is None and is_a(node, Mul):
        for value in node.inputs:
            front = None if value is None else value.producer()
            if value is None or front is None or layer is not None:
                continue
            if _is_own_result(graph, value):
                layer = Layer.of(graph, front)
    fits = layer is not None and layer.outputs == channels and layer.is_dense == is_dense
    return layer if fits else None


def _write_layer(
    put: Callable[[ir.Node, int, Floats, str], None], layer: Layer, into: Doubles, out: Doubles
) -> None:
    name = str(layer.node.name)
    put(layer.node, 1, layer.scale_weight(into, out), f"{name}_weight")
    bias = layer.scaled_bias(out)
    if bias is not None and (out != 1).any():
        put(layer.node, 2, bias, f"{name}_bias")
    norm = recall(layer.node)
    if norm is not None and norm.gamma.size == out.size:
        gamma, beta = ((each * out).astype(np.float32) for each in (norm.gamma, norm.beta))
        remember(layer.node, msgspec.structs.replace(norm, gamma=gamma, beta=beta))
