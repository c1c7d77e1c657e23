"""The op table: the role of each input of every standard ONNX operator.

There is one row per operator. It lists which inputs are quantized tensors (data, weight, bias) and
which are arguments (shapes, indices, parameters), and whether the operator only moves values. Input
positions are those of opset 11; later opsets only added inputs at the end.

Source: the ONNX operator specification (https://onnx.ai/onnx/operators/).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from intact.ops.functions import FUNCTIONS


class Role(enum.StrEnum):
    """The role of an operator input."""

    DATA = "data"
    """An activation."""
    WEIGHT = "weight"
    """The constant operand of a multiply-accumulate operator."""
    BIAS = "bias"
    """The constant added to the accumulator."""
    SHAPE = "shape"
    """A shape, an index, a size, a condition or a resize factor: never quantized."""
    PARAMETER = "parameter"
    """A constant argument of the operator: clip bounds, pad value, slope, norm scale."""


class OpKind(enum.StrEnum):
    """The kind of an operator, as far as quantization depends on it."""

    COMPUTE = "compute"
    """Multiplies and accumulates: has a weight, or two data inputs."""
    ELEMENTWISE = "elementwise"
    """Computes element by element on broadcast inputs."""
    ACTIVATION = "activation"
    """A function of one data input, element by element or along an axis (Softmax)."""
    POOL = "pool"
    """Reduces sliding or global spatial windows."""
    REDUCE = "reduce"
    """Reduces or accumulates along axes."""
    NORMALIZATION = "normalization"
    """Normalizes by statistics, stored or computed."""
    JOIN = "join"
    """Joins values of several inputs, unchanged."""
    MOVE = "move"
    """Reorders, selects or repeats the values of one input."""
    OTHER = "other"
    """Everything else: control flow, shapes, comparisons, recurrent operators."""


class OpSpec(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        kind: The kind of operator.
        roles: The role of each input, by position.
        variadic: The role of the inputs after ``roles``, for operators with any number of inputs.
        moves_values: Every output element is an element of data input 0 (or zero, which every
            integer grid represents exactly), so that output and input can share one scale. It may
            depend on attributes or other inputs: use ``intact.graph.ops.moves_values``.
    """

    kind: OpKind
    roles: tuple[Role, ...]
    variadic: Role | None = None
    moves_values: bool = False

    def role(self, slot: int) -> Role:
        """Return the role of input ``slot``; unlisted positions carry data."""
        if 0 <= slot < len(self.roles):
            return self.roles[slot]
        return self.variadic if self.variadic is not None else Role.DATA


DATA, WEIGHT, BIAS, SHAPE, PARAMETER = Role

_MOVER = OpSpec(OpKind.MOVE, (DATA,), moves_values=True)
_STEERED_MOVER = msgspec.structs.replace(_MOVER, variadic=SHAPE)
_ACTIVATION = OpSpec(OpKind.ACTIVATION, (DATA,))
_BINARY = OpSpec(OpKind.ELEMENTWISE, (DATA, DATA))
_UNARY = OpSpec(OpKind.ELEMENTWISE, (DATA,))
_REDUCE = OpSpec(OpKind.REDUCE, (DATA, SHAPE))
_POOL = OpSpec(OpKind.POOL, (DATA,))
_NORM = OpSpec(OpKind.NORMALIZATION, (DATA,), variadic=PARAMETER)
_FROM_SHAPE = OpSpec(OpKind.OTHER, (SHAPE,), variadic=SHAPE)
_OPAQUE = OpSpec(OpKind.OTHER, (), variadic=DATA)
_SCATTER = OpSpec(OpKind.JOIN, (DATA, SHAPE, DATA))

