"""The model of one piece: its nodes, with quantised constants in their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import IMPLICIT_SLOT, Graph
from intact.graph.ops import is_constant
from intact.run.piecewise.pieces import Piece
from intact.run.piecewise.streams import Reader, reads


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
    taken = {str(value.name) for value in (*copy.inputs, *copy.initializers.values())}
    taken |= {str(value.name) for node in copy for value in node.outputs}
    names = []
    for stream, readers in zip(piece.inputs, piece.readers, strict=True):
        name = stream.value
        if stream.end:
            name = _fresh(f"{stream.value}/{stream.end}", taken)
            like = graph.value(stream.value)
            value = ir.Value(name=name, shape=like.shape, type=like.type)
            copy.inputs.append(value)
            for node, slot in readers:
                nodes[node].replace_input_with(slot, value)
        names.append(name)
    for (node, slot), array in constants.items():
        if slot != IMPLICIT_SLOT:
            constant = _constant(_fresh(f"{node}/{slot}", taken), array)
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


def _fresh(name: str, taken: set[str]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
