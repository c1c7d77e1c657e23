"""Tables in blocks that are looked up; those that layers multiply with too have the same codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from intact.config import QuantState
from intact.graph.ops import constant_array
from intact.graph.tied_tables import is_looked_up, tied_tables
from intact.improve.presets import FEW_BITS
from intact.improve.refine.rounding_blocks import round_table
from intact.improve.refine.walk import bake
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd
from intact.plan.gains import Gain, Report
from intact.plan.given_scales import GIVEN
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


def round_lookups(plan: QuantizedGraph, points: Points, observer: str, report: Report) -> None:
    """Round tables of few bits that are only looked up, in place.

    Before the layers, which then make good what is lost. That needs no samples: see `round_table`.
    """
    tied = {point.end for point in tables_of_layers(plan, points).values() if point is not None}
    for point in {point.end: point for point in points.at_input.values()}.values():
        config = point.config
        if config.grid.block is None or config.bits > FEW_BITS or len(config.group()) > 1:
            continue
        if point.end in tied or point.end in plan.baked:
            continue
        if not all(is_looked_up(node, slot) for node, slot in point.readers):
            continue
        array = constant_array(point.value)
        if array is None or array.ndim != 2 or config.observer == GIVEN:
            continue
        scale, values, before, after = round_table(array, config, plan.target.blocks)
        report(Gain(point.end.node, before, after, after > before))
        if after > before:
            config.set_params(scale, config.offset)
            config.observer = observer
            bake(plan, points, point, QuantState.BAKED, values)


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
