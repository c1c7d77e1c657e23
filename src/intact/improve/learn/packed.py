"""Packs a plan so that it can be copied and pickled with a module."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from intact.graph import Graph
from intact.plan import QuantizedGraph, load_plan, save_plan

_MODEL, _PLAN = "model.onnx", "plan.json"


class PackedPlan:
    """Holds a plan, which never changes: copies of a module share it, and pickles hold its files.

    Attributes:
        plan: The plan.
    """

    def __init__(self, plan: QuantizedGraph) -> None:
        self.plan = plan

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedPlan:
        """Return the object itself."""
        return self

    def __reduce__(self) -> tuple[Any, tuple[dict[str, bytes]]]:
        """Pickle as the files of a result: bytes, of which reading runs nothing."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            self.plan.graph.save(path / _MODEL)
            save_plan(self.plan, path / _PLAN)
            return _unpack, ({each.name: each.read_bytes() for each in path.iterdir()},)


def _unpack(files: dict[str, bytes]) -> PackedPlan:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for name, data in files.items():
            # A pickle may hold any names: none leads out of the folder.
            (path / Path(name).name).write_bytes(data)
        # Read whole: the files are gone afterwards.
        graph = Graph.load(path / _MODEL)
        plan = load_plan(path / _PLAN, _in_memory(graph))
    return PackedPlan(plan)


def _in_memory(graph: Graph) -> Graph:
    """Copy the weights of a graph out of its file."""
    import onnx_ir as ir

    clone = graph.clone()
    for value in clone.model.graph.initializers.values():
        if value.const_value is not None:
            array = value.const_value.numpy().copy()
            value.const_value = ir.Tensor(array, value.const_value.dtype, name=value.name)
    return Graph(clone.model)
