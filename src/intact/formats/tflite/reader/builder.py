"""Builds the float model of a ``.tflite`` that is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import BATCH, refuse_mixed_batch
from intact.formats.tflite.reader.file import TfliteFile
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.reader.tensors import (
    Activation,
    ChannelLayout,
    Operand,
    TensorBuilder,
    arranged,
    channels_first,
    inverse,
)
from intact.graph.builder import typed_value
from intact.ops.operators import Reshape, Transpose

DATA_TYPES: Mapping[Element, ir.DataType] = {
    Element.FLOAT32: ir.DataType.FLOAT,
    Element.INT8: ir.DataType.FLOAT,
    Element.UINT8: ir.DataType.FLOAT,
    Element.INT16: ir.DataType.FLOAT,
    Element.INT32: ir.DataType.INT32,
    Element.INT64: ir.DataType.INT64,
    Element.BOOL: ir.DataType.BOOL,
}
"""Types of activations that are read, and what they are in the float graph."""


class ModelBuilder(TensorBuilder):
    """The float model of a file, which grows operator by operator.

    Args:
        file: What is read.
        batch: Leave the first dimension of every activation open.
        alias: Tensors that are one with another, whose name they share.
        around: What the graph is a body in, if it is one.

    Attributes:
        activations: The activations that exist so far, by number.
        shapes: The lengths that the file has for a value.

    Raises:
        Unsupported: An input of the graph is of a kind that is not read.
        FixesBatch: An input has no batch of one.
    """

    def __init__(
        self,
        file: TfliteFile,
        *,
        batch: bool,
        alias: Mapping[int, int],
        around: ModelBuilder | None = None,
    ) -> None:
        super().__init__(file, alias, around)
        self.batch = batch
        self.activations: dict[int, Activation] = {}
        self.shapes: dict[ir.Value, tuple[int, ...]] = {}
        self._outputs = {alias.get(index, index) for index in file.outputs}
        for index in file.inputs:
            self._add_input(index)

    # ---- tensors -----------------------------------------------------------------------------

    def activation(self, index: int) -> Activation | None:
        """Return the activation that a tensor is, if there is one yet."""
        return self.activations.get(self.alias.get(index, index))

    def operand(self, index: int, layout: ChannelLayout = ChannelLayout.FILE) -> Operand:
        """Return a tensor, activation or constant, in a layout.

        Raises:
            Unsupported: It is not computed yet.
        """
        activation = self.activation(index)
        if activation is not None:
            value = self._in_layout(activation, layout)
            return Operand(value, arranged(activation.tensor.shape, layout), activation.parameters)
        index = self.alias.get(index, index)
        if self.is_constant(index):
            return self.constant(index, layout)
        raise Unsupported(f"tensor {self.tensor(index).name!r} is read before it is computed")

    def in_file_order(self, index: int) -> Operand:
        """Return a tensor with its elements in the order of the file, whatever its axes are."""
        activation = self.activation(index)
        is_first = (
            activation is not None
            and activation.is_flat
            and ChannelLayout.FILE not in activation.values
        )
        return self.operand(index, ChannelLayout.FIRST if is_first else ChannelLayout.FILE)

    # ---- layouts -----------------------------------------------------------------------------

    def layout_of(self, *indices: int) -> ChannelLayout:
        """Return the layout in which some activations of one rank need the fewest Transposes."""
        found = [each for each in map(self.activation, indices) if each is not None]
        if not found or len({each.tensor.rank for each in found}) > 1:
            return ChannelLayout.FILE
        rank = found[0].tensor.rank
        if rank <= 2:
            return ChannelLayout.FILE
        # Counted in Transposes: each costs a pass over its tensor and hides a fusion from those who
        # look for one.
        costs = {layout: sum(not each.has(layout) for each in found) for layout in ChannelLayout}
        if costs[ChannelLayout.FILE] == costs[ChannelLayout.FIRST]:
            # Equally cheap: images go on with channels first, as spatial operators will read them.
            mixed = costs[ChannelLayout.FILE] > 0
            return ChannelLayout.FIRST if rank == 4 or mixed else ChannelLayout.FILE
        return min(costs, key=lambda layout: costs[layout])

    def _in_layout(self, activation: Activation, layout: ChannelLayout) -> ir.Value:
        if activation.tensor.rank <= 2:
            layout = ChannelLayout.FILE
        if layout in activation.values:
            return activation.values[layout]
        # A reshape in the wanted layout spares the Transpose behind it.
        if layout in activation.sources:
            value = activation.sources[layout]()
        else:
            other = ChannelLayout.FIRST if layout is ChannelLayout.FILE else ChannelLayout.FILE
            shape = arranged(activation.tensor.shape, other)
            source = Operand(self._in_layout(activation, other), shape, activation.parameters)
            value = self._relaid(activation, source, layout)
        self._register(activation, layout, value)
        return value

    def _relaid(self, activation: Activation, source: Operand, layout: ChannelLayout) -> ir.Value:
        order = channels_first(activation.tensor.rank)
        order = order if layout is ChannelLayout.FIRST else inverse(order)
        return self.moved(Transpose, [source], {"perm": order}, ()).value

    def reshaped(self, source: Operand, shape: tuple[int, ...]) -> Operand:
        """Return an operand in another shape; a first dimension that is the batch stays open."""
        wanted = (-1, *shape[1:]) if self.batch else shape
        return self.moved(Reshape, [source, self.integers(*wanted)], None, shape)

    # ---- writing -----------------------------------------------------------------------------

    def write(
        self, index: int, value: ir.Value, layout: ChannelLayout = ChannelLayout.FILE
    ) -> None:
        """Make a value a tensor of the file, in a layout."""
        activation = self._new(index)
        self._register(
            activation, ChannelLayout.FILE if activation.tensor.rank <= 2 else layout, value
        )

    def offer(self, index: int, sources: dict[ChannelLayout, Callable[[], ir.Value]]) -> None:
        """Register how to make a tensor in each layout, once it is needed."""
        self._new(index).sources.update(sources)

    def stand_for(self, index: int, other: int) -> None:
        """Give a tensor the values of another one, with a scale of its own."""
        # A copy: layouts that one of them gets later belong to its own scale.
        values = dict(self.activations[other].values)
        self.activations[index] = Activation(self.tensor(index), self.parameters(index), values)

    def is_output(self, index: int) -> bool:
        """Whether a tensor is an output of the graph."""
        return self.alias.get(index, index) in self._outputs

    def _new(self, index: int) -> Activation:
        tensor = self.tensor(index)
        refuse_mixed_batch(self, tensor.shape[:1] != (1,))
        activation = Activation(tensor, self.parameters(index))
        self.activations[index] = activation
        return activation

    def _register(self, activation: Activation, layout: ChannelLayout, value: ir.Value) -> None:
        index = activation.tensor.index
        if value.name is None:
            is_port = self.is_output(index) and layout is ChannelLayout.FIRST
            first = not activation.values and not is_port
            # The name is that of the layout in the file, which callers see; an output waits for it.
            name = self.claim(index) if first or layout is ChannelLayout.FILE else ""
            value.name = name or self.graph.names.fresh(f"{self._names[index]}/{layout.value}")
        activation.values[layout] = value
        value.type = ir.TensorType(DATA_TYPES.get(activation.tensor.element, ir.DataType.FLOAT))
        self.shapes[value] = arranged(activation.tensor.shape, layout)
        # Inputs of the graph are quantized where they are read, as they have no node.
        if activation.parameters is not None and value.producer() is not None:
            self.writes[value] = activation.parameters

    # ---- names and ports ---------------------------------------------------------------------

    def _add_input(self, index: int) -> None:
        tensor = self.tensor(index)
        parameters = self.parameters(index)
        shape: list[int | str] = list(tensor.shape)
        if self.batch:
            refuse_mixed_batch(self, tensor.shape[:1] != (1,))
            shape[0] = BATCH
        dtype = DATA_TYPES.get(tensor.element, ir.DataType.FLOAT)
        value = typed_value(self.claim(index), dtype, shape)
        self.graph.inputs.append(value)
        self.activations[index] = Activation(tensor, parameters, {ChannelLayout.FILE: value})
        self.shapes[value] = tensor.shape
