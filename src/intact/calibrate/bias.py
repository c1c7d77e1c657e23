"""Passive biases: scale s_w * s_x, int32, and the repair of those that would overflow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import bias_slot, data_slots, weight_slot
from intact.plan import Note, NoteKind, QuantizedGraph

_ROOM = 2
"""A repaired bias takes at most 1/2 of the accumulator and leaves the rest to the products."""


def assign_biases(plan: QuantizedGraph) -> list[Note]:
    """Set the scale of every PASSIVE_INIT bias, in place.

    A bias that does not fit its integers at s_w * s_x (a tiny weight or input scale) is given
    room by a larger weight scale of its channel, instead of saturating.

    Returns:
        A note for each repaired node.
    """
    notes = []
    for node in plan.graph.nodes:
        slot = bias_slot(node)
        if slot is None or plan.input_config(node, slot).state is not QuantState.PASSIVE_INIT:
            continue
        weight = weight_slot(node)
        data = next((plan.input_config(node, k) for k in data_slots(node)), None)
        value = node.inputs[slot]
        if (
            weight is None
            or data is None
            or data.scale is None
            or value is None
            or value.const_value is None
        ):
            plan.input_config(node, slot).transition(QuantState.FP32)
            continue
        bias = value.const_value.numpy().astype(np.float64)
        weight_config = plan.input_config(node, weight)
        repaired = _make_room(
            weight_config, np.float64(data.scale), bias, plan.input_config(node, slot)
        )
        if repaired:
            notes.append(_note(node, repaired))
        _set_bias_scale(plan.input_config(node, slot), weight_config, data, bias)
    return notes


def _make_room(
    weight: TensorQuantConfig,
    input_scale: np.float64,
    bias: npt.NDArray[np.float64],
    config: TensorQuantConfig,
) -> int:
    """Raise the weight scales that make the bias overflow; return how many."""
    if weight.scale is None or weight.offset is None:
        return 0
    scales = weight.scale.astype(np.float64)
    per_channel = np.abs(bias).reshape(-1) if scales.ndim else np.abs(bias).max(initial=0.0)
    overflows = per_channel > config.quant_max * scales * input_scale
    if not np.any(overflows):
        return 0
    needed = per_channel * _ROOM / (config.quant_max * input_scale)
    if weight.grid.power_of_two:
        needed = np.exp2(np.ceil(np.log2(np.maximum(needed, np.finfo(np.float32).tiny))))
    weight.set_params(np.where(overflows, needed, scales).astype(np.float32), weight.offset)
    return int(np.count_nonzero(overflows))


def _set_bias_scale(
    config: TensorQuantConfig,
    weight: TensorQuantConfig,
    data: TensorQuantConfig,
    bias: npt.NDArray[np.float64],
) -> None:
    scale = np.asarray(weight.scale, np.float32) * np.asarray(data.scale, np.float32)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    if config.granularity.axis is not None:
        scale = np.broadcast_to(scale, bias.shape[-1:])
    config.set_params(scale)


def _note(node: ir.Node, channels: int) -> Note:
    return Note(
        NoteKind.BIAS_OVERFLOW,
        str(node.name),
        f"the int32 bias would overflow in {channels} channel(s); their weight scale was raised",
        "equalise the layer or keep it float if its accuracy matters",
    )
