"""Costs of computing: bit-operations, and what the target's file says of each operator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from intact.config import QuantState
from intact.graph import OpKind, data_slots, op_spec, shape_or_index_values
from intact.plan import TensorEnd
from intact.plan.inference import declared_signatures, factor_slots, infer_signature
from intact.search.cost.model import Choice, Term
from intact.search.cost.structure import Shapes, Structure
from intact.targets import DType

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


def bit_operations(structure: Structure, shapes: Shapes) -> Iterator[Term]:
    """Yield the bit-operations of each node that multiplies and accumulates.

    MACs times the bits of the one factor times those of the other: weight and activation, or two
    activations. A float counts as 32 bits. Operators without products count nothing.

    Source: van Baalen et al., "Bayesian Bits: Unifying Quantization and Pruning", NeurIPS 2020:
    BOPs(l) = MACs(l) b_w b_a.

    Raises:
        DataError: A shape depends on the sample, and there is none.
    """
    for node in structure.plan.graph.nodes:
        if is_product(node):
            ends = _factors(node)
            count = partial(_bit_operations, structure, ends, products(node, shapes))
            yield structure.table(structure.concerned(ends), count)


def target_operations(structure: Structure, shapes: Shapes) -> Iterator[Term]:
    """Yield each node's cost: the price in the target's file times its products or elements.

    The file's numbers are relative to each other, so that the sum is proportional to time, in
    products of an operator whose cost is 1. A node computes in the widest type of the first
    description whose inputs hold its operands' codes (`infer_signature`), in float32 where none
    does. Nothing is counted for what is fused behind another node,
    only gives another shape, or computes shapes.

    Raises:
        DataError: A shape depends on the sample, and there is none.
    """
    graph = structure.plan.graph
    shape_values = shape_or_index_values(graph)
    for node in graph.nodes:
        computes_shapes = all(str(value.name) in shape_values for value in node.outputs)
        if op_spec(node) is None or computes_shapes or _is_fused(structure, node):
            continue
        count = products(node, shapes) if is_product(node) else elements(node, shapes)
        groups = structure.concerned(_operands(node), [str(node.name)])
        yield structure.table(groups, partial(_price, structure, node, count))


def _factors(node: ir.Node) -> list[TensorEnd]:
    return [TensorEnd.input(str(node.name), slot) for slot in (0, 1)]


def _bit_operations(
    structure: Structure, ends: list[TensorEnd], count: int, choice: Choice
) -> float:
    return count * math.prod(structure.bits(end, choice) for end in ends)


def _is_fused(structure: Structure, node: ir.Node) -> bool:
    """Tell whether a node is computed with the one before it: an operand is never stored."""
    values = (node.inputs[slot] for slot in data_slots(node))
    configs = (structure.plan.producer_config(value) for value in values if value is not None)
    return any(config is not None and config.state is QuantState.OVERLAPPED for config in configs)


def _operands(node: ir.Node) -> list[TensorEnd]:
    return [TensorEnd.input(str(node.name), slot) for slot in factor_slots(node)]


def _price(structure: Structure, node: ir.Node, count: int, choice: Choice) -> float:
    target, rule, dtype = structure.plan.target, structure.plan.target.rule_for(node), DType.FLOAT32
    if rule is not None and not structure.is_float(node, choice):
        ends = _operands(node)
        widths = [structure.bits(end, choice) if end in structure.group_of else 0 for end in ends]
        taken = infer_signature(declared_signatures(node, rule, target), widths)
        if taken is not None:
            dtype = max(taken.inputs, key=lambda each: each.bits, default=dtype)
    return count * target.cost_of(node.op_type, dtype, rule)
