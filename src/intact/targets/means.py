"""Of how many elements a node takes a mean."""

from __future__ import annotations

import math

import onnx_ir as ir

from intact.graph import constant_array, input_value


def averaged_elements(node: ir.Node) -> int | None:
    """Return of how many elements every output of a pool or mean is made.

    None for other nodes, where a length is not known, and where windows at the rim hold fewer.
    """
    match node.op_type:
        case "AveragePool":
            return _window(node)
        case "GlobalAveragePool":
            return _lengths(node, None)
        case "ReduceMean":
            axes = _axes(node)
            return None if axes is None else _lengths(node, axes)
    return None


def _window(node: ir.Node) -> int | None:
    attributes = node.attributes
    if "kernel_shape" not in attributes or attributes.get_int("ceil_mode", 0) == 1:
        return None
    pads = attributes["pads"].as_ints() if "pads" in attributes else ()
    is_padded = any(pads) or (attributes.get_string("auto_pad", "NOTSET") or "NOTSET")[:4] == "SAME"
    if is_padded and attributes.get_int("count_include_pad", 0) != 1:
        return None
    return math.prod(attributes["kernel_shape"].as_ints())


def _axes(node: ir.Node) -> tuple[int, ...] | None:
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"].as_ints())
    array = constant_array(input_value(node, 1))
    return None if array is None else tuple(int(axis) for axis in array.reshape(-1))


def _lengths(node: ir.Node, axes: tuple[int, ...] | None) -> int | None:
    """Return the product of the lengths along some axes, or behind the channels."""
    value = input_value(node, 0)
    if value is None or value.shape is None:
        return None
    rank = len(value.shape)
    chosen = range(2, rank) if axes is None else [axis % rank for axis in axes if axis < rank]
    sizes = [value.shape[axis] for axis in chosen]
    known = [size for size in sizes if isinstance(size, int)]
    return math.prod(known) if len(known) == len(sizes) else None
