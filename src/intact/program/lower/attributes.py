"""Reads attributes of nodes when they are lowered: windows, axes and bounds, checked."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import constant_array, facts, input_value
from intact.graph.ops import clamp_bounds
from intact.ops.declaration import Window, same_pads
from intact.ops.operators import OPERATORS
from intact.program.operations import (
    Bounds,
    Pads,
)
from intact.program.program import Shape


def constant_input(node: ir.Node, slot: int) -> np.ndarray | None:
    """Return a constant that steers a node; None where it is absent.

    Raises:
        Unsupported: It is computed.
    """
    value = input_value(node, slot)
    if value is None:
        return None
    array = constant_array(value)
    if array is None:
        raise Unsupported(f"its input {value.name!r} is not constant")
    return array


def integers(node: ir.Node, name: str, slot: int | None = None) -> tuple[int, ...] | None:
    """Return a list of integers that is an attribute or, since some opset, an input."""
    if name in node.attributes:
        return tuple(int(number) for number in node.attributes[name].as_ints())
    array = None if slot is None else constant_input(node, slot)
    return None if array is None else tuple(int(number) for number in array.reshape(-1))


def axis_of(node: ir.Node, rank: int, default: int | None = None) -> int:
    """Return the attribute ``axis``, not negative.

    Args:
        node: A node.
        rank: The rank of its first input.
        default: Where it is absent; that of the operator's declaration unless given.
    """
    if default is None:
        default = OPERATORS[node.op_type].defaults["axis"]
    axis = node.attributes.get_int("axis", default)
    return axis + rank if axis < 0 else axis


def window_pads(
    node: ir.Node,
    shape: Shape,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> Pads:
    """Return the pads of a sliding window over ``[N, C, *S]``, with ``auto_pad`` resolved.

    Raises:
        Unsupported: SAME padding of an axis of unknown length.
    """
    window = Window.of(node)
    sizes = tuple(size for size in shape[2:] if size is not None)
    # SAME pads depend on the length; explicit ones do not.
    if window.pads_to_same and len(sizes) < len(kernel):
        raise Unsupported(f"{window.auto_pad} padding of an axis of unknown length")
    if window.pads_to_same:
        upper = window.auto_pad == "SAME_UPPER"
        return same_pads(sizes, kernel, strides, dilations, upper=upper)
    return window.padding(sizes, kernel)


def bounds_of(node: ir.Node) -> Bounds | None:
    """Return the bounds of a Relu or Clip; None for other operators.

    Raises:
        Unsupported: A bound is computed.
    """
    bounds = clamp_bounds(node)
    # A Clip without constant bounds: `constant_input` raises and names the input that is computed.
    for slot in (1, 2) if bounds is None and facts(node).clamps else ():
        constant_input(node, slot)
    return None if bounds is None else Bounds(*bounds)


def clamp_twice(outer: Bounds, inner: Bounds) -> Bounds:
    """Return the bounds of clamping to ``inner`` first and to ``outer`` then."""
    low = min(max(inner.low, outer.low), outer.high)
    high = min(max(inner.high, outer.low), outer.high)
    return Bounds(low, high)
