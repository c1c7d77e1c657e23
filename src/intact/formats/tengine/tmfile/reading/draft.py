"""A float graph that grows node by node, with the names of the file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode, TmFile
from intact.formats.tengine.tmfile.names import Names
from intact.formats.tengine.tmfile.reading.constants import Constants, Shape


class FixesBatch(Exception):  # noqa: N818 - an answer
    """A node mixes the samples of a batch: the model runs with the batch of the file."""


BATCH = "batch"
"""Name of the open first dimension."""

OPSET = 18
"""Reductions take axes as inputs, Mish exists and Resize is settled from here on."""

_MOST_ELEMENTS = 1 << 31
"""Elements of one activation."""

Attribute = int | float | str | Sequence[int]


class Draft(Constants):
    """A float graph that grows.

    Args:
        file: What is read.
        batch: Leave the first dimension of every activation open.

    Attributes:
        inputs: The graph's inputs.
        nodes: In topological order.
        shapes: The lengths that each activation has with the batch of the file, by value.
    """

    def __init__(self, file: TmFile, *, batch: bool) -> None:
        super().__init__(file)
        self.batch = batch
        self.inputs: list[ir.Value] = []
        self.nodes: list[ir.Node] = []
        self.shapes: dict[ir.Value, Shape] = {}
        self.node_names = Names()
        self._drawn: dict[int, ir.Value] = {}

    # ---- activations of the file -------------------------------------------------------------

    def activation(self, index: int) -> ir.Value:
        """Return the value of a tensor that is fed or computed.

        Raises:
            Unsupported: It is a constant, or not computed yet.
        """
        if index in self._drawn:
            return self._drawn[index]
        what = "is a constant" if self.tensor(index).data is not None else "is not computed yet"
        raise Unsupported(f"its input {self.name(index)!r} {what}")

    def shape(self, index: int) -> Shape:
        """Return the lengths of an activation."""
        return self.shapes[self.activation(index)]

    # ---- growing -----------------------------------------------------------------------------

    def add_input(self, index: int, shape: Shape) -> None:
        """Add an input of the graph.

        Raises:
            FixesBatch: Its first length is not 1.
        """
        self.mixes(shape[0] != 1)
        lengths: list[int | str] = [BATCH, *shape[1:]] if self.batch else list(shape)
        value = ir.Value(
            name=self.name(index),
            shape=ir.Shape(lengths),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        self.inputs.append(value)
        self._drawn[index] = value
        self.shapes[value] = shape

    def add(
        self,
        node: FileNode,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        shape: Shape,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        part: str = "",
        output: int | None = None,
    ) -> ir.Value:
        """Add a node with one output.

        Args:
            node: What it stands for, or a part of it.
            op_type: Of ONNX.
            inputs: What it reads.
            shape: Of its output.
            attributes: Of ONNX.
            part: Which part of the node; "" for the one that has its name.
            output: Which tensor it computes; None for one inside the node.
        """
        made = ir.node(op_type, inputs, attributes, num_outputs=1)
        value = made.outputs[0]
        own = self.name(node.outputs[0])
        value.name = (
            self.tensor_names.fresh(f"{own}/{part or op_type.lower()}")
            if output is None
            else self.name(output)
        )
        made.name = self.node_names.fresh(_called(node, own) + (f"/{part}" if part else ""))
        self._finish(made, [shape])
        if output is not None:
            self._drawn[output] = value
        return value

    def split(
        self, node: FileNode, value: ir.Value, axis: int, sizes: Sequence[int], shapes: list[Shape]
    ) -> None:
        """Add a Split whose outputs are those of a node."""
        made = ir.node(
            "Split", [value, self.integers(*sizes)], {"axis": axis}, num_outputs=len(sizes)
        )
        made.name = self.node_names.fresh(_called(node, self.name(node.outputs[0])))
        for index, each in zip(node.outputs, made.outputs, strict=True):
            each.name = self.name(index)
        self._finish(made, shapes)
        self._drawn.update(zip(node.outputs, made.outputs, strict=True))

    def reshaped(
        self,
        node: FileNode,
        value: ir.Value,
        shape: Shape,
        *,
        part: str = "",
        output: int | None = None,
    ) -> ir.Value:
        """Add a Reshape; a first dimension that is the batch stays open."""
        before = self.shapes[value]
        if math.prod(before) != math.prod(shape):
            raise Unsupported(f"{list(before)} cannot become {list(shape)}")
        self.mixes(shape[:1] != before[:1])
        wanted = (-1, *shape[1:]) if self.batch else shape
        target = self.integers(*wanted)
        return self.add(node, "Reshape", [value, target], shape, part=part, output=output)

    def mixes(self, does: bool) -> None:
        """Note that a node treats the samples of a batch together.

        Raises:
            FixesBatch: It does, and the batch was to be left open.
        """
        if does and self.batch:
            raise FixesBatch

    def _finish(self, made: ir.Node, shapes: Sequence[Shape]) -> None:
        for value, shape in zip(made.outputs, shapes, strict=True):
            if any(length < 1 for length in shape) or math.prod(shape) > _MOST_ELEMENTS:
                raise Unsupported(f"its output has the shape {list(shape)}")
            value.type = ir.TensorType(ir.DataType.FLOAT)
            self.shapes[value] = shape
        self.nodes.append(made)


def _called(node: FileNode, output: str) -> str:
    return node.name or output
