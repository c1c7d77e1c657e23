"""The tensors and nodes of a file that is written, numbered as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode, FileTensor, TmFile
from intact.formats.tengine.tmfile.layout import Kind, Layout
from intact.formats.tengine.tmfile.names import Names
from intact.formats.tengine.tmfile.writing.forms import Form, Stored
from intact.formats.tengine.tmfile.writing.shapes import Shape, static_shapes
from intact.graph import Graph


class Sheet:
    """A file that grows; every tensor comes before what reads it.

    After a node that could not be written the file is good for finding further reasons only.

    Args:
        graph: What is written.
        form: In which numbers.
    """

    def __init__(self, graph: Graph, form: Form) -> None:
        self.graph = graph
        self.form = form
        self._shapes = static_shapes(graph)
        self._tensors: list[FileTensor] = []
        self._nodes: list[FileNode] = []
        self._numbers: dict[ir.Value, int] = {}
        self._writers: dict[ir.Value, int] = {}
        self._stored: dict[tuple[str, bytes], int] = {}
        self._tensor_names, self._node_names = Names(), Names()
        for value in graph.values:
            self._tensor_names.fresh(str(value.name))
        for node in graph.nodes:
            self._node_names.fresh(str(node.name))

    # ---- growing -----------------------------------------------------------------------------

    def add_input(self, value: ir.Value) -> None:
        """Add an input of the graph, with the node that stands for it."""
        index = self._activation(value, Kind.INPUT)
        self._node(str(value.name), "InputOp", (), (index,), {})
        self._writers[value] = len(self._nodes) - 1

    def add(
        self,
        node: ir.Node,
        operator: str,
        inputs: Sequence[ir.Value | int],
        options: Mapping[str, Any] | None = None,
        *,
        outputs: Sequence[ir.Value] | None = None,
    ) -> None:
        """Add a node that has the name of one of the graph.

        Args:
            node: Of the graph.
            operator: Of Tengine.
            inputs: Activations, and numbers of constants that were added.
            options: Of the operator.
            outputs: What it computes, where that is not what the node of the graph does.
        """
        numbers = [
            each if isinstance(each, int) else self._numbers.get(each, -1) for each in inputs
        ]
        results = tuple(node.outputs if outputs is None else outputs)
        written = [self._activation(value, Kind.VARIABLE) for value in results]
        self._nodes.append(
            FileNode(str(node.name), operator, tuple(numbers), tuple(written), options or {})
        )
        self._writers.update(dict.fromkeys(results, len(self._nodes) - 1))

    def constant(self, value: ir.Value, stored: Stored) -> int:
        """Add a constant, called as that of the graph; return its number.

        Nodes that hold one constant in different integers have one each.
        """
        name = str(value.name)
        key = (name, stored.key)
        if key not in self._stored:
            taken = any(each == name for each, _ in self._stored)
            called = self._tensor_names.fresh(name) if taken else name
            tensor = FileTensor(
                called,
                tuple(stored.array.shape),
                Kind.CONSTANT,
                stored.element,
                stored.array,
                stored.quantization,
            )
            self._stored[key] = self._tensor(tensor)
            self._node(called, "Const", (), (self._stored[key],), {})
        return self._stored[key]

    def finished(self) -> TmFile:
        """Return the file.

        Raises:
            Unsupported: An output of the graph is not that of a node, or a node has others.
        """
        outputs: dict[int, list[ir.Value]] = {}
        for value in self.graph.outputs:
            if value not in self._writers:
                raise Unsupported(f"output {value.name!r} is computed by no node")
            outputs.setdefault(self._writers[value], []).append(value)
        for number, values in outputs.items():
            written = self._nodes[number].outputs
            if written != tuple(self._numbers[value] for value in values):
                raise Unsupported(
                    f"node {self._nodes[number].name!r} has outputs that the model does not hand "
                    "out, or in another order"
                )
        inputs = tuple(self._writers[value] for value in self.graph.inputs)
        return TmFile(
            "",
            Layout.CHANNELS_FIRST,
            tuple(self._tensors),
            tuple(self._nodes),
            inputs,
            tuple(outputs),
        )

    # ---- shapes ------------------------------------------------------------------------------

    def shape(self, value: ir.Value | None) -> Shape:
        """Return the lengths of a value, with a batch of one where the batch is open.

        Raises:
            Unsupported: Another length is open, or the value is left out.
        """
        if value is None:
            raise Unsupported("an input is left out")
        array = self.graph.constant(value)
        shape = self._shapes.get(str(value.name)) if array is None else array.shape
        if shape is None:
            raise Unsupported(f"the lengths of {value.name!r} are not known")
        return shape

    # ---- pieces ------------------------------------------------------------------------------

    def _activation(self, value: ir.Value, kind: Kind) -> int:
        element, quantization = self.form.activation(value)
        tensor = FileTensor(
            str(value.name), self.shape(value), kind, element, quantization=quantization
        )
        self._numbers[value] = self._tensor(tensor)
        return self._numbers[value]

    def _tensor(self, tensor: FileTensor) -> int:
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def _node(
        self,
        name: str,
        operator: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        options: Mapping[str, Any],
    ) -> None:
        called = self._node_names.fresh(name)
        self._nodes.append(FileNode(called, operator, inputs, outputs, options))
