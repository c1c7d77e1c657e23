"""Activations of the file in the graph that is made: their layouts, and the graph's ports.

TFLite keeps channels last; the float graph has them first wherever an operator is spatial. A
tensor exists in the layouts that were asked for, and the other one is made when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tflite.reading.canvas import Array, Canvas, Operand
from intact.formats.tflite.reading.file import FileTensor, TfliteFile
from intact.formats.tflite.reading.layouts import Drawn, Layout, arranged, channels_first, inverse
from intact.formats.tflite.reading.parameters import Parameters, constant_of, parameters_of
from intact.formats.tflite.reading.schema import Element

_COPIES = 4

"""Elements that are made for each byte of the file, at most: tensors may share their data."""

_SLACK = 1 << 20

_MOST_INTEGERS = 1 << 16

_FLOATS_AND_INDICES = frozenset({Element.FLOAT32, Element.FLOAT16, Element.INT32, Element.INT64})


class Tensors(Canvas):
    """A canvas that knows the tensors of a file.

    Args:
        file: What is read.
        alias: Tensors that are one with another, whose name they share.

    Attributes:
        known: Integers that follow from shapes, and constants that were dequantized, by number.
    """

    def __init__(self, file: TfliteFile, alias: Mapping[int, int]) -> None:
        super().__init__()
        self.file, self.alias = file, alias
        self.known: dict[int, Array] = {}
        self._constants: dict[tuple[object, ...], Operand] = {}
        self._elements = _COPIES * file.size + _SLACK
        self._names = self._named()
        self._unclaimed = set(self._names)

    def tensor(self, index: int) -> FileTensor:
        """Return a tensor that can be used.

        Raises:
            Unsupported: It is absent, or of a shape or kind that is not read.
        """
        if index < 0:
            raise Unsupported("an input that it needs is absent")
        tensor = self.file.tensors[index]
        if tensor.odd:
            raise Unsupported(f"tensor {tensor.name!r}: {tensor.odd}")
        return tensor

    def is_constant(self, index: int) -> bool:
        """Tell whether a tensor is stored in the file, or follows from shapes."""
        return index in self.known or self.tensor(index).data is not None

    def array(self, index: int) -> Array:
        """Return the numbers or codes of a constant.

        Raises:
            Unsupported: It is computed, or its data does not fit its shape.
        """
        if not self.is_constant(index):
            raise Unsupported(f"its input {self.tensor(index).name!r} is computed")
        return self.known[index] if index in self.known else constant_of(self.tensor(index))

    def list_of(self, index: int) -> tuple[int, ...]:
        """Return a constant list of integers: axes, sizes, pads.

        Raises:
            Unsupported: It is computed, or no list of integers.
        """
        array = self.array(index)
        if array.dtype.kind != "i" or array.size > _MOST_INTEGERS:
            raise Unsupported(f"its input {self.tensor(index).name!r} is no list of integers")
        self.charge(array.size)
        return tuple(int(number) for number in array.reshape(-1))

    def charge(self, elements: int) -> None:
        """Count elements of constants that are made.

        Raises:
            Unsupported: They are more than the file can mean.
        """
        self._elements -= elements
        if self._elements < 0:
            raise Unsupported("its constants share their data too often")

    def parameters(self, index: int) -> Parameters | None:
        """Return how an operand of activations is quantized; None for floats and indices.

        Raises:
            Unsupported: It is of a type that activations do not have here.
        """
        tensor = self.tensor(index)
        if tensor.element in _FLOATS_AND_INDICES:
            return None
        if tensor.element not in (Element.INT8, Element.UINT8):
            raise Unsupported(f"tensor {tensor.name!r} is {tensor.element.name.lower()}")
        found = parameters_of(tensor)
        if found is None:
            raise Unsupported(f"tensor {tensor.name!r} has integers without a scale")
        return found

    def constant(
        self, index: int, layout: Layout = Layout.FILE, rank: int | None = None
    ) -> Operand:
        """Return a stored operand of activations, with ones before its lengths up to a rank."""
        tensor, parameters = self.tensor(index), self.parameters(index)
        wanted = max(tensor.rank, rank or 0)
        ahead = (1,) * (wanted - tensor.rank)
        order = arranged(range(wanted), layout)
        if parameters is not None and parameters.axis is not None:
            parameters = parameters.along(order.index(parameters.axis + len(ahead)))
        return self.rearranged(
            index,
            (order, "operand"),
            lambda array: array.reshape((*ahead, *array.shape)).transpose(order),
            parameters,
        )

    def rearranged(
        self,
        index: int,
        form: tuple[object, ...],
        arrange: Callable[[Array], Array],
        parameters: Parameters | None,
    ) -> Operand:
        """Return a constant whose array was rearranged; those who ask for one form share it.

        Raises:
            Unsupported: See `charge`.
        """
        if (index, form) not in self._constants:
            array = np.asarray(arrange(self.array(index)), order="C")
            self.charge(array.size)
            numbers = array if parameters is None else parameters.numbers(array)
            if numbers.dtype == np.float16:
                numbers = numbers.astype(np.float32)
            value = self.initializer(self.claim(index), numbers)
            codes = None if parameters is None else array
            operand = Operand(value, array.shape, parameters, codes)
            self._constants[index, form] = operand
        return self._constants[index, form]

    def claim(self, index: int) -> str:
        """Return the name of a tensor, which is free once; later ones get a number."""
        if index in self._unclaimed:
            self._unclaimed.discard(index)
            return self._names[index]
        return self.fresh(self._names[index])

    def _named(self) -> dict[int, str]:
        """Return a name for each tensor: ports first, the second of two equal ones a number.

        Ports are called as in the file's signature, where it has one.
        """
        file = self.file
        twin = {source: port for port, source in self.alias.items()}
        signed: dict[int, str] = {}
        for name, index in (*file.signature.inputs.items(), *file.signature.outputs.items()):
            signed.setdefault(index, name)
        names: dict[int, str] = {}
        for index in dict.fromkeys((*file.inputs, *file.outputs, *range(len(file.tensors)))):
            owner = self.alias.get(index, index)
            if owner not in names:
                port = twin.get(owner, owner)
                called = signed.get(port) or file.tensors[port].name
                names[owner] = self.fresh(called or f"tensor_{owner}")
        return names


BATCH = "batch"

"""Name of the open first dimension."""

DATA_TYPES: Mapping[Element, ir.DataType] = {
    Element.FLOAT32: ir.DataType.FLOAT,
    Element.INT8: ir.DataType.FLOAT,
    Element.UINT8: ir.DataType.FLOAT,
    Element.INT32: ir.DataType.INT32,
    Element.INT64: ir.DataType.INT64,
}

"""Types of activations that are read, and what they are in the float graph."""


class FixesBatch(Exception):  # noqa: N818 - an answer
    """An operator mixes the samples of a batch: the model runs with the batch of the file."""


class Draft(Tensors):
    """A float graph that grows operator by operator.

    Args:
        file: What is read.
        batch: Leave the first dimension of every activation open.
        alias: Tensors that are one with another, whose name they share.

    Attributes:
        drawn: The activations that exist so far, by number.
        inputs: The graph's inputs.
        shapes: The lengths that the file has for a value.

    Raises:
        Unsupported: An input of the graph is of a kind that is not read.
        FixesBatch: An input has no batch of one.
    """

    def __init__(self, file: TfliteFile, *, batch: bool, alias: Mapping[int, int]) -> None:
        super().__init__(file, alias)
        self.batch = batch
        self.drawn: dict[int, Drawn] = {}
        self.inputs: list[ir.Value] = []
        self.shapes: dict[ir.Value, tuple[int, ...]] = {}
        self._outputs = {alias.get(index, index) for index in file.outputs}
        for index in file.inputs:
            self._add_input(index)

    # ---- tensors -----------------------------------------------------------------------------

    def operand(self, index: int, layout: Layout = Layout.FILE) -> Operand:
        """Return a tensor, activation or constant, in a layout.

        Raises:
            Unsupported: It is not computed yet.
        """
        index = self.alias.get(index, index)
        if index in self.drawn:
            drawn = self.drawn[index]
            value = self._in_layout(drawn, layout)
            return Operand(value, arranged(drawn.tensor.shape, layout), drawn.parameters)
        if self.is_constant(index):
            return self.constant(index, layout)
        raise Unsupported(f"tensor {self.tensor(index).name!r} is read before it is computed")

    def in_file_order(self, index: int) -> Operand:
        """Return a tensor with its elements in the order of the file, whatever its axes are."""
        drawn = self.drawn.get(self.alias.get(index, index))
        is_first = drawn is not None and drawn.is_flat and Layout.FILE not in drawn.values
        return self.operand(index, Layout.FIRST if is_first else Layout.FILE)

    # ---- layouts -----------------------------------------------------------------------------

    def layout_of(self, *indices: int) -> Layout:
        """Return the layout in which some activations of one rank need the fewest Transposes."""
        drawn = [self.drawn[i] for i in (self.alias.get(i, i) for i in indices) if i in self.drawn]
        if not drawn or len({each.tensor.rank for each in drawn}) > 1:
            return Layout.FILE
        rank = drawn[0].tensor.rank
        if rank <= 2:
            return Layout.FILE
        costs = {layout: sum(not each.has(layout) for each in drawn) for layout in Layout}
        if costs[Layout.FILE] == costs[Layout.FIRST]:
            mixed = costs[Layout.FILE] > 0
            return Layout.FIRST if rank == 4 or mixed else Layout.FILE
        return min(costs, key=lambda layout: costs[layout])

    def _in_layout(self, drawn: Drawn, layout: Layout) -> ir.Value:
        if drawn.tensor.rank <= 2:
            layout = Layout.FILE
        if layout in drawn.values:
            return drawn.values[layout]
        if layout in drawn.sources:
            value = drawn.sources[layout]()
        else:
            other = Layout.FIRST if layout is Layout.FILE else Layout.FILE
            shape = arranged(drawn.tensor.shape, other)
            source = Operand(self._in_layout(drawn, other), shape, drawn.parameters)
            value = self._relaid(drawn, source, layout)
        self._register(drawn, layout, value)
        return value

    def _relaid(self, drawn: Drawn, source: Operand, layout: Layout) -> ir.Value:
        order = channels_first(drawn.tensor.rank)
        order = order if layout is Layout.FIRST else inverse(order)
        return self.moved("Transpose", [source], {"perm": order}, ()).value

    def reshaped(self, source: Operand, shape: tuple[int, ...]) -> Operand:
        """Return an operand in another shape; a first dimension that is the batch stays open."""
        wanted = (-1, *shape[1:]) if self.batch else shape
        return self.moved("Reshape", [source, self.integers(*wanted)], None, shape)

    # ---- writing -----------------------------------------------------------------------------

    def write(self, index: int, value: ir.Value, layout: Layout = Layout.FILE) -> None:
        """Let a value be a tensor of the file, in a layout."""
        drawn = self._new(index)
        self._register(drawn, Layout.FILE if drawn.tensor.rank <= 2 else layout, value)

    def offer(self, index: int, sources: dict[Layout, Callable[[], ir.Value]]) -> None:
        """Let a tensor be made in the layouts that are asked for."""
        self._new(index).sources.update(sources)

    def stand_for(self, index: int, other: int) -> None:
        """Let a tensor be the values of another one, with a scale of its own."""
        values = dict(self.drawn[other].values)
        self.drawn[index] = Drawn(self.tensor(index), self.parameters(index), values)

    def is_output(self, index: int) -> bool:
        """Tell whether a tensor is handed out by the graph."""
        return self.alias.get(index, index) in self._outputs

    def _new(self, index: int) -> Drawn:
        tensor = self.tensor(index)
        if self.batch and tensor.shape[:1] != (1,):
            raise FixesBatch
        drawn = Drawn(tensor, self.parameters(index))
        self.drawn[index] = drawn
        return drawn

    def _register(self, drawn: Drawn, layout: Layout, value: ir.Value) -> None:
        index = drawn.tensor.index
        if value.name is None:
            is_port = self.is_output(index) and layout is Layout.FIRST
            first = not drawn.values and not is_port
            name = self.claim(index) if first or layout is Layout.FILE else ""
            value.name = name or self.fresh(f"{self._names[index]}/{layout.value}")
        drawn.values[layout] = value
        value.type = ir.TensorType(DATA_TYPES.get(drawn.tensor.element, ir.DataType.FLOAT))
        self.shapes[value] = arranged(drawn.tensor.shape, layout)
        if drawn.parameters is not None and value.producer() is not None:
            self.writes[value] = drawn.parameters

    # ---- names and ports ---------------------------------------------------------------------

    def _add_input(self, index: int) -> None:
        tensor = self.tensor(index)
        parameters = self.parameters(index)
        shape: list[int | str] = list(tensor.shape)
        if self.batch:
            if tensor.shape[:1] != (1,):
                raise FixesBatch
            shape[0] = BATCH
        value = ir.Value(
            name=self.claim(index),
            shape=ir.Shape(shape),
            type=ir.TensorType(DATA_TYPES.get(tensor.element, ir.DataType.FLOAT)),
        )
        self.inputs.append(value)
        self.drawn[index] = Drawn(tensor, parameters, {Layout.FILE: value})
        self.shapes[value] = tensor.shape
