"""Matches nodes to the conditions of rules."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from intact.graph import constant_array, data_slots, input_value, is_constant, weight_slot
from intact.ops.operators import (
    CONVOLUTIONS,
    AveragePool,
    Conv,
    GlobalAveragePool,
    ReduceMean,
    is_a,
)
from intact.targets.rules import AttributeItem, AttributeValue, Condition, Groups


def averaged_elements(node: ir.Node) -> int | None:
    """Count the elements that a pool or mean averages for each output element.

    None for other nodes, if a size is unknown, and if windows at the border have fewer elements.
    """
    match node.op_type:
        case AveragePool.name:
            return _window(node)
        case GlobalAveragePool.name:
            return _lengths(node, None)
        case ReduceMean.name:
            axes = _axes(node)
            return None if axes is None else _lengths(node, axes)
    return None


def _window(node: ir.Node) -> int | None:
    options = AveragePool.of(node)
    # With rounding up, the last window may reach beyond the input.
    if not options.kernel_shape or options.ceil_mode == 1:
        return None
    is_padded = any(options.pads) or options.pads_to_same
    if is_padded and options.count_include_pad != 1:
        return None
    return math.prod(options.kernel_shape)


def _axes(node: ir.Node) -> tuple[int, ...] | None:
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"].as_ints())
    array = constant_array(input_value(node, 1))
    return None if array is None else tuple(int(axis) for axis in array.reshape(-1))


def _lengths(node: ir.Node, axes: tuple[int, ...] | None) -> int | None:
    """Return the product of the sizes of some axes, or of the spatial axes."""
    value = input_value(node, 0)
    if value is None or value.shape is None:
        return None
    rank = len(value.shape)
    chosen = range(2, rank) if axes is None else [axis % rank for axis in axes if axis < rank]
    sizes = [value.shape[axis] for axis in chosen]
    known = [size for size in sizes if isinstance(size, int)]
    return math.prod(known) if len(known) == len(sizes) else None


_Actual: TypeAlias = bool | int | float | str | tuple[int, ...] | None

_DEFAULT_ALONG_EVERY_AXIS = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}

"""List attributes whose default is given only in the text of the operator schemas."""


def matches(condition: Condition, node: ir.Node, right_zero_point: int | None = None) -> bool:
    """Tell whether all given fields of the condition hold for the node.

    An unknown property (a shape without rank, a computed kernel) never matches, so that the more
    general rule before applies.

    Args:
        condition: The fields.
        node: The node.
        right_zero_point: As a `Condition` counts it; None while it is unknown.
    """
    return (
        condition.right_zero_point in (None, right_zero_point)
        and _attributes_match(condition, node)
        and _shapes_match(condition, node)
        and _surroundings_match(condition, node)
    )


def _attributes_match(condition: Condition, node: ir.Node) -> bool:
    return all(
        _allowed(_attribute(node, name), wanted) for name, wanted in condition.attributes.items()
    )


def _shapes_match(condition: Condition, node: ir.Node) -> bool:
    if condition.kernel_shape is not None and _kernel_shape(node) != condition.kernel_shape:
        return False
    if condition.groups is not None:
        wanted = condition.groups
        kinds = (wanted,) if isinstance(wanted, Groups) else wanted
        if _groups(node) not in kinds:
            return False
    if condition.ranks is not None and _data_rank(node) not in condition.ranks:
        return False
    return condition.weight_ranks is None or _weight_rank(node) in condition.weight_ranks


def _surroundings_match(condition: Condition, node: ir.Node) -> bool:
    slot = weight_slot(node)
    is_there = condition.constant_weight in (None, slot is not None)
    if not is_there or condition.weight_slot not in (None, slot):
        return False
    if condition.constant_input is not None:
        found = any(is_constant(input_value(node, slot)) for slot in data_slots(node))
        if found != condition.constant_input:
            return False
    if not _neighbours_match(condition, node):
        return False
    if condition.power_of_two_window is None:
        return True
    count = averaged_elements(node)
    return count is not None and (count.bit_count() == 1) == condition.power_of_two_window


def _neighbours_match(condition: Condition, node: ir.Node) -> bool:
    functions, most = condition.own_function, condition.max_consumers
    if functions and not _reads_own_function(node, functions):
        return False
    return most is None or _consumers(node) <= most


def _reads_own_function(node: ir.Node, operators: Collection[str]) -> bool:
    """Tell whether a data input is made by such operators alone from another data input."""
    inputs = [input_value(node, slot) for slot in data_slots(node)]
    for value in inputs:
        maker = None if value is None else value.producer()
        while maker is not None and maker.op_type in operators:
            source = input_value(maker, 0)
            if source in inputs:
                return True
            maker = None if source is None else source.producer()
    return False


def _attribute(node: ir.Node, name: str) -> _Actual:
    """Return the node's own value or the operator's default; None if there is neither."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return _plain(attribute)
    if name in _DEFAULT_ALONG_EVERY_AXIS:
        kernel = _kernel_shape(node)
        if kernel is None:
            return None
        ends = 2 if name == "pads" else 1
        return (_DEFAULT_ALONG_EVERY_AXIS[name],) * (ends * len(kernel))
    return _schema_default(node.op_type, _opset(node), name)


