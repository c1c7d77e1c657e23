"""Views layers with constant weights as groups of matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import Graph, facts, weight_slot
from intact.ops.operators import Conv, ConvTranspose, Gemm, is_a

Doubles = npt.NDArray[np.float64]

_WEIGHT, _BIAS = 1, 2


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer with a constant weight whose input and output channels can be scaled.

    Attributes:
        node: The node; its weight is input 1, and no other node reads it.
        weight: The weight as stored.
        bias: One number, or one per channel; None without bias.
        groups: Number of groups; 1 except for convolutions.
    """

    node: ir.Node
    weight: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None
    groups: int

    @staticmethod
    def of(graph: Graph, node: ir.Node) -> Layer | None:
        """Make the layer of a node; None if its channels cannot be scaled by its constants."""
        if facts(node).channel_axis is None or weight_slot(node) != _WEIGHT:
            return None
        weight = _own(graph, node, _WEIGHT)
        bias = _own(graph, node, _BIAS)
        if weight is None or not weight.size or not np.isfinite(weight).all():
            return None
        # A bias that is not its own, or no constant, cannot be scaled with the weight.
        if bias is None and len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None:
            return None
        is_dense = facts(node).channel_axis == -1
        # A transposed input has its samples where channels are expected.
        if is_dense and (weight.ndim != 2 or Gemm.of(node).transA != 0):
            return None
        groups = 1 if is_dense else Conv.of(node).group
        layer = Layer(node, weight, bias, groups)
        rows = (1, layer.outputs)
        # A Gemm may add a whole matrix, which no factor of a channel scales.
        return layer if bias is None or (bias.size in rows and bias.shape[-1:] != ()) else None

    @property
    def is_dense(self) -> bool:
        """Whether its channels are the last axis of input and output."""
        return facts(self.node).channel_axis == -1

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        groups, outputs, _, _ = self._shape
        return groups * outputs

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        groups, _, inputs, _ = self._shape
        return groups * inputs

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel depends only on the input channel of the same index."""
        _, outputs, inputs, _ = self._shape
        return outputs == inputs == 1

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.view(self.weight).shape)

    def view(self, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Reshape a weight to ``[groups, outputs, inputs, taps]``."""
        groups = self.groups
        match self.node.op_type:
            case Conv.name:
                outputs, inputs, *kernel = weight.shape
                return weight.reshape(groups, outputs // groups, inputs, math.prod(kernel))
            case ConvTranspose.name:
                inputs, outputs, *kernel = weight.shape
                shape = (groups, inputs // groups, outputs, math.prod(kernel))
                return weight.reshape(shape).transpose(0, 2, 1, 3)
        is_transposed = Gemm.of(self.node).transB == 1
        rows = weight if is_transposed else weight.T
        return rows[None, :, :, None]

    def lay_out(self, wide: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Lay ``[groups, outputs, inputs, taps]`` out as the weight is stored."""
        if is_a(self.node, ConvTranspose):
            wide = wide.transpose(0, 2, 1, 3)
        elif self.is_dense and not Gemm.of(self.node).transB:
            wide = wide[0, :, :, 0].T
        return np.ascontiguousarray(wide.reshape(self.weight.shape))

    def scale_weight(self, into: Doubles, out: Doubles) -> npt.NDArray[Any]:
        """Scale the weight by factors of input and output channels, in its own type."""
        # In float64, so that a scaled weight is rounded once.
        wide = self.view(self.weight.astype(np.float64))
        wide = wide * _by_input(into, self.groups) * _by_output(out, self.groups)
        return self.lay_out(wide).astype(self.weight.dtype)

    def scaled_bias(self, out: Doubles) -> npt.NDArray[Any] | None:
        """Scale the bias by factors of output channels; None without bias."""
        if self.bias is None:
            return None
        shape = (*self.bias.shape[:-1], self.outputs)
        return (self.bias.astype(np.float64) * out).reshape(shape).astype(self.bias.dtype)

    def reach_of_inputs(self, into: Doubles, out: Doubles) -> Doubles:
        """Compute the largest magnitude of each input channel's scaled weights."""
        magnitudes = np.abs(self.view(self.weight)) * _by_output(out, self.groups)
        return np.asarray(magnitudes.max(axis=(1, 3)).reshape(-1) * into)

    def reach_of_outputs(self, into: Doubles, out: Doubles) -> Doubles:
        """Compute the largest magnitude of each output channel's scaled weights."""
        magnitudes = np.abs(self.view(self.weight)) * _by_input(into, self.groups)
        return np.asarray(magnitudes.max(axis=(2, 3)).reshape(-1) * out)


def _by_input(factors: Doubles, groups: int) -> Doubles:
    return factors.reshape(groups, 1, -1, 1)


def _by_output(factors: Doubles, groups: int) -> Doubles:
    return factors.reshape(groups, -1, 1, 1)


def _own(graph: Graph, node: ir.Node, slot: int) -> npt.NDArray[Any] | None:
    """Return a float32 constant that only this input reads; None otherwise."""
    value = node.inputs[slot] if slot < len(node.inputs) else None
    array = graph.constant(value)
    if value is None or array is None or array.dtype != np.float32:
        return None
    # Other readers would get the scaled constant too.
    return array if len(value.uses()) == 1 and not value.is_graph_output() else None
