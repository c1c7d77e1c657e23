"""A model's own functions, put where they are called: OpenVINO reads no calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from intact.errors import ExportError

_MOST_NODES = 1 << 16
"""What calls may become. Functions that call the next one twice double with each of them."""

_Sizes = dict[ir.OperatorIdentifier, int]


def inline_functions(model: ir.Model) -> None:
    """Replace every call of a model's own functions by the function's nodes, in place.

    Raises:
        ExportError: Functions call each other in a circle, or too often.
    """
    if not model.functions:
        return
    sizes: _Sizes = {}
    for identifier in model.functions:
        _measure(identifier, model.functions, sizes)
    if _size(model.graph.all_nodes(), sizes) > _MOST_NODES:
        raise _refusal(f"they become more than {_MOST_NODES} nodes")
    common.InlinePass()(model)


def _measure(
    first: ir.OperatorIdentifier,
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
    sizes: _Sizes,
) -> None:
    """Find of how many nodes a function and those that it calls consist, without recursion."""
    waiting, opened = [first], set[ir.OperatorIdentifier]()
    while waiting:
        identifier = waiting[-1]
        if identifier in sizes:
            waiting.pop()
            continue
        nodes = list(functions[identifier].all_nodes())
        called = {node.op_identifier() for node in nodes} & functions.keys()
        missing = [each for each in called if each not in sizes]
        if not missing:
            sizes[identifier] = min(_size(nodes, sizes), _MOST_NODES + 1)
        elif identifier in opened:
            raise _refusal("they call each other in a circle")
        opened.add(identifier)
        waiting += missing


def _size(nodes: Iterable[ir.Node], sizes: _Sizes) -> int:
    return sum(sizes.get(node.op_identifier(), 1) for node in nodes)


def _refusal(reason: str) -> ExportError:
    return ExportError(
        f"the model's own functions cannot be put where they are called: {reason}",
        remedy="export the float model without functions",
    )
