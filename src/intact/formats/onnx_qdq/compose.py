"""Rewrites HardSwish and AveragePool of a written model as operators with integer kernels.

A HardSwish between pairs runs as four passes over floats: DequantizeLinear, its gate, Mul,
QuantizeLinear. But that gate ``clip((x + 3) / 6, 0, 1)`` is an Add whose quantizer saturates: the
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

from intact.graph.edit import Editor
from intact.graph.passes import library
from intact.graph.passes.pattern import Pattern, constant, op, value
from intact.ops import functions
from intact.ops.operators import (
    Add,
    AveragePool,
    Conv,
    Declared,
    DequantizeLinear,
    Mul,
    QuantizeLinear,
    is_a,
)
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
    # On the written model, where the pairs stand already: what is composed lies between them.
    _compose_hard_swishes(plan, editor)
    for node in plan.graph.nodes:
        if is_a(node, AveragePool) and _is_composed(plan, node):
            _compose_average(editor, editor.nodes_by_name[str(node.name)])


def _compose_average(editor: Editor, node: ir.Node) -> None:
    """Turn an AveragePool into a convolution of each channel by itself."""
    data = node.inputs[0]
    channels = None if data is None or data.shape is None else data.shape[1]
    if not isinstance(channels, int):
        return
    kernel = tuple(node.attributes.get_ints("kernel_shape", ()) or ())
    parameters: dict[str, npt.NDArray[Any]] = {
        # Codes of 1 in steps of one part of the window: the sums stay integers, and the division is
        # in the scale.
        "ones": np.ones((channels, 1, *kernel), np.int8),
        "part": np.array(1 / math.prod(kernel), np.float32),
        "zero_point": np.array(0, np.int8),
    }
    weight = editor.node(
        DequantizeLinear,
        [editor.initializer(f"{node.name}_{key}", array) for key, array in parameters.items()],
        f"{node.name}_window",
        shape=ir.Shape((channels, 1, *kernel)),
    )
    node.op_type = Conv.name
    node.resize_inputs(2)
    node.replace_input_with(1, weight)
    # A Conv has no such attributes, and the runtime refuses what it does not know.
    for name in ("ceil_mode", "count_include_pad"):
        node.attributes.pop(name, None)
    node.attributes["group"] = ir.AttrInt64("group", channels)


def _compose_hard_swishes(plan: QuantizedGraph, editor: Editor) -> None:
    parameters: list[ir.Value] = []
    for node in plan.graph.nodes:
        if not is_a(node, functions.hard_swish) or not _is_composed(plan, node):
            continue
        # Made for the first of them and read by all: every gate has the same constants.
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
    offset = editor.node(DequantizeLinear, [one, three, zero_point], f"{name}_three", shape=[])
    total = editor.node(Add, [data, offset], f"{name}_sum", shape=shape)
    codes = editor.node(
        QuantizeLinear,
        [total, sum_scale, zero_point],
        f"{name}_gate_quantized",
        dtype=ir.DataType.UINT8,
        shape=shape,
    )
    gate = editor.node(
        DequantizeLinear, [codes, gate_scale, zero_point], f"{name}_gate", shape=shape
    )
    node.op_type = Mul.name
    node.resize_inputs(2)
    node.replace_input_with(1, gate)


def join_composed(model: ir.Model) -> None:
    """Make one HardSwish or AveragePool again of what `compose` wrote, and mark it as composed.

    Args:
        model: A quantized model; it is changed.
    """
    for node in tuple(model.graph):
        if _is_average(node):
            node.op_type = AveragePool.name
            node.attributes.pop("group")
            # The convolution adds zeros of the pads and divides by the whole window.
            node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
        elif (found := _HARD_SWISH.at(node)) is not None:
            node.op_type = functions.hard_swish.name
            node.replace_input_with(0, found[_DATA])
        else:
            continue
        node.resize_inputs(1)
        node.metadata_props[COMPOSED] = "1"
    library.remove_unused(model)


def _scalar(number: np.generic) -> Pattern:
    """Return the pattern of exactly this number, of its type."""
    return constant(lambda a: (a.shape, a.dtype) == ((), number.dtype) and a[()] == number)


def _pair(
    operator: Declared, data: Pattern, scale: float, kind: type[np.generic] = np.uint8
) -> Pattern:
    """Return the pattern of data that is quantized or dequantized, with a zero point of 0."""
    return op(operator, data, _scalar(np.float32(scale)), _scalar(kind(0)))


_DATA = value()
_THREE = _pair(DequantizeLinear, _scalar(np.uint8(1)), GATE_OFFSET)
_CODES = _pair(QuantizeLinear, _DATA + _THREE, GATE_SCALE)
_HARD_SWISH = _DATA * _pair(DequantizeLinear, _CODES, 1 / GATE_STEPS)


def _is_average(node: ir.Node) -> bool:
    """Check whether a node is a depthwise convolution of ones, in steps of a part of a window."""
    options = Conv.of(node)
    kernel = options.kernel_shape if is_a(node, Conv) else (0,)
    # A Conv need not say its kernel, and one without a size has no part to compare the scale with.
    if 0 in kernel:
        return False
    shape = (options.group, 1, *kernel)
    ones = constant(lambda a: a.shape == shape and bool((a == 1).all()))
    weight = _pair(DequantizeLinear, ones, 1 / math.prod(kernel), np.int8)
    return op(Conv, value(), weight).at(node) is not None
