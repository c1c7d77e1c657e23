"""Lowers element-wise nodes: binary operations, functions, and chains that are one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.ops import function_options
from intact.ops import functions, operators
from intact.ops.functions import FUNCTIONS
from intact.ops.operators import Add, Div, LayerNormalization, LogSoftmax, Max, Min, Mul, Sub, is_a
from intact.program.lower.attributes import axis_of, bounds_of, clamp_twice
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.lowerings import LOWERINGS, finish, fused_bounds
from intact.program.operations import (
    Binary,
    Bounds,
    Elementwise,
    Function,
    Operation,
    PRelu,
    Reduce,
    Reduction,
    Softmax,
)
from intact.program.program import Tensor
from intact.targets import Float

_BINARIES = {
    Add.name: Binary.ADD,
    Sub.name: Binary.SUB,
    Mul.name: Binary.MUL,
    Div.name: Binary.DIV,
    Min.name: Binary.MINIMUM,
    Max.name: Binary.MAXIMUM,
}

_SELECTING = {Binary.MINIMUM, Binary.MAXIMUM}

"""Their result is one of their operands, so codes are compared on the grid of the result."""


"""Arithmetics for which it is all the same when a number is clamped."""

_LEGACY_SOFTMAX = 13

"""Before this opset Softmax worked on the input flattened to a matrix."""


@LOWERINGS.register(*_BINARIES, any_rank=True)
def binary(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Add, Sub, Mul, Div, Min and Max of two operands; Sub and Mul by itself as one."""
    node = chain[0]
    if len(node.inputs) != 2:
        raise Unsupported(f"it has {len(node.inputs)} operands")
    kind, rest = _BINARIES[node.op_type], 1
    if kind is Binary.SUB and _squares(chain):
        kind, rest = Binary.SQUARED_DIFFERENCE, 2
    bounds = fused_bounds(chain, rest)
    operands = [builder.read(node, 0), builder.read(node, 1)]
    encoded = [t.encoding for t in operands if t.encoding is not None]
    if kind is Binary.DIV and encoded:
        raise Unsupported("there is no integer division")
    if any(encoding.axis is not None for encoding in encoded):
        raise Unsupported("an operand has one scale a channel")
    wanted = builder.wanted_encoding(chain[-1].outputs[0])
    # Comparing codes of two scales would compare nothing: both come to the result's grid first.
    if kind in _SELECTING and wanted is not None and len(encoded) == len(operands):
        operands = [builder.encode(t, wanted) for t in operands]
    finish(builder, chain, Elementwise(kind, bounds), operands)


def _squares(chain: tuple[ir.Node, ...]) -> bool:
    """Tell whether a difference is multiplied by itself."""
    if len(chain) < 2 or not is_a(chain[1], Mul):
        return False
    return all(value is chain[0].outputs[0] for value in chain[1].inputs)


@LOWERINGS.register(*(name for name, each in FUNCTIONS.items() if each.is_operator), any_rank=True)
def function(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """A function of one operand."""
    node = chain[0]
    kind, rest = FUNCTIONS[node.op_type], 1
    if kind is functions.sqrt and len(chain) > 1 and is_a(chain[1], functions.reciprocal):
        kind, rest = functions.rsqrt, 2
    operation = Function(kind, function_options(node), fused_bounds(chain, rest))
    finish(builder, chain, operation, (builder.read(node, 0),))


@LOWERINGS.register(*operators.CLAMPS, any_rank=True)
def clamp(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Relu or Clip that stands alone.

    Integer hardware rescales in a Relu. What is clamped below another number than 0 is brought to
    the result's codes beforehand, by a step of its own.
    """
    own = bounds_of(chain[0])
    bounds = clamp_twice(fused_bounds(chain), Bounds() if own is None else own)
    data, wanted = builder.read(chain[0], 0), builder.wanted_encoding(chain[-1].outputs[0])
    is_integer = not isinstance(builder.plan.arithmetic_of(chain[0]).requantize, Float)
    if is_integer and bounds.low != 0 and data.encoding is not None and wanted is not None:
        data = builder.encode(data, wanted)
    finish(builder, chain, Function(functions.clamp, bounds=bounds), (data,))


@LOWERINGS.register(operators.PRelu, any_rank=True)
def prelu(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """PRelu with a constant slope."""
    if len(chain) > 1:
        raise Unsupported("there is no one operation for PRelu and what follows it")
    data, slope = builder.read(chain[0], 0), builder.read(chain[0], 1)
    if slope.data is None:
        raise Unsupported("its slope is computed")
    finish(builder, chain, PRelu(), (data, slope))


@LOWERINGS.register(operators.Softmax, LogSoftmax)
def softmax(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Softmax and LogSoftmax."""
    node = chain[0]
    if len(chain) > 1:
        raise Unsupported("there is no one operation for Softmax and what follows it")
    data = builder.read(node, 0)
    rank = len(data.shape)
    # Flattened from the axis on; where all behind it are 1 long both meanings are the same.
    legacy = builder.plan.graph.opset < _LEGACY_SOFTMAX
    axis = axis_of(node, rank, 1 if legacy else None)
    if legacy and any(length != 1 for length in data.shape[axis + 1 :]):
        raise Unsupported("its axis means a flattened matrix in this opset")
    finish(builder, chain, Softmax(axis, log=is_a(node, LogSoftmax)), (data,))


@LOWERINGS.register(LayerNormalization)
def layer_norm(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """``(x - mean) * rsqrt(variance + epsilon) * scale + bias``.

    Source: the ONNX operator's definition.
    """
    node = chain[0]
    data, scale = builder.read(node, 0), builder.read(node, 1)
    if len(chain) > 1 or data.encoding is not None or len(node.outputs) > 1:
        raise Unsupported("there is no integer operation for LayerNormalization")
    rank = len(data.shape)
    axes = tuple(range(axis_of(node, rank), rank))
    epsilon = np.float32(operators.LayerNormalization.of(node).epsilon)
    maker = _Maker(builder, node, data)
    mean = maker(Reduce(Reduction.MEAN, axes, keep_dims=True), data, reduced=axes)
    squared = maker(Elementwise(Binary.SQUARED_DIFFERENCE), data, mean)
    variance = maker(Reduce(Reduction.MEAN, axes, keep_dims=True), squared, reduced=axes)
    # Under the root, so that a row of equal numbers divides by no 0.
    safe = maker(Elementwise(Binary.ADD), variance, maker.constant(epsilon), reduced=axes)
    factor = maker(Function(functions.rsqrt), safe, reduced=axes)
    centred = maker(Elementwise(Binary.SUB), data, mean)
    scaled = maker(Elementwise(Binary.MUL), centred, factor)
    last, operands = Elementwise(Binary.MUL), (scaled, scale)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        last, operands = Elementwise(Binary.ADD), (maker(last, *operands), builder.read(node, 2))
    result = builder.result(node.outputs[0])
    builder.emit((node,), last, operands, (result,))
    builder.set_result(node.outputs[0], result)


class _Maker:
    """Adds steps on floats whose results are called after the node's."""

    def __init__(self, builder: ProgramBuilder, node: ir.Node, data: Tensor) -> None:
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
