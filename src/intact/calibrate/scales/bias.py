"""Gives biases their scale ``s_w * s_x``, and repairs those that would overflow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact._memo import Forgetful, Memo
from intact.calibrate.scales.roles import is_fixed, refuse_not_finite
from intact.config import QuantState, TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import Graph, bias_slot, data_slots, weight_slot
from intact.limits import TOLD_DB
from intact.numerics.affine_params import QuantParams
from intact.plan import Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.given_scales import GIVEN
from intact.targets import DeadChannels, DType

if TYPE_CHECKING:
    from intact.plan.dead_channels import Mask

_ROOM = 2
"""A repaired bias takes at most 1/2 of the accumulator and leaves the rest to the products."""
_FINE = 2.0**22
"""Steps that the bias of a channel without weights has at most: exact in float32."""
_BEYOND_HALF = 4
"""A bias that is to be lost is a quarter of a step, which every rounding makes 0."""


def assign_biases(plan: QuantizedGraph, memo: Memo | None = None) -> list[Note]:
    """Set the scale of every PASSIVE_INIT bias, in place.

    A bias that does not fit its integers at s_w * s_x (a tiny weight or input scale) is given
    room by a larger weight scale of its channel, instead of saturating. Only a weight scale that
    was given stays as it is. Nothing but the bias depends on the weight scale of a channel without
    weights: it becomes one in which the bias is fine or, where the target loses such a bias, so
    large that the bias is 0.

    Args:
        plan: Inputs and weights have their scales.
        memo: What former calls computed with plans of the same graph and target.

    Returns:
        A note for each node whose bias does not fit, or is lost.
    """
    notes = []
    memo = Forgetful() if memo is None else memo
    for layer in memo("layers", lambda: tuple(biased_layers(plan.graph))):
        node, config = layer.node, plan.configs[layer.bias]
        if config.state is not QuantState.PASSIVE_INIT:
            continue
        weight_config, data = layer.configs(plan)
        if weight_config is None or data is None or data.scale is None:
            config.transition(QuantState.FP32)
            continue
        keys = weight_config.key, data.key, config.key
        fitted = memo(
            ("bias", node.name, _is_settled(weight_config), keys),
            partial(_fit_bias, layer, weight_config, data, config, plan),
        )
        # What was remembered was computed on another plan's configs: this one has the old scale
        # yet.
        if fitted.is_raised and fitted.weight is not None:
            weight_config.set_checked(fitted.weight)
        if fitted.overflows:
            kind, is_given = plan.target.bias.dtype, _is_settled(weight_config)
            notes.append(_note(node, fitted, kind, is_given=is_given))
        if fitted.lost:
            notes.append(_note_of_lost(plan, node, fitted.lost))
        config.set_checked(fitted.bias)
    return notes


class BiasedLayer(NamedTuple):
    """A node with a constant bias, and the ends on which the scale of the bias depends.

    Attributes:
        node: The node.
        bias: Where it reads the bias.
        weight: Where it reads its constant weight; None if it has none.
        data: Where it reads its data; None if it has none.
    """

    node: ir.Node
    bias: TensorEnd
    weight: TensorEnd | None
    data: TensorEnd | None

    @staticmethod
    def of(node: ir.Node) -> BiasedLayer | None:
        """Describe a node; None where it has no constant bias."""
        bias, name = bias_slot(node), str(node.name)
        if bias is None:
            return None
        weight, data = weight_slot(node), next(iter(data_slots(node)), None)
        others = (None if slot is None else TensorEnd.input(name, slot) for slot in (weight, data))
        return BiasedLayer(node, TensorEnd.input(name, bias), *others)

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The numbers of the bias."""
        value = self.node.inputs[self.bias.slot]
        tensor = None if value is None else value.const_value
        return np.zeros(0) if tensor is None else tensor.numpy().astype(np.float64)

    def configs(
        self, plan: QuantizedGraph
    ) -> tuple[TensorQuantConfig | None, TensorQuantConfig | None]:
        """Return the configs of weight and data."""
        weight = None if self.weight is None else plan.configs[self.weight]
        return weight, None if self.data is None else plan.configs[self.data]


def biased_layers(graph: Graph) -> Iterator[BiasedLayer]:
    """Yield the nodes of a graph that have a constant bias, in order."""
    for node in graph.nodes:
        layer = BiasedLayer.of(node)
        if layer is not None:
            yield layer


