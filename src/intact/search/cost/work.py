"""How much a node does: products for those that multiply and accumulate, elements for the others.

Products (MACs): Conv and DeformConv take one for each output element, input channel of its group
and place of the kernel; ConvTranspose one for each input element, output channel of its group and
place of the kernel; Gemm and MatMul one for each output element and length of the sum. Biases are
not counted. For one sample.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from intact.graph import OpKind, op_spec
from intact.search.cost.shapes import Shapes

_SAME_MEMORY = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that give another shape to what is there."""


def is_product(node: ir.Node) -> bool:
    """Tell whether a node multiplies and accumulates."""
    spec = op_spec(node)
    return spec is not None and spec.kind is OpKind.COMPUTE


def products(node: ir.Node, shapes: Shapes) -> int:
    """Return the MACs of a node that multiplies and accumulates.

    Raises:
        DataError: A shape depends on the sample, and there is none.
    """
    if node.op_type == "ConvTranspose":
        kernel = shapes.of(node.inputs[1])
        return math.prod(shapes.of(node.inputs[0])) * math.prod(kernel[1:])
    outputs = math.prod(shapes.of(node.outputs[0]))
    if node.op_type in {"Conv", "DeformConv"}:
        return outputs * math.prod(shapes.of(node.inputs[1])[1:])
    first = shapes.of(node.inputs[0])
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) != 0
    return outputs * first[-2 if transposed else -1]


def elements(node: ir.Node, shapes: Shapes) -> int:
    """Return the elements that a node without products goes through.

    A pool with a kernel reads one for each output element and place of the kernel, a global pool
    and a reduction all of their input; other operators make their outputs, and those that only
    give another shape do nothing.

    Raises:
        DataError: A shape depends on the sample, and there is none.
    """
    spec = op_spec(node)
    if node.op_type in _SAME_MEMORY:
        return 0
    kernel = node.attributes.get_ints("kernel_shape", None)
    if spec is not None and spec.kind is OpKind.POOL and kernel is not None:
        return math.prod(shapes.of(node.outputs[0])) * math.prod(kernel)
    if spec is not None and spec.kind in {OpKind.POOL, OpKind.REDUCE}:
        return math.prod(shapes.of(node.inputs[0]))
    return sum(math.prod(shapes.of(value)) for value in node.outputs if value.name)
