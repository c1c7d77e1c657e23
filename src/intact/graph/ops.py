"""Tells properties of a node from its operator's declaration and its constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from intact.ops import operators
from intact.ops.declaration import UNKNOWN, OpKind, OpSpec, Role
from intact.ops.functions import FUNCTIONS, Option
from intact.ops.operators import OPS

__all__ = [
    "OPS",
    "OpKind",
    "OpSpec",
    "Role",
    "bias_slot",
    "clamp_bounds",
    "constant_array",
    "data_slots",
    "facts",
    "input_role",
    "input_value",
    "is_constant",
    "may_fail",
    "moves_values",
    "op_spec",
    "output_channel_axis",
    "output_channels",
    "outputs_of_choices",
    "weight_scale_axis",
    "weight_slot",
]


def op_spec(node: ir.Node) -> OpSpec | None:
    """Return the table row of a node; None for an unknown operator or another domain."""
    return OPS.get(node.op_type) if node.domain == "" else None


def facts(node: ir.Node) -> OpSpec:
    """Return what is so of a node's operator; of an unknown one nothing is."""
    return op_spec(node) or UNKNOWN


def may_fail(node: ir.Node) -> bool:
    """Tell whether computed whole numbers may be such that a node fails.

    These are places outside of its data, or a divisor of 0; floats divide by 0.
    """
    slot = facts(node).fails_by
    value = None if slot is None else input_value(node, slot)
    return value is not None and not is_constant(value) and value.dtype in _WHOLE


_WHOLE = (ir.DataType.INT32, ir.DataType.INT64)


def clamp_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return between which numbers a Relu or Clip limits its input.

    None for other operators, and where a bound is computed.
    """
    spec = facts(node)
    if not spec.clamps:
        return None
    bounds = [spec.low, spec.high]
    for slot, value in enumerate(node.inputs[1:]):
        array = constant_array(value)
        if value is not None and (array is None or array.size != 1):
            return None
        if array is not None:
            bounds[slot] = float(array.reshape(()))
    return bounds[0], bounds[1]


def is_constant(value: ir.Value | None) -> bool:
    """Tell whether a value is constant: an initializer that is not also a graph input."""
    if value is None or value.const_value is None or value.is_graph_input():
        return False
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of a constant value; None for a computed or absent one."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return value.const_value.numpy()


def input_value(node: ir.Node, slot: int) -> ir.Value | None:
    """Return the value at an input slot, None where the optional input is absent."""
    return node.inputs[slot] if 0 <= slot < len(node.inputs) else None


def weight_slot(node: ir.Node) -> int | None:
    """Return the input slot of a compute node's constant weight.

    The weight of Conv and ConvTranspose is input 1. For MatMul and Gemm it is on either side; if
    both sides are constant, the right one. None if no operand is constant.
    """
    spec = op_spec(node)
    if spec is None or spec.kind is not OpKind.COMPUTE:
        return None
    # The right side first: layers are written as data times weight.
    candidates = (1, 0) if spec.channel_axis == -1 else (1,)
    return next((slot for slot in candidates if is_constant(input_value(node, slot))), None)


def bias_slot(node: ir.Node) -> int | None:
    """Return the input slot of a compute node's constant bias; None if there is none."""
    spec = op_spec(node)
    if spec is None or Role.BIAS not in spec.roles:
        return None
    slot = spec.roles.index(Role.BIAS)
    return slot if is_constant(input_value(node, slot)) else None


def input_role(node: ir.Node, slot: int) -> Role:
    """Return the role of an input slot of a node.

    A weight or bias that the model computes has the role DATA, as all inputs of unknown operators.
    """
    return next(_roles(node, (slot,)))


def _roles(node: ir.Node, slots: Iterable[int]) -> Iterator[Role]:
    """Yield the roles of input slots; which inputs are constants is asked once."""
    spec = op_spec(node)
    computes = spec is not None and spec.kind is OpKind.COMPUTE
    weight, bias = (weight_slot(node), bias_slot(node)) if computes else (None, None)
    for slot in slots:
        role = Role.DATA if spec is None else spec.role(slot)
        if computes and slot == weight:
            role = Role.WEIGHT
        elif computes and slot == bias:
            role = Role.BIAS
        elif computes and role in (Role.WEIGHT, Role.BIAS):
            role = Role.DATA
        yield role


def data_slots(node: ir.Node) -> tuple[int, ...]:
    """List the slots of the data inputs that are present."""
    present = [slot for slot, value in enumerate(node.inputs) if value is not None]
    roles = _roles(node, present)
    return tuple(slot for slot, role in zip(present, roles, strict=True) if role is Role.DATA)


def function_options(node: ir.Node) -> tuple[Option, ...]:
    """Return the options of a function of one tensor, in the order of its declaration."""
    found: list[Option] = []
    for name, default in FUNCTIONS[node.op_type].defaults.items():
        if isinstance(default, str):
            found.append(_text(node, name, default))
        else:
            found.append(node.attributes.get_float(name, default))
    return tuple(found)