class _BiasFit(NamedTuple):
    """What the bias of a node comes to.

    Attributes:
        bias: Its scale.
        weight: That of the weight.
        is_raised: The weight's had to be raised for it.
        overflows: In how many channels it did not fit.
        added: What raising adds to the rounding noise of the weight, dB.
        lost: In how many channels the hardware does not add it.
    """

    bias: QuantParams
    weight: QuantParams | None
    is_raised: bool
    overflows: int
    added: float
    lost: int


def _fit_bias(
    layer: BiasedLayer,
    weight: TensorQuantConfig,
    data: TensorQuantConfig,
    config: TensorQuantConfig,
    plan: QuantizedGraph,
) -> _BiasFit:
    """Choose the scale of a bias, and change that of the weight where it has to be."""
    node, bias = layer.node, layer.values
    value = node.inputs[layer.bias.slot]
    refuse_not_finite(bias, f"bias {value and value.name!r}", str(node.name))
    before = weight.params
    lost = _fit_dead(plan, node, weight, np.float64(data.scale), bias, config)
    overflows = _make_room(node, weight, np.float64(data.scale), bias, config)
    _set_bias_scale(config, weight, data, bias)
    scale = config.params
    if scale is None:
        raise CalibrationError(f"{node.name}: its bias has no scale")
    # By identity: a config makes new params only where its scale is set.
    is_raised = weight.params is not before
    added = _noise_added(layer, weight, before) if is_raised and overflows else 0.0
    return _BiasFit(scale, weight.params, is_raised, overflows, added, lost)


def _noise_added(
    layer: BiasedLayer, weight: TensorQuantConfig, before: QuantParams | None
) -> float:
    """Return by how many decibels the rounding noise of a weight grows with its scales.

    A step of ``s`` rounds with a mean square of ``s**2 / 12``, and no more than that of the values,
    which are 0 then.
    """
    value = layer.node.inputs[layer.weight.slot] if layer.weight is not None else None
    if value is None or value.const_value is None or before is None or weight.scale is None:
        return 0.0
    values, axis = value.const_value.numpy(), weight.grid.axis
    rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0)
    rows = rows.reshape(len(rows), -1)
    most = np.einsum("ij,ij->i", rows, rows, dtype=np.float64) / max(rows.shape[1], 1)
    had, has = (
        float(np.minimum(np.square(scale.astype(np.float64)) / 12, most).sum())
        for scale in (np.asarray(before.scale), np.asarray(weight.scale))
    )
    return 10 * math.log10(has / had) if has > had > 0 else 0.0


def rescale_bias(plan: QuantizedGraph, node: ir.Node) -> None:
    """Set the scale of a node's bias anew, in place, where that of its weight was changed.

    As in `assign_biases`, a weight scale that makes the bias overflow is raised.
    """
    layer = BiasedLayer.of(node)
    if layer is None:
        return
    config = plan.configs[layer.bias]
    weight_config, data = layer.configs(plan)
    if weight_config is None or data is None or data.scale is None:
        return
    if config.state is not QuantState.PASSIVE:
        return
    bias = layer.values
    _fit_dead(plan, node, weight_config, np.float64(data.scale), bias, config)
    _make_room(node, weight_config, np.float64(data.scale), bias, config)
    _set_bias_scale(config, weight_config, data, bias)


def _make_room(
    node: ir.Node,
    weight: TensorQuantConfig,
    input_scale: np.float64,
    bias: npt.NDArray[np.float64],
    config: TensorQuantConfig,
) -> int:
    """Raise the weight scales that make the bias overflow, unless given; return how many."""
    if weight.scale is None or weight.offset is None:
        return 0
    # In float64: the product of three float32 numbers may be below what float32 holds.
    scales = weight.scale.astype(np.float64)
    per_channel = _largest(bias, scales)
    overflows = per_channel > config.quant_max * scales * input_scale
    # A given scale is not ours to change: the bias saturates, and a note says so.
    if not np.any(overflows) or _is_settled(weight):
        return int(np.count_nonzero(overflows))
    needed = per_channel * _ROOM / (config.quant_max * input_scale)
    _set_scales(node, weight, overflows, needed)
    return int(np.count_nonzero(overflows))


