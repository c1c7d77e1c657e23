"""What a module has learned, by the names that the float model had for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from intact.graph import bias_slot, output_channel_axis, weight_slot
from intact.graph.batch_norm import BatchNorm

if TYPE_CHECKING:
    from intact.improve.learn.module import QuantizedModule


def float_state_dict(module: QuantizedModule) -> dict[str, Tensor]:
    """Return the trained weights by name; see `QuantizedModule.float_state_dict`."""
    found = {name: tensor.detach() for name, tensor in module.constants.learned().items()}
    for node in module.plan.graph.nodes:
        kept = module.norm_of(str(node.name))
        folded = module.plan.graph.batch_norms.get(str(node.name))
        if kept is not None:
            found |= _absorbed(node, kept.parameters_now(), found)
        elif folded is not None and folded.names:
            found |= _unfolded(node, folded, found)
    return found


def _absorbed(node: ir.Node, norm: BatchNorm, learned: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move a layer's bias into the normalization behind it: the layer may have had none."""
    bias = node.inputs[bias_slot(node) or 0]
    own = learned.get("" if bias is None else str(bias.name))
    if own is None or bias is None:
        return _named(norm)
    beta = norm.beta + own.cpu().double().numpy() * norm.ratio
    moved = msgspec.structs.replace(norm, beta=beta.astype(np.float32))
    return {str(bias.name): torch.zeros_like(own), **_named(moved)}


def _unfolded(node: ir.Node, norm: BatchNorm, learned: dict[str, Tensor]) -> dict[str, Tensor]:
    """Divide a normalization out of a layer's weights, and let it take their bias in."""
    weight, bias, axis = weight_slot(node), bias_slot(node), output_channel_axis(node)
    values = [None if slot is None else node.inputs[slot] for slot in (weight, bias)]
    names = [str(value.name) for value in values if value is not None]
    is_invertible = bool(np.isfinite(norm.ratio).all() and (norm.ratio != 0).all())
    if axis is None or not is_invertible or [n for n in names if n in learned] != names or not bias:
        return {}
    ratio = torch.from_numpy(norm.ratio)
    shape = [1] * learned[names[0]].ndim
    shape[axis] = -1
    layer = learned[names[0]].cpu().double() / ratio.reshape(shape)
    own = (learned[names[1]].cpu().double() - torch.from_numpy(norm.offset)) / ratio
    found = {names[0]: layer.float(), names[1]: own.float()}
    return found | _absorbed(node, norm, found)


def _named(norm: BatchNorm) -> dict[str, Tensor]:
    arrays = (norm.gamma, norm.beta, norm.mean, norm.variance)
    return {name: torch.from_numpy(a) for name, a in zip(norm.names, arrays, strict=False)}
