"""An ONNX model with FakeQuantize as a plan that keeps what it says: scales, ranges and integers.

NNCF and MQBench export such models too. Written again, the plan gives the same quantisers.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from intact.errors import ModelError
from intact.formats.openvino.reading.parameters import is_fake_quantize, refusal
from intact.formats.openvino.reading.strip import strip_fake_quantize
from intact.formats.read_points import plan_of
from intact.graph import load_model
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.no_ops import remove_no_ops
from intact.plan import QuantizedGraph
from intact.targets import Target


def read_fake_quantize(
    source: str | Path | onnx.ModelProto | ir.Model, target: Target
) -> QuantizedGraph:
    """Read a model that is quantised with FakeQuantize.

    The float model of the plan is the source without its quantisers; constants behind one are the
    numbers that their codes stand for. A range that starts at 0 is read as unsigned codes, one
    around 0 as signed ones, any other as unsigned codes with a zero point; weights have the
    narrowest width that holds their codes, since 7 bits are stored as 8.

    Args:
        source: A path, or a loaded model; that is never changed.
        target: The hardware that the plan is for; what the model says stays, wherever it differs.

    Returns:
        A calibrated plan, as ``formats.onnx_qdq.read.read_qdq`` gives it.

    Raises:
        ModelError: The model cannot be read, has no FakeQuantize, or has one that a plan cannot
            hold; the node is named.
    """
    model = load_model(source)
    library.sort_nodes(model)
    make_names_unique(model)
    library.lift_constants(model)
    remove_no_ops(model)
    library.remove_unused(model)
    _refuse_in_bodies(model)
    library.infer_shapes(model)
    if not is_fake_quantized(model):
        raise ModelError("the model has no FakeQuantize", remedy="quantize it, with samples")
    points = strip_fake_quantize(model)
    return plan_of(model, target, points)


def is_fake_quantized(model: ir.Model) -> bool:
    """Tell whether a model has quantisers in OpenVINO's form."""
    return any(is_fake_quantize(node) for node in model.graph.all_nodes())


def _refuse_in_bodies(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if is_fake_quantize(node) and node.graph is not model.graph:
            raise refusal(node, "it stands in the body of another node")
