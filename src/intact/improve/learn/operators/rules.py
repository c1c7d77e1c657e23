"""Registers how torch computes each ONNX operator, so that gradients flow through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from torch import Tensor

from intact.errors import Unsupported
from intact.graph import Graph, constant_array, input_value
from intact.ops.operators import Named
from intact.program.handlers import NamedHandlers

Apply: TypeAlias = Callable[..., Tensor | tuple[Tensor, ...]]
"""Computes a node: takes its inputs by slot, None for one that is absent; missing slots at the end
may be left out. Returns the output of a node that has one, else a tuple, one for each output slot.
No input is changed; an output may be a view of one."""

Rule: TypeAlias = Callable[[ir.Node], Apply]
"""Reads a node's attributes and constant arguments once; raises `Unsupported` for what it lacks."""

Integers: TypeAlias = tuple[int, ...]

RULES: NamedHandlers[Rule] = NamedHandlers("training has no {}")
"""By operator type of the default domain."""

operator = RULES.register
"""Registers the decorated rule for operators: ``@operator(Conv)``."""


def computes(*operators: Named) -> Callable[[Apply], Apply]:
    """Register the decorated function as what computes operators without attributes."""

    def decorate(function: Apply) -> Apply:
        operator(*operators)(lambda _: function)
        return function

    return decorate


def prepare(node: ir.Node) -> Apply:
    """Return what computes a node of a normalized graph (opset 11 or newer).

    Values that the graph has as FLOAT may have any float dtype, the same for all of them. Numbers
    that a node makes of other types (Cast, ConstantOfShape) have torch's default dtype then.

    Raises:
        Unsupported: There is no rule for it, or not for one of its options.
    """
    if node.domain != "":
        raise Unsupported(f"training has no {node.domain}.{node.op_type}")
    return RULES.of(node.op_type)(node)


def unsupported(graph: Graph) -> dict[ir.Node, Unsupported]:
    """Find the nodes that cannot be computed, in order, with the reason for each."""
    found = {}
    for node in graph.nodes:
        try:
            prepare(node)
        except Unsupported as reason:
            found[node] = Unsupported(
                reason.reason, reason.remedy, node=node.name or "", operator=node.op_type
            )
    return found


def opset(node: ir.Node) -> int:
    """Return the version of the default operator set that a node is of."""
    return node.version or (node.graph.opset_imports[""] if node.graph else 0)


def outputs(node: ir.Node, results: tuple[Tensor, ...]) -> tuple[Tensor, ...] | Tensor:
    """Give a node of one output a tensor, another as many as it has slots."""
    return results[0] if len(node.outputs) == 1 else results[: len(node.outputs)]


def fixed_array(node: ir.Node, slot: int) -> np.ndarray | None:
    """Return a constant input; None where it is computed or absent."""
    return constant_array(input_value(node, slot))


def integers(
    node: ir.Node, slot: int, name: str = ""
) -> Callable[[Tensor | None], Integers | None]:
    """Return what gives a list of integers: an attribute, a constant, or the tensor of a run.

    Args:
        node: A node.
        slot: The input that holds them; -1 if none does.
        name: The attribute that holds them in older opsets.
    """
    fixed: Integers | None = None
    if name and name in node.attributes:
        fixed = tuple(int(each) for each in node.attributes[name].as_ints())
    elif (array := fixed_array(node, slot)) is not None:
        fixed = tuple(int(each) for each in array.reshape(-1))
    # Read once, here: a tensor that becomes a list in each pass waits for the device.
    if fixed is not None or input_value(node, slot) is None:
        return lambda _: fixed
    return lambda given: None if given is None else tuple(map(int, given.reshape(-1).tolist()))


def number(node: ir.Node, slot: int, name: str = "") -> float | int | bool | None:
    """Return a number that is an attribute or a constant input; None where it is neither."""
    if name and name in node.attributes:
        value: float | int = node.attributes[name].value
        return value
    array = fixed_array(node, slot)
    if array is None or array.size != 1:
        return None
    item: float | int | bool = array.reshape(()).item()
    return item


def nonnegative(axis: int, rank: int) -> int:
    """Count an axis from the front."""
    return axis + rank if axis < 0 else axis
