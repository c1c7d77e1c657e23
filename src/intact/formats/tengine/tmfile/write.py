"""Models as ``.tmfile`` of version 2: in float, and a plan in integers.

Source: see `layout`; what is quantized and how, from Tengine's quantization tool: activations int8
(or uint8) with one scale a tensor, weights along their first axis, biases int32.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from intact.errors import ExportError, Unsupported
from intact.formats.tengine.tmfile.encode import encode
from intact.formats.tengine.tmfile.writing import moving, pointwise, pooling, products
from intact.formats.tengine.tmfile.writing.common import Write
from intact.formats.tengine.tmfile.writing.forms import FloatForm, Form, IntegerForm
from intact.formats.tengine.tmfile.writing.sheet import Sheet
from intact.graph import Graph, shape_or_index_values
from intact.plan import QuantizedGraph, refuse_unready

_CUT = "cut those nodes from the model"

WRITERS: Mapping[str, Write] = MappingProxyType(
    {**products.TABLE, **pointwise.TABLE, **pooling.TABLE, **moving.TABLE}
)
"""Write functions by operator of ONNX."""


def write_float(graph: Graph) -> bytes:
    """Return a float model as the bytes of a Tengine file; equal models give equal bytes.

    Tensors and nodes keep their names, and nothing is fused: whatever a table of scales names is
    there. An open batch is written as 1.

    Raises:
        ExportError: Nodes that Tengine does not have; all are listed.
    """
    return _written(graph, FloatForm(graph), {}, _CUT)


def write_int8(plan: QuantizedGraph) -> bytes:
    """Return a plan as the bytes of a quantized Tengine file; equal plans give equal bytes.

    Activations are int8, or uint8 if the plan's are unsigned; constants hold the plan's integers.
    Of what the plan fuses, Relu and Clip to 0 .. 6 go into the Conv before them; others are nodes
    of their own behind a tensor of the same scale, which gives the same codes.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: What Tengine does not have, and what the plan leaves float; all is listed.
    """
    refuse_unready(plan)
    reasons = {
        name: f"stays float ({decision.reason})"
        for name, decision in plan.decisions.items()
        if not decision.quantized
    }
    remedy = f"{_CUT}, or quantize for --target tengine"
    return _written(plan.graph, IntegerForm(plan), reasons, remedy)


def _written(graph: Graph, form: Form, floats: Mapping[str, str], remedy: str) -> bytes:
    sheet = Sheet(graph, form)
    reasons: list[tuple[str, str]] = []
    for value in graph.inputs:
        try:
            sheet.add_input(value)
        except Unsupported as error:
            reasons.append((str(value.name), str(error)))
    done: set[ir.Node] = set()  # inside others, or computing shapes, which are written as they are
    shapes = shape_or_index_values(graph)
    done.update(n for n in graph.nodes if all(str(v.name) in shapes for v in n.outputs))
    for node in graph.nodes:
        name = str(node.name)
        if node in done:
            continue
        try:
            if name in floats:
                raise Unsupported(floats[name])
            write = WRITERS.get(node.op_type) if node.domain == "" else None
            if write is None:
                raise Unsupported(f"it has no {node.op_type}")
            inner = products.fused_reader(sheet, node)
            write(sheet, node)
            if inner is not None:
                done.add(inner)
        except Unsupported as error:
            reasons.append((name, str(error)))
    if not reasons:
        try:
            return encode(sheet.finished())
        except Unsupported as error:
            reasons.append(("outputs", str(error)))
    raise ExportError(
        f"Tengine cannot hold {'; '.join(_joined(reasons))}",
        remedy=remedy,
        listed=[f"{name}: {reason}" for name, reason in reasons],
    )


def _joined(reasons: list[tuple[str, str]]) -> list[str]:
    """Return all reasons, nodes of one reason together."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(repr(name))
    return [f"{', '.join(each)}: {reason}" for reason, each in names.items()]
