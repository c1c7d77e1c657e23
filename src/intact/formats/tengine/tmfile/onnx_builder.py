"""Builds the float ONNX graph of a ``.tmfile`` that is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import BATCH, Shape, refuse_mixed_batch, require_elements, slot
from intact.formats.tengine.tmfile.file import Element, FileNode, FileTensor, TmFile, mark_inside
from intact.graph.builder import Attribute, GraphBuilder, typed_value
from intact.graph.names import Names
from intact.program.handlers import NamedHandlers

Reader: TypeAlias = "Callable[[OnnxBuilder, FileNode], None]"
READERS: NamedHandlers[Reader] = NamedHandlers("intact reads no {} of Tengine")
"""Functions by the operator of Tengine whose nodes they add to a graph."""

Array = npt.NDArray[Any]

OPSET = 18
"""From here on reductions take axes as inputs, Mish exists and Resize does not change."""

_CODES = (Element.INT8, Element.UINT8, Element.INT32, Element.INT16)


class OnnxBuilder(GraphBuilder):
    """Adds nodes and constants that compute what a file does, under the file's names.

    Args:
        file: What is read.
        batch: Leave the first dimension of every activation open.

    Attributes:
        shapes: The lengths that each activation has with the batch of the file, by value.
    """

    def __init__(self, file: TmFile, *, batch: bool) -> None:
        super().__init__()
        self.file = file
        self.batch = batch
        self.shapes: dict[ir.Value, Shape] = {}
        # Files may leave names empty and repeat them.
        self._tensor_names = [
            self.names.fresh(each.name or f"tensor_{number}")
            for number, each in enumerate(file.tensors)
        ]
        self._node_names = Names()
        self._activations: dict[int, ir.Value] = {}
        self._stored: dict[tuple[int, Shape], ir.Value] = {}
        self._named: set[int] = set()

    # ---- tensors of the file -----------------------------------------------------------------

    def tensor(self, index: int) -> FileTensor:
        """Return a tensor of the file."""
        return self.file.tensors[index]

    def name(self, index: int) -> str:
        """Return the name that a tensor has in the graph."""
        return self._tensor_names[index]

    def activation(self, index: int) -> ir.Value:
        """Return the value of a tensor that is an input or computed.

        Raises:
            Unsupported: It is a constant, or not computed yet.
        """
        if index in self._activations:
            return self._activations[index]
        what = "is a constant" if self.is_constant(index) else "is not computed yet"
        raise Unsupported(f"its input {self.name(index)!r} {what}")

    def shape(self, index: int) -> Shape:
        """Return the lengths of an activation."""
        return self.shapes[self.activation(index)]

    def is_constant(self, index: int) -> bool:
        """Return whether a tensor is a constant."""
        return self.tensor(index).data is not None

    def numbers(self, index: int) -> Array:
        """Return a constant as float32; codes are dequantized.

        Raises:
            Unsupported: It is no constant, or has codes without scales.
        """
        tensor = self.tensor(index)
        if tensor.data is None:
            raise Unsupported(f"its input {self.name(index)!r} is no constant")
        if tensor.element not in _CODES:
            return np.asarray(tensor.data, np.float32)
        scales = tensor.quantization
        if scales is None:
            raise Unsupported(f"its constant {self.name(index)!r} has codes without scales")
        # Scales lie along the first axis, always.
        along = (-1, *(1,) * (len(tensor.shape) - 1)) if scales.scale.size > 1 else ()
        scale, zero_point = scales.scale.reshape(along), scales.zero_point.reshape(along)
        # In float64, so that only the result is rounded to float32.
        numbers = (tensor.data.astype(np.int64) - zero_point) * scale.astype(np.float64)
        return np.asarray(numbers, np.float32).reshape(tensor.shape)

    def store(self, index: int, shape: Shape | None = None) -> ir.Value:
        """Return a constant of the file as an initializer, in another shape if one is given.

        Raises:
            Unsupported: It is no constant, or has not as many elements as the shape.
        """
        numbers = self.numbers(index)
        if shape is not None and numbers.size != math.prod(shape):
            raise Unsupported(
                f"its constant {self.name(index)!r} has {numbers.size} elements, not {list(shape)}"
            )
        key = (index, numbers.shape if shape is None else shape)
        if key not in self._stored:
            name = self.name(index)
            if index in self._named:
                # The first form keeps the file's name, by which tables of scales find it.
                name = self.names.fresh(f"{name}/reshaped")
            self._named.add(index)
            self._stored[key] = self.constant(name, numbers.reshape(key[1]))
        return self._stored[key]

    # ---- inputs and nodes --------------------------------------------------------------------

    def feed(self, index: int, shape: Shape) -> None:
        """Add an input of the graph.

        Raises:
            FixesBatch: Its first length is not 1.
        """
        # A batch of several samples may be no batch at all: it stays as it is.
        refuse_mixed_batch(self, shape[0] != 1)
        value = typed_value(self.name(index), shape=[BATCH, *shape[1:]] if self.batch else shape)
        self.inputs.append(value)
        self._activations[index] = value
        self.shapes[value] = shape

    def compute(
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
            node: The node of the file that it stands for, or for a part of which.
            op_type: ONNX's name of it.
            inputs: What it reads.
            shape: Lengths of its output.
            attributes: Those of ONNX.
            part: Which part of the node; "" for the one that has its name.
            output: Which tensor it computes; None for one inside the node.

        Raises:
            Unsupported: The shape is empty or too large.
        """
        inside = f"{self.name(node.outputs[0])}/{part or op_type.lower()}"
        # Only what the file has as a tensor gets its name, by which tables of scales are matched.
        value = typed_value(self.names.fresh(inside) if output is None else self.name(output))
        made = self._compute(node, op_type, inputs, [(value, shape)], attributes, part)
        if output is None:
            mark_inside(made)
        else:
            self._activations[output] = value
        return value

    def split(
        self, node: FileNode, value: ir.Value, axis: int, sizes: Sequence[int], shapes: list[Shape]
    ) -> None:
        """Add a Split whose outputs are those of a node."""
        results = [typed_value(self.name(index)) for index in node.outputs]
        inputs = [value, self.integers(*sizes)]
        self._compute(node, "Split", inputs, zip(results, shapes, strict=True), {"axis": axis})
        self._activations.update(zip(node.outputs, results, strict=True))

    def reshape(
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
        refuse_mixed_batch(self, shape[:1] != before[:1])
        # The batch is the one length that is not known.
        wanted = (-1, *shape[1:]) if self.batch else shape
        target = self.integers(*wanted)
        return self.compute(node, "Reshape", [value, target], shape, part=part, output=output)

    def _compute(
        self,
        node: FileNode,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        results: Iterable[tuple[ir.Value, Shape]],
        attributes: Mapping[str, Attribute] | None = None,
        part: str = "",
    ) -> ir.Node:
        wanted = (node.name or self.name(node.outputs[0])) + (f"/{part}" if part else "")
        name = self._node_names.fresh(wanted)
        outputs = []
        for value, shape in results:
            # Of every result, before ONNX infers from it: shapes follow from numbers of a hostile
            # file.
            require_elements(shape)
            self.shapes[value] = shape
            outputs.append(value)
        return self.add(op_type, inputs, outputs, attributes, name=name)


def image(builder: OnnxBuilder, node: FileNode) -> tuple[ir.Value, Shape]:
    """Return the first input ``[N, C, H, W]`` and its lengths.

    Raises:
        Unsupported: It has another number of dimensions.
    """
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    if len(shape) != 4:
        raise Unsupported(f"its input has the shape {list(shape)}, not that of images")
    return value, shape
