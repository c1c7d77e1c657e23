"""Divisions by constants, and small powers, as products: hardware multiplies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.ops import constant_array, input_value, is_constant
from intact.graph.passes.replace import replace_constant

_SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest normal number: below it a reciprocal has fewer bits."""


def write_as_products(model: ir.Model) -> int:
    """Replace float32 divisions by constants, and squares written as Pow, by Mul.

    A division by a power of two stays exact; by another number the quotient differs by one
    rounding of float32 (the reciprocal is rounded, and then the product). ``Pow(x, 2)`` is
    ``x * x`` in ONNX Runtime too.

    Returns:
        The number of changed nodes.
    """
    return sum(_multiply(model.graph, node) or _square(node) for node in tuple(model.graph))


def _multiply(graph: ir.Graph, node: ir.Node) -> bool:
    data, divisor = _operands(node, "Div")
    if data is None or divisor is None or divisor.size == 0:
        return False
    with np.errstate(all="ignore"):
        reciprocals = (1.0 / divisor.astype(np.float64)).astype(np.float32)
    sizes = np.abs(reciprocals)
    if not ((sizes >= _SMALLEST) & np.isfinite(sizes)).all():
        return False
    replace_constant(graph, node, 1, reciprocals, f"{node.name}_reciprocal")
    node.op_type = "Mul"
    return True


def _square(node: ir.Node) -> bool:
    data, exponent = _operands(node, "Pow")
    if data is None or data.shape is None or exponent is None or exponent.size != 1:
        return False
    if exponent.item() != 2 or exponent.ndim > len(data.shape):  # more axes would broadcast
        return False
    node.replace_input_with(1, data)
    node.op_type = "Mul"
    return True


def _operands(node: ir.Node, op_type: str) -> tuple[ir.Value | None, np.ndarray | None]:
    """Return the computed float32 operand and the constant one; None for other nodes."""
    if node.domain != "" or node.op_type != op_type or len(node.inputs) != 2:
        return None, None
    data, constant = input_value(node, 0), constant_array(input_value(node, 1))
    if data is None or is_constant(data) or constant is None:
        return None, None
    types = {data.dtype, node.outputs[0].dtype} - {None}
    return (data, constant) if types == {ir.DataType.FLOAT} else (None, None)
