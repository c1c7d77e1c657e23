"""Keeps the tensors of a ``.tflite`` as values of the float graph, in one or two layouts.

TFLite keeps channels last; the float graph has them first wherever an operator is spatial. A
tensor exists in the layouts that its readers need; the other one is made on demand.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tflite.reader.file import (
    FileTensor,
    Parameters,
    TfliteFile,
    constant_of,
    parameters_of,
)
from intact.formats.tflite.reader.schema import Element
from intact.graph.builder import Attribute, GraphBuilder, typed_value
from intact.graph.names import Names

Array = npt.NDArray[Any]


OPSET = 18
"""Reductions take axes as inputs and Resize names its axes from here on."""


@dataclass(frozen=True, eq=False)
class Operand:
    """What a node reads.

    Attributes:
        value: The value of the graph.
        shape: Its lengths in the file, in the order of its axes here.
        parameters: How it is quantized; None for floats and for indices.
        codes: The integers of a constant.
    """

    value: ir.Value
    shape: tuple[int, ...]
    parameters: Parameters | None = None
    codes: Array | None = None


Input = Operand | ir.Value | None
"""An operand, a value without parameters (inside a chain, a list of integers), or nothing."""


class ChannelLayout(enum.Enum):
    """Where the channels of a tensor of three or more dimensions lie; others have one layout."""

    FILE = "channels_last"
    FIRST = "channels_first"


def channels_first(rank: int) -> tuple[int, ...]:
    """Return the permutation that moves the last axis behind the first."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else tuple(range(rank))


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes one."""
    return tuple(int(axis) for axis in np.argsort(permutation))


def arranged(items: Sequence[int], layout: ChannelLayout) -> tuple[int, ...]:
    """Reorder items of the file's axes to the order of a layout's axes."""
    order = channels_first(len(items)) if layout is ChannelLayout.FIRST else range(len(items))
    return tuple(items[axis] for axis in order)


@dataclass(eq=False)
class Activation:
    """An activation of the file in the graph.

    Attributes:
        values: What exists, by layout.
        sources: How to make a layout without a Transpose.
    """

    tensor: FileTensor
    parameters: Parameters | None
    values: dict[ChannelLayout, ir.Value] = field(default_factory=dict)
    sources: dict[ChannelLayout, Callable[[], ir.Value]] = field(default_factory=dict)

    @property
    def is_flat(self) -> bool:
        """Whether both layouts have their elements in the same order."""
        return self.tensor.rank <= 2 or all(length == 1 for length in self.tensor.shape[1:-1])

    def has(self, layout: ChannelLayout) -> bool:
        """Tell whether a layout costs no Transpose."""
        return self.is_flat or layout in self.values or layout in self.sources


class NodeBuilder:
    """The float graph under construction, with the parameters of what its nodes read and write.

    Attributes:
        graph: The nodes, constants and names.
        reads: Operands of nodes, where parameters matter, by node and slot.
        writes: How outputs of nodes are quantized. An output that is missing here is float, or
            inside a chain of nodes whose last output is quantized.
        opset: The version that the nodes need.
    """

    def __init__(self, names: Names | None = None) -> None:
        self.graph = GraphBuilder(names)
        self.reads: dict[tuple[ir.Node, int], Operand] = {}
        self.writes: dict[ir.Value, Parameters] = {}
        self.opset = OPSET

    def node(
        self,
        op_type: str,
        inputs: Sequence[Input],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> ir.Value:
        """Add a node with one output, and return that without a name."""
        return self.split(op_type, inputs, attributes, 1)[0]

    def split(
        self,
        op_type: str,
        inputs: Sequence[Input],
        attributes: Mapping[str, Attribute] | None,
        count: int,
    ) -> tuple[ir.Value, ...]:
        """Add a node with several outputs."""
        values = [each.value if isinstance(each, Operand) else each for each in inputs]
        # Without names: which of them is the file's tensor is known once it is written.
        outputs = tuple(typed_value(None) for _ in range(count))
        node = self.graph.add(op_type, values, outputs, attributes)
        for slot, each in enumerate(inputs):
            if isinstance(each, Operand):
                self.reads[node, slot] = each
        return outputs

    def moved(
        self,
        op_type: str,
        inputs: Sequence[Input],
        attributes: Mapping[str, Attribute] | None,
        shape: tuple[int, ...],
    ) -> Operand:
        """Add a node that moves the codes of its first input, which keep their scale."""
        value = self.node(op_type, inputs, attributes)
        return self.on_grid_of(inputs[0], value, shape)

    def copied(self, operand: Operand) -> Operand:
        """Return an operand under another name."""
        return self.moved("Identity", [operand], None, operand.shape)

    def on_grid_of(self, source: Input, value: ir.Value, shape: tuple[int, ...]) -> Operand:
        """Make an operand of a value that has the parameters of another one."""
        parameters = source.parameters if isinstance(source, Operand) else None
        if parameters is not None:
            self.writes[value] = parameters
        return Operand(value, shape, parameters)

    def integers(self, *numbers: int) -> ir.Value:
        """Return a constant list of int64, shared by all callers with these numbers."""
        return self.graph.integers(*numbers)

    def number(self, number: float) -> ir.Value:
        """Return a constant float32 scalar, shared by all callers with this number."""
        return self.graph.number(number)

    def name_rest(self) -> None:
        """Name every node, and the values inside chains, after the value that a chain ends in."""
        # Backwards, so that the end of a chain is named before what leads to it.
        ends: dict[ir.Node, str] = {}
        for node in reversed(self.graph.nodes):
            named = next((value.name for value in node.outputs if value.name), None)
            if named is None:
                readers = [reader for reader, _ in node.outputs[0].uses() if reader in ends]
                named = ends[readers[0]] if readers else node.op_type.lower()
            ends[node] = named
        names = Names()
        for node in self.graph.nodes:
            end, kind = ends[node], node.op_type.lower()
            node.name = names.fresh(f"{end}/{kind}" if end in names else end)
            for value in node.outputs:
                if not value.name:
                    value.name = self.graph.names.fresh(f"{end}/{kind}")


_COPIES = 4
"""Elements that are made for each byte of the file, at most: tensors may share their data."""

_SLACK = 1 << 20

_MOST_INTEGERS = 1 << 16

_UNQUANTIZED = frozenset(
    {Element.FLOAT32, Element.FLOAT16, Element.INT32, Element.INT64, Element.BOOL}
)


class TensorBuilder(NodeBuilder):
    """A graph under construction whose constants are tensors of a file.

    Args:
        file: What is read.
        alias: Tensors that are one with another, whose name they share.
        around: What the graph is a body in, if it is one.

    Attributes:
        known: Integers that follow from shapes, and constants that were dequantized, by number.
    """

    def __init__(
        self, file: TfliteFile, alias: Mapping[int, int], around: TensorBuilder | None = None
    ) -> None:
        super().__init__(around.graph.names if around else None)
        self._around = around
        self.file, self.alias = file, alias
        self.known: dict[int, Array] = {}
        self._constants: dict[tuple[object, ...], Operand] = {}
        # In proportion to the file: an honest one has each weight once, perhaps in two layouts and
        # as floats.
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
        if self._around is not None:
            self._around.charge(elements)
            return
        self._elements -= elements
        if self._elements < 0:
            raise Unsupported("its constants share their data too often")

    def parameters(self, index: int) -> Parameters | None:
        """Return how an operand of activations is quantized; None for floats and indices.

        Raises:
            Unsupported: It is of a type that activations do not have here.
        """
        tensor = self.tensor(index)
        if tensor.element in _UNQUANTIZED:
            return None
        if tensor.element not in (Element.INT8, Element.UINT8, Element.INT16):
            raise Unsupported(f"tensor {tensor.name!r} is {tensor.element.name.lower()}")
        found = parameters_of(tensor)
        if found is None:
            raise Unsupported(f"tensor {tensor.name!r} has integers without a scale")
        # LiteRT's int16 kernels take no zero point off.
        if tensor.element is Element.INT16 and found.zero_point.any():
            raise Unsupported(f"tensor {tensor.name!r} is int16 with a zero point")
        return found

    def constant(
        self, index: int, layout: ChannelLayout = ChannelLayout.FILE, rank: int | None = None
    ) -> Operand:
        """Return a stored operand of activations, with ones before its lengths up to a rank."""
        tensor, parameters = self.tensor(index), self.parameters(index)
        # ONNX broadcasts from the right, so that channels of fewer axes would meet rows once they
        # lie first.
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
            # Counted before the numbers are made, which take four times as much as codes.
            self.charge(array.size)
            numbers = array if parameters is None else parameters.numbers(array)
            # The float graph is one of float32 throughout.
            if numbers.dtype == np.float16:
                numbers = numbers.astype(np.float32)
            value = self.graph.constant(self.claim(index), numbers)
            codes = None if parameters is None else array
            operand = Operand(value, array.shape, parameters, codes)
            self._constants[index, form] = operand
        return self._constants[index, form]

    def claim(self, index: int) -> str:
        """Return the name of a tensor, which is free once; later ones get a number."""
        if index in self._unclaimed:
            self._unclaimed.discard(index)
            return self._names[index]
        return self.graph.names.fresh(self._names[index])

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
        # Ports first, because callers know their names; of inner tensors nobody needs the exact
        # one.
        for index in dict.fromkeys((*file.inputs, *file.outputs, *range(len(file.tensors)))):
            owner = self.alias.get(index, index)
            if owner not in names:
                port = twin.get(owner, owner)
                called = signed.get(port) or file.tensors[port].name
                names[owner] = self.graph.names.fresh(called or f"tensor_{owner}")
        return names
