"""Builds graphs of integer operations, with types that hold every value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.graph.names import Names
from intact.program.forms import broadcast
from intact.program.program import Array, Shape
from intact.program.realize.graph import Node, Op, Value

_WIDTHS = (np.dtype(np.int32), np.dtype(np.int64))
_TOO_WIDE = "its integers take more than 64 bits"


class IntegerBuilder:
    """A graph of integer operations under construction.

    Attributes:
        nodes: The nodes added, in order.
        names: The names of values in use.
        stem: Start of the names of what is added next.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.names = Names()
        self.stem = ""

    def constant(self, data: npt.ArrayLike, name: str = "constant") -> Value:
        """Make a constant."""
        array = np.asarray(data)
        bounded = array.size and array.dtype.kind in "iu"
        low, high = (int(array.min()), int(array.max())) if bounded else (0, 0)
        dtype = array.dtype
        return Value(self.names.fresh(f"{self.stem}/{name}"), dtype, array.shape, low, high, array)

    def emit(
        self,
        op: Op,
        inputs: Sequence[Value],
        dtype: npt.DTypeLike,
        shape: Shape,
        bounds: tuple[int, int],
        *,
        name: str = "",
        **options: Any,
    ) -> Value:
        """Add a node, whatever its operands are."""
        unique = self.names.fresh(name or f"{self.stem}/{op.value}")
        output = Value(unique, np.dtype(dtype), shape, *bounds)
        self.nodes.append(Node(op, tuple(inputs), output, options))
        return output

    def copy(self, value: Value, named: Value) -> None:
        """Add a node that gives a value another name, which is in use already."""
        self.nodes.append(Node(Op.COPY, (value,), named))

    def cast(self, value: Value, dtype: npt.DTypeLike) -> Value:
        """Make a value in another type, which holds all it can be."""
        wanted = np.dtype(dtype)
        if value.dtype == wanted:
            return value
        if value.data is not None:
            return self.constant(value.data.astype(wanted), "constant")
        return self.emit(Op.CAST, [value], wanted, value.shape, (value.low, value.high))

    def wide(self, value: Value) -> Value:
        """Make a value in int32 or int64."""
        return value if value.dtype in _WIDTHS else self.cast(value, width(value.low, value.high))

    # ---- sums and products --------------------------------------------------------------------

    def add(self, first: Value, second: Value | npt.ArrayLike) -> Value:
        """Make a sum."""
        second = self._operand(second)
        if (second.low, second.high) == (0, 0) and _keeps(first, second):
            return first
        return self._both(Op.ADD, first, second, lambda a, b: a + b)

    def sub(self, first: Value, second: Value | npt.ArrayLike) -> Value:
        """Make a difference."""
        second = self._operand(second)
        if (second.low, second.high) == (0, 0) and _keeps(first, second):
            return first
        return self._both(Op.SUB, first, second, lambda a, b: a - b)

    def mul(self, first: Value, second: Value | npt.ArrayLike) -> Value:
        """Make a product."""
        second = self._operand(second)
        if (second.low, second.high) == (1, 1) and _keeps(first, second):
            return first
        return self._both(Op.MUL, first, second, lambda a, b: a * b)

    def floor_div(self, value: Value, divisor: Value | npt.ArrayLike) -> Value:
        """Return ``floor(value / divisor)``; the divisor is positive."""
        by = self._operand(divisor)
        if (by.low, by.high) == (1, 1) and _keeps(value, by):
            return value
        return self._both(Op.FLOOR_DIV, value, by, lambda a, b: a // b)

    def minimum(self, first: Value, second: Value | npt.ArrayLike) -> Value:
        """Return the smaller of two."""
        return self._both(Op.MINIMUM, first, self._operand(second), min)

    def maximum(self, first: Value, second: Value | npt.ArrayLike) -> Value:
        """Return the larger of two."""
        return self._both(Op.MAXIMUM, first, self._operand(second), max)

    def clip(self, value: Value, low: int, high: int) -> Value:
        """Make a value between two numbers."""
        bounds = (min(max(value.low, low), high), min(max(value.high, low), high))
        if bounds == (value.low, value.high):
            return value
        value = self.wide(value)
        info = np.iinfo(value.dtype)
        limits: dict[str, Any] = {"low": max(low, int(info.min)), "high": min(high, int(info.max))}
        return self.emit(Op.CLIP, [value], value.dtype, value.shape, bounds, **limits)

    def is_negative(self, value: Value) -> Value:
        """Return 1 where a value is below 0, else 0."""
        value = self.wide(value)
        bounds = (int(value.high < 0), int(value.low < 0))
        return self.emit(Op.IS_NEGATIVE, [value], np.int32, value.shape, bounds)

    def take(self, table: Array, indices: Value, name: str = "table") -> Value:
        """Return the entries of a table ``[n]`` at indices."""
        held = self.constant(table, name)
        index = self.cast(indices, np.int32)
        return self.emit(
            Op.TAKE, [held, index], held.dtype, index.shape, (held.low, held.high), axis=0
        )

    def move(self, op: Op, value: Value, shape: Shape, **options: Any) -> Value:
        """Add a node that only moves elements."""
        return self.emit(op, [value], value.dtype, shape, (value.low, value.high), **options)

    def _operand(self, value: Value | npt.ArrayLike) -> Value:
        if isinstance(value, Value):
            return value
        array = np.asarray(value, np.int64)
        fits = width(int(array.min(initial=0)), int(array.max(initial=0)))
        return self.constant(array.astype(fits))

    def _both(
        self, op: Op, first: Value, second: Value, function: Callable[[int, int], int]
    ) -> Value:
        # Sums, products, quotients and extremes of two ranges have their ends at corners.
        corners = [function(a, b) for a in _ends(first) for b in _ends(second)]
        low, high = min(corners), max(corners)
        kind = width(min(low, first.low, second.low), max(high, first.high, second.high))
        # Never narrower than an operand: the range says that a cast down would be exact, but it
        # would be one node more.
        kind = max(kind, *(_width_of(each) for each in (first, second)), key=lambda k: k.itemsize)
        operands = [self.cast(each, kind) for each in (first, second)]
        shape = broadcast(first.shape, second.shape)
        return self.emit(op, operands, kind, shape, (low, high))


def width(low: int, high: int) -> np.dtype[Any]:
    """Return int32 or int64, whichever holds a range.

    Raises:
        Unsupported: Neither does.
    """
    for kind in _WIDTHS:
        info = np.iinfo(kind)
        if info.min <= low and high <= info.max:
            return kind
    raise Unsupported(_TOO_WIDE, "quantize to scales that are nearer to each other")


def _width_of(value: Value) -> np.dtype[Any]:
    """Return the width that an operand has already; constants have none of their own."""
    known = value.data is None and value.dtype == _WIDTHS[1]
    return _WIDTHS[1] if known else _WIDTHS[0]


def _ends(value: Value) -> tuple[int, ...]:
    # A quotient by a range of divisors is monotonous in each operand on either side of 0.
    inside = (0,) if value.low < 0 < value.high else ()
    return (value.low, value.high, *inside)


def _keeps(value: Value, other: Value) -> bool:
    """Check whether broadcasting against another leaves a value's shape."""
    return broadcast(value.shape, other.shape) == value.shape
