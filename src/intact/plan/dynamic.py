"""Lists the tensors that are quantized while the model runs, by a scale of their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import onnx_ir as ir

from intact.config import Grid, PerRow, StateMeaning
from intact.graph import weight_slot
from intact.plan.quantized_graph import QuantizedGraph, TensorEnd
from intact.targets import Arithmetic

if TYPE_CHECKING:
    from intact.numerics.dynamic import DynamicQuantizer


class DynamicPoint(msgspec.Struct, frozen=True):
    """A value that is quantized while the model runs.

    Attributes:
        value: The value.
        grid: Width, range, symmetry and rounding of the codes, and for what there is one scale.
        readers: The (node, slot) pairs that read the codes, in graph order.
    """

    value: ir.Value
    grid: Grid
    readers: tuple[tuple[ir.Node, int], ...]

    @property
    def end(self) -> TensorEnd:
        """The end of the first reader, which names the point."""
        return self.ends[0]

    @property
    def ends(self) -> tuple[TensorEnd, ...]:
        """The ends of the readers."""
        return tuple(TensorEnd.input(str(node.name), slot) for node, slot in self.readers)


def dynamic_points(plan: QuantizedGraph) -> Iterator[DynamicPoint]:
    """Yield what a plan quantizes while running; readers of one value on one grid share a point."""
    found: dict[tuple[ir.Value, Grid], list[tuple[ir.Node, int]]] = {}
    for node in plan.graph.nodes:
        for slot, value in enumerate(node.inputs):
            if value is not None and is_dynamic(plan, node, slot):
                key = value, plan.input_config(node, slot).grid
                # By value and grid: two readers of one value on one grid see the same codes, which
                # are computed once.
                found.setdefault(key, []).append((node, slot))
    for (value, grid), readers in found.items():
        yield DynamicPoint(value, grid, tuple(readers))


def is_dynamic(plan: QuantizedGraph, node: ir.Node, slot: int) -> bool:
    """Tell whether an input of a node is quantized while the model runs."""
    return plan.input_config(node, slot).meaning is StateMeaning.QUANTIZES_RUNNING


def is_layer(plan: QuantizedGraph, node: ir.Node, slot: int) -> bool:
    """Tell whether an input is the weight of a layer whose data is quantized while it runs."""
    return slot == weight_slot(node) and is_dynamic(plan, node, 0)


def dynamic_quantizer(grid: Grid, arithmetic: Arithmetic) -> DynamicQuantizer:
    """Return what computes the codes of a grid as a target does."""
    from intact.numerics.dynamic import DynamicQuantizer  # which few plans need

    return DynamicQuantizer(
        grid.quant_min,
        grid.quant_max,
        symmetric=grid.symmetric,
        rows=isinstance(grid.granularity, PerRow),
        block=grid.block,
        rounding=grid.rounding,
        factor=arithmetic.dynamic_factor if grid.block is None else arithmetic.dynamic_block_factor,
    )
