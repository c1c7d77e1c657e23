"""Passive biases: scale s_w * s_x, int32, and the repair of those that would overflow."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.memo import Forgetful, Memo
from intact.calibrate.scales.roles import is_fixed, refuse_not_finite
from intact.config import QuantState, TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import bias_slot, data_slots, weight_slot
from intact.numerics.affine_params import QuantParams
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.plan.given_scales import GIVEN

_ROOM = 2
"""A repaired bias takes at most 1/2 of the accumulator and leaves the rest to the products."""


def assign_biases(plan: QuantizedGraph, memo: Memo | None = None) -> list[Note]:
    """Set the scale of every PASSIVE_INIT bias, in place.

    A bias that does not fit its integers at s_w * s_x (a tiny weight or input scale) is given
    room by a larger weight scale of its channel, instead of saturating. Only a weight scale that
    was given stays as it is.

    Args:
        plan: Inputs and weights have their scales.
        memo: Of former calls with plans of the same graph and target.

    Returns:
        A note for each node whose bias does not fit.
    """
    notes = []
    memo = Forgetful() if memo is None else memo
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
        weight_config, config = plan.input_config(node, weight), plan.input_config(node, slot)
        fitted = memo(
            _key(node, weight_config, data),
            partial(_fitted, node, value, weight_config, data, config),
        )
        if fitted.is_raised and fitted.weight is not None:
            weight_config.set_checked(fitted.weight)
        if fitted.overflows:
            notes.append(_note(node, fitted.overflows, is_given=_is_settled(weight_config)))
        config.set_checked(fitted.bias)
    return notes


class _Fitted(NamedTuple):
    """What the bias of a node comes to.

    Attributes:
        bias: Its scale.
        weight: That of the weight.
        is_raised: The weight's had to be raised for it.
        overflows: In how many channels it did not fit.
    """

    bias: QuantParams
    weight: QuantParams | None
    is_raised: bool
    overflows: int


def _key(node: ir.Node, weight: TensorQuantConfig, data: TensorQuantConfig) -> Hashable:
    scales = [None if array is None else array.tobytes() for array in (weight.scale, weight.offset)]
    data_scale = b"" if data.scale is None else data.scale.tobytes()
    return ("bias", node.name, weight.dominator.grid, _is_settled(weight), data_scale, *scales)


def _fitted(
    node: ir.Node,
    value: ir.Value,
    weight: TensorQuantConfig,
    data: TensorQuantConfig,
    config: TensorQuantConfig,
) -> _Fitted:
    """Choose the scale of a bias, and raise that of the weight where it has to be."""
    tensor = value.const_value
    bias = np.zeros(0) if tensor is None else tensor.numpy().astype(np.float64)
    refuse_not_finite(bias, f"bias {value.name!r}", str(node.name))
    before = weight.params
    overflows = _make_room(weight, np.float64(data.scale), bias, config)
    _set_bias_scale(config, weight, data, bias)
    scale = config.params
    if scale is None:
        raise CalibrationError(f"{node.name}: its bias has no scale")
    return _Fitted(scale, weight.params, weight.params is not before, overflows)


def rescale_bias(plan: QuantizedGraph, node: ir.Node) -> None:
    """Set the scale of a node's bias anew, in place, where that of its weight was changed.

    As in `assign_biases`, a weight scale that makes the bias overflow is raised.
    """
    slot, weight = bias_slot(node), weight_slot(node)
    if slot is None or weight is None:
        return
    config, value = plan.input_config(node, slot), node.inputs[slot]
    data = next((plan.input_config(node, k) for k in data_slots(node)), None)
    if config.state is not QuantState.PASSIVE or data is None or data.scale is None:
        return
    if value is None or value.const_value is None:
        return
    bias = value.const_value.numpy().astype(np.float64)
    weight_config = plan.input_config(node, weight)
    _make_room(weight_config, np.float64(data.scale), bias, config)
    _set_bias_scale(config, weight_config, data, bias)


def _make_room(
    weight: TensorQuantConfig,
    input_scale: np.float64,
    bias: npt.NDArray[np.float64],
    config: TensorQuantConfig,
) -> int:
    """Raise the weight scales that make the bias overflow, unless given; return how many."""
    if weight.scale is None or weight.offset is None:
        return 0
    scales = weight.scale.astype(np.float64)
    # A Gemm may add a bias for each row too: what counts is the largest of a channel.
    rows = np.abs(bias).reshape(-1, scales.size) if scales.ndim else np.abs(bias).reshape(-1)
    per_channel = rows.max(axis=0, initial=0.0)
    overflows = per_channel > config.quant_max * scales * input_scale
    if not np.any(overflows) or _is_settled(weight):
        return int(np.count_nonzero(overflows))
    needed = per_channel * _ROOM / (config.quant_max * input_scale)
    if weight.grid.power_of_two:
        needed = np.exp2(np.ceil(np.log2(np.maximum(needed, np.finfo(np.float32).tiny))))
    weight.set_params(np.where(overflows, needed, scales).astype(np.float32), weight.offset)
    return int(np.count_nonzero(overflows))


def _is_settled(weight: TensorQuantConfig) -> bool:
    """Tell whether a weight's scale came from outside: a table, or a quantized model."""
    return weight.observer == GIVEN or is_fixed(weight)


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


def _note(node: ir.Node, channels: int, *, is_given: bool) -> Note:
    overflow = f"the int32 bias would overflow in {channels} channel(s); "
    if is_given:
        return Note(
            NoteKind.BIAS_OVERFLOW,
            str(node.name),
            overflow + "it saturates there, because the weight scale is given",
            "give the weight a larger scale, or keep the node float",
        )
    return Note(
        NoteKind.BIAS_OVERFLOW,
        str(node.name),
        overflow + "their weight scale was raised",
        "equalize the layer or keep it float if its accuracy matters",
    )
