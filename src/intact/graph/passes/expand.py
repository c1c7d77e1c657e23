"""Decomposition of operators into simpler ones, for hardware that has only these."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from intact.errors import UsageError, nearest
from intact.graph.edit import Editor
from intact.graph.given_nodes import followed
from intact.graph.graph import Graph
from intact.graph.ops import constant_array, function_options, input_value
from intact.graph.passes.expand_batch_norm import expand_batch_norm
from intact.graph.passes.fold_linear import fold_scales
from intact.ops.operators import LayerNormalization

_AXES_ARE_INPUT = 18
"""From this opset on the axes of ReduceMean are an input."""


def expand(graph: Graph, op_types: Iterable[str]) -> Graph:
    """Expand every operator of these types into simpler ones.

    Args:
        graph: A normalized graph; not changed.
        op_types: Keys of ``EXPANSIONS``.

    Raises:
        UsageError: An operator type has no expansion.
    """
    wanted = set(op_types)
    for op_type in sorted(wanted - EXPANSIONS.keys()):
        raise UsageError(f"--expand {op_type!r}", remedy=nearest(op_type, EXPANSIONS))
    names = [str(node.name) for node in graph.nodes if node.domain == "" and node.op_type in wanted]
    if not names:
        return graph
    editor = Editor(graph.model)
    for name in names:
        node = editor.nodes_by_name[name]
        EXPANSIONS[node.op_type](editor, node)
    while fold_scales(editor.model):
        pass  # a new Mul or Add may fold into the layer in front
    return Graph(followed(graph.model, editor.finish()))


def _layer_norm(editor: Editor, node: ir.Node) -> None:
    """``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias``.

    A node that outputs mean or deviation, or whose input has unknown rank, is not expanded.
    Source: the definition of the ONNX operator.
    """
    data, scale = node.inputs[0], node.inputs[1]
    outputs = [value for value in node.outputs if value.name]
    if data is None or scale is None or data.shape is None or len(outputs) != 1:
        return
    rank = len(data.shape)
    options = LayerNormalization.of(node)
    axis = options.axis
    axes = list(range(axis + rank if axis < 0 else axis, rank))
    reduced = ir.Shape([1 if k in axes else size for k, size in enumerate(data.shape)])
    epsilon = np.float32(options.epsilon)

    def add(op_type: str, *inputs: ir.Value, shape: ir.Shape | None = data.shape) -> ir.Value:
        return editor.node(op_type, inputs, f"{node.name}_{op_type}", shape=shape)

    def mean(value: ir.Value) -> ir.Value:
        if editor.model.opset_imports[""] >= _AXES_ARE_INPUT:
            listed = editor.initializer(f"{node.name}_axes", np.array(axes, np.int64))
            return add("ReduceMean", value, listed, shape=reduced)
        result = add("ReduceMean", value, shape=reduced)
        producer = result.producer()
        if producer is not None:
            producer.attributes["axes"] = ir.AttrInt64s("axes", axes)
        return result

    centred = add("Sub", data, mean(data))
    variance = mean(add("Mul", centred, centred))
    small = editor.initializer(f"{node.name}_epsilon", epsilon)
    deviation = add("Sqrt", add("Add", variance, small, shape=reduced), shape=reduced)
    factor = add("Reciprocal", deviation, shape=reduced)
    result = add("Mul", add("Mul", centred, factor), scale)
    bias = input_value(node, 2)
    if bias is not None:
        result = add("Add", result, bias)
    editor.put_in_place(node, result)


def _division(editor: Editor, node: ir.Node) -> None:
    """``x * (1 / y)``, which differs from ``x / y`` by one rounding of float32.

    A node of other numbers than float32 is not expanded.
    """
    data, divisor = node.inputs[0], node.inputs[1]
    if data is None or divisor is None or divisor.dtype is not ir.DataType.FLOAT:
        return
    name = str(node.name)
    factor = editor.node("Reciprocal", (divisor,), f"{name}_Reciprocal", shape=divisor.shape)
    editor.put_in_place(node, editor.node("Mul", (data, factor), f"{name}_Mul"))


def _hard_sigmoid(editor: Editor, node: ir.Node) -> None:
    """``clip(alpha * x + beta, 0, 1)``.

    A node whose input is not float32 is not expanded. Source: the definition of the ONNX operator.
    """
    data = input_value(node, 0)
    if data is None or data.dtype is not ir.DataType.FLOAT:
        return
    value = data
    for op_type, number in zip(("Mul", "Add"), function_options(node), strict=True):
        constant = editor.number(float(np.float32(number)))
        value = editor.node(op_type, (value, constant), f"{node.name}_{op_type}", shape=data.shape)
    bounds = editor.number(0.0), editor.number(1.0)
    result = editor.node("Clip", (value, *bounds), f"{node.name}_Clip", shape=data.shape)
    editor.put_in_place(node, result)


def _power(editor: Editor, node: ir.Node) -> None:
    """``x * x * x``, and ``(x * x) * (x * x)``, for the constant exponents 3 and 4.

    A node of other exponents, or of other numbers than float32, is not expanded.
    """
    data, exponent = input_value(node, 0), constant_array(input_value(node, 1))
    if data is None or data.dtype is not ir.DataType.FLOAT or data.shape is None:
        return
    if exponent is None or exponent.size != 1 or exponent.ndim > len(data.shape):
        return  # more axes would broadcast
    power = exponent.item()
    if power not in (3, 4):
        return

    def times(first: ir.Value, second: ir.Value) -> ir.Value:
        return editor.node("Mul", (first, second), f"{node.name}_Mul", shape=data.shape)

    square = times(data, data)
    editor.put_in_place(node, times(square, data if power == 3 else square))


EXPANSIONS: dict[str, Callable[[Editor, ir.Node], None]] = {
    "BatchNormalization": expand_batch_norm,
    "Div": _division,
    "HardSigmoid": _hard_sigmoid,
    "LayerNormalization": _layer_norm,
    "Pow": _power,
}
"""The expansions by operator type; the names are `intact.ops.operators.EXPANDABLE`."""