def output_channel_axis(node: ir.Node) -> int | None:
    """Return the axis of the weight tensor along which each output channel has its own slice.

    Conv ``[M, C/group, ...]``: 0. ConvTranspose ``[C, M/group, ...]``: 1 if group is 1; 0 if it is
    depthwise (``C == group`` and one output channel per group); otherwise None, because an output
    channel is then a pair of indices on both axes. Gemm and MatMul: the axis of the weight that the
    product does not sum over. None for vectors, and for nodes without a constant weight.
    """
    slot = weight_slot(node)
    weight = constant_array(input_value(node, slot)) if slot is not None else None
    if weight is None:
        return None
    rank = weight.ndim
    match node.op_type:
        case "Conv" | "DeformConv":
            return 0
        case "ConvTranspose":
            return _transposed_channel_axis(node, weight.shape)
        case "Gemm":
            options = operators.Gemm.of(node)
            transposed = options.transA != 0 if slot == 0 else options.transB != 0
            return int(transposed) if slot == 0 else int(not transposed)
        case "MatMul" if rank >= 2:
            return rank - 2 if slot == 0 else rank - 1
    return None


def weight_scale_axis(node: ir.Node) -> int | None:
    """Return the axis of the weight along which it may have several scales; None for one scale.

    That of the output channels, where these are the last axis of a product of matrices: a runtime
    scales its columns. A weight on the left of a MatMul or Gemm makes rows: with a scale for each,
    ONNX Runtime computes in float and OpenVINO refuses to compile (measured), and one element of
    a bias, which runs along the columns, would need several scales.
    """
    is_left = facts(node).channel_axis == -1 and weight_slot(node) == 0
    return None if is_left else output_channel_axis(node)


def output_channels(node: ir.Node) -> int | None:
    """Count the output channels of a Conv, ConvTranspose or Gemm with a constant weight."""
    weight = constant_array(input_value(node, 1))
    if weight is None or weight.ndim < 2:
        return None
    match node.op_type:
        case "Conv":
            return int(weight.shape[0])
        case "ConvTranspose":
            return int(weight.shape[1]) * operators.ConvTranspose.of(node).group
        case "Gemm":
            return int(weight.shape[0 if operators.Gemm.of(node).transB else 1])
    return None


def _transposed_channel_axis(node: ir.Node, shape: tuple[int, ...]) -> int | None:
    group = operators.ConvTranspose.of(node).group
    if group == 1:
        return 1
    return 0 if shape[0] == group and shape[1] == 1 else None


def is_even_average(node: ir.Node) -> bool:
    """Tell whether an AveragePool of images divides the sums of all its windows by one number.

    A depthwise convolution computes it then. Pads that are not counted, windows that stand out
    because lengths are rounded up, and padding that depends on lengths rule it out.
    """
    channels = None if node.inputs[0] is None else node.inputs[0].shape
    if node.op_type != "AveragePool" or channels is None or len(channels) != 4:
        return False
    options = operators.AveragePool.of(node)
    return (
        isinstance(channels[1], int)
        and (options.count_include_pad == 1 or not any(options.pads))
        and options.auto_pad == "NOTSET"
        and not options.ceil_mode
        and all(each == 1 for each in options.dilations)
    )


def moves_values(node: ir.Node) -> bool:
    """Tell whether every output element is an element of data input 0, or exactly zero.

    Output and input of such a node can share one scale. Pad moves values unless it pads with a
    constant other than 0, Resize only in nearest mode without extrapolation, Dropout only at
    inference.
    """
    spec = op_spec(node)
    if spec is None or not spec.moves_values:
        return False
    match node.op_type:
        case "Pad":
            return _pads_with_zero(node)
        case "Resize":
            options = operators.Resize.of(node)
            crops = options.coordinate_transformation_mode == "tf_crop_and_resize"
            return options.mode == "nearest" and not crops
        case "Dropout":
            training = input_value(node, 2)
            array = constant_array(training)
            return training is None or (array is not None and not array.any())
    return True


def _pads_with_zero(node: ir.Node) -> bool:
    if operators.Pad.of(node).mode != "constant":
        return True
    value = input_value(node, 2)
    array = constant_array(value)
    return value is None or (array is not None and not array.any())


def _text(node: ir.Node, name: str, default: str) -> str:
    return node.attributes.get_string(name, default) or default


def outputs_of_choices(outputs: Iterable[ir.Value]) -> frozenset[str]:
    """Return the names of outputs that hold whole numbers which an operator decided on.

    They name something: a class, a token, a place, a yes or no. Of two such numbers only whether
    they are equal tells: class 7 is no nearer to 8 than to 3.

    What is rounded and stored in a type of integers, such as pixels, is a number like any other.
    """
    return frozenset(str(value.name) for value in outputs if _is_chosen(value))


def _is_chosen(value: ir.Value) -> bool:
    """Tell whether an operator that decides gives a value, or what the value is moved from."""
    pending, seen = [value], set[ir.Value]()
    while pending:
        each = pending.pop()
        node = each.producer()
        if each in seen or node is None or not _is_whole(each):
            continue
        seen.add(each)
        if facts(node).decides:
            return True
        pending += [given for given in node.inputs if given is not None]
    return False


def _is_whole(value: ir.Value) -> bool:
    """Tell whether a value has a type of integers; one that is not known may have it."""
    return value.dtype is None or value.dtype.numpy().kind in "iub"