def _plain(attribute: ir.Attr) -> _Actual:
    if attribute.is_ref():  # inside a model function: set by the caller
        return None
    match attribute.type:
        case ir.AttributeType.INT:
            return attribute.as_int()
        case ir.AttributeType.FLOAT:
            return attribute.as_float()
        case ir.AttributeType.STRING:
            return attribute.as_string()
        case ir.AttributeType.INTS:
            return tuple(attribute.as_ints())
    return None


@functools.cache
def _schema_default(op_type: str, opset: int | None, name: str) -> _Actual:
    try:
        schema = (
            onnx.defs.get_schema(op_type)
            if opset is None
            else onnx.defs.get_schema(op_type, max_inclusive_version=opset)
        )
    except onnx.defs.SchemaError:
        return None
    declared = schema.attributes.get(name)
    if declared is None or declared.default_value.type == onnx.AttributeProto.UNDEFINED:
        return None
    return _plain(ir.serde.deserialize_attribute(declared.default_value))


def _allowed(actual: _Actual, wanted: AttributeValue) -> bool:
    if actual is None:
        return False
    if isinstance(actual, tuple):
        # A number stands for that value along every axis.
        if not isinstance(wanted, tuple):
            return all(_equal(item, wanted) for item in actual)
        # A flat list is one value of a list attribute; only a list of lists gives several to choose
        # from.
        alternatives = [item for item in wanted if isinstance(item, tuple)]
        return actual in alternatives if alternatives else actual == wanted
    if isinstance(wanted, tuple):
        return any(_equal(actual, item) for item in wanted)
    return _equal(actual, wanted)


def _equal(actual: float | str, wanted: AttributeItem) -> bool:
    """Compare scalars; floats are compared as float32, as ONNX stores them."""
    if isinstance(actual, str) or isinstance(wanted, str | tuple):
        return actual == wanted
    if isinstance(actual, float):
        return bool(np.float32(actual) == np.float32(wanted))
    return actual == wanted


def _kernel_shape(node: ir.Node) -> tuple[int, ...] | None:
    attribute = node.attributes.get("kernel_shape")
    if attribute is not None and not attribute.is_ref():
        return tuple(attribute.as_ints())
    weight = _shape(node, 1) if node.op_type in CONVOLUTIONS else None
    return None if weight is None else weight[2:]


def _groups(node: ir.Node) -> Groups | None:
    if node.op_type not in CONVOLUTIONS:
        return None
    group = Conv.of(node).group
    if group == 1:
        return Groups.ONE
    weight = _shape(node, 1)
    if weight is None or len(weight) < 2:
        return None
    # Weights are [M, C / group, ...] and, transposed, [C, M / group, ...].
    channels_per_group = weight[1] if is_a(node, Conv) else weight[0] // group
    return Groups.DEPTHWISE if channels_per_group == 1 else Groups.GROUPED


def _data_rank(node: ir.Node) -> int | None:
    slots = data_slots(node)
    value = input_value(node, slots[0]) if slots else None
    return None if value is None or value.shape is None else len(value.shape)


def _weight_rank(node: ir.Node) -> int | None:
    slot = weight_slot(node)
    shape = None if slot is None else _shape(node, slot)
    return None if shape is None else len(shape)


def _shape(node: ir.Node, slot: int) -> tuple[int, ...] | None:
    """Return the shape of an input if every dimension is known."""
    value = input_value(node, slot)
    if value is None:
        return None
    # The value of a constant is there even where shapes were not inferred.
    shape = value.shape if value.const_value is None else value.const_value.shape
    if shape is None:
        return None
    known = tuple(size for size in shape if isinstance(size, int))
    return known if len(known) == len(shape) else None


def _consumers(node: ir.Node) -> int:
    if not node.outputs:
        return 0
    output = node.outputs[0]
    return len(output.uses()) + int(output.is_graph_output())


def _opset(node: ir.Node) -> int | None:
    if node.version is not None:
        return node.version
    return None if node.graph is None else node.graph.opset_imports.get(node.domain)
