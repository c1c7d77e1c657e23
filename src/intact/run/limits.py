"""What the float32 simulation does not reproduce of a plan's arithmetic, said and not assumed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.graph import Role, data_slots, input_role, output_channel_axis
from intact.plan import QuantizedGraph, quantization_points
from intact.run.overflow import pairs_may_saturate, wrapping_sums
from intact.targets import Overflow, Requantize, ScalePrecision, ZeroPointOrder

EXACT_BELOW = 2**24
"""float32 holds every integer below this, so sums that stay below it are exact."""


def needs_integers(plan: QuantizedGraph) -> bool:
    """Tell whether float32 cannot say what a plan computes: only the integer engine can.

    Sums may leave their accumulator and are then too large for float32, or are held with what
    float32 adds apart from them (a float bias, a fused Add); or pairs of products may saturate.
    Where it is False, `PiecewiseSimulator` follows every overflow. Bounds are those of the codes,
    whatever the data: most plans that need integers never overflow.

    Args:
        plan: Has its scales.
    """
    for sums in wrapping_sums(plan):
        if sums.scale is None or sums.largest is None or sums.largest >= EXACT_BELOW:
            return True
    return pairs_may_saturate(plan)


def limits_of_simulation(plan: QuantizedGraph) -> tuple[str, ...]:
    """Return one line for each way in which hardware may differ from the simulation.

    Fields of the target's arithmetic that float32 does not follow, with the operators they hold
    for, and the layers whose sums may leave the exact integers of float32.
    """
    fields: dict[str, dict[str, None]] = {}
    for node in plan.graph.nodes:
        if plan.is_quantized(node):
            for field in _foreign_fields(plan, node):
                fields.setdefault(field, {})[node.op_type] = None
    lines = [f"{field} ({', '.join(ops)})" for field, ops in fields.items()]
    wide = [name for name, most in largest_sums(plan) if most >= EXACT_BELOW]
    if wide:
        more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
        lines.append(f"sums that may reach 2**24, rounded by float32: {', '.join(wide[:3])}{more}")
    return tuple(lines)


def largest_sums(plan: QuantizedGraph) -> Iterator[tuple[str, int]]:
    """Yield for each layer with a quantised weight the largest ``sum |q_x * q_w|`` possible.

    Bound by the weights' own integers and the range of the input's, worst output channel.
    """
    for point in quantization_points(plan):
        if not point.is_constant or not point.readers:
            continue
        node, slot = point.readers[0]
        data = next((plan.input_config(node, k) for k in data_slots(node)), None)
        if input_role(node, slot) is not Role.WEIGHT or data is None or data.params is None:
            continue
        codes = np.abs(point.constant_codes().astype(np.int64))
        axis = output_channel_axis(node)
        others = tuple(k for k in range(codes.ndim) if k != axis)
        per_channel = codes.sum(axis=others) if axis is not None else codes.sum()
        ends = np.array([[data.quant_min], [data.quant_max]])
        reach = int(np.abs(ends - data.params.zero_point.reshape(-1)).max())
        yield str(node.name), int(np.max(per_channel, initial=0)) * reach


def _foreign_fields(plan: QuantizedGraph, node: ir.Node) -> Iterator[str]:
    arithmetic = plan.target.arithmetic_of(node)
    rule = plan.target.rule_for(node)
    if arithmetic.requantize is not Requantize.FLOAT32:
        yield f"requantize = {arithmetic.requantize}"
    if arithmetic.zero_point is not ZeroPointOrder.AFTER_ROUNDING:
        yield f"zero_point = {arithmetic.zero_point}, which differs on ties"
    if arithmetic.scale_precision is ScalePrecision.FLOAT32_ENDS:
        yield f"scale_precision = {arithmetic.scale_precision}, which differs next to ties"
    if arithmetic.accumulator_overflow is Overflow.PAIR_SATURATE:
        yield f"accumulator_overflow = {arithmetic.accumulator_overflow}"
    if arithmetic.accumulator_bits < 32:
        yield f"accumulator_bits = {arithmetic.accumulator_bits}"
    if rule is not None and arithmetic.rounding is not plan.target.activation_scheme(rule).rounding:
        yield f"rounding = {arithmetic.rounding}"
