"""Recognizes Gelu approximated by Tanh, however it is multiplied out.

The formula is ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``.

It is multiplied out in as many ways as there are libraries: both sides of its Tanh are compared as
polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

import onnx_ir as ir

from intact.graph.ops import constant_array
from intact.graph.passes.pattern import CLOSE, has_one_reader
from intact.ops import functions
from intact.ops.operators import Add, Div, Mul, Pow, Sub, types_of

Polynomial: TypeAlias = Mapping[tuple[int, int], float]
"""Coefficients, by the powers of the data and of its Tanh."""

_DATA: Polynomial = {(1, 0): 1.0}
_TANH: Polynomial = {(0, 1): 1.0}
_CUBIC: Polynomial = {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)}
"""What the approximation's Tanh reads."""
_HALVES: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
"""The approximation."""
_ARITHMETIC = types_of(Add, Div, Mul, Pow, Sub)
_DEPTH = 7
"""Nodes that follow each other on either side of the Tanh."""


def approximations(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Value, ir.Node]]:
    """Find the approximation: what it is computed from, and its last node."""
    for node in nodes:
        if _is_one(node, (functions.tanh.name,)):
            yield from _approximated(node)


def _approximated(tanh: ir.Node) -> Iterator[tuple[ir.Value, ir.Node]]:
    inner = tanh.inputs[0]
    # Which value is x is not known: it is the one of which the Tanh reads this polynomial.
    for data in dict.fromkeys(_parts(inner)):
        if not _is_close(_polynomial(inner, {data: _DATA}), _CUBIC):
            continue
        known, last = {data: _DATA, tanh.outputs[0]: _TANH}, _sole_reader(tanh)
        for _ in range(_DEPTH):
            if last is None:
                return
            if _is_close(_polynomial(last.outputs[0], known), _HALVES):
                yield data, last
                return
            last = _sole_reader(last)
        return


def _is_one(node: ir.Node | None, op_types: Collection[str]) -> bool:
    return node is not None and node.domain == "" and node.op_type in op_types


def _producer(value: ir.Value) -> ir.Node | None:
    node = value.producer()
    return node if _is_one(node, _ARITHMETIC) else None


def _sole_reader(node: ir.Node) -> ir.Node | None:
    value = node.outputs[0]
    reader = next(iter(value.uses())).node if has_one_reader(value) else None
    return reader if _is_one(reader, _ARITHMETIC) else None


def _parts(value: ir.Value | None, depth: int = _DEPTH) -> Iterator[ir.Value]:
    """Yield what a value is computed from by arithmetic, itself first."""
    if value is None or constant_array(value) is not None:
        return
    yield value
    node = _producer(value)
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
    node = _producer(value)
    if node is None or not depth:
        return None
    left, right = (_polynomial(each, known, depth - 1) for each in node.inputs[:2])
    return None if left is None or right is None else _combined(node.op_type, left, right)


def _combined(op_type: str, left: Polynomial, right: Polynomial) -> Polynomial | None:
    number = right[0, 0] if right.keys() == {(0, 0)} else 0.0
    if op_type == Add.name:
        found = _sum(left, right)
    elif op_type == Sub.name:
        found = _sum(left, _product(right, {(0, 0): -1.0}))
    elif op_type == Mul.name:
        found = _product(left, right)
    elif op_type == Div.name and number:
        found = _product(left, {(0, 0): 1 / number})
    # Higher powers do not occur in the formula, and would let a hostile file make the polynomial
    # huge.
    elif op_type == Pow.name and number in (2.0, 3.0):
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
