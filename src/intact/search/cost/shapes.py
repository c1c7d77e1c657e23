"""Shapes of one sample: as the model declares them, or as a run shows them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx_ir as ir

from intact.errors import DataError
from intact.graph import Graph
from intact.graph.edit import Editor
from intact.run.session import Feeds, make_session, run_session

Shape = tuple[int, ...]


class Shapes:
    """The shape of every value of a graph, for one sample.

    Args:
        graph: A normalised graph.
        feeds: Inputs of one sample, by name, for models whose shapes depend on it; None takes what
            the model declares, with 1 for the size of the batch.
    """

    def __init__(self, graph: Graph, feeds: Feeds | None = None) -> None:
        self._graph = graph
        self._feeds = feeds

    def of(self, value: ir.Value | None) -> Shape:
        """Return the shape of a value.

        Raises:
            DataError: It depends on the sample, and there is none.
        """
        if value is None:
            return ()
        declared = self._declared(value)
        if declared is None:
            declared = self._observed.get(str(value.name))
        if declared is None:
            raise DataError(
                f"the shape of {value.name!r} depends on the sample",
                remedy="give a sample, so that operations can be counted",
            )
        return declared

    def _declared(self, value: ir.Value) -> Shape | None:
        if value.const_value is not None:
            return tuple(int(size) for size in value.const_value.shape.numpy())
        if value.shape is None or self._feeds is not None:
            return None
        sizes = [1 if str(size) in self._batch else size for size in value.shape]
        if not all(isinstance(size, int) for size in sizes):
            return None
        return tuple(int(str(size)) for size in sizes)

    @cached_property
    def _batch(self) -> frozenset[str]:
        """The names of the first dimensions of the inputs, where they have names."""
        shapes = [value.shape for value in self._graph.inputs if value.shape]
        firsts = [shape[0] for shape in shapes if len(shape)]
        return frozenset(str(size) for size in firsts if not isinstance(size, int))

    @cached_property
    def _observed(self) -> Mapping[str, Shape]:
        if self._feeds is None:
            return {}
        editor = Editor(self._graph.model)
        outputs = editor.model.graph.outputs
        names = [
            str(value.name)
            for node in self._graph.nodes
            for value in node.outputs
            if value.name and value.dtype is not None
        ]
        shown = {str(value.name) for value in outputs}
        outputs.extend(editor.value(name) for name in names if name not in shown)
        arrays = run_session(make_session(editor.finish()), self._feeds, names)
        found = {name: tuple(array.shape) for name, array in zip(names, arrays, strict=True)}
        return found | {name: tuple(array.shape) for name, array in self._feeds.items()}
