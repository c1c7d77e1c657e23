"""Nodes that torch has no rule for, computed by ONNX Runtime: no gradient goes through them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from intact.engines.integer.islands import model_of_nodes
from intact.engines.session import make_session, run_session
from intact.errors import Unsupported
from intact.graph import Graph
from intact.graph.graph import values_read_inside
from intact.improve.learn.operators import Apply, prepare
from intact.program.operations import FloatNodes


def rule_for(graph: Graph) -> Callable[[ir.Node], Apply]:
    """Return what gives each node of a graph a way to compute it."""

    def rule(node: ir.Node) -> Apply:
        try:
            return prepare(node)
        except Unsupported:
            return _outside(graph, node)

    return rule


def _outside(graph: Graph, node: ir.Node) -> Apply:
    inside = [value for value in values_read_inside(node) if value.graph is node.graph]
    slots = [*node.inputs, *inside]
    read = list(dict.fromkeys(value for value in slots if value is not None))
    outputs = [value for value in node.outputs if value.name]
    functions = tuple(graph.model.functions.values())
    model = model_of_nodes(
        str(node.name), FloatNodes((node,), tuple(read), tuple(outputs), functions)
    )
    session = make_session(model, threads=1)
    names = [str(value.name) for value in outputs]

    def apply(*tensors: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        feeds, device = {}, torch.device("cpu")
        for value, tensor in zip(slots, tensors, strict=True):
            if value is not None and tensor is not None:
                device = tensor.device
                feeds[str(value.name)] = np.ascontiguousarray(tensor.detach().cpu().numpy())
        found = dict(zip(names, run_session(session, feeds, names), strict=True))
        empty = torch.zeros(0)
        results = tuple(
            torch.from_numpy(np.array(found[str(v.name)])).to(device) if v.name else empty
            for v in node.outputs
        )
        return results[0] if len(results) == 1 else results

    return apply
