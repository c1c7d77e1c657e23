"""Equalizes the weights of neighbouring layers, channel by channel.

If a channel has large weights in one layer and small ones in the next, a positive factor moves
magnitude from one to the other; the result of both together does not change. Which channels have
to share a factor, `intact.improve.rewrite.ties` finds. Factors are chosen such that a channel takes
the same share of the range of the layers that write it as of the layers that read it; those of
layers that share some are repeated until nothing moves. Between two layers this is equation 11 of
[dfq].

Weights with a scale of their own for each output channel need no such balance. There the range of
the activation takes the place of the layer that writes it.

A product of a value and its own gate (HardSwish, Swish) does not scale. But ``x * g(x)`` of values
that are f times as large is ``x * g(x / f)``: one Mul in front of the gate makes it exact. As that
costs an operator, it is done only with ranges that were observed.

An upper bound (Relu6) does not scale. But where activations were seen, or a BatchNormalization is
remembered, channels that the bound does not reach are scaled, as far as they stay below it; so the
Clip remains one. The others stay as they are. The same knowledge keeps the range of each activation
from growing. Without it, no channel's bias may exceed the largest of its layer: the source has no
such limit, but then a channel with almost no weights would get a constant that is larger by orders
of magnitude than all other values.

Source: [dfq], section 4.1; Tengine's DFQ (``tools/quantize/algorithm/quant_dfq.cpp``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import numpy as np
import onnx_ir as ir

from intact.graph import BatchNorm, Graph
from intact.graph.batch_norm import recall, remember
from intact.graph.edit import Editor
from intact.graph.passes.expand import expand
from intact.graph.passes.replace import replace_constant
from intact.improve.channels import Channels, Tensor, remembered_channels
from intact.improve.layers import Doubles, Layer
from intact.improve.rewrite.ties import Ids, TiedTensor, Ties
from intact.ops import functions
from intact.ops.operators import Mul, is_a

_SWEEPS = 30
"""Maximum number of sweeps. Layers that share factors affect each other, so they are repeated."""
_STILL = 1e-3
"""Sweeps end when no logarithm of a factor moves further."""
_LARGEST = 2.0**16
"""Factors are limited to this and its inverse."""
_UNCUT = 1e-4
"""What a bound may take from a channel's power for it to count as unbounded: less than the noise of
8 bits."""

_GATE = functions.hard_sigmoid
"""The gate of HardSwish."""
_TINY = np.finfo(np.float32).tiny


def equalize(
    graph: Graph,
    seen: Mapping[str, Channels] | None = None,
    strengths: Mapping[int, float] | None = None,
    *,
    per_channel: bool = False,
) -> Graph:
    """Equalize the weights of consecutive layers.

    This applies to convolutions (also grouped and transposed), Gemm and MatMul with constant
    weights, through Relu, LeakyRelu, PRelu, pools, Flatten of single pixels, Add, Concat,
    products with a gate, HardSwish and Swish. Shapes, names and order of the nodes do not change,
    but for a Mul in front of gates; a scaled weight or bias keeps its name. Results differ only by
    float32 rounding, as long as values lie in the ranges that are given.

    Args:
        graph: The graph; not changed.
        seen: The channels of `tensors_of`, by name; None takes those of BatchNormalizations.
        strengths: By number of a block of `Ties`: 1 equalizes it, 0 does not, and what lies between
            takes a root of the factors; None equalizes all.
        per_channel: Weights have one scale for each output channel.
    """
    return Equalization(graph, seen, per_channel=per_channel).graph(strengths)


class Equalization:
    """The factors that equalize a graph, chosen once and written as often as is needed.

    Args:
        graph: What `equalize` takes.
        seen: What `equalize` takes.
        per_channel: What `equalize` takes.
        expanded: Operators that a target has in parts only.

    Attributes:
        ties: Which factors there are, by the nodes and tensors of the graph.
    """

    def __init__(
        self,
        graph: Graph,
        seen: Mapping[str, Channels] | None = None,
        *,
        per_channel: bool = False,
        expanded: Collection[str] = (),
    ) -> None:
        self._graph, self.ties = graph, Ties.of(graph)
        self._expanded = expanded
        known = remembered_channels(graph, tensors_of(self.ties)) if seen is None else seen
        factors = _Factors(self.ties, known, per_channel=per_channel)
        factors.balance()
        self._logarithms = factors.logarithms

    def moves(self, block: int) -> bool:
        """Tell whether factors of a block are far enough from 1 to matter."""
        return bool((np.abs(self._logarithms[self.ties.blocks == block]) > _STILL).any())

    def graph(self, strengths: Mapping[int, float] | None = None) -> Graph:
        """Write the factors into a copy of the graph; see `equalize`."""
        logarithms = self._logarithms
        if strengths is not None:
            shares = [strengths.get(int(block), 0.0) for block in self.ties.blocks]
            logarithms = logarithms * np.array(shares)
        editor = Editor(self._graph.model)
        copy = Graph(editor.model)
        for layer in self.ties.layers:
            node = layer.node
            into, out = (
                _exp(logarithms, ids) for ids in (self.ties.into[node], self.ties.out[node])
            )
            _write(copy.model.graph, copy.node(str(node.name)), layer, 1 / into, out)
        is_gated = False
        is_last = {each.value: each.is_last for each in self.ties.tensors}
        for node, ids in self.ties.gates.items():
            factors = 1 / _exp(logarithms, ids)
            read = node.inputs[0]
            if read is not None and (factors != 1.0).any():
                gate = editor.nodes_by_name[str(node.name)]
                _scale_gate(editor, gate, factors, is_last=is_last[read])
                is_gated = True
        if not is_gated:
            return Graph(editor.model)
        graph = Graph(editor.finish())
        # For a target that has it in parts only.
        return expand(graph, [_GATE.name]) if _GATE.name in self._expanded else graph

    def is_gated(self, block: int) -> bool:
        """Tell whether the factors of a block cost operators in front of gates."""
        own = self.ties.blocks == block
        moved = own & (np.abs(self._logarithms) > 0)
        return any(moved[ids[ids >= 0]].any() for ids in self.ties.gates.values())


def _exp(logarithms: Doubles, ids: Ids) -> Doubles:
    """Return the factors of some channels; those without a number are 1."""
    return np.where(ids >= 0, np.exp(logarithms[ids]), 1.0)


def tensors_of(ties: Ties) -> list[Tensor]:
    """List the tensors whose channels `equalize` likes to know."""
    return [
        Tensor(str(each.value.name), -1 if each.is_last else 1, each.bounds)
        for each in ties.tensors
        if each.is_made and (each.ids >= 0).any()
    ]


def notes(graph: Graph) -> tuple[str, ...]:
    """List parts of a graph that `equalize` cannot change without having seen activations."""
    ties = Ties.of(graph)
    lines = []
    if not (ties.blocks >= 0).any():
        lines.append("no two layers follow each other so that their channels could be equalized")
    known = remembered_channels(graph, tensors_of(ties))
    clips = [each for each in ties.tensors if _is_bounded(each) and (each.ids >= 0).any()]
    stopped = [each.value for each in clips if str(each.value.name) not in known]
    if stopped:
        (node, _), *_ = graph.consumers(stopped[0])
        lines.append(
            f"{len(stopped)} Clip node(s), such as Relu6, end a chain of layers: an upper "
            f"bound does not scale (first: {node.name})"
        )
    return tuple(lines)


def _is_bounded(tied: TiedTensor) -> bool:
    return bool(np.isfinite(tied.bounds).any())


class _Factors:
    """The factors of channels, as logarithms by number; those of number -1 are 1."""

    def __init__(self, ties: Ties, seen: Mapping[str, Channels], *, per_channel: bool) -> None:
        self._ties, self._per_channel = ties, per_channel
        count = len(ties.blocks)
        self.logarithms = np.zeros(count)
        self._most = np.full(count, np.log(_LARGEST))
        self._free = ties.blocks >= 0
        self._reaches = {
            layer.node: np.abs(layer.view(layer.weight)).max(axis=3) for layer in ties.layers
        }
        self._ranges: list[tuple[Ids, Doubles]] = []
        for tied in ties.tensors:
            if tied.is_made:
                self._limit(tied, seen.get(str(tied.value.name)))
        for node, ids in ties.gates.items():
            read = node.inputs[0]
            if read is None or str(read.name) not in seen:
                self._hold(ids)
        for layer in ties.layers:
            if str(layer.node.outputs[0].name) not in seen:
                self._limit_to(ties.out[layer.node], np.log(_largest_factors(layer)))
        # Limits hold factors from growing; what is over a limit already is not shrunk by it.
        self._most = np.maximum(self._most, 0.0)

    def balance(self) -> None:
        """Choose the factors."""
        for _ in range(_SWEEPS):
            moved = self._sweep()
            if moved < _STILL:
                break

    def _limit(self, tied: TiedTensor, seen: Channels | None) -> None:
        if seen is None:
            if _is_bounded(tied):
                self._hold(tied.ids)
            return
        reach = seen.high if tied.is_rectified else np.maximum(seen.high, -seen.low)
        reach = np.maximum(reach, 0.0)
        below, above = tied.bounds
        is_cut = seen.cut > _UNCUT
        self._hold(tied.ids[is_cut])
        with np.errstate(divide="ignore", invalid="ignore"):
            room = reach.max(initial=0.0) / reach
            # No channel may reach a bound that did not act on it before.
            room = np.where(seen.high > 0, np.minimum(room, above / seen.high), room)
            room = np.where(seen.low < 0, np.minimum(room, below / seen.low), room)
            room = np.where(np.isnan(room), _LARGEST, np.minimum(room, _LARGEST))
        self._limit_to(tied.ids, np.log(room))
        self._ranges.append((tied.ids, reach))

    def _limit_to(self, ids: Ids, most: Doubles) -> None:
        own = ids >= 0
        np.minimum.at(self._most, ids[own], most[own])

    def _hold(self, ids: Ids) -> None:
        self._free[ids[ids >= 0]] = False

    def _sweep(self) -> float:
        """Move each factor to where its channel takes equal shares; return the furthest move."""
        count = len(self.logarithms)
        wrote, read = _Means(count), _Means(count)
        for layer in self._ties.layers:
            node, reach = layer.node, self._reaches[layer.node]
            into, out = self._ties.into[node], self._ties.out[node]
            groups = reach.shape[0]
            scaled = reach / _exp(self.logarithms, into).astype(np.float32).reshape(groups, 1, -1)
            scaled *= _exp(self.logarithms, out).astype(np.float32).reshape(groups, -1, 1)
            if not self._per_channel:
                wrote.add(out, scaled.max(axis=2).reshape(-1))
            elif not layer.is_depthwise:
                scaled = scaled / np.maximum(scaled.max(axis=2, keepdims=True), _TINY)
            reads = scaled.max(axis=1).reshape(-1)
            # With a scale of its own a weight of one channel holds any factor: what is read may
            # have one range in all channels.
            is_free = self._per_channel and layer.is_depthwise
            read.add(into, (reads > 0).astype(np.float64) if is_free else reads)
        if self._per_channel:
            for ids, reach in self._ranges:
                wrote.add(ids, reach * _exp(self.logarithms, ids))
        # Half, because a factor moves both sides: what is written up, what is read down.
        moves = (read.means() - wrote.means()) / 2
        # A channel without weights on one side has no share to balance.
        moves[~np.isfinite(moves) | ~self._free] = 0.0
        after = np.clip(self.logarithms + moves, -np.log(_LARGEST), self._most)
        moved = float(np.abs(after - self.logarithms).max(initial=0.0))
        self.logarithms = after
        return moved


class _Means:
    """Means of logarithms of shares, by number."""

    def __init__(self, count: int) -> None:
        self._sums, self._counts = np.zeros(count), np.zeros(count)

    def add(self, ids: Ids, reach: Doubles) -> None:
        """Add what channels have of the largest; what has nothing does not count."""
        own = (ids >= 0) & (reach > 0)
        # Logarithms, since factors multiply: their mean does not depend on which side is larger.
        shares = np.log(reach[own] / reach.max(initial=0.0))
        np.add.at(self._sums, ids[own], shares)
        np.add.at(self._counts, ids[own], 1)

    def means(self) -> Doubles:
        """Return the means; NaN where there are none."""
        with np.errstate(invalid="ignore"):
            return self._sums / self._counts


def _write(graph: ir.Graph, node: ir.Node, layer: Layer, into: Doubles, out: Doubles) -> None:
    """Multiply the constants of a layer by its factors."""
    if (into == 1.0).all() and (out == 1.0).all():
        return
    replace_constant(graph, node, 1, layer.scale_weight(into, out), f"{node.name}_weight")
    bias = layer.scaled_bias(out)
    if bias is not None:
        replace_constant(graph, node, 2, bias, f"{node.name}_bias")
    norm = recall(node)
    if norm is not None and norm.gamma.size == out.size:
        remember(node, _scale_norm(norm, out))


def _scale_gate(editor: Editor, node: ir.Node, factors: Doubles, *, is_last: bool) -> None:
    """Multiply what a gate reads; a HardSwish becomes the product that it stands for.

    Args:
        editor: Of the graph.
        node: The gate.
        factors: One for each channel.
        is_last: Whether the channels are the last axis; else they are axis 1.
    """
    (value,) = node.inputs
    if value is None or value.shape is None:
        return
    shape = (-1,) if is_last else (-1, *[1] * (len(value.shape) - 2))
    name = f"{node.name}_scale"
    scale = editor.initializer(f"{name}_factors", factors.astype(np.float32).reshape(shape))
    read = editor.node(Mul, [value, scale], name, shape=value.shape)
    if not is_a(node, functions.hard_swish):
        node.replace_input_with(0, read)
        return
    options = {"alpha": 1 / 6, "beta": 0.5}
    gate = editor.node(_GATE.name, [read], f"{node.name}_gate", options, shape=value.shape)
    editor.put_in_place(node, editor.node(Mul, [value, gate], str(node.name), shape=value.shape))


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


def _scale_norm(norm: BatchNorm, factors: Doubles) -> BatchNorm:
    """Scale the stored parameters of a folded BatchNormalization."""
    gamma, beta = norm.gamma * factors, norm.beta * factors
    return msgspec.structs.replace(
        norm, gamma=gamma.astype(np.float32), beta=beta.astype(np.float32)
    )
