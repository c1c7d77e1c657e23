"""Rewrites operators whose meaning depends on the opset so that it does not.

A written model may need a newer opset than the given one, for types of a few bits: what is planned
on one form must not become another form then.

Sources: the ONNX operator specification and its change log, opsets 1 to 24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from intact.graph.names import Names
from intact.graph.passes.replace import add_constant
from intact.graph.traversal import graphs_of, nodes_of
from intact.ops.operators import (
    Flatten,
    GroupNormalization,
    Hardmax,
    InstanceNormalization,
    LogSoftmax,
    Named,
    Reshape,
    Shape,
    Softmax,
    type_of,
    types_of,
)

FLATTENING = types_of(Softmax, LogSoftmax, Hardmax)
"""Until opset 12 they take the axes from ``axis`` on as one, later ``axis`` alone."""

SINGLE_AXIS = 13
"""The first opset in which they do."""

_SCALE_BY_GROUP = range(18, 21)
"""The opsets in which GroupNormalization has a scale and a bias for each group; later ones have
them for each channel.
"""


def write_opset_forms(model: ir.Model) -> int:
    """Write these operators in forms of one meaning, in the graph and in all bodies.

    Softmax, LogSoftmax and Hardmax of opsets before 13 run along one axis; where they took several
    as one, a Flatten brings these together and a Reshape restores the shape. GroupNormalization of
    opsets 18 to 20 is an InstanceNormalization of its groups.

    Args:
        model: Changed in place. Where shapes are inferred, fewer nodes are needed.

    Returns:
        The number of nodes that were written otherwise.
    """
    nodes = list(_dependent(model))
    names = _Names(model) if nodes else None
    return sum(_REWRITES[node.op_type](names, node) for node in nodes if names is not None)


def depends_on_opset(model: ir.Model) -> bool:
    """Tell whether a model has operators that `write_opset_forms` would write otherwise."""
    return any(not _is_lasting(node) for node in _dependent(model))


def _dependent(model: ir.Model) -> Iterator[ir.Node]:
    opset = model.opset_imports.get("", 0)
    if opset < SINGLE_AXIS:
        chosen = FLATTENING
    elif opset in _SCALE_BY_GROUP:
        chosen = types_of(GroupNormalization)
    else:
        return
    nodes = nodes_of(model.graph)
    yield from (node for node in nodes if node.domain == "" and node.op_type in chosen)


def _is_lasting(node: ir.Node) -> bool:
    """Tell whether a node is in the form already."""
    if node.op_type not in FLATTENING or node.inputs[0] is None or "axis" not in node.attributes:
        return False
    axis = node.attributes["axis"].as_int()
    return _only_axis(node.inputs[0].shape, axis) == axis


class _Names:
    """The names of a model, made when the first new one is needed."""

    def __init__(self, model: ir.Model) -> None:
        graphs = list(graphs_of(model))
        self.values = Names((str(v.name) for graph in graphs for v in _values(graph)), first=1)
        self.nodes = Names((str(n.name) for graph in graphs for n in graph), first=1)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (*graph.inputs, *graph.initializers.values())
    for node in graph:
        yield from node.outputs


def _run_along_one_axis(names: _Names, node: ir.Node) -> bool:
    data = node.inputs[0]
    if data is None or _is_lasting(node):
        return False
    first = node.attributes.get_int("axis", 1)
    axis = _only_axis(data.shape, first)
    if axis is None:
        _between(names, node, first)
        axis = 1  # of the matrix that a Flatten gives, the last
    node.attributes["axis"] = ir.AttrInt64("axis", axis)
    return True


def _only_axis(shape: ir.Shape | None, first: int) -> int | None:
    """Return the axis that all from ``first`` on amount to; None where they are several.

    The last axis may be given as -1, which needs no shape.
    """
    if shape is None or not len(shape):
        return first if first == -1 else None
    first %= len(shape)
    longer = [axis for axis in range(first, len(shape)) if shape[axis] != 1]
    if len(longer) > 1:
        return None
    return longer[0] if longer else len(shape) - 1


def _between(names: _Names, node: ir.Node, first: int) -> None:
    """Let a node compute on a matrix, between a Flatten and a Reshape."""
    data = node.inputs[0]
    if data is None:
        return
    flat = _add(names, node, Flatten, [data], "flat", {"axis": first}, before=True)
    node.replace_input_with(0, flat)
    shape = None if data.shape is None else tuple(data.shape)
    rows = None if shape is None or first % len(shape) != 1 else shape[:1]
    _restore(names, node, data, _open_lengths(shape, rows or ()))


def _normalize_instances(names: _Names, node: ir.Node) -> bool:
    """Write a GroupNormalization as an InstanceNormalization of ``[N, groups, rest]``."""
    data, groups = node.inputs[0], GroupNormalization.of(node).num_groups
    if data is None:
        return False
    target = _constant(names, node, [0, groups, -1])
    grouped = _add(names, node, Reshape, [data, target], "groups", {}, before=True)
    node.replace_input_with(0, grouped)
    node.op_type, node.version = InstanceNormalization.name, None
    for name in tuple(node.attributes):
        if name != "epsilon":
            node.attributes.pop(name)
    shape = None if data.shape is None else tuple(data.shape)
    _restore(names, node, data, _open_lengths(shape, (shape or (None,))[:1]))
    return True


_REWRITES: dict[str, Callable[[_Names, ir.Node], bool]] = {
    **dict.fromkeys(FLATTENING, _run_along_one_axis),
    GroupNormalization.name: _normalize_instances,
}


def _open_lengths(
    shape: Sequence[int | ir.SymbolicDim] | None, kept: Sequence[int | ir.SymbolicDim | None]
) -> list[int] | None:
    """Return a Reshape's target for a shape; None where two lengths or more are open.

    Args:
        shape: The shape; None where it is not known.
        kept: The first lengths that are those of what is reshaped, too.
    """
    # A 0 in a target copies a length instead of being one.
    if shape is None or 0 in shape:
        return None
    open_length = [0 if axis < len(kept) else -1 for axis in range(len(shape))]
    target = [n if isinstance(n, int) else open_length[axis] for axis, n in enumerate(shape)]
    return target if target.count(-1) <= 1 else None


def _restore(names: _Names, node: ir.Node, data: ir.Value, target: list[int] | None) -> None:
    """Add a Reshape to the shape of ``data`` behind a node; it takes the name of the result."""
    result = node.outputs[0]
    written, is_output = result.name, result.is_graph_output()
    # Before the Reshape is added, which reads the result too.
    readers = tuple(result.uses())
    if target is None:
        shape = _add(names, node, Shape, [data], "shape", {}, before=True)
        shape.type = ir.TensorType(ir.DataType.INT64)
    else:
        shape = _constant(names, node, target)
    restored = _add(names, node, Reshape, [result, shape], "restored", {})
    for use in readers:
        use.node.replace_input_with(use.idx, restored)
    graph = node.graph
    if is_output and graph is not None:
        graph.outputs[:] = [restored if each is result else each for each in graph.outputs]
    result.name = names.values.fresh(f"{written}_flat")
    restored.name, restored.type, restored.shape = written, result.type, result.shape
    # Of the matrix now; inference finds it again.
    result.shape = None


def _add(
    names: _Names,
    node: ir.Node,
    operator: Named,
    inputs: Iterable[ir.Value],
    suffix: str,
    attributes: dict[str, int],
    *,
    before: bool = False,
) -> ir.Value:
    """Add a node right before another, or right behind it."""
    op_type = type_of(operator)
    added = ir.node(
        op_type,
        list(inputs),
        attributes,
        num_outputs=1,
        name=names.nodes.fresh(f"{node.name}_{suffix}"),
    )
    graph = node.graph
    value = added.outputs[0]
    value.name = names.values.fresh(f"{node.name}_{suffix}")
    value.type = node.outputs[0].type
    if graph is not None:
        (graph.insert_before if before else graph.insert_after)(node, added)
    return value


def _constant(names: _Names, node: ir.Node, numbers: list[int]) -> ir.Value:
    name = names.values.fresh(f"{node.name}_target")
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError("functions are left as they are")
    return add_constant(graph, np.array(numbers, np.int64), name)
