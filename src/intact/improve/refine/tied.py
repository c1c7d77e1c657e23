"""Tables in blocks that are looked up; those that layers multiply with too have the same codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from intact.config import QuantState
from intact.graph.ops import constant_array
from intact.graph.tied_tables import is_looked_up, tied_tables
from intact.improve.presets import FEW_BITS
from intact.improve.refine.rounding_blocks import table_scales
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


def scale_tables(plan: QuantizedGraph, points: Points, observer: str, report: Report) -> None:
    """Give tables of few bits that are looked up the scales of least error, in place.

    Before the layers are rounded, which then make good what is lost. That needs no samples: see
    `table_scales`. A layer that multiplies with a table gets its scales too.
    """
    layers = {
        table.end: points.at_input[str(layer.name), 1]
        for layer, table in tables_of_layers(plan, points).items()
        if table is not None
    }
    for point in {point.end: point for point in points.at_input.values()}.values():
        config, layer = point.config, layers.get(point.end)
        array = constant_array(point.value)
        if config.grid.block is None or config.bits > FEW_BITS or array is None or array.ndim != 2:
            continue
        if not all(is_looked_up(node, slot) for node, slot in point.readers):
            continue
        own = (point,) if layer is None else (point, layer)
        if any(each.end in plan.baked or each.config.observer == GIVEN for each in own):
            continue
        if any(len(each.config.group()) > 1 for each in own):
            continue
        scale, before, after = table_scales(array, config, plan.target.blocks)
        report(Gain(point.end.node, before, after, after > before))
        if after > before:
            config.set_params(scale, config.offset)
            config.observer = observer
            if layer is not None:
                layer.config.set_params(scale.T, layer.config.offset)


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