def _fit_dead(
    plan: QuantizedGraph,
    node: ir.Node,
    weight: TensorQuantConfig,
    input_scale: np.float64,
    bias: npt.NDArray[np.float64],
    config: TensorQuantConfig,
) -> int:
    """Set the weight scales of dead channels by their bias, on which nothing else depends.

    Where the target adds it, the bias gets fine steps: the scale of zeros alone, 1, is often too
    coarse for it. Where the target does not, the scale is raised until the bias is 0.

    Returns:
        In how many channels the bias is lost.
    """
    loses = plan.target.bias.dead_channels is not DeadChannels.KEEP
    # Where the target loses the bias, also over a given scale: without weights it scales nothing
    # else, and what is simulated must be what the hardware does.
    if weight.scale is None or (not loses and _is_settled(weight)):
        return 0
    per_channel = _largest(bias, weight.scale)
    if not loses and not ((weight.scale == 1) & (per_channel > 0)).any():
        return 0  # weights are not read in vain
    from intact.plan.dead_channels import dead_channels

    dead = dead_channels(plan, node)
    biased = per_channel > 0 if dead is None else dead & (per_channel > 0)
    if dead is None or not biased.any():
        return 0
    if not loses:
        steps = min(_FINE, config.quant_max / _ROOM)
        _set_scales(node, weight, biased, per_channel / (steps * input_scale))
        return 0
    needed = np.maximum(per_channel * _BEYOND_HALF / input_scale, weight.scale)
    _set_scales(node, weight, biased, needed)
    return int(np.count_nonzero(biased))


def _largest(
    bias: npt.NDArray[np.float64], scales: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Return the largest magnitude for each scale of the weight.

    A Gemm may add a bias for each row too: what counts is the largest of a channel.
    """
    rows = np.abs(bias).reshape(-1, scales.size) if scales.ndim else np.abs(bias).reshape(-1)
    found: npt.NDArray[np.float64] = rows.max(axis=0, initial=0.0)
    return found


def _set_scales(
    node: ir.Node, weight: TensorQuantConfig, where: Mask, needed: npt.NDArray[np.float64]
) -> None:
    if np.max(needed, where=where, initial=0.0) > np.finfo(np.float32).max / 2:
        raise CalibrationError(
            f"{node.name}: its bias is too large beside inputs as small as these",
            remedy=f"--keep-float {quote(str(node.name))}, or samples as the model wants them",
        )
    if weight.grid.power_of_two:
        # Upwards: a smaller power would overflow again.
        needed = np.exp2(np.ceil(np.log2(np.maximum(needed, np.finfo(np.float32).tiny))))
    if weight.scale is not None:
        smallest = float(np.finfo(np.float32).tiny)
        scales = np.where(where, np.maximum(needed, smallest), weight.scale).astype(np.float32)
        weight.set_params(scales, weight.offset)


def _is_settled(weight: TensorQuantConfig) -> bool:
    """Tell whether a weight's scale came from outside: a table, or a quantized model."""
    return weight.observer == GIVEN or is_fixed(weight)


def _set_bias_scale(
    config: TensorQuantConfig,
    weight: TensorQuantConfig,
    data: TensorQuantConfig,
    bias: npt.NDArray[np.float64],
) -> None:
    # In float32, as converters write it: kernels compare the stored scale with this product.
    scale = np.asarray(weight.scale, np.float32) * np.asarray(data.scale, np.float32)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    if config.granularity.axis is not None:
        scale = np.broadcast_to(scale, bias.shape[-1:])
    config.set_params(scale)


def _note(node: ir.Node, fitted: _BiasFit, kind: DType, *, is_given: bool) -> Note:
    overflow = f"the {kind} bias would overflow in {fitted.overflows} channel(s); "
    if is_given:
        return Note(
            NoteKind.BIAS_OVERFLOW,
            str(node.name),
            overflow + "it saturates there, because the weight scale is given",
            "give the weight a larger scale, or keep the node float",
        )
    raised = f"their weight scale was raised, which adds {fitted.added:.1f} dB to the noise of its "
    return Note(
        NoteKind.BIAS_OVERFLOW,
        str(node.name),
        overflow + raised + "weights",
        "equalize the layer or keep it float" if fitted.added >= TOLD_DB else "",
    )


def _note_of_lost(plan: QuantizedGraph, node: ir.Node, channels: int) -> Note:
    return Note(
        NoteKind.CALIBRATION,
        str(node.name),
        f"{channels} output channel(s) have weights of 0 only, and target {plan.target.name} does "
        "not add their bias",
        'quantize for a target with dead_channels = "keep" in [bias]',
    )
