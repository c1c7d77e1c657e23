"""Finds tables that are looked up and that layers multiply with too: tied weights.

A graph has two constants of such a table where the product reads it transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import is_constant, weight_slot
from intact.ops.operators import Gather


def tied_tables(graph: Graph) -> Iterator[tuple[ir.Node, ir.Node, bool]]:
    """Yield lookups, layers whose weight is their table, and whether that is transposed there."""
    lookups: dict[tuple[int, ...], dict[ir.Value, ir.Node]] = {}
    for node in graph.nodes:
        table = node.inputs[0] if is_looked_up(node, 0) else None
        if table is not None and table.const_value is not None and is_constant(table):
            # By shape, so that only constants that can be equal are compared.
            lookups.setdefault(_shape(table), {}).setdefault(table, node)
    for layer in graph.nodes if lookups else ():
        slot = weight_slot(layer)
        weight = None if slot is None else layer.inputs[slot]
        if weight is None or weight.const_value is None:
            continue
        if weight in lookups.get(_shape(weight), {}):
            yield lookups[_shape(weight)][weight], layer, False
            continue
        for table, lookup in lookups.get(_shape(weight)[::-1], {}).items():
            if are_equal(table, weight, is_turned=True):
                yield lookup, layer, True


def _shape(value: ir.Value) -> tuple[int, ...]:
    return () if value.const_value is None else tuple(value.const_value.shape.numpy())


def are_equal(first: ir.Value, second: ir.Value, *, is_turned: bool) -> bool:
    """Tell whether two constants hold the same numbers, one of them transposed if `is_turned`."""
    one, other = first.const_value, second.const_value
    if one is None or other is None or one.dtype is not other.dtype:
        return False
    shapes = tuple(one.shape.numpy()), tuple(other.shape.numpy())
    if is_turned:
        is_matrix = len(shapes[0]) == 2
        return is_matrix and shapes[0] == shapes[1][::-1] and is_same(one.numpy(), other.numpy().T)
    return shapes[0] == shapes[1] and is_same(one.numpy(), other.numpy())


def is_same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Tell whether two arrays hold the same numbers."""
    # The first row tells nearly all unequal tables apart, which are large and may be mapped.
    return bool(np.array_equal(one[:1], other[:1]) and np.array_equal(one, other))


def is_looked_up(node: ir.Node, slot: int) -> bool:
    """Tell whether a node reads rows of a constant only."""
    return node.op_type == Gather.name and slot == 0
