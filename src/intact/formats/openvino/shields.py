"""Floats that OpenVINO gets wrong, and the node behind them that prevents it.

Several nodes read a result of integers: some would be multiplied twice.

Its low-precision pass puts the scales of a product behind it, as a Multiply, and moves that on
through the nodes that read it: Relu, a mean, a maximum. Where the Multiply has another reader as
well, both get results that were multiplied twice. So it is where a convolution without a bias (or
of zeros), a product of two activations, or a multiplication of either by a constant is read twice;
a bias lies between and prevents it. Measured with openvino 2026.4.1 over 6 kinds of producers and
18 of readers.

A quantizer reads the largest or smallest number along axes: OpenVINO fuses both, and what comes out
agrees with neither (13 to 19 dB, on an AVX-512 VNNI processor).

A maximum with the lowest number changes no number; nothing is moved through it, nor fused across.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.formats.openvino.fake_quantize import DOMAIN
from intact.graph import is_constant
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph

_LOWEST = float(np.finfo(np.float32).min)
_WINDOWS = frozenset({"Conv", "ConvTranspose"})
_FACTORS = frozenset({"Mul", "Div"})
_EXTREMES = frozenset({"GlobalMaxPool", "ReduceMax", "ReduceMin"})
_BIAS_SLOT = 2


def keep_results(editor: Editor, plan: QuantizedGraph) -> list[str]:
    """Put a maximum behind each float result that would come out wrong, before all its readers.

    Args:
        editor: Of the model with its quantizers.
        plan: What is written.

    Returns:
        The names of those results.
    """
    found = [value for value in _results(editor.model, plan) if _is_fork(value)]
    found += [value for value in _extremes(editor.model) if _is_quantized(value)]
    lowest = None
    for value in found:
        uses = [use for use in value.uses() if use.node.graph is editor.model.graph]
        lowest = lowest or editor.initializer("lowest", ir.tensor(np.float32(_LOWEST)))
        kept = editor.node("Max", [value, lowest], f"{value.name}_kept", shape=value.shape)
        for use in uses:
            use.node.replace_input_with(use.idx, kept)
    return [str(value.name) for value in found]


def _results(model: ir.Model, plan: QuantizedGraph) -> list[ir.Value]:
    """Return what products without a bias give, also times constants, in order."""
    integers = {name for name, decision in plan.decisions.items() if decision.quantized}
    bare: dict[ir.Value, None] = {}
    for node in model.graph:
        if node.domain == "" and (
            (node.op_type in _WINDOWS and str(node.name) in integers and not _has_bias(node))
            or (node.op_type == "MatMul" and str(node.name) in integers and not _has_constant(node))
            or (node.op_type in _FACTORS and _has_constant(node) and bare.keys() & {*node.inputs})
        ):
            bare[node.outputs[0]] = None
    return list(bare)


def _extremes(model: ir.Model) -> list[ir.Value]:
    return [n.outputs[0] for n in model.graph if n.domain == "" and n.op_type in _EXTREMES]


def _is_quantized(value: ir.Value) -> bool:
    return any(use.node.domain == DOMAIN for use in value.uses())


def _is_fork(value: ir.Value) -> bool:
    return len(value.uses()) + value.is_graph_output() > 1


def _has_bias(node: ir.Node) -> bool:
    bias = node.inputs[_BIAS_SLOT] if len(node.inputs) > _BIAS_SLOT else None
    stored = None if bias is None else bias.const_value
    return bias is not None and (stored is None or bool(stored.numpy().any()))


def _has_constant(node: ir.Node) -> bool:
    """Check for an input that does not depend on the model's own, through quantizers too."""
    return any(value is not None and _is_fixed(value) for value in node.inputs)


def _is_fixed(value: ir.Value) -> bool:
    maker = value.producer()
    behind = value if maker is None or maker.domain == "" else maker.inputs[0]
    return behind is not None and is_constant(behind)
