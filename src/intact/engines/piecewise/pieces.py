"""Cutting a graph into pieces wherever data are quantized between two nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.engines.piecewise.streams import Reader, Stream, Streams, reads
from intact.graph import IMPLICIT_SLOT, Graph
from intact.graph.names import Names
from intact.graph.ops import is_constant

_FLOATS = (ir.DataType.FLOAT, None)


@dataclass(frozen=True)
class Piece:
    """Nodes that run in one session.

    Attributes:
        nodes: In topological order.
        inputs: What they read of other pieces and of the graph's inputs.
        readers: The nodes and slots that read each input.
        outputs: Values that other pieces read, and graph outputs.
        constants: Who reads constants.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[Stream, ...]
    readers: tuple[tuple[Reader, ...], ...]
    outputs: tuple[ir.Value, ...]
    constants: tuple[Reader, ...]

    @cached_property
    def key(self) -> bytes:
        """Bytes that no other piece of the same graph has."""
        names = [node.name for node in self.nodes]
        outputs = [value.name for value in self.outputs]
        return repr((names, self.inputs, self.readers, outputs)).encode()


@dataclass(frozen=True)
class Cut:
    """A graph in pieces.

    Attributes:
        pieces: In topological order.
        outputs: Graph outputs by name.
        checkpoints: Values from which a run may resume: every path from the inputs to what comes
            later goes through the one piece that makes them (the graph's articulation points, and
            where it has none the narrowest places), and the graph's outputs.
    """

    pieces: tuple[Piece, ...]
    outputs: tuple[ir.Value, ...]
    checkpoints: frozenset[str]


def cut(graph: Graph, streams: Streams) -> Cut:
    """Cut a graph at the quantizers of a plan.

    What depends on quantized data comes later than what made them. A node comes as late as its
    readers allow, so that nodes with no quantizer between them are in one piece, where the
    runtime can join them, whatever else a common reader waits for.
    """
    nodes = _live(graph)
    levels = _levels(nodes, streams)
    groups = _groups(nodes, levels, streams)
    handed_out = {str(value.name) for value in graph.outputs}
    pieces = tuple(_piece(group, graph, streams, handed_out) for group in groups)
    return Cut(pieces, graph.outputs, _checkpoints(pieces) | handed_out)


def _live(graph: Graph) -> list[ir.Node]:
    """Return the nodes that graph outputs depend on, in topological order."""
    wanted = set(graph.outputs)
    found = []
    for node in reversed(graph.nodes):
        if any(value in wanted and not is_constant(value) for value in node.outputs):
            found.append(node)
            wanted |= {value for value, _ in reads(node)}
    return found[::-1]


def _levels(nodes: Sequence[ir.Node], streams: Streams) -> dict[ir.Node, int]:
    """Count the quantizers on the longest path from each node to an output, negated."""
    levels: dict[ir.Node, int] = defaultdict(int)
    for node in reversed(nodes):
        level = levels[node]
        for value, reader in reads(node):
            producer = value.producer()
            if producer is not None:
                before = level - streams.is_cut(value, reader)
                levels[producer] = min(levels[producer], before)
    return levels


def _groups(
    nodes: Sequence[ir.Node], levels: Mapping[ir.Node, int], streams: Streams
) -> list[tuple[ir.Node, ...]]:
    """Return the nodes of a level that hang together, by level and then in the graph's order."""
    root = {node: node for node in nodes}

    def find(node: ir.Node) -> ir.Node:
        while root[node] is not node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for node in nodes:
        for value, reader in reads(node):
            producer = value.producer()
            if producer is None or producer not in root or levels[producer] != levels[node]:
                continue
            if not streams.is_cut(value, reader):
                root[find(node)] = find(producer)
    members: dict[ir.Node, list[ir.Node]] = defaultdict(list)
    for node in nodes:
        members[find(node)].append(node)
    groups = sorted(members.values(), key=lambda group: levels[group[0]])
    return [tuple(group) for group in groups]


