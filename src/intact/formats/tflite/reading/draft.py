"""Activations of the file in the graph that is made: their layouts, and the graph's ports.

TFLite keeps channels last; the float graph has them first wherever an operator is spatial. A
tensor exists in the layouts that were asked for, and the other one is made when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from intact.formats.tflite.reading.canvas import Operand
from intact.formats.tflite.reading.file import TfliteFile
from intact.formats.tflite.reading.layouts import Drawn, Layout, arranged, channels_first, inverse
from intact.formats.tflite.reading.parameters import Unreadable
from intact.formats.tflite.reading.schema import Element
from intact.formats.tflite.reading.tensors import Tensors

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
        Unreadable: An input of the graph is of a kind that is not read.
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
            Unreadable: It is not computed yet.
        """
        index = self.alias.get(index, index)
        if index in self.drawn:
            drawn = self.drawn[index]
            value = self._in_layout(drawn, layout)
            return Operand(value, arranged(drawn.tensor.shape, layout), drawn.parameters)
        if self.is_constant(index):
            return self.constant(index, layout)
        raise Unreadable(f"tensor {self.tensor(index).name!r} is read before it is computed")

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
