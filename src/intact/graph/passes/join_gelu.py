"""Gelu composed with Erf, or approximated by Tanh.

Exporters below opset 20 write ``x / 2 * (1 + erf(x / sqrt 2))``, with the factor 1/2 in one of
three places. The approximation is ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``,
multiplied out in as many ways as there are libraries: both sides of its Tanh are compared as
polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.join import (
    CLOSE,
    Match,
    divide_out,
    is_node,
    is_number,
    other_operand,
    producer,
    sole_reader,
)

Polynomial: TypeAlias = Mapping[tuple[int, int], float]
"""Coefficients, by the powers of the data and of its Tanh."""

_DATA: Polynomial = {(1, 0): 1.0}
_TANH: Polynomial = {(0, 1): 1.0}
_CUBIC: Polynomial = {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)}
"""What the approximation's Tanh reads."""
_HALVES: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
"""The approximation."""
_ARITHMETIC = ("Add", "Div", "Mul", "Pow", "Sub")
_DEPTH = 7
"""Nodes that follow each other on either side of the Tanh."""


def gelu(graph: Graph) -> Iterator[Match]:
    """Find both forms."""
    yield from _exact(graph)
    for node in graph.nodes:
        if is_node(node, "Tanh"):
            yield from _approximated(graph, node)


def _approximated(graph: Graph, tanh: ir.Node) -> Iterator[Match]:
    inner = tanh.inputs[0]
    for data in dict.fromkeys(_parts(inner)):
        if not _is_close(_polynomial(inner, {data: _DATA}), _CUBIC):
            continue
        known, last = {data: _DATA, tanh.outputs[0]: _TANH}, sole_reader(graph, tanh, "Add")
        for _ in range(_DEPTH):
            if last is None:
                return
            if _is_close(_polynomial(last.outputs[0], known), _HALVES):
                yield Match(data, last, attributes={"approximate": "tanh"})
                return
            last = sole_reader(graph, last, *_ARITHMETIC)
        return


def _parts(value: ir.Value | None, depth: int = _DEPTH) -> Iterator[ir.Value]:
    """Yield what a value is computed from by arithmetic, itself first."""
    if value is None or constant_array(value) is not None:
        return
    yield value
    node = producer(value, *_ARITHMETIC)
    for each in node.inputs if node is not None and depth else ():
        yield from _parts(each, depth - 1)


def _polynomial(
    value: ir.Value | None, known: Mapping[ir.Value, Polynomial], depth: int = _DEPTH
) -> Polynomial | None:
    """Write a value as a polynomial of known ones; None where it is none."""
    if value is None or value in known:
        return None if value is None else known[value]
    array = constant_array(value)
    if array is not None:
        return {(0, 0): float(array.reshape(()))} if array.size == 1 else None
    node = producer(value, *_ARITHMETIC)
    if node is None or not depth:
        return None
    left, right = (_polynomial(each, known, depth - 1) for each in node.inputs[:2])
    return None if left is None or right is None else _combined(node.op_type, left, right)


def _combined(op_type: str, left: Polynomial, right: Polynomial) -> Polynomial | None:
    number = right[0, 0] if right.keys() == {(0, 0)} else 0.0
    if op_type == "Add":
        found = _sum(left, right)
    elif op_type == "Sub":
        found = _sum(left, _product(right, {(0, 0): -1.0}))
    elif op_type == "Mul":
        found = _product(left, right)
    elif op_type == "Div" and number:
        found = _product(left, {(0, 0): 1 / number})
    elif op_type == "Pow" and number in (2.0, 3.0):
        found = _product(left, left if number == 2.0 else _product(left, left))
    else:
        return None
    return found


def _sum(left: Polynomial, right: Polynomial) -> Polynomial:
    return {each: left.get(each, 0.0) + right.get(each, 0.0) for each in left.keys() | right.keys()}


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    found: dict[tuple[int, int], float] = {}
    for (x, tanh), factor in left.items():
        for (more, others), other in right.items():
            powers = x + more, tanh + others
            found[powers] = found.get(powers, 0.0) + factor * other
    return found


def _is_close(found: Polynomial | None, wanted: Polynomial) -> bool:
    return (
        found is not None
        and found.keys() == wanted.keys()
        and all(math.isclose(found[each], wanted[each], rel_tol=CLOSE) for each in wanted)
    )


def _exact(graph: Graph) -> Iterator[Match]:
    """Find ``x / 2 * (1 + erf(x / sqrt 2))``, with the factor 1/2 in one of three places."""
    for node in graph.nodes:
        if is_node(node, "Erf"):
            data = divide_out(input_value(node, 0), math.sqrt(0.5))
            last = None if data is None else _last(graph, node, data)
            if data is not None and last is not None:
                yield Match(data, last)


def _last(graph: Graph, erf: ir.Node, data: ir.Value) -> ir.Node | None:
    added = sole_reader(graph, erf, "Add")
    if added is None or not is_number(other_operand(added, erf.outputs[0]), 1.0):
        return None
    first = sole_reader(graph, added, "Mul")
    if first is None:
        return None
    other = other_operand(first, added.outputs[0])
    if other is not data:
        # 1. The half is taken of x.
        halved = divide_out(other, 0.5)
        if halved is data:
            return first
        if not is_number(other, 0.5):
            return None
    second = sole_reader(graph, first, "Mul")
    if second is None:
        return None
    # 2. It is taken of the product with x, or 3. of the sum, which x comes behind.
    rest = other_operand(second, first.outputs[0])
    fits = is_number(rest, 0.5) if other is data else rest is data
    return second if fits else None