_ROWS: tuple[tuple[str, OpSpec], ...] = (
    # Multiply-accumulate. Whether a MatMul side is a weight depends on the node: see ops.py.
    ("Conv ConvTranspose Gemm", OpSpec(OpKind.COMPUTE, (DATA, WEIGHT, BIAS))),
    ("MatMul", OpSpec(OpKind.COMPUTE, (DATA, WEIGHT))),
    ("DeformConv", OpSpec(OpKind.COMPUTE, (DATA, WEIGHT, SHAPE, BIAS, PARAMETER))),
    # Element by element.
    ("Add Sub Mul Div Pow Mod", _BINARY),
    ("Min Max Sum Mean", OpSpec(OpKind.ELEMENTWISE, (), variadic=DATA)),
    # Activations.
    ("Relu Softmax LogSoftmax Hardmax", _ACTIVATION),
    ("Clip", OpSpec(OpKind.ACTIVATION, (DATA, PARAMETER, PARAMETER))),
    ("PRelu", OpSpec(OpKind.ACTIVATION, (DATA, DATA))),
    # Pools, reductions, normalizations.
    ("MaxPool GlobalMaxPool", msgspec.structs.replace(_POOL, moves_values=True)),
    ("AveragePool GlobalAveragePool LpPool GlobalLpPool", _POOL),
    (
        "ReduceMean ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp"
        " ReduceSumSquare CumSum CumProd",
        _REDUCE,
    ),
    ("ReduceMax ReduceMin", msgspec.structs.replace(_REDUCE, moves_values=True)),
    ("ArgMax ArgMin", OpSpec(OpKind.REDUCE, (DATA,))),
    (
        "BatchNormalization InstanceNormalization LayerNormalization GroupNormalization"
        " RMSNormalization LpNormalization LRN MeanVarianceNormalization",
        _NORM,
    ),
    # Values of several inputs side by side.
    ("Concat", OpSpec(OpKind.JOIN, (), variadic=DATA)),
    ("Where", OpSpec(OpKind.JOIN, (SHAPE, DATA, DATA))),
    ("ScatterND ScatterElements Scatter", _SCATTER),
    ("TensorScatter", OpSpec(OpKind.JOIN, (DATA, DATA, SHAPE))),
    # Values of one input, moved. Pad, Resize and GridSample move only in some modes.
    (
        "Identity Transpose Flatten DepthToSpace SpaceToDepth",
        _MOVER,
    ),
    (
        "Reshape Squeeze Unsqueeze Slice Split Expand Tile Gather GatherND GatherElements Resize"
        " Compress Trilu ReverseSequence MaxUnpool TopK CenterCropPad",
        _STEERED_MOVER,
    ),
    ("Pad", OpSpec(OpKind.MOVE, (DATA, SHAPE, PARAMETER, SHAPE), moves_values=True)),
    ("Dropout", OpSpec(OpKind.MOVE, (DATA, PARAMETER, SHAPE), moves_values=True)),
    # Others.
    ("Cast", _UNARY),
    ("CastLike", OpSpec(OpKind.ELEMENTWISE, (DATA, SHAPE))),
    ("Shape Size ConstantOfShape Range OneHot EyeLike", _FROM_SHAPE),
    ("And Or Xor Not BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", _FROM_SHAPE),
    ("Equal Greater GreaterOrEqual Less LessOrEqual", OpSpec(OpKind.OTHER, (DATA, DATA))),
    ("IsNaN IsInf NonZero Unique Det Bernoulli RandomNormalLike RandomUniformLike", _OPAQUE),
    ("Constant", OpSpec(OpKind.OTHER, ())),
    ("Einsum", _OPAQUE),
    ("Attention", OpSpec(OpKind.OTHER, (DATA, DATA, DATA, PARAMETER, DATA, DATA, SHAPE))),
    ("RotaryEmbedding", OpSpec(OpKind.OTHER, (DATA, PARAMETER, PARAMETER, SHAPE))),
    ("GridSample", OpSpec(OpKind.OTHER, (DATA, PARAMETER))),
    ("RoiAlign", OpSpec(OpKind.OTHER, (DATA, PARAMETER, SHAPE))),
    ("MaxRoiPool", OpSpec(OpKind.OTHER, (DATA, PARAMETER))),
    ("NonMaxSuppression", OpSpec(OpKind.OTHER, (DATA, DATA, SHAPE, PARAMETER, PARAMETER))),
    (
        "LSTM",
        OpSpec(OpKind.OTHER, (DATA, PARAMETER, PARAMETER, PARAMETER, SHAPE, DATA, DATA, PARAMETER)),
    ),
    ("GRU RNN", OpSpec(OpKind.OTHER, (DATA, PARAMETER, PARAMETER, PARAMETER, SHAPE, DATA))),
    ("QuantizeLinear DequantizeLinear", OpSpec(OpKind.OTHER, (DATA, PARAMETER, PARAMETER))),
)

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        **{name: spec for names, spec in _ROWS for name in names.split()},
        **{
            each.name: _ACTIVATION if each.is_activation else _UNARY
            for each in FUNCTIONS.values()
            if each.is_operator
        },
    }
)
"""The table, by operator type of the default ONNX domain."""

EXPANDABLE = ("BatchNormalization", "Div", "HardSigmoid", "LayerNormalization", "Pow")
"""Operators that ``intact.graph.passes.expand`` writes as several simpler ones."""

RECURRENT = ("GRU", "LSTM", "RNN")
"""Layers that hand their state from step to step."""

STORABLE = (*RECURRENT, "Gather")
"""Operators whose constants can be stored as integers while they compute in float: the weights of
recurrent ones, and the table in which Gather looks up rows."""
