"""What the quantizer on each edge is given: HAGO's ``in_scale``, ``in_dtype`` and ``out_dtype``.

A value travels from its producer's sums (or moved codes) to the codes that a quantization point
makes of it. Ends that a fusion hides hold sums: those of the Conv in Conv-Relu arrive at the
point behind the Relu.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import Role, bias_slot, input_role, weight_slot
from intact.plan.inference.rules import (
    Scale,
    declared_signatures,
    factor_slots,
    infer_dtype,
    infer_scale,
    infer_signature,
)
from intact.plan.points import QuantPoint, quantization_points, refuse_unready
from intact.plan.quantized_graph import QuantizedGraph, TensorEnd, quantizes
from intact.plan.topology import adds_to_products
from intact.targets import DType


@dataclass(frozen=True)
class EdgeTypes:
    """What reaches a quantization point, and what leaves it.

    Attributes:
        in_scale: What one step of the producer's integers means, before they are requantized;
            float64, ``[]`` or of a shape that broadcasts against the value. None where floats
            arrive: model inputs, constants, results of float nodes and of operators whose result
            is no integer of one scale.
        in_dtype: The type of those integers; float32 where ``in_scale`` is None.
        out_dtype: The type that holds the codes.
    """

    in_scale: Scale | None
    in_dtype: DType
    out_dtype: DType


@dataclass(frozen=True)
class _Result:
    """What a node computes, or what one of its inputs holds."""

    scale: Scale | None = None
    dtype: DType = DType.FLOAT32


_FLOAT = _Result()


def infer_edges(plan: QuantizedGraph) -> dict[TensorEnd, EdgeTypes]:
    """Return the types of every edge that is quantized, by the end that names its point.

    Args:
        plan: Has its scales.

    Raises:
        PlanError: An end has no scale yet.
    """
    refuse_unready(plan)
    results: dict[str, _Result] = {}
    for node in plan.graph.nodes:
        results[str(node.name)] = _result(plan, node, results)
    handed_out: dict[ir.Value, _Result] = {}
    edges = {}
    for point in quantization_points(plan):
        producer = point.value.producer()
        made = _FLOAT if producer is None else results.get(str(producer.name), _FLOAT)
        # A second quantizer of a value takes what the first made of it.
        arriving = made if point.at_output else handed_out.get(point.value, made)
        out = _code_dtype(plan, point)
        if point.at_output:
            handed_out[point.value] = _codes(point.config, out)
        edges[point.end] = EdgeTypes(arriving.scale, arriving.dtype, out)
    return edges


def _result(plan: QuantizedGraph, node: ir.Node, results: dict[str, _Result]) -> _Result:
    """Infer what a node computes, before that is requantized."""
    rule = plan.target.rule_for(node) if plan.is_quantized(node) else None
    slots = factor_slots(node)
    if rule is None or not slots or _adds_floats(plan, node):
        return _FLOAT
    taken = [_taken(plan, node, slot, results) for slot in slots]
    widths = [plan.input_config(node, slot).bits for slot in slots]
    declared = infer_signature(declared_signatures(node, rule, plan.target), widths)
    scale = infer_scale(node, [each.scale for each in taken])
    if declared is None or scale is None:
        return _FLOAT
    accumulator_bits = plan.target.arithmetic_of(node).accumulator_bits
    accumulator = DType.holding(accumulator_bits, signed=True)
    hidden = [_is_hidden(plan, node, slot) for slot in slots]
    pairs = zip(taken, hidden, declared.inputs, strict=True)
    dtypes = [each.dtype if is_sum else dtype for each, is_sum, dtype in pairs]
    dtype = infer_dtype(node, dtypes, accumulator)
    return _FLOAT if dtype.is_float else _Result(scale, dtype)


def _taken(plan: QuantizedGraph, node: ir.Node, slot: int, results: dict[str, _Result]) -> _Result:
    """Infer the type at an input slot: sums of a fused producer, codes, or floats."""
    value, config = node.inputs[slot], plan.input_config(node, slot)
    producer = None if value is None else value.producer()
    if producer is not None and _is_hidden(plan, node, slot):
        return results[str(producer.name)]
    if not (quantizes(config) or config.state is QuantState.OVERLAPPED):
        return _FLOAT
    dtype = DType.holding(config.bits, signed=config.quant_min < 0)
    codes = _codes(config, dtype)
    if codes.scale is None or codes.scale.ndim == 0:
        return codes
    return _Result(_along_channels(node, slot, codes.scale), dtype)


def _is_hidden(plan: QuantizedGraph, node: ir.Node, slot: int) -> bool:
    """Tell whether a fusion hands a node sums that are stored nowhere."""
    value = node.inputs[slot]
    producer = None if value is None else plan.producer_config(value)
    return producer is not None and producer.state is QuantState.OVERLAPPED


def _codes(config: TensorQuantConfig, dtype: DType) -> _Result:
    """Return codes as an operand; those of a logarithmic grid are no multiples of a scale."""
    if config.scale is None or config.dominator.grid.exponential:
        return _FLOAT
    return _Result(config.scale.astype(np.float64), dtype)


def _along_channels(node: ir.Node, slot: int, scales: Scale) -> Scale | None:
    """Shape a weight's scales so that they lie along the channels of the node's result."""
    if slot != weight_slot(node):
        return None
    match node.op_type:
        case "Conv" | "ConvTranspose":
            value = node.inputs[slot]
            spatial = 0 if value is None or value.shape is None else len(value.shape) - 2
            return scales.reshape(-1, *(1,) * spatial)
        case "Gemm" | "MatMul":
            return scales.reshape(-1, 1) if slot == 0 else scales
    return None


def _adds_floats(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Tell whether a bias that is no integer is added to the sums."""
    slot = bias_slot(node)
    if slot is not None:
        return not quantizes(plan.input_config(node, slot))
    present = (slot for slot, value in enumerate(node.inputs) if value is not None)
    return any(adds_to_products(node, slot) for slot in present)


def _code_dtype(plan: QuantizedGraph, point: QuantPoint) -> DType:
    """Return the type that holds a point's codes: that of its scheme if they fit into it.

    HAGO: the bits need not be those of the data type; 6 bits may be held in an int8.
    """
    config, node = point.config, plan.graph.node(point.end.node)
    signed = config.quant_min < 0
    rule = plan.target.rule_for(node)
    if rule is None or config.bits > DType.INT16.bits:
        return DType.holding(config.bits, signed=signed)
    is_weight = not point.at_output and input_role(node, point.end.slot) is Role.WEIGHT
    scheme = plan.target.weight_scheme(rule) if is_weight else plan.target.activation_scheme(rule)
    return DType.holding(max(config.bits, scheme.dtype.bits), signed=signed)