def _piece(
    nodes: tuple[ir.Node, ...], graph: Graph, streams: Streams, handed_out: Collection[str]
) -> Piece:
    inside = set(nodes)
    inputs: dict[Stream, list[Reader]] = defaultdict(list)
    constants: list[Reader] = []
    for node in nodes:
        for value, reader in reads(node):
            if is_constant(value):
                constants.append(reader)
            elif value.producer() not in inside:
                inputs[streams.read(value, reader)].append(reader)
    outputs = tuple(
        value
        for node in nodes
        for value in node.outputs
        if str(value.name) in handed_out
        or any(reader not in inside for reader, _ in graph.consumers(value))
    )
    readers = tuple(tuple(each) for each in inputs.values())
    return Piece(nodes, tuple(inputs), readers, outputs, tuple(constants))


def _checkpoints(pieces: Sequence[Piece]) -> frozenset[str]:
    """Return the values that are alive where they come from the fewest pieces.

    From one piece: every path from the inputs goes through it. Integers (lengths, indices, masks)
    may be alive everywhere and are small: they do not count.
    """
    last_use = {stream.value: at for at, piece in enumerate(pieces) for stream in piece.inputs}
    alive: dict[str, tuple[int, ir.Value]] = {}
    places: list[frozenset[str]] = []
    counts: list[int] = []
    for at, piece in enumerate(pieces[:-1]):
        alive |= {str(value.name): (at, value) for value in piece.outputs}
        alive = {name: found for name, found in alive.items() if last_use.get(name, -1) > at}
        places.append(frozenset(alive))
        floats = (made for made, value in alive.values() if value.dtype in _FLOATS)
        counts.append(len(set(floats)))
    fewest = min((count for count in counts if count), default=0)
    narrow = (place for place, count in zip(places, counts, strict=True) if count == fewest)
    return frozenset(name for place in narrow for name in place)


def piece_model(
    graph: Graph, piece: Piece, constants: Mapping[Reader, npt.NDArray[Any]]
) -> tuple[ir.Model, tuple[str, ...]]:
    """Return a model of a piece; nodes are copies, constants of the graph are shared.

    Args:
        graph: Where the piece is from; not changed.
        piece: The nodes.
        constants: What some readers read in the place of the model's constants.

    Returns:
        The model, and its names of the piece's inputs in their order.
    """
    copy = _copy(graph, piece)
    nodes = {str(node.name): node for node in copy}
    made = (value for node in copy for value in node.outputs)
    taken = Names(v.name for v in (*copy.inputs, *copy.initializers.values(), *made))
    names = []
    for stream, readers in zip(piece.inputs, piece.readers, strict=True):
        name = stream.value
        if stream.end:
            name = taken.fresh(f"{stream.value}/{stream.end}")
            like = graph.value(stream.value)
            value = ir.Value(name=name, shape=like.shape, type=like.type)
            copy.inputs.append(value)
            for node, slot in readers:
                nodes[node].replace_input_with(slot, value)
        names.append(name)
    for (node, slot), array in constants.items():
        if slot != IMPLICIT_SLOT:
            constant = _constant(taken.fresh(f"{node}/{slot}"), array)
            copy.register_initializer(constant)
            nodes[node].replace_input_with(slot, constant)
    _drop_unused(copy, frozenset(names))
    functions = [function.clone() for function in graph.model.functions.values()]
    model = ir.Model(copy, ir_version=graph.model.ir_version, functions=functions)
    model.opset_imports.update(graph.model.opset_imports)
    return model, tuple(names)


def _copy(graph: Graph, piece: Piece) -> ir.Graph:
    inside = set(piece.nodes)
    inputs: dict[ir.Value, None] = {}
    constants: dict[ir.Value, None] = {}
    for node in piece.nodes:
        for value, _ in reads(node):
            if is_constant(value):
                constants[value] = None
            elif value.producer() not in inside:
                inputs[value] = None
    view = ir.GraphView(
        list(inputs),
        list(piece.outputs),
        nodes=piece.nodes,
        initializers=list(constants),
        opset_imports=dict(graph.model.opset_imports),
        name="piece",
    )
    return view.clone()


def _constant(name: str, array: npt.NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    return ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )


def _drop_unused(copy: ir.Graph, kept: frozenset[str]) -> None:
    for value in list(copy.inputs):
        if value.name not in kept:
            copy.inputs.remove(value)
    for name, value in list(copy.initializers.items()):
        if not (value.uses() or value.is_graph_output()):
            del copy.initializers[name]
