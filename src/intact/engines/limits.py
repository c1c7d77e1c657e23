"""Finds the arithmetic of a plan that the simulation in float32 cannot reproduce.

Examples are an accumulator of 16 bits that wraps, and sums beyond 2**24.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact._text import first_names
from intact.graph import Role, data_slots, input_role, output_channel_axis
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.overflows import (
    EXACT_BELOW,
    Overflows,
    pairs_may_saturate,
    steps_from_zero,
    sums_left_alone,
    wrapping_sums,
)
from intact.targets import (
    FloatEnds,
    FloatType,
    Shift,
    ZeroPointOrder,
)
from intact.targets.float16 import Rounded


def needs_integers(plan: QuantizedGraph) -> bool:
    """Tell whether a plan needs the integer engine because float32 cannot simulate its overflows.

    That is so if sums may overflow their accumulator and are too large for float32 or are combined
    with floats (a float bias, a fused Add), or if pairs of products may saturate. Otherwise
    `PiecewiseSimulator` reproduces every overflow. The bounds depend on the codes' ranges and not
    on data: most plans that need integers never overflow.

    Args:
        plan: A plan with scales.
    """
    return Overflows(tuple(wrapping_sums(plan)), pairs_may_saturate(plan)).need_integers


def limits_of_simulation(plan: QuantizedGraph) -> tuple[str, ...]:
    """Describe each way in which hardware may differ from the simulation, one line each.

    These are fields of the target's arithmetic that float32 does not reproduce, with their
    operators, and layers whose sums may exceed the exact integers of float32.
    """
    fields: dict[str, dict[str, None]] = {}
    for node in plan.graph.nodes:
        if plan.is_quantized(node):
            for field in _foreign_fields(plan, node):
                fields.setdefault(field, {})[node.op_type] = None
    lines = [f"{field} ({', '.join(ops)})" for field, ops in fields.items()]
    asked = plan.target.float16
    if plan.float16 is not None and asked is not None and asked.rounded is Rounded.BY_KERNEL:
        lines.append(
            f"which values ONNX Runtime rounds to float16, where {len(plan.float16.nodes)} node(s) "
            "run in one session: codes behind them may be next to those expected"
        )
    joined = sums_left_alone(plan)
    if joined:
        lines.append(f"sums that wrap before floats are added: {first_names(joined)}")
    wide = [name for name, most in largest_sums(plan) if most >= EXACT_BELOW]
    if wide:
        lines.append(f"sums that may reach 2**24, rounded by float32: {first_names(wide)}")
    return tuple(lines)


def largest_sums(plan: QuantizedGraph) -> Iterator[tuple[str, int]]:
    """Yield for each layer with a quantized weight the upper bound of its sums' magnitude.

    The products are of codes less their zero points, on either side. The bound follows from the
    weight's integers and the input's range, for the worst output channel.
    """
    for point in quantization_points(plan):
        if not point.is_constant or not point.readers:
            continue
        node, slot = point.readers[0]
        data = next((plan.input_config(node, k) for k in data_slots(node)), None)
        if input_role(node, slot) is not Role.WEIGHT or data is None or data.params is None:
            continue
        steps = steps_from_zero(point.constant_codes(), point.config)
        axis = output_channel_axis(node)
        others = tuple(k for k in range(steps.ndim) if k != axis)
        per_channel = steps.sum(axis=others) if axis is not None else steps.sum()
        # The code that lies furthest from the zero point, for the worst case of any data.
        ends = np.array([[data.quant_min], [data.quant_max]])
        reach = int(np.abs(ends - data.params.zero_point.reshape(-1)).max())
        yield str(node.name), int(np.max(per_channel, initial=0)) * reach


def _foreign_fields(plan: QuantizedGraph, node: ir.Node) -> Iterator[str]:
    arithmetic = plan.arithmetic_of(node)
    rule, way, sums = plan.target.rule_for(node), arithmetic.requantize, arithmetic.accumulator
    if arithmetic.product is not None:
        yield f"requantize = {way.kind} ({arithmetic.product})"
    elif isinstance(way, Shift) or arithmetic.precision is not FloatType.FLOAT32:
        yield f"requantize = {way.kind}" + ("" if isinstance(way, Shift) else " in float64")
    if arithmetic.zero_point is not ZeroPointOrder.AFTER_ROUNDING:
        yield f"zero_point = {arithmetic.zero_point}, which differs on ties"
    if isinstance(way, FloatEnds):
        yield f"requantize = {way.kind}, which differs next to ties"
    if arithmetic.pairs is not None:
        yield f"accumulator = {sums.kind}"
    if sums.bits < 32 and not arithmetic.wraps:
        yield f"accumulator of {sums.bits} bits"
    if rule is not None and arithmetic.rounding is not plan.target.activation_scheme(rule).rounding:
        yield f"rounding = {arithmetic.rounding}"
