"""Finds the opset that a plan needs in ONNX, and converts the model to it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from intact.errors import ExportError, ModelError
from intact.formats.onnx_qdq.reader.parameters import Container, container_for
from intact.graph.files.opset import convert_opset
from intact.plan import QuantizedGraph, QuantPoint
from intact.plan.dynamic import is_layer
from intact.plan.stored_weights import is_cached, is_stored
from intact.targets import BlockForm

_BLOCKS_OPSET = 21
"""The first default opset whose DequantizeLinear has blocks."""
_CHANNELS_OPSET = 13
"""The first whose QuantizeLinear has a scale for each channel."""
_DYNAMIC_OPSET = 11
"""The first with DynamicQuantizeLinear."""
_NEWER = "export the float model with a newer opset"


def needed_opset(plan: QuantizedGraph, points: Sequence[QuantPoint]) -> int:
    """Return the oldest opset that will do; 0 where any does.

    Raising converts the model, and older runtimes take fewer of the newer opsets.

    Raises:
        ExportError: ONNX has no type for the range of a point.
    """
    by_point = max((_opset_of_point(plan, point) for point in points), default=0)
    return max(by_point, _opset_of_operators(plan), opset_of_caches(plan))


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model at ``opset`` or newer; the same object where it is new enough.

    Raises:
        ExportError: The model cannot be converted.
    """
    if model.opset_imports[""] >= opset:
        return model
    try:
        raised = convert_opset(model, opset)
    except ModelError as error:
        raise ExportError(
            f"the plan's types need opset {opset}; the model {error}", remedy=_NEWER
        ) from error
    # Converting may replace a node by several, and an end of the plan would point at nothing.
    twins = {node.name: node for node in raised.graph}
    for node in model.graph:
        if not _has_slots_of(twins.get(node.name), node):
            raise ExportError(
                f"the plan's types need opset {opset}, in which node {node.name!r} "
                f"({node.op_type}) becomes others",
                remedy=_NEWER,
            )
    return raised


def _has_slots_of(twin: ir.Node | None, node: ir.Node) -> bool:
    """Tell whether a converted node reads what it read, where plans name it."""
    if twin is None or twin.op_type != node.op_type:
        return False
    return all(
        (value and value.name) == (other and other.name)
        for value, other in zip(node.inputs, twin.inputs, strict=False)
    )


def _opset_of_operators(plan: QuantizedGraph) -> int:
    """Return the oldest opset in which the target has the integer forms of a plan's operators."""
    nodes = [node for node in plan.graph.nodes if plan.is_quantized(node)]
    rules = (plan.target.rule_for(node) for node in nodes)
    return max((rule.opset for rule in rules if rule is not None), default=0)


def opset_of_caches(plan: QuantizedGraph) -> int:
    """Return the opset of the quantizers of caches that hold codes; 0 where there are none."""
    return _CHANNELS_OPSET if any(is_cached(each) for each in plan.configs.values()) else 0


def _opset_of_point(plan: QuantizedGraph, point: QuantPoint) -> int:
    """Return the opset whose operators express a point; a stored weight needs none."""
    blocks = plan.target.blocks
    if point.config.grid.block is not None and blocks is not None:
        return _BLOCKS_OPSET if blocks.form is not BlockForm.FUSED else 0
    if any(is_layer(plan, node, slot) for node, slot in point.readers):
        return _DYNAMIC_OPSET
    return 0 if is_stored(point.config) else container_of(point).opset_for(point.config)


def container_of(point: QuantPoint) -> Container:
    """Return the type that holds the codes of a point.

    Raises:
        ExportError: ONNX has none for its range.
    """
    container = container_for(point.config, is_constant=point.is_constant)
    if container is None:
        raise ExportError(f"{point.end}: ONNX has no type for its range")
    return container
