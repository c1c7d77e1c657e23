"""The lengths of a graph's values with a batch of one."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.graph import Graph, is_constant
from intact.graph.passes import library

Shape = tuple[int, ...]


def static_shapes(graph: Graph) -> Mapping[str, Shape]:
    """Return the lengths of all values for which they are known, by name.

    An open first length of an input is 1; what follows from it is worked out again.
    """
    model = graph.model.clone()
    for value in model.graph.inputs:
        if value.shape is not None and len(value.shape) and not isinstance(value.shape[0], int):
            value.shape = ir.Shape([1, *value.shape[1:]])
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    library.infer_shapes(model)
    found = {}
    for value in Graph(model).values:
        lengths = None if value.shape is None or is_constant(value) else [*value.shape]
        if lengths is not None and all(isinstance(length, int) for length in lengths):
            found[str(value.name)] = tuple(int(str(length)) for length in lengths)
    return found
