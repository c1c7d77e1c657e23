"""Splits a graph into pieces wherever a tensor is quantized between two nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
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
        nodes: The nodes in topological order.
        inputs: Their inputs from other pieces and from graph inputs.
        readers: The nodes and slots that read each input.
        outputs: Values that other pieces read, and graph outputs.
        constants: The nodes and slots that read constants.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[Stream, ...]
    readers: tuple[tuple[Reader, ...], ...]
    outputs: tuple[ir.Value, ...]
    constants: tuple[Reader, ...]

    @cached_property
    def key(self) -> bytes:
        """Bytes that identify the piece in its graph."""
        names = [node.name for node in self.nodes]
        text = repr((names, self.inputs, self.readers, self.made)).encode()
        return blake2b(text, digest_size=16).digest()

    @cached_property
    def made(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(str(value.name) for value in self.outputs)


@dataclass(frozen=True)
class Cut:
    """A graph split into pieces.

    Attributes:
        pieces: The pieces, in topological order.
        outputs: Graph outputs by name.
        checkpoints: Values from which a run can resume: the graph's articulation points (or its
            narrowest places, if it has none) and its outputs.
    """

    pieces: tuple[Piece, ...]
    outputs: tuple[ir.Value, ...]
    checkpoints: frozenset[str]

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """The number of the piece that computes each value."""
        return {name: at for at, piece in enumerate(self.pieces) for name in piece.made}

    @cached_property
    def results(self) -> Mapping[str, Stream]:
        """The streams that are graph outputs, by name."""
        names = (str(value.name) for value in self.outputs)
        return {name: Stream(name) for name in names}


def cut(graph: Graph, streams: Streams) -> Cut:
    """Split a graph at the quantizers of a plan.

    Readers of quantized data are in a later piece than the producer. A node is placed as late as
    its readers allow, so that nodes without a quantizer between them are in one piece, where the
    runtime can fuse them.
    """
    nodes = _live(graph)
    levels = _levels(nodes, streams)
    groups = _groups(nodes, levels, streams)
    graph_outputs = {str(value.name) for value in graph.outputs}
    pieces = tuple(_piece(group, graph, streams, graph_outputs) for group in groups)
    return Cut(pieces, graph.outputs, _checkpoints(pieces) | graph_outputs)


def _live(graph: Graph) -> list[ir.Node]:
    """List the nodes that graph outputs depend on, in topological order."""
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
                # From the outputs, so that a node runs as late as its readers allow: from the
                # inputs, a chain beside a quantized one would end in an early piece, apart from
                # what it could fuse with.
                before = level - streams.is_cut(value, reader)
                levels[producer] = min(levels[producer], before)
    return levels


def _groups(
    nodes: Sequence[ir.Node], levels: Mapping[ir.Node, int], streams: Streams
) -> list[tuple[ir.Node, ...]]:
    """Group connected nodes of a level, ordered by level and then as in the graph."""
    root = {node: node for node in nodes}

    def find(node: ir.Node) -> ir.Node:
        while root[node] is not node:
            # Union-find with halved paths: a deep model has thousands of nodes in a chain.
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
    # The sort is stable: within a level pieces stay in the graph's order, which is topological.
    groups = sorted(members.values(), key=lambda group: levels[group[0]])
    return [tuple(group) for group in groups]


def _piece(
    nodes: tuple[ir.Node, ...], graph: Graph, streams: Streams, graph_outputs: Collection[str]
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
        if str(value.name) in graph_outputs
        or any(reader not in inside for reader, _ in graph.consumers(value))
    )
    readers = tuple(tuple(each) for each in inputs.values())
    return Piece(nodes, tuple(inputs), readers, outputs, tuple(constants))


def _checkpoints(pieces: Sequence[Piece]) -> frozenset[str]:
    """Find the values that are live where they come from the fewest pieces.

    If they come from one piece, every path from the inputs goes through it. Integers (lengths,
    indices, masks) may be live everywhere and are small: they are not counted.
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
    # Where one tensor is live, a run can go on from it alone; transformers with long skips may have
    # no such place, and the narrowest is taken.
    fewest = min((count for count in counts if count), default=0)
    narrow = (place for place, count in zip(places, counts, strict=True) if count == fewest)
    return frozenset(name for place in narrow for name in place)


def piece_model(
    graph: Graph, piece: Piece, constants: Mapping[Reader, npt.NDArray[Any]]
) -> tuple[ir.Model, tuple[str, ...]]:
    """Make the model of a piece; nodes are copied, constants are shared.

    Args:
        graph: The graph of the piece; not changed.
        piece: The piece.
        constants: Replacements of constants for some readers.

    Returns:
        The model, and the names of its inputs in the order of the piece's inputs.
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
            # These alone: other readers of the value get it without this quantizer.
            for node, slot in readers:
                nodes[node].replace_input_with(slot, value)
        names.append(name)
    for (node, slot), array in constants.items():
        # Inside of a body constants stay as they are: nothing there is quantized.
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
    # `ascontiguousarray` makes a scalar one-dimensional.
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
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
