"""LayerNormalization of floats as the operations that it is made of."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.program.lower.attributes import axis_of
from intact.program.lower.builder import Builder
from intact.program.operations import (
    Binary,
    Elementwise,
    Function,
    Operation,
    Reduce,
    Reduction,
    Unary,
)
from intact.program.program import Tensor


def layer_norm(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """``(x - mean) * rsqrt(variance + epsilon) * scale + bias``.

    Source: the ONNX operator's definition.
    """
    node = chain[0]
    data, scale = builder.read(node, 0), builder.read(node, 1)
    if len(chain) > 1 or data.encoding is not None or len(node.outputs) > 1:
        raise Unsupported("there is no integer operation for LayerNormalization")
    rank = len(data.shape)
    axes = tuple(range(axis_of(node, rank, -1), rank))
    epsilon = np.float32(node.attributes.get_float("epsilon", 1e-5))
    maker = _Maker(builder, node, data)
    mean = maker(Reduce(Reduction.MEAN, axes, keep_dims=True), data, reduced=axes)
    squared = maker(Elementwise(Binary.SQUARED_DIFFERENCE), data, mean)
    variance = maker(Reduce(Reduction.MEAN, axes, keep_dims=True), squared, reduced=axes)
    safe = maker(Elementwise(Binary.ADD), variance, maker.constant(epsilon), reduced=axes)
    factor = maker(Function(Unary.RSQRT), safe, reduced=axes)
    centred = maker(Elementwise(Binary.SUB), data, mean)
    scaled = maker(Elementwise(Binary.MUL), centred, factor)
    last, operands = Elementwise(Binary.MUL), (scaled, scale)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        last, operands = Elementwise(Binary.ADD), (maker(last, *operands), builder.read(node, 2))
    result = builder.result(node.outputs[0])
    builder.emit((node,), last, operands, (result,))
    builder.hand_out(node.outputs[0], result)


class _Maker:
    """Adds steps on floats whose results are called after the node's."""

    def __init__(self, builder: Builder, node: ir.Node, data: Tensor) -> None:
        self._builder = builder
        self._node = node
        self._shape = data.shape

    def __call__(
        self, operation: Operation, *inputs: Tensor, reduced: tuple[int, ...] = ()
    ) -> Tensor:
        shape = tuple(1 if k in reduced else size for k, size in enumerate(self._shape))
        result = self._builder.inner(self._node.outputs[0], shape)
        self._builder.emit((self._node,), operation, inputs, (result,))
        return result

    def constant(self, number: np.float32) -> Tensor:
        data = np.asarray(number)
        return self._builder.inner(self._node.outputs[0], (), data)


TABLE = {"LayerNormalization": layer_norm}
