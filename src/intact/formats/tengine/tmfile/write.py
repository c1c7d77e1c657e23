"""Writes a ``.tmfile`` of version 2: a plan in integers, or a model in float.

Source: [tengine], and see `file`. Tengine's quantization tool writes activations in int8 or
uint8 with one scale each, weights with scales along their first axis, and biases in int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir

from intact.formats.tengine.tmfile import moves, pointwise, pools, products
from intact.formats.tengine.tmfile.codec import encode
from intact.formats.tengine.tmfile.file_builder import WRITERS, TmFileBuilder
from intact.graph import Graph
from intact.graph.passes import library
from intact.plan import Overrides, QuantizedGraph, build_plan
from intact.program.lower import lower_nodes
from intact.program.unsupported import UnsupportedNodes
from intact.targets import load_target
from intact.targets.advice import advice, quantize_for

_CUT = "cut those nodes from the model"
_MODULES = (moves, pointwise, pools, products)
"""Their writers are registered when they are imported."""


def write_float(graph: Graph) -> bytes:
    """Write a float model; equal models give equal bytes.

    Tensors and nodes keep their names, and nothing is fused, so that a table of scales fits. An
    open batch is written as 1.

    Raises:
        ExportError: Tengine lacks some nodes; all are listed.
    """
    # A plan that keeps every operator float lowers to the float program, which spares a second
    # writer.
    keep = tuple({node.op_type for node in graph.nodes})
    plan = build_plan(graph, load_target("tengine"), Overrides(keep_float=keep))
    return _write_plan(plan, {}, _CUT, quantized=False)


def write_int8(plan: QuantizedGraph) -> bytes:
    """Write a quantized model; equal plans give equal bytes.

    Activations are int8, or uint8 if the plan's are unsigned; constants hold the plan's integers.
    Relu and Clip to 0 .. 6 that the plan fuses into a Conv go into the Convolution; others are
    nodes of their own behind a tensor of the same scale, which gives the same codes.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: Tengine lacks some nodes, or the plan leaves them float; all are listed.
    """
    reasons = {
        name: f"stays float ({decision.reason})"
        for name, decision in plan.decisions.items()
        if not decision.quantized
    }
    return _write_plan(
        plan,
        reasons,
        lambda: advice(_CUT, quantize_for("tengine", plan.target.name)),
        quantized=True,
    )


def _write_plan(
    plan: QuantizedGraph,
    floats: Mapping[str, str],
    remedy: str | Callable[[], str],
    *,
    quantized: bool,
) -> bytes:
    # Tengine's prerun fixes all memory: a file has no open lengths.
    plan = replace(plan, graph=_fix_batch_to_one(plan.graph))
    program = lower_nodes(plan)
    builder = TmFileBuilder(program, plan, quantized=quantized)
    found = UnsupportedNodes("Tengine cannot hold", remedy)
    builder.add_inputs(found)
    # In the model's order, in which reasons are then listed.
    for step in sorted((step for step in program.steps if step.nodes), key=builder.position):
        left = [name for name in step.nodes if name in floats]
        for name in left:
            found.add(repr(name), floats[name])
        if not left:
            with found.collect(repr(step.nodes[0])):
                WRITERS.of(step.operation)(step.operation, step, builder)
    builder.add_copies(found)
    found.raise_any()
    with found.collect("outputs"):
        return encode(builder.finish())
    # Behind `collect`, which takes up why a file cannot be finished.
    raise found.error()


def _fix_batch_to_one(graph: Graph) -> Graph:
    """Return a graph with the open first length of each input 1, and what follows from that."""
    model = graph.model.clone()
    for value in model.graph.inputs:
        if value.shape is not None and len(value.shape) and not isinstance(value.shape[0], int):
            value.shape = ir.Shape([1, *value.shape[1:]])
    for node in model.graph:
        # Shapes that were inferred with an open batch would keep it.
        for value in node.outputs:
            value.shape = None
    library.infer_shapes(model)
    return Graph(model)
