"""A quantized ONNX model as a plan that keeps what it says: scales, types and integers.

Both forms of ONNX Runtime are read: pairs of QuantizeLinear and DequantizeLinear (QDQ), as other
quantizers and exporters write them too, and operators on codes (QOperator). Fake quantizers of one
operator, of OpenVINO and of training tools, become such pairs first. Written again, a model of ONNX
Runtime computes bit for bit the same.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from intact.formats.base.read_points import plan_of
from intact.formats.onnx_qdq.compose import join_composed
from intact.formats.onnx_qdq.reader.expand import DYNAMIC, QOPERATORS, expand_qoperators
from intact.formats.onnx_qdq.reader.lookups import lift_lookups
from intact.formats.onnx_qdq.reader.parameters import is_dequantize, is_quantize
from intact.formats.onnx_qdq.reader.quantizers import is_quantizer
from intact.formats.onnx_qdq.reader.strip import strip_pairs
from intact.formats.onnx_qdq.reader.translate import translate_quantizers
from intact.formats.onnx_qdq.reader.written_out import is_written_out, join_written_out
from intact.graph import load_model
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.no_ops import remove_no_ops
from intact.graph.traversal import nodes_of
from intact.plan import Overrides, QuantizedGraph
from intact.targets import Target


def read_qdq(
    source: str | Path | onnx.ModelProto | ir.Model,
    target: Target,
    asked: Overrides | None = None,
) -> QuantizedGraph:
    """Read a quantized model.

    The float model of the plan is the source without its quantizers; its constants are the numbers
    that the stored integers stand for. Unlike ``normalize``, nothing is folded into anything else,
    because the model's scales belong to its tensors as they are.

    Args:
        source: A path, or a loaded model; that is never changed.
        target: The hardware that the plan is for; what the model says stays, wherever it differs.
        asked: Widths of quantizers that do not say their range.

    Returns:
        A calibrated plan. Ends that the model quantizes are ACTIVATED (constants BAKED or
        PASSIVE_BAKED, with their integers), with ``detail["fixed"]`` on those that own a scale;
        inside an operator and the activation behind it they are OVERLAPPED; all others are FP32
        or SOI.

    Raises:
        ModelError: The model cannot be read, is not quantized, or is so in a way that a plan
            cannot hold (dynamically, by block, to float8); the node is named.
        UsageError: A width is asked for that is none, or of a node that there is not.
    """
    model = load_model(source)
    library.sort_nodes(model)
    make_names_unique(model)
    library.lift_constants(model)
    remove_no_ops(model)
    library.remove_unused(model)
    library.infer_shapes(model)
    if join_written_out(model):
        library.remove_unused(model)
    notes = translate_quantizers(model, asked)
    lift_lookups(model)
    expand_qoperators(model)
    make_names_unique(model)
    join_composed(model)
    points = strip_pairs(model)
    plan = plan_of(model, target, points).with_notes(notes)
    if asked is not None:
        asked.resolved(plan.graph)  # refuses what fits nothing
    return plan


def is_quantized(model: ir.Model) -> bool:
    """Check whether a model holds integers already: pairs, or operators on codes."""
    return any(
        is_quantizer(node)
        or is_quantize(node)
        or is_dequantize(node)
        or (node.domain, node.op_type) in QOPERATORS
        or node.op_type in DYNAMIC
        for node in nodes_of(model.graph)
    ) or is_written_out(model)
