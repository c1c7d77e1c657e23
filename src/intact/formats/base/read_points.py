"""Makes a plan of the quantization points that a reader found in an ONNX model.

Shared by the formats that keep a model's float operators and put quantizers between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from intact.config import QuantState, TensorQuantConfig
from intact.errors import ModelError, PlanError
from intact.graph import (
    Graph,
    OpKind,
    Role,
    data_slots,
    facts,
    input_role,
    input_value,
    load_model,
    moves_values,
    op_spec,
    weight_slot,
)
from intact.graph.names import Names
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.types import infer_types
from intact.ops.operators import QUANTIZERS, Add, Identity, is_a
from intact.plan import Codes, Decision, Direction, QuantizedGraph, TensorEnd
from intact.plan.bounds import follow_data
from intact.plan.schemes import unquantized
from intact.plan.stored_weights import is_stored
from intact.plan.topology import finds_places, only_weights, sole_reader
from intact.targets import Target


def written_model(path: Path, expected: ir.Model, tensors: Iterable[str]) -> ir.Model:
    """Read the ONNX model of a result, which must be the one that its plan would write.

    Args:
        path: The model.
        expected: What the plan would write.
        tensors: Names that it must have.

    Raises:
        PlanError: It lacks a tensor, or has other outputs.
    """
    model = load_model(path)
    present = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    present |= {value.name for node in model.graph for value in node.outputs}
    # In their order, by which applications read them.
    outputs, wanted = ([value.name for value in each.graph.outputs] for each in (model, expected))
    wrong = next((f"it has no tensor {name!r}" for name in tensors if name not in present), "")
    if not wrong and outputs != wanted:
        wrong = f"its outputs are {outputs}, not {wanted}"
    if wrong:
        raise PlanError(f"{path}: not the model of this plan, {wrong}", remedy="quantize again")
    return model


class Parameters(Protocol):
    """Scale, zero point and range of one tensor, in whatever form a format has them."""

    def config(self, state: QuantState = ...) -> TensorQuantConfig:
        """Return a new config that says the same."""


class ReadPoint(msgspec.Struct, frozen=True, eq=False):
    """A tensor that the model quantized.

    Attributes:
        parameters: Its scale, zero point and range.
        ends: The output end of its producer alone, or the ends that read it.
        codes: The integers of a constant; None for an activation.
    """

    parameters: Parameters
    ends: tuple[TensorEnd, ...]
    codes: Codes | None = None


def plan_of(model: ir.Model, target: Target, points: list[ReadPoint]) -> QuantizedGraph:
    """Return the plan of a model whose quantizers were taken out of it.

    Args:
        model: What is left; it is tidied, and belongs to the plan.
        target: The hardware that the plan is for.
        points: What was taken out.
    """
    # Sorted first: readers insert nodes where it suits them, and ONNX infers shapes in order.
    library.sort_nodes(model)
    library.remove_unused(model)
    # The domains of its quantizers are declared still, and mean nothing in a float model.
    common.RemoveUnusedOpsetsPass()(model)
    library.infer_shapes(model)
    infer_types(model)
    make_names_unique(model)
    plan = configure(Graph(model), target, points)
    producer = f"{model.producer_name or ''} {model.producer_version or ''}".strip()
    plan.provenance = plan.provenance.read(producer)
    return plan


def configure(graph: Graph, target: Target, points: list[ReadPoint]) -> QuantizedGraph:
    """Return the plan of a float model whose quantizers were taken out.

    Raises:
        ModelError: There are no points: the model is not quantized.
    """
    if not points:
        raise ModelError("the model is not quantized", remedy="quantize it, with samples")
    plan = QuantizedGraph(graph, target, _floats(graph), {})
    # The first end in the plan's order dominates, whatever order a reader found them in.
    order = {end: position for position, end in enumerate(plan.configs)}
    for point in points:
        ends = [end for end in point.ends if plan.configs[end].state is not QuantState.SOI]
        if ends:
            _place(plan, point, sorted(ends, key=order.__getitem__))
    # In this order: what is inside an operator can only be told once all ends outside of it have
    # their scales.
    _share_moved(plan)
    _overlap_sums(plan)
    _overlap_fused(plan)
    follow_data(plan)
    shapes = graph.shape_or_index_values
    plan.decisions.update({str(n.name): _decision(plan, n, shapes) for n in graph.nodes})
    return plan


def _floats(graph: Graph) -> dict[TensorEnd, TensorQuantConfig]:
    """Return a config for every end: none is quantized."""
    shapes = graph.shape_or_index_values
    configs = {}
    for node in graph.nodes:
        name = str(node.name)
        for slot, value in enumerate(node.inputs):
            if value is not None:
                # Numbers that are shapes or indices never become codes, whatever a file says of
                # them.
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


def _stores(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Tell whether a node computes in float, with a weight that the model stores as integers."""
    slots = (slot for slot, value in enumerate(node.inputs) if value is not None)
    return any(is_stored(plan.input_config(node, slot)) for slot in slots)


