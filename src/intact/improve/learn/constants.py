"""Holds the constants of a graph as parameters and buffers of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from intact.graph import Graph, OpKind, Role, input_role, is_constant, op_spec
from intact.graph.graph import IMPLICIT_SLOT
from intact.ops import RECURRENT
from intact.ops.operators import Add, Div, Mul, PRelu, Sub, types_of
from intact.plan import QuantizedGraph, TensorEnd

_SLOPE = (PRelu.name, 1)
_OFFSETS = types_of(Add, Sub)
_FACTORS = types_of(Mul, Div)
_MASK = 1e4
"""Additive constants as large as this hide what they are added to: a mask, which nobody trains."""


def trainable(plan: QuantizedGraph, value: ir.Value) -> bool:
    """Tell whether training changes a constant.

    That are weights and biases, also of recurrent layers, scales and offsets of normalizations, and
    slopes of PRelu; of operands of Add and Sub those with more than one element, unless they mask,
    and of Mul and Div vectors.
    Integers of a quantized model that was read are not trained, nor numbers that stand in the code
    of a module that was exported.
    """
    readers = [(n, s) for n, s in plan.graph.consumers(value) if s != IMPLICIT_SLOT]
    # Fewer readers than uses: a body reads it too, which is not trained.
    if not plan.graph.is_float(value) or not readers or len(readers) < len(value.uses()):
        return False
    if any(TensorEnd.input(str(node.name), slot) in plan.baked for node, slot in readers):
        return False
    origins = plan.graph.origins
    if origins is not None and value.name in origins.fixed and not _is_folded(plan.graph, value):
        return False
    array = plan.graph.constant(value)
    return array is not None and any(_is_learned(node, slot, array) for node, slot in readers)


def _is_folded(graph: Graph, value: ir.Value) -> bool:
    """Tell whether a BatchNormalization was folded into a constant."""
    return any(str(node.name) in graph.batch_norms for node, _ in graph.consumers(value))


def _is_learned(node: ir.Node, slot: int, array: np.ndarray) -> bool:
    spec, role = op_spec(node), input_role(node, slot)
    if spec is None:
        return False
    if role in (Role.WEIGHT, Role.BIAS) or (node.op_type, slot) == _SLOPE:
        return True
    if role is Role.PARAMETER:
        return spec.kind is OpKind.NORMALIZATION or node.op_type in RECURRENT
    if role is not Role.DATA or array.size < 2:
        return False
    if node.op_type in _OFFSETS:
        return bool(np.abs(array).max() < _MASK)
    return node.op_type in _FACTORS and array.size == max(array.shape)


def free_key(name: str, module: nn.Module) -> str:
    """Name a part of a module: PyTorch takes no points, and no names that the module has."""
    key = name.replace(".", "/")
    while not key or hasattr(module, key):
        key += "_"
    return key


class Constants(nn.Module):
    """Constants by name: floats that are trained as parameters, others as buffers.

    Attributes:
        keys: The name of the parameter or buffer, by the name in the graph: PyTorch takes no
            points in names.

    Args:
        arrays: The arrays by the name in the graph.
        learned: Those that are trained.
        same: Earlier ones of which these are copies that stay equal.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        learned: frozenset[str],
        same: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.keys: dict[str, str] = {}
        for name, array in arrays.items():
            if name in same:
                self.keys[name] = self.keys[same[name]]
                continue
            self.keys[name] = key = free_key(name, self)
            # A copy: arrays of a graph are read-only, and training changes this one.
            tensor = torch.from_numpy(np.array(array))
            if name in learned:
                self.register_parameter(key, nn.Parameter(tensor))
            else:
                # Not part of a state: what is not trained follows from the plan.
                self.register_buffer(key, tensor, persistent=False)

    def __getitem__(self, name: str) -> Tensor:
        """Return a constant by its name in the graph."""
        tensor: Tensor = getattr(self, self.keys[name])
        return tensor

    def learned(self) -> dict[str, Tensor]:
        """Return the parameters by their names in the graph."""
        return {name: self[name] for name, key in self.keys.items() if key in self._parameters}


def constants_of(
    plan: QuantizedGraph, instead: Mapping[str, np.ndarray] = MappingProxyType({})
) -> Constants:
    """Make the constants of a plan's graph.

    Args:
        plan: The plan.
        instead: Numbers that trained constants have at the start, by name.
    """
    graph = plan.graph
    values = [value for value in graph.values if is_constant(value)]
    arrays = {str(v.name): a for v in values if (a := numbers_of(graph, v)) is not None}
    learned = frozenset(str(v.name) for v in values if trainable(plan, v))
    arrays |= {name: array for name, array in instead.items() if name in learned}
    return Constants(arrays, learned, _copies(graph, arrays, learned))


def _copies(
    graph: Graph, arrays: Mapping[str, np.ndarray], learned: frozenset[str]
) -> dict[str, str]:
    """Find copies of one tensor of a module in the same layout: a step of a loop each, say."""
    layouts = {} if graph.origins is None else graph.origins.layouts
    first: dict[str, str] = {}
    found = {}
    for name in arrays:
        if name not in learned or name not in layouts or _is_folded(graph, graph.value(name)):
            continue
        other = first.setdefault(layouts[name], name)
        # One layout: both are of one tensor. Equal values: nothing was folded into one of them.
        if other != name and np.array_equal(arrays[other], arrays[name]):
            found[name] = other
    return found


def numbers_of(graph: Graph, value: ir.Value) -> np.ndarray | None:
    """Return a constant; None where it is computed, or holds no numbers."""
    array = graph.constant(value)
    return None if array is None or array.dtype.kind not in "fiub" else array


def without_integers(plan: QuantizedGraph) -> tuple[QuantizedGraph, dict[str, np.ndarray]]:
    """Take the integers of weights and biases out of a plan, so that they can be trained.

    Those of a quantized model that was read stay: they are what its users know.

    Args:
        plan: Not changed.

    Returns:
        The plan, which quantizes the float weights instead, and the numbers that the integers
        stand for, by the name of the constant. Quantized by that plan they are these integers.
    """
    if not plan.baked or plan.provenance.source:
        return plan, {}
    found, nodes = plan.copy(), {str(node.name): node for node in plan.graph.nodes}
    values = {}
    for end, codes in plan.baked.items():
        config = found.configs[end]
        value = nodes[end.node].inputs[end.slot]
        if value is not None:
            values[str(value.name)] = config.dequantize(codes)
        found.configs[end] = config.unbaked()
    return replace(found, baked={}), values
