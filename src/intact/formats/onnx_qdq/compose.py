"""Functions that have no integer kernel in ONNX Runtime, or a slow one, as operators that have.

A HardSwish between pairs runs as four passes over floats: DequantizeLinear, HardSigmoid, Mul,
QuantizeLinear. But its gate ``clip((x + 3) / 6, 0, 1)`` is an Add whose quantizer saturates: the
codes of ``x + 3`` in steps of 6/255 from 0 to 255 are those of the gate in steps of 1/255. So the
sum is quantized with the one scale and dequantized with the other, and ONNX Runtime fuses
QLinearAdd and QLinearMul around them (1.32: 2.6 times as fast).

An AveragePool between pairs runs as a kernel that adds floats. A depthwise convolution of ones, in
steps of one part of the window, computes the same with integers (1.32: 5 to 12 times as fast).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import constant_array, input_value
from intact.graph.edit import Editor
from intact.graph.passes import library
from intact.plan import QuantizedGraph
from intact.plan.quantized_graph import COMPOSED, quantizes
from intact.program.arithmetic.functions import GATE_OFFSET, GATE_SCALE, GATE_STEPS
from intact.targets import Functions


def compose(plan: QuantizedGraph, editor: Editor) -> None:
    """Write HardSwish and AveragePool of codes as operators of codes, where the target does so.

    Args:
        plan: The plan.
        editor: The written model, with its pairs in place; it is changed.
    """
    _compose_hard_swishes(plan, editor)
    for node in plan.graph.nodes:
        if node.op_type == "AveragePool" and _is_composed(plan, node):
            _compose_average(editor, editor.nodes_by_name[str(node.name)])


def _compose_average(editor: Editor, node: ir.Node) -> None:
    """Turn an AveragePool into a convolution of each channel by itself."""
    data = node.inputs[0]
    channels = None if data is None or data.shape is None else data.shape[1]
    if not isinstance(channels, int):
        return
    kernel = tuple(node.attributes.get_ints("kernel_shape", ()) or ())
    parameters: dict[str, npt.NDArray[Any]] = {
        "ones": np.ones((channels, 1, *kernel), np.int8),
        "part": np.array(1 / math.prod(kernel), np.float32),
        "zero_point": np.array(0, np.int8),
    }
    weight = editor.node(
        "DequantizeLinear",
        [editor.initializer(f"{node.name}_{key}", array) for key, array in parameters.items()],
        f"{node.name}_window",
        shape=ir.Shape((channels, 1, *kernel)),
    )
    node.op_type = "Conv"
    node.resize_inputs(2)
    node.replace_input_with(1, weight)
    for name in ("ceil_mode", "count_include_pad"):
        node.attributes.pop(name, None)
    node.attributes["group"] = ir.AttrInt64("group", channels)


def _compose_hard_swishes(plan: QuantizedGraph, editor: Editor) -> None:
    parameters: list[ir.Value] = []
    for node in plan.graph.nodes:
        if node.op_type != "HardSwish" or not _is_composed(plan, node):
            continue
        if not parameters:
            parameters += [
                editor.initializer(f"hard_swish_{name}", array)
                for name, array in (
                    ("one", np.array(1, np.uint8)),
                    ("three", np.float32(GATE_OFFSET)),
                    ("zero_point", np.array(0, np.uint8)),
                    ("sum_scale", np.float32(GATE_SCALE)),
                    ("gate_scale", np.float32(1 / GATE_STEPS)),
                )
            ]
        _compose_hard_swish(editor, editor.nodes_by_name[str(node.name)], *parameters)


def _is_composed(plan: QuantizedGraph, node: ir.Node) -> bool:
    if not plan.is_quantized(node) or plan.arithmetic_of(node).functions is not Functions.COMPOSED:
        return False
    ends = (plan.input_config(node, 0), plan.output_config(node))
    return all(each.quant_max - each.quant_min == GATE_STEPS for each in ends) and quantizes(
        ends[1].dominator
    )


def _compose_hard_swish(
    editor: Editor,
    node: ir.Node,
    one: ir.Value,
    three: ir.Value,
    zero_point: ir.Value,
    sum_scale: ir.Value,
    gate_scale: ir.Value,
) -> None:
    """Turn a HardSwish into the Mul of what it reads and of its gate."""
    data, name = node.inputs[0], str(node.name)
    if data is None:
        return
    shape = data.shape
    offset = editor.node("DequantizeLinear", [one, three, zero_point], f"{name}_three", shape=[])
    total = editor.node("Add", [data, offset], f"{name}_sum", shape=shape)
    codes = editor.node(
        "QuantizeLinear",
        [total, sum_scale, zero_point],
        f"{name}_gate_quantized",
        dtype=ir.DataType.UINT8,
        shape=shape,
    )
    gate = editor.node(
        "DequantizeLinear", [codes, gate_scale, zero_point], f"{name}_gate", shape=shape
    )
    node.op_type = "Mul"
    node.resize_inputs(2)
    node.replace_input_with(1, gate)


def join_composed(model: ir.Model) -> None:
    """Make one HardSwish or AveragePool again of what `compose` wrote, and mark it as composed.

    Args:
        model: A quantized model; it is changed.
    """
    for node in tuple(model.graph):
        if _is_average(node):
            node.op_type = "AveragePool"
            node.resize_inputs(1)
            node.attributes.pop("group")
            node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
            node.metadata_props[COMPOSED] = "1"
            continue
        data = node.inputs[0] if node.op_type == "Mul" and node.domain == "" else None
        if data is None or not _is_gate_of(input_value(node, 1), data):
            continue
        node.op_type = "HardSwish"
        node.resize_inputs(1)
        node.metadata_props[COMPOSED] = "1"
    library.remove_unused(model)


def _is_average(node: ir.Node) -> bool:
    """Check whether a node is a depthwise convolution of ones, in steps of a part of a window."""
    if (node.domain, node.op_type, len(node.inputs)) != ("", "Conv", 2):
        return False
    weight = node.inputs[1]
    kernel = node.attributes.get_ints("kernel_shape", ()) or ()
    ones = constant_array(_codes(weight, "DequantizeLinear", 1 / math.prod(kernel), np.int8))
    shape = (node.attributes.get_int("group", 1), 1, *kernel)
    return ones is not None and ones.shape == shape and bool((ones == 1).all())


def _is_gate_of(gate: ir.Value | None, data: ir.Value) -> bool:
    """Check whether a value is the gate of a HardSwish of some data."""
    quantize = _codes(
        _codes(gate, "DequantizeLinear", 1 / GATE_STEPS), "QuantizeLinear", GATE_SCALE
    )
    add = None if quantize is None else quantize.producer()
    if add is None or (add.domain, add.op_type) != ("", "Add") or add.inputs[0] is not data:
        return False
    one = constant_array(_codes(input_value(add, 1), "DequantizeLinear", GATE_OFFSET))
    return one is not None and one.dtype == np.uint8 and one.shape == () and int(one) == 1


def _codes(
    value: ir.Value | None, op_type: str, scale: float, kind: type[np.integer[Any]] = np.uint8
) -> ir.Value | None:
    """Return what such a node reads that writes a value, with this scale and a zero point of 0."""
    node = None if value is None else value.producer()
    if node is None or (node.domain, node.op_type) != ("", op_type):
        return None
    scales, zeros = (constant_array(input_value(node, slot)) for slot in (1, 2))
    if scales is None or zeros is None or scales.shape != () or zeros.shape != ():
        return None
    same = zeros.dtype == kind and int(zeros) == 0 and scales == np.float32(scale)
    return node.inputs[0] if same else None