def _state(plan: QuantizedGraph, end: TensorEnd, point: ReadPoint) -> QuantState:
    if point.codes is None:
        return QuantState.ACTIVATED
    is_bias = input_role(plan.graph.node(end.node), end.slot) is Role.BIAS
    return QuantState.PASSIVE_BAKED if is_bias else QuantState.BAKED


def _overlap_readers(
    plan: QuantizedGraph, end: TensorEnd, root: TensorQuantConfig, parameters: Parameters
) -> None:
    """Let those who read a quantized output say so: its producer governs them."""
    value = plan.graph.node(end.node).outputs[end.slot]
    for node, slot, config in plan.consumer_configs(value):
        # A reader with a quantizer of its own keeps it.
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


def _overlap_sums(plan: QuantizedGraph) -> None:
    """Mark what an Add computes inside the operator before it, on a target that fuses the two."""
    before = {
        name
        for fusion in plan.target.fusions
        if Add.name in fusion.pattern[1] and not fusion.shares_input
        for name in fusion.pattern[0]
    }
    # Few targets fuse sums; for others the whole graph is not walked.
    for node in plan.graph.nodes if before else ():
        if is_a(node, Add):
            _overlap_sum(plan, node, before)


def _overlap_sum(plan: QuantizedGraph, node: ir.Node, before: set[str]) -> None:
    """Overlap the ends between an Add, the product whose accumulator it uses, and a Relu behind."""
    floats = list(_float_slots(plan, node))
    # One operand in float, the other quantized: so writes who fuses the Add into the product in
    # front.
    source = floats[0].producer() if len(floats) == 1 else None
    if source is None or source.domain != "" or source.op_type not in before:
        return
    reader = sole_reader(plan.graph, source)
    # With another reader the product has a result of its own, and keeps an end.
    if reader is None or not _reads_integers(plan, source):
        return
    ends = [TensorEnd.output(str(source.name)), TensorEnd.input(str(node.name), reader[1])]
    last = node
    behind = sole_reader(plan.graph, node)
    if plan.output_config(node).state is QuantState.FP32 and behind is not None:
        last = behind[0]
        if not facts(last).clamps or behind[1] != 0:
            return
        ends += [TensorEnd.output(str(node.name)), TensorEnd.input(str(last.name), 0)]
    if plan.output_config(last).state is QuantState.ACTIVATED:
        _overlap(plan, ends, plan.output_config(last))


def _overlap(plan: QuantizedGraph, ends: list[TensorEnd], output: TensorQuantConfig) -> None:
    """Let ends inside an operator follow the one where its result leaves it."""
    for end in ends:
        twin = TensorQuantConfig.on_grid(output.grid, observer=output.observer)
        twin.transition(QuantState.OVERLAPPED)
        output.dominate(twin)
        plan.configs[end] = twin


