"""Rewrites operations for data whose axes lie in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from intact.program.forms import permute
from intact.program.handlers import Handlers
from intact.program.operations import (
    ELEMENTWISE,
    ArgReduce,
    Concat,
    Expand,
    FullyConnected,
    Gather,
    Operation,
    Pad,
    Reduce,
    Slice,
    Softmax,
    Split,
    Tile,
    TopK,
)
from intact.program.program import Shape, Step, Tensor

Order: TypeAlias = tuple[int, ...]
"""Axis ``k`` of what was asked for is axis ``order[k]`` of what is stored."""


@dataclass(frozen=True)
class ReorderedStep:
    """A step that works on stored operands.

    Attributes:
        step: The step with its operation renumbered.
        inputs: Its constants, reordered, at their slots; activations as they were.
        outputs: The values as they are stored then.
        order: The view that gives the outputs as they were asked for.
    """

    step: Step
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    order: Order


def inverse(order: Order) -> Order:
    """Return the order that undoes another.

    >>> inverse((0, 2, 3, 1))
    (0, 3, 1, 2)
    """
    return tuple(int(axis) for axis in np.argsort(order))


def reorder(step: Step, order: Order) -> ReorderedStep | None:
    """Return a step that does the same to operands that are stored in another order.

    None where the operation needs its axes as they are, or an operand has another rank.
    """
    renumber = _RENUMBER.get(type(step.operation))
    rank = len(order)
    if renumber is None or any(len(tensor.shape) != rank for tensor in step.activations):
        return None
    operation = renumber(step.operation, order)
    if operation is None:
        return None
    after = order
    match step.operation:
        case Reduce(axes=axes, keep_dims=False):
            after = _order_of_rest(order, axes)
        case ArgReduce(axis=axis, keep_dims=False):
            after = _order_of_rest(order, (axis,))
    if any(len(tensor.shape) != len(after) for tensor in step.outputs):
        return None  # a constant of higher rank, which adds axes
    inputs = step.inputs
    if not isinstance(step.operation, FullyConnected):
        inputs = tuple(
            _constant(tensor, order) if tensor is not None and tensor.is_constant else tensor
            for tensor in step.inputs
        )
    outputs = tuple(permute(tensor, inverse(after)) for tensor in step.outputs)
    return ReorderedStep(replace(step, operation=operation), inputs, outputs, after)


def _constant(tensor: Tensor, order: Order) -> Tensor:
    """Return a constant operand that broadcasts against the stored data as it did before."""
    rank = len(order)
    if tensor.data is None or tensor.data.ndim == 0:
        return tensor
    # Axes that broadcasting would add in front are written down before they are moved.
    missing = rank - tensor.data.ndim
    encoding = tensor.encoding
    if encoding is not None and encoding.axis is not None:
        encoding = replace(encoding, axis=encoding.axis + missing)
    data = tensor.data.reshape((1,) * missing + tensor.data.shape)
    whole = replace(tensor, data=data, shape=data.shape, encoding=encoding, permutation=None)
    return permute(whole, inverse(order))


def _order_of_rest(order: Order, axes: tuple[int, ...]) -> Order:
    kept = [axis for axis in range(len(order)) if axis not in axes]
    stored = sorted(order[axis] for axis in kept)
    return tuple(stored.index(order[axis]) for axis in kept)


def flattened_columns(stored: Shape, order: Order, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return where each column of a flattened batch lies when the stored data is flattened.

    None where the reshape is no flattening behind the batch, or a length is not known.
    """
    sizes = stored[1:]
    if order[0] != 0 or len(shape) != 2 or any(size is None for size in sizes):
        return None
    lengths = [size for size in sizes if size is not None]
    count = int(np.prod(lengths))
    batch = -1 if stored[0] is None else stored[0]
    if shape not in {(batch, count), (-1, count)}:
        return None
    positions = np.arange(count).reshape(lengths)
    return positions.transpose([axis - 1 for axis in order[1:]]).reshape(-1)


# ---- operations, renumbered -------------------------------------------------------------------

_RENUMBER: Handlers[Callable[..., Operation | None]] = Handlers("reordering has no {}")
"""What each operation becomes; those that are missing need their axes as they are."""


@_RENUMBER.register(*ELEMENTWISE)
def _same(operation: Operation, _order: Order) -> Operation | None:
    return operation


def _by_axis(values: tuple, order: Order) -> tuple:  # type: ignore[type-arg]
    return tuple(values[axis] for axis in inverse(order))


@_RENUMBER.register(Concat)
def _concat(operation: Concat, order: Order) -> Operation | None:
    return Concat(order[operation.axis])


@_RENUMBER.register(ArgReduce, Split)
def _along(operation: ArgReduce | Split, order: Order) -> Operation | None:
    return replace(operation, axis=order[operation.axis])


@_RENUMBER.register(Softmax, TopK)
def _along_last(operation: Softmax | TopK, order: Order) -> Operation | None:
    axis = order[operation.axis]
    # Such kernels run along the last axis: moved elsewhere it would need a transpose of its own.
    return replace(operation, axis=axis) if axis == len(order) - 1 else None


@_RENUMBER.register(Reduce)
def _reduce(operation: Reduce, order: Order) -> Operation | None:
    return replace(operation, axes=tuple(sorted(order[axis] for axis in operation.axes)))


@_RENUMBER.register(Pad)
def _pad(operation: Pad, order: Order) -> Operation | None:
    return replace(operation, pads=_by_axis(operation.pads, order))


@_RENUMBER.register(Slice)
def _slice(operation: Slice, order: Order) -> Operation | None:
    return Slice(
        _by_axis(operation.starts, order),
        _by_axis(operation.stops, order),
        _by_axis(operation.steps, order),
    )


@_RENUMBER.register(Gather)
def _gather(operation: Gather, order: Order) -> Operation | None:
    if operation.indices.ndim != 1:
        return None
    return Gather(order[operation.axis], operation.indices)


@_RENUMBER.register(Tile)
def _tile(operation: Tile, order: Order) -> Operation | None:
    return Tile(_by_axis(operation.repeats, order))


@_RENUMBER.register(Expand)
def _expand(operation: Expand, order: Order) -> Operation | None:
    return Expand(_by_axis(operation.shape, order)) if len(operation.shape) == len(order) else None


@_RENUMBER.register(FullyConnected)
def _dense(operation: FullyConnected, order: Order) -> Operation | None:
    return operation if order[-1] == len(order) - 1 else None
