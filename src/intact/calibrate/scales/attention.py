"""What leads to a Softmax: where the constants of attention masks are, and attention scores."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from intact.graph import (
    Graph,
    OpKind,
    constant_array,
    data_slots,
    input_value,
    is_constant,
    op_spec,
)

_SUMS = frozenset({"Add", "Sum", "Min", "Max", "Identity", "Cast", "CastLike", "Clip", "Dropout"})
"""Operators that hand a masked value on as it is."""


def softmax_factors(graph: Graph) -> dict[str, float]:
    """Return the values from which a Softmax is reached, and how they come out there.

    The way leads through operators that add, choose, scale by a constant or move values. A
    Softmax reads a value times its factor (plus other things): 1 for what is added as it is, 0.125
    for scores that are scaled by that afterwards, -1 for what is subtracted. Where several ways
    lead there, the factor of the least magnitude counts.
    """
    factors: dict[str, float] = {}
    for node in reversed(graph.nodes):
        if node.op_type == "Softmax" and node.domain == "":
            _note(factors, node.inputs[0], 1.0)
            continue
        found = [factors[str(v.name)] for v in node.outputs if str(v.name) in factors]
        if found:
            factor = min(found, key=abs)
            for slot, own in _ways(node, factor).items():
                _note(factors, input_value(node, slot), own)
    return factors


def attention_values(graph: Graph) -> frozenset[str]:
    """Return the names of attention scores, ``[..., queries, keys]``, before and after Softmax.

    Attention is a Softmax whose result is multiplied with a computed matrix.
    """
    read = _read_by_products(graph)
    softmaxes = [n for n in graph.nodes if n.op_type == "Softmax" and n.outputs[0] in read]
    found = {value for node in softmaxes for value in (node.inputs[0], node.outputs[0])}
    for node in reversed(graph.nodes):
        if any(value in found for value in node.outputs) and node.op_type != "Softmax":
            found |= {input_value(node, slot) for slot in _ways(node, 1.0)}
    for node in graph.nodes:  # and what is made of the result on its way, Dropout and the like
        if _ways(node, 1.0) and node.outputs[0] in read:
            found |= {node.outputs[0]} if node.inputs[0] in found else set()
    return frozenset(str(value.name) for value in found if value is not None)


def _note(factors: dict[str, float], value: ir.Value | None, factor: float) -> None:
    name = "" if value is None else str(value.name)
    if name and abs(factor) < abs(factors.get(name, math.inf)):
        factors[name] = factor


def _ways(node: ir.Node, factor: float) -> dict[int, float]:
    """Return the input slots that reach a node's output of that factor, each with its own."""
    spec = op_spec(node)
    if spec is None:
        return {}
    match node.op_type:
        case "Neg":
            ways = {0: -factor}
        case "Sub":
            ways = {0: factor, 1: -factor}
        case "Mul":
            first, second = (_scalar(input_value(node, slot)) for slot in (0, 1))
            ways = {0: factor * second, 1: factor * first}
        case "Div":
            ways = {0: factor / _scalar(input_value(node, 1))}
        case op_type if op_type in _SUMS or spec.kind in (OpKind.MOVE, OpKind.JOIN):
            ways = dict.fromkeys(data_slots(node), factor)
        case _:
            ways = {}
    return ways


def _scalar(value: ir.Value | None) -> float:
    """Return the number that a constant holds everywhere; 1 for anything else."""
    array = constant_array(value)
    if array is None or not array.size or array.dtype.kind not in "iuf":
        return 1.0
    number = float(array.flat[0])
    same = bool(np.all(array == array.flat[0]))
    return number if same and number and math.isfinite(number) else 1.0


def _read_by_products(graph: Graph) -> set[ir.Value]:
    """Return the values that reach a product of two computed matrices."""
    found: set[ir.Value | None] = set()
    for node in reversed(graph.nodes):
        if node.op_type in {"MatMul", "Einsum"}:
            if not any(is_constant(value) for value in node.inputs):
                found |= set(node.inputs)
        elif any(value in found for value in node.outputs):
            found |= {input_value(node, slot) for slot in _ways(node, 1.0)}
    return {value for value in found if value is not None}