def _overlap_fused(plan: QuantizedGraph) -> None:
    """Mark what a Relu or Clip computes inside the operator before it, as runtimes fuse it."""
    for node in plan.graph.nodes:
        value = input_value(node, 0)
        source = None if value is None else value.producer()
        if source is None or not facts(node).clamps:
            continue
        reader, output = sole_reader(plan.graph, source), plan.output_config(node)
        before = plan.output_config(source)
        # A tensor with a quantizer of its own leaves the operator, and is no inner one.
        if reader != (node, 0) or before.state is not QuantState.FP32:
            continue
        if output.state is QuantState.ACTIVATED and _reads_integers(plan, source):
            ends = [TensorEnd.output(str(source.name)), TensorEnd.input(str(node.name), 0)]
            _overlap(plan, ends, output)


def _reads_integers(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Check whether all data and weights of a node are quantized."""
    # A node without data, such as a constant's, has nothing in float either.
    return not any(_float_slots(plan, node)) and bool(data_slots(node))


def _float_slots(plan: QuantizedGraph, node: ir.Node) -> Iterator[ir.Value]:
    weight = weight_slot(node)
    slots = (*data_slots(node), *(() if weight is None else (weight,)))
    for slot in slots:
        value, config = node.inputs[slot], plan.input_config(node, slot)
        if value is not None and config.state in (QuantState.FP32, QuantState.SOI):
            yield value


def _decision(plan: QuantizedGraph, node: ir.Node, shapes: frozenset[str]) -> Decision:
    if node.op_type in QUANTIZERS:
        return Decision(False, "turns the model's integers into numbers, or numbers into integers")
    finds = finds_places(node, shapes, plan.target)
    if not finds and all(str(output.name) in shapes for output in node.outputs):
        return Decision(False, "computes shapes or indices only")
    spec = op_spec(node)
    outputs = [plan.output_config(node, slot) for slot, _ in enumerate(node.outputs)]
    writes = any(config.state is not QuantState.FP32 for config in outputs)
    floats = list(_float_slots(plan, node))
    if floats and _stores(plan, node):
        return only_weights("the model that was read stores them as integers")
    if floats:
        return Decision(False, f"the model leaves its input {floats[0].name!r} float")
    if not (writes or (spec is not None and spec.kind is OpKind.COMPUTE)):
        return Decision(False, "the model leaves its output float")
    return Decision(True, "quantized by the model that was read")


class GraphEdits:
    """Small edits of one graph, in place, under names that it does not have yet."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        made = (value for node in graph for value in node.outputs)
        values = (*graph.inputs, *graph.initializers.values(), *made)
        self.names = Names([*(value.name for value in values), *(node.name for node in graph)])

    def identity(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Insert an Identity of a value and return its output."""
        node = ir.Node("", Identity.name, [value], num_outputs=1)
        result = node.outputs[0]
        node.name = result.name = self.names.fresh(f"{value.name}_again")
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        self.graph.insert_before(before, node)
        return result

    def copy(self, port: ir.Value, value: ir.Value) -> ir.Value:
        """Make an Identity of a value the graph output that ``port`` was, and return it."""
        node = ir.Node("", Identity.name, [value], num_outputs=1)
        node.name = self.names.fresh(f"{port.name}_copy")
        self.graph.append(node)
        result = node.outputs[0]
        result.type = port.type
        self.take_place(port, result)
        return result

    def take_place(self, port: ir.Value, value: ir.Value) -> None:
        """Give a value the name, shape and place of a graph output."""
        # The name is given back first: a graph has no two values of one name, not for a moment.
        name, port.name = port.name, None
        value.name = name
        value.shape = port.shape or value.shape
        outputs = self.graph.outputs
        # Place by place, as one value may be several outputs.
        for position, output in enumerate(outputs):
            if output is port:
                outputs[position] = value

    def readers(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """Return node and slot of each reader in the graph itself, without bodies."""
        return [(node, slot) for node, slot in value.uses() if node.graph is self.graph]
