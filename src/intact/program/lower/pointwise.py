"""Element by element: binary operations, functions and what chains stand for one of them."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.errors import Unsupported
from intact.program.lower.attributes import axis_of, bounds_of, joined
from intact.program.lower.builder import Builder
from intact.program.lower.chain_end import finish, fused_bounds
from intact.program.operations import (
    Binary,
    Bounds,
    Elementwise,
    Function,
    PRelu,
    Softmax,
    Unary,
)
from intact.targets import Requantize

Translate = Callable[[Builder, tuple[ir.Node, ...]], None]

_BINARIES = {
    "Add": Binary.ADD,
    "Sub": Binary.SUB,
    "Mul": Binary.MUL,
    "Div": Binary.DIV,
    "Min": Binary.MINIMUM,
    "Max": Binary.MAXIMUM,
}

_SELECTING = {Binary.MINIMUM, Binary.MAXIMUM}
"""They hand out one of their operands, so codes are compared on the grid of the result."""

_FUNCTIONS = {
    "Sigmoid": Unary.SIGMOID,
    "Tanh": Unary.TANH,
    "HardSwish": Unary.HARD_SWISH,
    "Sqrt": Unary.SQRT,
    "Exp": Unary.EXP,
    "Log": Unary.LOG,
    "Abs": Unary.ABS,
    "Neg": Unary.NEG,
    "Erf": Unary.ERF,
    "Reciprocal": Unary.RECIPROCAL,
}

_FLOATS = (Requantize.FLOAT32, Requantize.FLOAT64)
"""Arithmetics for which it is all the same when a number is clamped."""

_LEGACY_SOFTMAX = 13
"""Before this opset Softmax worked on the input flattened to a matrix."""


def binary(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
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
    wanted = builder.wanted(chain[-1].outputs[0])
    if kind in _SELECTING and wanted is not None and len(encoded) == len(operands):
        operands = [builder.in_encoding(t, wanted) for t in operands]
    finish(builder, chain, Elementwise(kind, bounds), operands)


def _squares(chain: tuple[ir.Node, ...]) -> bool:
    """Tell whether a difference is multiplied by itself."""
    if len(chain) < 2 or chain[1].op_type != "Mul":
        return False
    return all(value is chain[0].outputs[0] for value in chain[1].inputs)


def function(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """A function of one operand that has no options."""
    node = chain[0]
    kind, rest = _FUNCTIONS[node.op_type], 1
    if kind is Unary.SQRT and len(chain) > 1 and chain[1].op_type == "Reciprocal":
        kind, rest = Unary.RSQRT, 2
    bounds = fused_bounds(chain, rest)
    finish(builder, chain, Function(kind, bounds=bounds), (builder.read(node, 0),))


def gelu(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Gelu, exact or with tanh."""
    mode = chain[0].attributes.get_string("approximate", "none")
    kind = Unary.GELU_TANH if mode == "tanh" else Unary.GELU
    operation = Function(kind, bounds=fused_bounds(chain))
    finish(builder, chain, operation, (builder.read(chain[0], 0),))


def sloped(kind: Unary, default: float) -> Translate:
    """A function whose slope or height is the attribute ``alpha``."""

    def translate(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
        node = chain[0]
        alpha = node.attributes.get_float("alpha", default)
        operation = Function(kind, alpha, fused_bounds(chain))
        finish(builder, chain, operation, (builder.read(node, 0),))

    return translate


def hard_sigmoid(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """HardSigmoid: ``alpha`` is the parameter, ``beta`` must be 0.5."""
    node = chain[0]
    beta = node.attributes.get_float("beta", 0.5)
    if beta != 0.5:
        raise Unsupported(f"its beta is {beta}")
    sloped(Unary.HARD_SIGMOID, 0.2)(builder, chain)


def clamp(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Relu or Clip that stands alone.

    Integer hardware rescales in a Relu. What is clamped below another number than 0 is brought to
    the result's codes beforehand, by a step of its own.
    """
    own = bounds_of(chain[0])
    bounds = joined(fused_bounds(chain), Bounds() if own is None else own)
    data, wanted = builder.read(chain[0], 0), builder.wanted(chain[-1].outputs[0])
    is_integer = builder.plan.target.arithmetic_of(chain[0]).requantize not in _FLOATS
    if is_integer and bounds.low != 0 and data.encoding is not None and wanted is not None:
        data = builder.in_encoding(data, wanted)
    finish(builder, chain, Function(Unary.CLAMP, bounds=bounds), (data,))


def prelu(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """PRelu with a constant slope."""
    if len(chain) > 1:
        raise Unsupported("there is no one operation for PRelu and what follows it")
    data, slope = builder.read(chain[0], 0), builder.read(chain[0], 1)
    if slope.data is None:
        raise Unsupported("its slope is computed")
    finish(builder, chain, PRelu(), (data, slope))


def softmax(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Softmax and LogSoftmax."""
    node = chain[0]
    if len(chain) > 1:
        raise Unsupported("there is no one operation for Softmax and what follows it")
    data = builder.read(node, 0)
    rank = len(data.shape)
    legacy = builder.plan.graph.opset < _LEGACY_SOFTMAX
    axis = axis_of(node, rank, 1 if legacy else -1)
    if legacy and axis != rank - 1:
        raise Unsupported("its axis means a flattened matrix in this opset")
    finish(builder, chain, Softmax(axis, log=node.op_type == "LogSoftmax"), (data,))


TABLE: dict[str, Translate] = {
    **dict.fromkeys(_BINARIES, binary),
    **dict.fromkeys(_FUNCTIONS, function),
    "Relu": clamp,
    "Clip": clamp,
    "Gelu": gelu,
    "LeakyRelu": sloped(Unary.LEAKY_RELU, 0.01),
    "Elu": sloped(Unary.ELU, 1.0),
    "HardSigmoid": hard_sigmoid,
    "PRelu": prelu,
    "Softmax": softmax,
    "LogSoftmax": softmax,
}
