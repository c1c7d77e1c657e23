"""The float ONNX graph of a file under construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode, FileTensor, TmFile
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.names import Names

_CODES = (Element.INT8, Element.UINT8, Element.INT32, Element.INT16)

Array = npt.NDArray[Any]

Shape = tuple[int, ...]


class Constants:
    """The constants of a graph that grows, and the names of all tensors.

    Args:
        file: What is read.

    Attributes:
        constants: The initializers.
        tensor_names: Those that are taken.
    """

    def __init__(self, file: TmFile) -> None:
        self.file = file
        self.constants: list[ir.Value] = []
        self.tensor_names = Names()
        self._called = [
            self.tensor_names.fresh(each.name or f"tensor_{number}")
            for number, each in enumerate(file.tensors)
        ]
        self._small: dict[tuple[object, ...], ir.Value] = {}
        self._stored: dict[int, ir.Value] = {}

    def tensor(self, index: int) -> FileTensor:
        """Return a tensor."""
        return self.file.tensors[index]

    def name(self, index: int) -> str:
        """Return what a tensor is called in the graph."""
        return self._called[index]

    def is_constant(self, index: int) -> bool:
        """Tell whether a tensor is a constant."""
        return self.tensor(index).data is not None

    def numbers(self, index: int) -> Array:
        """Return a constant as float32; of codes, what they stand for.

        Raises:
            Unsupported: It is no constant, or codes without scales.
        """
        tensor = self.tensor(index)
        if tensor.data is None:
            raise Unsupported(f"its input {self.name(index)!r} is no constant")
        if tensor.element not in _CODES:
            return np.asarray(tensor.data, np.float32)
        scales = tensor.quantization
        if scales is None:
            raise Unsupported(f"its constant {self.name(index)!r} has codes without scales")
        along = (-1, *(1,) * (len(tensor.shape) - 1)) if scales.scale.size > 1 else ()
        scale, zero_point = scales.scale.reshape(along), scales.zero_point.reshape(along)
        numbers = (tensor.data.astype(np.int64) - zero_point) * scale.astype(np.float64)
        return np.asarray(numbers, np.float32).reshape(tensor.shape)

    def constant(self, index: int, shape: Shape | None = None) -> ir.Value:
        """Return a constant of the file as an initializer, perhaps in another shape.

        Raises:
            Unsupported: It is no constant, or has not as many elements as the shape.
        """
        numbers = self.numbers(index)
        if shape is not None and numbers.size != math.prod(shape):
            raise Unsupported(
                f"its constant {self.name(index)!r} has {numbers.size} elements, not {list(shape)}"
            )
        if shape is None or shape == numbers.shape:
            if index not in self._stored:
                self._stored[index] = self.initializer(self.name(index), numbers)
            return self._stored[index]
        key = ("reshaped", index, shape)
        if key not in self._small:
            name = self.name(index)
            if index in self._stored:
                name = self.tensor_names.fresh(f"{name}/reshaped")
            value = self.initializer(name, numbers.reshape(shape))
            self._stored.setdefault(index, value)
            self._small[key] = value
        return self._small[key]

    # ---- small ones ------------------------------------------------------------------------

    def initializer(self, name: str, array: Array) -> ir.Value:
        """Add a constant under a name that nothing else has."""
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.constants.append(value)
        return value

    def integers(self, *numbers: int) -> ir.Value:
        """Return a constant list of int64, shared by all that ask for the same."""
        return self._shared(("sizes", numbers), np.array(numbers, np.int64))

    def floats(self, *numbers: float) -> ir.Value:
        """Return a constant list of float32, shared by all that ask for the same."""
        return self._shared(("numbers", numbers), np.array(numbers, np.float32))

    def number(self, number: float) -> ir.Value:
        """Return a constant float32 scalar, shared by all that ask for the same."""
        return self._shared(("number", number), np.array(number, np.float32))

    def _shared(self, key: tuple[str, object], array: Array) -> ir.Value:
        if key not in self._small:
            self._small[key] = self.initializer(self.tensor_names.fresh(key[0]), array)
        return self._small[key]


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


Read = Callable[[Draft, FileNode], None]

"""Adds what stands for a node of the file."""


def slot(node: FileNode, number: int) -> int:
    """Return the tensor of an input.

    Raises:
        Unsupported: The node has fewer inputs.
    """
    if number >= len(node.inputs):
        raise Unsupported(f"it has {len(node.inputs)} inputs")
    return node.inputs[number]


def axis_in(axis: int, rank: int) -> int:
    """Return an axis counted from the start.

    Raises:
        Unsupported: There is no such axis.
    """
    if not -rank <= axis < rank:
        raise Unsupported(f"it has no axis {axis} of {rank}")
    return axis % rank


def image(draft: Draft, node: FileNode) -> tuple[ir.Value, Shape]:
    """Return the first input, which must be images, and its lengths.

    Raises:
        Unsupported: It has no four dimensions.
    """
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    if len(shape) != 4:
        raise Unsupported(f"its input has the shape {list(shape)}, not that of images")
    return value, shape
