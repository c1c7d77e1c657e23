"""Pools that round their output length up, as pools with explicit pads that round down.

Below opset 22 ONNX's shape inference counts windows that begin in the pads behind, which runtimes
leave out: this comes before shapes are inferred.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from intact.graph.names import node_names, value_names
from intact.graph.ops import input_value
from intact.graph.passes import library
from intact.graph.passes.replace import add_constant

_POOLS = {"AveragePool", "MaxPool"}


def pad_pools(model: ir.Model) -> int:
    """Replace ``ceil_mode`` by pads where the input's spatial lengths are known.

    An AveragePool that counts its pads counts those of the model only, not what rounding up adds
    (so ONNX Runtime computes it): they become a Pad in front, and the pool counts none.

    Returns:
        The number of changed pools.
    """
    pools = [node for node in model.graph if _rounds_up(node)]
    if not pools:
        return 0
    changed, waiting = 0, pools
    while waiting:  # the first of them depends on no other
        uncertain = _behind(waiting)
        _forget(uncertain)
        library.infer_shapes(model)
        ready = [node for node in waiting if input_value(node, 0) not in uncertain]
        waiting = [node for node in waiting if input_value(node, 0) in uncertain]
        changed += sum(_replace(model.graph, node) for node in ready)
    _forget(_behind(pools))
    library.infer_shapes(model)
    return changed


def _rounds_up(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in _POOLS:
        return False
    named = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    return named == "NOTSET" and bool(node.attributes.get_int("ceil_mode", 0))


def _behind(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    """Return the values that depend on nodes, their results included."""
    found: dict[ir.Value, None] = {}
    ahead = list(nodes)
    while ahead:
        for value in ahead.pop().outputs:
            if value not in found:
                found[value] = None
                ahead += [use.node for use in value.uses()]
    return found


def _forget(values: Iterable[ir.Value]) -> None:
    for value in values:
        value.shape = None


def _replace(graph: ir.Graph, node: ir.Node) -> bool:
    data = input_value(node, 0)
    kernel = node.attributes.get_ints("kernel_shape", ())
    if data is None or data.shape is None or not kernel or len(data.shape) != len(kernel) + 2:
        return False
    sizes = [size for size in data.shape[2:] if isinstance(size, int)]
    if len(sizes) != len(kernel):
        return False
    read, ones = node.attributes.get_ints, [1] * len(kernel)
    strides, dilations = read("strides", ()) or ones, read("dilations", ()) or ones
    pads = list(read("pads", ()) or [0] * (2 * len(kernel)))
    before, behind = pads[: len(kernel)], pads[len(kernel) :]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = zip(sizes, spans, strides, before, behind, strict=True)
    added = [_added(*axis) for axis in axes]
    grown = [old + new for old, new in zip(behind, added, strict=True) if new is not None]
    if len(grown) != len(kernel) or any(p >= k for p, k in zip(grown, kernel, strict=True)):
        return False  # runtimes refuse a window of pads alone
    if any(added) and node.attributes.get_int("count_include_pad", 0) == 1:
        if any(pads):
            _pad_in_front(graph, node, data, pads)
        before, grown = [0] * len(kernel), [new or 0 for new in added]
        node.attributes.pop("count_include_pad")
    node.attributes["pads"] = ir.AttrInt64s("pads", [*before, *grown])
    node.attributes.pop("ceil_mode")
    return True


def _added(size: int, span: int, stride: int, before: int, behind: int) -> int | None:
    """Return what completes the last window that begins in the data or in the pads before it.

    None for numbers that no pool has.
    """
    room = size + before + behind - span
    if min(stride, size) < 1 or min(span - 1, before, behind, room) < 0:
        return None
    count = min(-(-room // stride), (size + before - 1) // stride)
    added = max(count * stride - room, 0)
    return added if (room + added) // stride == count else None


def _pad_in_front(graph: ir.Graph, node: ir.Node, data: ir.Value, pads: list[int]) -> None:
    """Put a Pad with zeros in front of a pool."""
    values, rank = value_names(graph), len(pads) // 2
    all_pads = np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64)
    listed = add_constant(graph, all_pads, values.fresh(f"{node.name}_pads"))
    pad = ir.node("Pad", [data, listed], num_outputs=1)
    pad.name = node_names(graph).fresh(f"{node.name}_pad")
    pad.outputs[0].name = values.fresh(f"{node.name}_padded")
    pad.outputs[0].type = data.type
    graph.insert_before(node, pad)
    node.replace_input_with(0, pad.outputs[0])
