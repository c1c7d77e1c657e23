"""Finds outputs whose numbers name something: a class, a token, a place, a yes or no.

Of two such numbers only whether they are equal tells: class 7 is no nearer to 8 than to 3.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import facts

_KINDS = "iub"


def outputs_of_choices(graph: Graph) -> frozenset[str]:
    """Return the names of the outputs that hold whole numbers which an operator decided on.

    What is rounded and stored in a type of integers, such as pixels, is a number like any other.
    """
    return frozenset(str(value.name) for value in graph.outputs if _is_chosen(value))


def _is_chosen(value: ir.Value) -> bool:
    """Tell whether an operator that decides gives a value, or what the value is moved from."""
    pending, seen = [value], set[ir.Value]()
    while pending:
        each = pending.pop()
        node = each.producer()
        if each in seen or node is None or not _is_whole(each):
            continue
        seen.add(each)
        if facts(node).decides:
            return True
        pending += [given for given in node.inputs if given is not None]
    return False


def _is_whole(value: ir.Value) -> bool:
    """Tell whether a value has a type of integers; one that is not known may have it."""
    return value.dtype is None or value.dtype.numpy().kind in _KINDS
