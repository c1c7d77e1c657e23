"""Declares graphs of integer operations: few, plain, the same for every format."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from intact.program.program import Array, Shape, Tensor

Order: TypeAlias = tuple[int, ...]
"""Axis ``k`` of a value is axis ``order[k]`` of the program's tensor that it holds."""


class Op(enum.StrEnum):
    """What a node computes. Operands of elementwise ones have one type and broadcast."""

    CAST = "cast"
    """To the output's type, which holds every value there can be; conditions become 0 and 1."""
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    FLOOR_DIV = "floor_div"
    """``floor(a / b)``; ``b`` is positive: a shift to the right where it is a power of two."""
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    CLIP = "clip"
    """Options ``low`` and ``high``."""
    IS_NEGATIVE = "is_negative"
    """1 where the operand is below 0, else 0; int32."""
    TAKE = "take"
    """Slices of the first operand along option ``axis`` at the second one's indices."""
    CONVOLVE = "convolve"
    """Data ``[N, C, *S]`` less option ``zero``, weights ``[O, C / groups, *K]`` less option
    ``weight_zero``; option ``window``. Pads are 0 in the product. int32, two's complement."""
    MULTIPLY = "multiply"
    """Matrices ``[..., M, K]`` less ``zero`` and ``[..., K, N]`` less ``weight_zero``; int32."""
    MAX_POOL = "max_pool"
    """Data ``[N, C, *S]``, option ``window``."""
    SUM = "sum"
    """Options ``axes`` and ``keep``; so with the next two."""
    LARGEST = "largest"
    SMALLEST = "smallest"
    RESHAPE = "reshape"
    """Option ``lengths``, with at most one -1."""
    TRANSPOSE = "transpose"
    """Option ``permutation``."""
    SLICE = "slice"
    """Options ``starts``, ``stops``, ``steps``; None is an open end."""
    PAD = "pad"
    """Options ``pads`` and ``number``."""
    CONCAT = "concat"
    """Option ``axis``."""
    EXPAND = "expand"
    """Option ``lengths``; 1 keeps a length."""
    TILE = "tile"
    """Option ``repeats``."""
    COPY = "copy"
    """The operand, by the name of an output."""
    # Of floats and conditions, at the ends alone:
    DIVIDE = "divide"
    ROUND = "round"
    """Half to even."""
    CEIL = "ceil"
    EQUAL = "equal"
    GREATER = "greater"
    LESS = "less"
    BOTH = "both"
    CHOOSE = "choose"
    """The second operand where the first is true, else the third."""


@dataclass(frozen=True, eq=False)
class Value:
    """What a node makes, an input, or a constant.

    Attributes:
        name: Unique in its graph.
        dtype: The type of its elements.
        shape: None where a length is open.
        low: No element is smaller; of floats it says nothing.
        high: No element is larger.
        data: What a constant holds.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    low: int
    high: int
    data: Array | None = None


@dataclass(frozen=True)
class Window:
    """How windows of a convolution or pool lie, by spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Node:
    """One operation."""

    op: Op
    inputs: tuple[Value, ...]
    output: Value
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a tensor of the program is in the graph."""

    value: str
    order: Order

    def as_stored(self, array: Array) -> Array:
        """Return an array of the value with its axes as the program's tensor has them."""
        return array.transpose(np.argsort(self.order)) if array.ndim else array


@dataclass(frozen=True, eq=False)
class IntegerGraph:
    """Nodes in topological order.

    Attributes:
        inputs: What is fed, by the model's input names.
        outputs: What is given, by the model's output names; each is a node's and named so.
        nodes: The operations.
        tensors: The program's activations, by the graph's values that hold them.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    tensors: tuple[tuple[Tensor, Place], ...]

    def shown(self) -> dict[str, tuple[Tensor, Place]]:
        """Tensors of codes that nodes make, each value once, by the value's name."""
        made = {node.output.name for node in self.nodes}
        found: dict[str, tuple[Tensor, Place]] = {}
        for tensor, place in self.tensors:
            # The first: tensors that were only transposed stand for the same value.
            if tensor.encoding is not None and place.value in made:
                found.setdefault(place.value, (tensor, place))
        return found
