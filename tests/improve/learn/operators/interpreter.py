"""A model run node by node with the rules of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch

from intact.graph import Graph
from intact.improve.learn.operators import prepare

Arrays = Mapping[str, npt.NDArray[Any]]


def interpret(
    graph: Graph, feeds: Arrays, dtype: torch.dtype = torch.float32
) -> dict[str, npt.NDArray[Any]]:
    """Return all tensors of a run by name."""
    values: dict[str | None, torch.Tensor | None] = {}
    constants = {str(v.name): graph.constant(v) for v in graph.values}
    given = {name: array for name, array in constants.items() if array is not None} | dict(feeds)
    for name, array in given.items():
        tensor = torch.tensor(array)
        values[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    for node in graph.nodes:
        inputs = [None if value is None else values[value.name] for value in node.inputs]
        result = prepare(node)(*inputs)
        found = result if isinstance(result, tuple) else (result,)
        values.update(zip((value.name for value in node.outputs), found, strict=True))
    return {str(name): each.detach().numpy() for name, each in values.items() if each is not None}
