"""From the points of a quantised model to the configs and decisions of a plan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import ModelError
from intact.formats.onnx_qdq.reading.parameters import Parameters, is_dequantize, is_quantize
from intact.formats.onnx_qdq.reading.strip import ReadPoint
from intact.graph import (
    Graph,
    OpKind,
    Role,
    data_slots,
    input_role,
    input_value,
    moves_values,
    op_spec,
    shape_or_index_values,
    weight_slot,
)
from intact.plan import Decision, Direction, QuantizedGraph, TensorEnd
from intact.plan.schemes import unquantized
from intact.plan.topology import sole_reader
from intact.targets import Target

_FUSED = frozenset({"Relu", "Clip"})


def configure(graph: Graph, target: Target, points: list[ReadPoint]) -> QuantizedGraph:
    """Return the plan of a float model whose quantisers were taken out.

    Raises:
        ModelError: There are no points: the model is not quantised.
    """
    if not points:
        raise ModelError("the model is not quantised", remedy="quantize it, with samples")
    plan = QuantizedGraph(graph, target, _floats(graph), {})
    order = {end: position for position, end in enumerate(plan.configs)}
    for point in points:
        ends = [end for end in point.ends if plan.configs[end].state is not QuantState.SOI]
        if ends:
            _place(plan, point, sorted(ends, key=order.__getitem__))
    _share_moved(plan)
    _overlap_fused(plan)
    shapes = shape_or_index_values(graph)
    plan.decisions.update({str(n.name): _decision(plan, n, shapes) for n in graph.nodes})
    return plan


def _floats(graph: Graph) -> dict[TensorEnd, TensorQuantConfig]:
    """Return a config for every end: none is quantised."""
    shapes = shape_or_index_values(graph)
    configs = {}
    for node in graph.nodes:
        name = str(node.name)
        for slot, value in enumerate(node.inputs):
            if value is not None:
                is_shape = input_role(node, slot) is Role.SHAPE or str(value.name) in shapes
                state = QuantState.SOI if is_shape else QuantState.FP32
                configs[TensorEnd.input(name, slot)] = unquantized(state)
        for slot, value in enumerate(node.outputs):
            state = QuantState.SOI if str(value.name) in shapes else QuantState.FP32
            configs[TensorEnd.output(name, slot)] = unquantized(state)
    return configs


def _place(plan: QuantizedGraph, point: ReadPoint, ends: list[TensorEnd]) -> None:
    """Give the ends of a point their configs, which share the scale of the first."""
    root, *followers = (point.parameters.config(_state(plan, end, point)) for end in ends)
    for follower in followers:
        root.dominate(follower)
    plan.configs.update(zip(ends, (root, *followers), strict=True))
    if point.codes is not None:
        plan.baked[ends[0]] = point.codes
    if ends[0].direction is Direction.OUTPUT:
        _overlap_readers(plan, ends[0], root, point.parameters)


def _state(plan: QuantizedGraph, end: TensorEnd, point: ReadPoint) -> QuantState:
    if point.codes is None:
        return QuantState.ACTIVATED
    is_bias = input_role(plan.graph.node(end.node), end.slot) is Role.BIAS
    return QuantState.PASSIVE_BAKED if is_bias else QuantState.BAKED


def _overlap_readers(
    plan: QuantizedGraph, end: TensorEnd, root: TensorQuantConfig, parameters: Parameters
) -> None:
    """Let those who read a quantised output say so: its producer governs them."""
    value = plan.graph.node(end.node).outputs[end.slot]
    for node, slot, config in plan.consumer_configs(value):
        if config.state is QuantState.FP32 and input_role(node, slot) is Role.DATA:
            governed = parameters.config(QuantState.OVERLAPPED)
            root.dominate(governed)
            plan.configs[TensorEnd.input(str(node.name), slot)] = governed


def _share_moved(plan: QuantizedGraph) -> None:
    """Let what only moves codes, and keeps their scale, follow the scale of its input."""
    for node in plan.graph.nodes:
        if not moves_values(node) or input_value(node, 0) is None:
            continue
        source = plan.input_config(node, 0).dominator
        for slot, _ in enumerate(node.outputs):
            output = plan.output_config(node, slot)
            if source.params is not None and _equal(source, output):
                source.dominate(output)


def _equal(left: TensorQuantConfig, right: TensorQuantConfig) -> bool:
    if left.params is None or right.params is None or not left.same_grid(right):
        return False
    (scale, zero_point), (other_scale, other_zero_point) = left.params, right.params
    return np.array_equal(scale, other_scale) and np.array_equal(zero_point, other_zero_point)


def _overlap_fused(plan: QuantizedGraph) -> None:
    """Mark what a Relu or Clip computes inside the operator before it, as runtimes fuse it."""
    for node in plan.graph.nodes:
        value = input_value(node, 0)
        source = None if value is None else value.producer()
        if source is None or node.domain != "" or node.op_type not in _FUSED:
            continue
        reader, output = sole_reader(plan.graph, source), plan.output_config(node)
        before = plan.output_config(source)
        if reader != (node, 0) or before.state is not QuantState.FP32:
            continue
        if output.state is QuantState.ACTIVATED and _reads_integers(plan, source):
            for end in (TensorEnd.output(str(source.name)), TensorEnd.input(str(node.name), 0)):
                twin = TensorQuantConfig.on_grid(output.grid, observer=output.observer)
                twin.transition(QuantState.OVERLAPPED)
                output.dominate(twin)
                plan.configs[end] = twin


def _reads_integers(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Tell whether all data and weights of a node are quantised."""
    return not any(_float_slots(plan, node)) and bool(data_slots(node))


def _float_slots(plan: QuantizedGraph, node: ir.Node) -> Iterator[ir.Value]:
    weight = weight_slot(node)
    slots = (*data_slots(node), *(() if weight is None else (weight,)))
    for slot in slots:
        value, config = node.inputs[slot], plan.input_config(node, slot)
        if value is not None and config.state in (QuantState.FP32, QuantState.SOI):
            yield value


def _decision(plan: QuantizedGraph, node: ir.Node, shapes: frozenset[str]) -> Decision:
    if is_quantize(node) or is_dequantize(node):
        return Decision(False, "turns the model's integers into numbers, or numbers into integers")
    if all(str(output.name) in shapes for output in node.outputs):
        return Decision(False, "computes shapes or indices only")
    spec = op_spec(node)
    outputs = [plan.output_config(node, slot) for slot, _ in enumerate(node.outputs)]
    writes = any(config.state is not QuantState.FP32 for config in outputs)
    floats = list(_float_slots(plan, node))
    if floats:
        return Decision(False, f"the model leaves its input {floats[0].name!r} float")
    if not (writes or (spec is not None and spec.kind is OpKind.COMPUTE)):
        return Decision(False, "the model leaves its output float")
    return Decision(True, "quantised by the model that was read")
