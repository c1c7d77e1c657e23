"""Nodes, constants and names of the float graph, and notes of what is quantized where."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.formats.tflite.reading.parameters import Parameters

Array = npt.NDArray[Any]
Attribute = int | float | str | Sequence[int]

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
"""An operand, a value that needs no notes (an interior one, a list of integers), or nothing."""


class Canvas:
    """A graph that grows.

    Attributes:
        nodes: In topological order.
        constants: The initializers.
        reads: What nodes read, where notes are needed, by node and slot.
        writes: How outputs of nodes are quantized; an output that is not among them is float, or
            inside a chain of nodes whose last output is.
        opset: The version that the nodes need.
    """

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self.reads: dict[tuple[ir.Node, int], Operand] = {}
        self.writes: dict[ir.Value, Parameters] = {}
        self.opset = OPSET
        self._taken: dict[str, int] = {}
        self._small: dict[tuple[object, ...], ir.Value] = {}

    def fresh(self, wanted: str) -> str:
        """Return the wanted name of a value, with a number behind it where it is taken."""
        return fresh_name(wanted, self._taken)

    @property
    def taken(self) -> Collection[str]:
        """Names of values that are given to some."""
        return self._taken.keys()

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
        node = ir.node(op_type, values, attributes, num_outputs=count)
        self.nodes.append(node)
        for slot, each in enumerate(inputs):
            if isinstance(each, Operand):
                self.reads[node, slot] = each
        for value in node.outputs:
            value.type = ir.TensorType(ir.DataType.FLOAT)
        return tuple(node.outputs)

    def moved(
        self,
        op_type: str,
        inputs: Sequence[Input],
        attributes: Mapping[str, Attribute] | None,
        shape: tuple[int, ...],
    ) -> Operand:
        """Add a node that moves the codes of its first input, which keep their scale."""
        value = self.node(op_type, inputs, attributes)
        return self.passed_on(value, shape, inputs[0])

    def passed_on(self, value: ir.Value, shape: tuple[int, ...], source: Input) -> Operand:
        """Return an operand for a value on the grid of another one."""
        parameters = source.parameters if isinstance(source, Operand) else None
        if parameters is not None:
            self.writes[value] = parameters
        return Operand(value, shape, parameters)

    def initializer(self, name: str, array: Array) -> ir.Value:
        """Add a constant under a name that nothing else has."""
        tensor = ir.tensor(array)
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
        if numbers not in self._small:
            self._small[numbers] = self.initializer(
                self.fresh("sizes"), np.array(numbers, np.int64)
            )
        return self._small[numbers]

    def number(self, number: float) -> ir.Value:
        """Return a constant float32 scalar, shared by all that ask for the same."""
        key = ("float", float(number))
        if key not in self._small:
            self._small[key] = self.initializer(self.fresh("number"), np.array(number, np.float32))
        return self._small[key]

    def name_rest(self) -> None:
        """Name every node, and the values inside chains, after the value that a chain ends in."""
        ends: dict[ir.Node, str] = {}
        for node in reversed(self.nodes):
            named = next((value.name for value in node.outputs if value.name), None)
            if named is None:
                readers = [reader for reader, _ in node.outputs[0].uses() if reader in ends]
                named = ends[readers[0]] if readers else node.op_type.lower()
            ends[node] = named
        taken: dict[str, int] = {}
        for node in self.nodes:
            end, kind = ends[node], node.op_type.lower()
            node.name = fresh_name(end if end not in taken else f"{end}/{kind}", taken)
            for value in node.outputs:
                if not value.name:
                    value.name = self.fresh(f"{end}/{kind}")


def fresh_name(wanted: str, taken: dict[str, int]) -> str:
    """Return a name with a number behind it where it is taken, and take it.

    Args:
        wanted: The name.
        taken: The last number that was tried for each name; a hostile file calls all alike.

    >>> taken = {}
    >>> [fresh_name(name, taken) for name in ("a", "a", "a_3", "a")]
    ['a', 'a_2', 'a_3', 'a_4']
    """
    name, number = wanted, taken.get(wanted, 1)
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken[wanted] = number
    taken.setdefault(name, 1)
    return name
