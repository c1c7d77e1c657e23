"""Returns what a module has learned, by the names that the float model had for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from intact.graph import bias_slot, output_channel_axis, weight_slot
from intact.graph.batch_norm import BatchNorm
from intact.improve.learn.way_back import WayBack

if TYPE_CHECKING:
    from intact.improve.learn.module import QuantizedModule


_STUCK = "its BatchNormalization cannot be taken out again"


def float_state_dict(module: QuantizedModule, partial: bool = False) -> dict[str, Tensor]:
    """Return the trained weights by name; see `QuantizedModule.float_state_dict`."""
    graph = module.plan.graph
    found = {name: tensor.detach() for name, tensor in module.constants.learned().items()}
    back = None if graph.origins is None else WayBack(graph, graph.origins)
    for node in graph.nodes:
        kept = module.norm_of(str(node.name))
        folded = graph.batch_norms.get(str(node.name))
        norm = folded if kept is None else kept.parameters_now()
        if norm is None or not norm.names:
            continue
        layer: dict[str, Tensor] | None = found
        if kept is None:
            layer = _unfold(node, norm, found)
        if layer is not None:
            has_beta = back is None or back.has_tensor(norm.names[1], norm.beta.shape)
            found |= layer | (_move_bias(node, norm, layer) if has_beta else _norm_arrays(norm))
        elif back is not None:
            back.lose([n for n in _names(node) if n in found], node, _STUCK)
    if back is None:
        return found
    return back.tensors(found, partial)


def _names(node: ir.Node) -> list[str]:
    """Return the names of a layer's weight and bias, as far as it has them."""
    slots = (weight_slot(node), bias_slot(node))
    values = [None if slot is None else node.inputs[slot] for slot in slots]
    return [str(value.name) for value in values if value is not None]


def _move_bias(node: ir.Node, norm: BatchNorm, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Move a layer's bias into the normalization behind it: the layer may have had none."""
    bias = node.inputs[bias_slot(node) or 0]
    own = layer.get("" if bias is None else str(bias.name))
    if own is None or bias is None:
        return _norm_arrays(norm)
    beta = norm.beta + own.cpu().double().numpy() * norm.ratio
    moved = msgspec.structs.replace(norm, beta=beta.astype(np.float32))
    return {str(bias.name): torch.zeros_like(own), **_norm_arrays(moved)}


def _unfold(
    node: ir.Node, norm: BatchNorm, learned: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Divide a normalization out of a layer's weights and bias; None where that cannot be."""
    axis, names = output_channel_axis(node), _names(node)
    is_invertible = bool(np.isfinite(norm.ratio).all() and (norm.ratio != 0).all())
    if axis is None or not is_invertible or len(names) < 2 or not learned.keys() >= {*names}:
        return None
    ratio = torch.from_numpy(norm.ratio)
    shape = [1] * learned[names[0]].ndim
    shape[axis] = -1
    # In float64, so that what was folded and is divided out again comes back as it was.
    layer = learned[names[0]].cpu().double() / ratio.reshape(shape)
    own = (learned[names[1]].cpu().double() - torch.from_numpy(norm.offset)) / ratio
    return {names[0]: layer.float(), names[1]: own.float()}


def _norm_arrays(norm: BatchNorm) -> dict[str, Tensor]:
    arrays = (norm.gamma, norm.beta, norm.mean, norm.variance)
    return {name: torch.tensor(a) for name, a in zip(norm.names, arrays, strict=False)}
