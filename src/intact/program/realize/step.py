"""Gives a step that is realized its operands, with the axes wanted, and takes its results.

Transposes of the program move nothing here: each tensor remembers which of its axes lies where, and
a node is added only where an operation needs another order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.program.handlers import Handlers
from intact.program.program import Array, Encoding, Shape, Step, Tensor
from intact.program.realize.builder import IntegerBuilder
from intact.program.realize.graph import Op, Order, Value


@dataclass(frozen=True)
class ArrangedValue:
    """A tensor's value, and how its axes lie."""

    value: Value
    order: Order


class Tensors:
    """Where the program's tensors are."""

    def __init__(self) -> None:
        self.held: dict[str, ArrangedValue] = {}
        self._turned: dict[tuple[str, Order], Value] = {}

    def transpose(self, builder: IntegerBuilder, name: str, order: Order) -> Value:
        """Return a tensor's value with its axes in an order."""
        held = self.held[name]
        if held.order == order:
            return held.value
        # One transpose for all readers that want this order.
        key = (name, order)
        if key not in self._turned:
            permutation = tuple(held.order.index(axis) for axis in order)
            shape = tuple(held.value.shape[axis] for axis in permutation)
            self._turned[key] = builder.move(
                Op.TRANSPOSE, held.value, shape, permutation=permutation
            )
        return self._turned[key]


class StepBuilder:
    """One step of the program while it is realized: its inputs and results as values of the graph.

    Attributes:
        name: The name of the step.
        operation: What it computes.
        arithmetic: How the target computes it.
        inputs: Tensors of the program.
        outputs: Names of what it writes.
        builder: The graph.
    """

    def __init__(self, step: Step, builder: IntegerBuilder, tensors: Tensors) -> None:
        self.name, self.operation, self.arithmetic = step.name, step.operation, step.arithmetic
        self.inputs, self.outputs = step.inputs, step.outputs
        self.builder = builder
        self._tensors = tensors

    @property
    def output(self) -> Tensor:
        """The first result."""
        return self.outputs[0]

    def tensor(self, slot: int) -> Tensor:
        """Return an input that must be there."""
        found = self.inputs[slot] if slot < len(self.inputs) else None
        if found is None:
            raise Unsupported(f"input {slot} is missing", "give the node that input")
        return found

    def encoding(self, tensor: Tensor) -> Encoding:
        """Return the encoding of a tensor of codes with one scale.

        Raises:
            Unsupported: It is float, or has scales by channel.
        """
        if tensor.encoding is None:
            raise Unsupported(
                f"{tensor.name!r} is {tensor.dtype}", "quantize what makes and reads it"
            )
        if tensor.encoding.axis is not None:
            raise Unsupported(f"{tensor.name!r} has a scale for each channel", "use one scale")
        return tensor.encoding

    def order(self, slot: int) -> Order:
        """Return how the axes of an input lie; constants lie as they are stored."""
        tensor = self.tensor(slot)
        if tensor.is_constant:
            return plain(len(tensor.shape))
        return self._tensors.held[tensor.name].order

    def read(self, slot: int, order: Order | None = None) -> Value:
        """Return an input with its axes in an order; as it is stored where none is given."""
        tensor = self.tensor(slot)
        order = plain(self.rank(slot)) if order is None else order
        if tensor.data is not None:
            return self.builder.constant(tensor.data.transpose(order), "constant")
        return self._tensors.transpose(self.builder, tensor.name, order)

    def in_order(self, slot: int) -> Value:
        """Return an input whose elements lie in memory as they are stored.

        Its axes may lie otherwise, where all that change places are 1 long.
        """
        tensor = self.tensor(slot)
        if tensor.data is None:
            held = self._tensors.held[tensor.name]
            axes = zip(held.order, held.value.shape, strict=True)
            long = [axis for axis, length in axes if length != 1]
            # Axes 1 long take no room: wherever they stand, the elements follow each other alike.
            if long == sorted(long):
                return held.value
        return self.read(slot)

    def rank(self, slot: int) -> int:
        """Return how many axes an input has."""
        tensor = self.tensor(slot)
        if tensor.data is not None:
            return tensor.data.ndim
        return len(self._tensors.held[tensor.name].order)

    def shape(self, slot: int) -> Shape:
        """Return the shape of an input as it is stored."""
        tensor = self.tensor(slot)
        if tensor.data is not None:
            return tensor.data.shape
        held = self._tensors.held[tensor.name]
        return tuple(held.value.shape[held.order.index(axis)] for axis in range(len(held.order)))

    def set_result(self, value: Value, order: Order | None = None, slot: int = 0) -> None:
        """Set a result."""
        order = plain(len(value.shape)) if order is None else order
        self._tensors.held[self.outputs[slot].name] = ArrangedValue(value, order)


Realizer: TypeAlias = Callable[[StepBuilder], None]
"""Realizes one step, or raises `Unsupported`."""

REALIZERS: Handlers[Realizer] = Handlers("the form in integer operations has no {}")


def plain(rank: int) -> Order:
    """Return the order of axes as they are stored."""
    return tuple(range(rank))


def channels_first(rank: int) -> Order:
    """Return the order ``[N, C, *S]`` of data that is stored ``[N, *S, C]``.

    >>> channels_first(4)
    (0, 3, 1, 2)
    """
    return (0, rank - 1, *range(1, rank - 1))


def along(values: Array, axis: int, rank: int) -> Array:
    """Return values by channel so that they broadcast along an axis; one value as a scalar."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape([-1 if at == axis else 1 for at in range(rank)])


def open_product(shape: Shape) -> tuple[int, ...]:
    """Return a shape for a Reshape, with -1 for its open length.

    Raises:
        Unsupported: Several lengths are open.
    """
    # A Reshape infers one length, and no more.
    if sum(length is None for length in shape) > 1:
        raise Unsupported("several of its axes have open lengths", "fix all axes but the batch")
    return tuple(-1 if length is None else int(length) for length in shape)


def known(length: int | None) -> int:
    """Return a length that is known.

    Raises:
        Unsupported: It is open.
    """
    if length is None:
        raise Unsupported("the length of an axis is open", "fix all axes but the batch")
    return int(length)


def type_range(encoding: Encoding) -> tuple[int, int]:
    """The range of the type of codes; callers may feed codes beyond the encoding's range."""
    # Bounds that are too narrow would let a sum overflow in the type that is chosen by them.
    info = np.iinfo(encoding.dtype)
    return int(info.min), int(info.max)
