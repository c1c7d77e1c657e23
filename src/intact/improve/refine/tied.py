"""Tables in blocks that are looked up, and that layers multiply with too: one set of integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from intact.config import QuantState
from intact.graph.tied_tables import tied_tables
from intact.improve.refine.walk import bake
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd
from intact.program.lower.chains import Points


def tables_of_layers(plan: QuantizedGraph, points: Points) -> Mapping[ir.Node, QuantPoint | None]:
    """Find layers whose weight in blocks is that of a lookup: a file has them once.

    With integers of its own such a layer would cost as much as the table once more.

    Returns:
        Where the table is quantized, by layer; None where it cannot have the same integers.
    """
    stored = {
        node: point
        for point in points.at_input.values()
        if point.config.grid.block is not None and point.is_constant
        for node, _ in point.readers
    }
    if not stored:
        return {}  # comparing tables reads them from disk
    found: dict[ir.Node, QuantPoint | None] = {}
    taken: set[TensorEnd] = set()
    for lookup, layer, is_turned in tied_tables(plan.graph):
        if lookup not in stored or layer not in stored:
            continue
        table, weight = stored[lookup], stored[layer]
        one, other = table.config.grid, weight.config.grid
        is_alike = (
            is_turned
            and one.axis is not None
            and (1 - one.axis, one.block) == (other.axis, other.block)
            and table.config.bits == weight.config.bits
        )
        # One table can have the integers of one layer only, and of its readers all get them.
        is_free = table.end not in taken and len(table.readers) == 1
        found[layer] = table if is_alike and is_free else None
        taken.add(table.end)
    return found


def copy_rounded(
    plan: QuantizedGraph, points: Points, weight: QuantPoint, table: QuantPoint
) -> None:
    """Give a table the integers and scales of the layer that multiplies with it, transposed."""
    layer = weight.config
    scale, offset = (None if a is None else np.asarray(a).T for a in (layer.scale, layer.offset))
    table.config.set_params(np.asarray(scale, np.float32), offset)
    table.config.observer = layer.observer
    values = layer.dequantize(plan.baked[weight.end])
    bake(plan, points, table, QuantState.BAKED, np.ascontiguousarray(values.T))
