"""Writes a trained module back into a plan: weights, biases and scales."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intact.calibrate.scales.bias import rescale_bias
from intact.errors import CalibrationError
from intact.graph import Graph, bias_slot, weight_slot
from intact.graph.batch_norm import remember
from intact.improve.learn.instructions import quantizer_keys
from intact.improve.learn.quantizers import Quantizer
from intact.plan import NoteKind, QuantizedGraph

if TYPE_CHECKING:
    from torch import Tensor

    from intact.improve.learn.module import QuantizedModule

TRAINED = "trained"
"""Observer of scales that were learned."""


def trained_plan(module: QuantizedModule) -> QuantizedGraph:
    """Return the plan with what a module has learned; the module's own is not changed.

    Scales of biases follow, and as in calibration a weight's scale is raised where its bias would
    overflow. Notes of what was exported go: it is exported again.

    Raises:
        CalibrationError: A parameter is not finite.
    """
    plan = module.plan.copy()
    notes = tuple(each for each in plan.notes if each.kind is not NoteKind.EXPORT)
    plan = replace(plan, graph=_trained_graph(module), notes=notes)
    for key, point in quantizer_keys(module.plan).values():
        quantizer = module.quantizers[key]
        # What was not learned stays the plan's, with the method that gave it.
        if not isinstance(quantizer, Quantizer) or quantizer.size is None:
            continue
        root = plan.configs[point.end].dominator
        params = quantizer.params()
        _refuse_not_finite(f"the scale of {point.end}", params.scale)
        root.set_params(params.scale, params.zero_point)
        root.observer = TRAINED
    for node in plan.graph.nodes:
        # Behind all scales: a bias has the product of two of them.
        rescale_bias(plan, node)
    for config in plan.configs.values():
        config.detail.pop("own", None)  # a scale that calibration would have given
    return plan


def _trained_graph(module: QuantizedModule) -> Graph:
    """Return the float graph with the trained constants."""
    model = module.plan.graph.model.clone()
    arrays = {name: _array(name, tensor) for name, tensor in module.constants.learned().items()}
    clone = Graph(model)
    for node in clone.nodes:
        norm = module.norm_of(str(node.name))
        weight, bias = weight_slot(node), bias_slot(node)
        if norm is None or weight is None or bias is None:
            continue
        names = [str(node.inputs[slot].name) for slot in (weight, bias)]  # type: ignore[union-attr]
        now = norm.parameters_now()
        shape = [1] * arrays[names[0]].ndim
        shape[norm.axis] = -1
        arrays[names[0]] = arrays[names[0]] * now.ratio.reshape(shape)
        arrays[names[1]] = arrays[names[1]] * now.ratio + now.offset
        remember(node, now)
    for name, array in arrays.items():
        value = model.graph.initializers[name]
        before = value.const_value
        dtype = ir.DataType.FLOAT if before is None else before.dtype
        # The type of the file stays, whatever the module was converted to.
        value.const_value = ir.Tensor(array.astype(dtype.numpy()), dtype, name=name)
    return Graph(model)


def _array(name: str, tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().double().numpy()
    _refuse_not_finite(f"weight {name!r}", array)
    return array


def _refuse_not_finite(what: str, array: np.ndarray) -> None:
    if not np.isfinite(array).all():
        raise CalibrationError(
            f"{what} is not finite after training",
            remedy="train with a lower learning rate, from the last state that was finite",
        )
