"""Declares operators, each once: roles of inputs, options with ONNX's defaults, facts.

One declaration per operator of the default ONNX domain. It lists which inputs are quantized tensors
(data, weight, bias) and which are arguments (shapes, indices, parameters), and facts that passes,
plans and reports ask for. Input positions are those of opset 11; later opsets only added inputs at
the end. An operator with options is a class, whose instances are the options of one node::

    class Gemm(Operator, kind=OpKind.COMPUTE, roles=(DATA, WEIGHT, BIAS), channel_axis=-1):
        alpha: float = 1.0


    Gemm.of(node).alpha

Functions of one tensor are declared in `intact.ops.functions`. Source: the ONNX operator
specification (https://onnx.ai/onnx/operators/).
"""

# ruff: noqa: D101 - the specification says what the operators are

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from intact.ops.declaration import (
    DECLARED,
    DECLARED_OPERATORS,
    Integers,
    Operator,
    OpKind,
    OpSpec,
    Pool,
    Role,
    Window,
    declare,
    named,
)
from intact.ops.functions import FUNCTIONS, Unary

if TYPE_CHECKING:
    import onnx_ir as ir

OPS: Mapping[str, OpSpec] = MappingProxyType(DECLARED)
"""The table, by operator type of the default ONNX domain."""

OPERATORS: Mapping[str, type[Operator]] = MappingProxyType(DECLARED_OPERATORS)
"""The operators of the table, by type."""

DATA, WEIGHT, BIAS, SHAPE, PARAMETER = Role

# ---- multiply and accumulate ---------------------------------------------------------------------
# Whether a side of MatMul or Gemm is a weight depends on the node: see intact.graph.ops.


class Conv(Window, kind=OpKind.COMPUTE, roles=(DATA, WEIGHT, BIAS), channel_axis=1):
    group: int = 1


class ConvTranspose(Conv):
    output_padding: Integers = ()
    output_shape: Integers = ()


class Gemm(
    Operator,
    kind=OpKind.COMPUTE,
    roles=(DATA, WEIGHT, BIAS),
    channel_axis=-1,
    moves_axes=True,
):
    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0  # noqa: N815 - as ONNX calls it
    transB: int = 0  # noqa: N815


DeformConv = declare("DeformConv", OpKind.COMPUTE, DATA, WEIGHT, SHAPE, BIAS, PARAMETER)
MatMul = declare("MatMul", OpKind.COMPUTE, DATA, WEIGHT, channel_axis=-1, moves_axes=True)

# ---- element by element --------------------------------------------------------------------------


def _binary(
    name: str, numpy: str = "", *, roles: tuple[Role, ...] = (DATA, DATA), **facts: Any
) -> type[Operator]:
    """Declare an operation on two operands, or on any number of them."""
    variadic = None if roles else DATA
    return declare(name, OpKind.ELEMENTWISE, *roles, variadic=variadic, numpy=numpy, **facts)


Add = _binary("Add", "add", adds=True, keeps_sign=True, neutral=0, commutes=True)
Sub = _binary("Sub", "subtract", adds=True, neutral=0)
Mul = _binary("Mul", "multiply", keeps_sign=True, neutral=1, commutes=True)
Div = _binary("Div", keeps_sign=True, neutral=1, fails_by=1)
Pow = _binary("Pow")
Max = _binary(
    "Max", "maximum", roles=(), selects=True, keeps_sign=True, neutral=-math.inf, commutes=True
)
Min = _binary(
    "Min", "minimum", roles=(), selects=True, keeps_sign=True, neutral=math.inf, commutes=True
)
Sum = _binary("Sum", "add", roles=(), adds=True, keeps_sign=True)
Mean = _binary("Mean", roles=(), keeps_sign=True)


class Mod(Operator, kind=OpKind.ELEMENTWISE, roles=(DATA, DATA), fails_by=1):
    fmod: int = 0


class Cast(Operator, kind=OpKind.ELEMENTWISE, roles=(DATA,), converts=True):
    to: int = 0


# Only the type of the second operand counts, never its values.
CastLike = declare("CastLike", OpKind.ELEMENTWISE, DATA, SHAPE, converts=True)


def _comparison(name: str, numpy: str) -> type[Operator]:
    """Declare what reads data and gives a condition, which nothing quantizes."""
    return declare(name, OpKind.OTHER, DATA, DATA, decides=True, numpy=numpy)


def _logical(name: str, numpy: str) -> type[Operator]:
    """Declare an operation on conditions, or on the bits of integers."""
    return declare(name, OpKind.OTHER, SHAPE, variadic=SHAPE, numpy=numpy)


Equal = _comparison("Equal", "equal")
Greater = _comparison("Greater", "greater")
GreaterOrEqual = _comparison("GreaterOrEqual", "greater_equal")
Less = _comparison("Less", "less")
LessOrEqual = _comparison("LessOrEqual", "less_equal")
And = _logical("And", "logical_and")
Or = _logical("Or", "logical_or")
Xor = _logical("Xor", "logical_xor")
Not = _logical("Not", "logical_not")
BitwiseAnd = _logical("BitwiseAnd", "bitwise_and")
BitwiseOr = _logical("BitwiseOr", "bitwise_or")
BitwiseXor = _logical("BitwiseXor", "bitwise_xor")
BitwiseNot = _logical("BitwiseNot", "bitwise_not")


class BitShift(Operator, kind=OpKind.OTHER, roles=(SHAPE,), variadic=SHAPE):
    direction: str = "LEFT"


class IsInf(Operator, kind=OpKind.OTHER, roles=(), variadic=DATA):
    detect_negative: int = 1
    detect_positive: int = 1


# ---- activations ---------------------------------------------------------------------------------

Relu = declare("Relu", OpKind.ACTIVATION, DATA, clamps=True, selects=True, low=0.0)
Clip = declare("Clip", OpKind.ACTIVATION, DATA, PARAMETER, PARAMETER, clamps=True, selects=True)
PRelu = declare("PRelu", OpKind.ACTIVATION, DATA, DATA)


class Softmax(Operator, kind=OpKind.ACTIVATION, roles=(DATA,), low=0.0, high=1.0):
    axis: int = -1


class LogSoftmax(Softmax, low=-math.inf, high=0.0):
    pass


class Hardmax(Softmax):
    pass


# ---- pools and reductions ------------------------------------------------------------------------


class MaxPool(Pool, kind=OpKind.POOL, roles=(DATA,), moves_values=True, keeps_sign=True):
    storage_order: int = 0


class AveragePool(Pool, kind=OpKind.POOL, roles=(DATA,), keeps_sign=True):
    count_include_pad: int = 0


class LpPool(Pool, kind=OpKind.POOL, roles=(DATA,), low=0.0):
    p: int = 2


class GlobalLpPool(Operator, kind=OpKind.POOL, roles=(DATA,), low=0.0):
    p: int = 2


GlobalMaxPool = declare("GlobalMaxPool", OpKind.POOL, DATA, moves_values=True, keeps_sign=True)
GlobalAveragePool = declare("GlobalAveragePool", OpKind.POOL, DATA, keeps_sign=True)


class Reduce(Operator, kind=OpKind.REDUCE, roles=(DATA, SHAPE), abstract=True):
    """The options of all reductions; their axes are an attribute or an input."""

    axes: Integers = ()
    keepdims: int = 1
    noop_with_empty_axes: int = 0


def _reduction(name: str, **facts: Any) -> type[Reduce]:
    declared: type[Reduce] = type(name, (Reduce,), {}, **facts)
    return declared


ReduceMean = _reduction("ReduceMean", keeps_sign=True)
ReduceSum = _reduction("ReduceSum", keeps_sign=True)
ReduceProd = _reduction("ReduceProd", keeps_sign=True)
ReduceMax = _reduction("ReduceMax", keeps_sign=True, moves_values=True)
ReduceMin = _reduction("ReduceMin", keeps_sign=True, moves_values=True)
ReduceL1 = _reduction("ReduceL1", low=0.0)
ReduceL2 = _reduction("ReduceL2", low=0.0)
ReduceSumSquare = _reduction("ReduceSumSquare", low=0.0)
# The logarithm of what is below 1 is negative, also of sums that are not.
ReduceLogSum = _reduction("ReduceLogSum")
ReduceLogSumExp = _reduction("ReduceLogSumExp")


class CumSum(Operator, kind=OpKind.REDUCE, roles=(DATA, SHAPE), places=True):
    exclusive: int = 0
    reverse: int = 0


class CumProd(CumSum):
    pass


class ArgMax(Operator, kind=OpKind.REDUCE, roles=(DATA,), decides=True):
    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0


class ArgMin(ArgMax):
    pass


# ---- normalizations ------------------------------------------------------------------------------


class Normalization(
    Operator, kind=OpKind.NORMALIZATION, roles=(DATA,), variadic=PARAMETER, abstract=True
):
    """The inputs that all normalizations have."""


class Stabilized(Normalization, abstract=True):
    """A normalization that adds a small number to what it divides by."""

    epsilon: float = 9.999999747378752e-06  # 1e-5 in float32, as attributes are


class BatchNormalization(Stabilized):
    training_mode: int = 0


class InstanceNormalization(Stabilized):
    pass


class GroupNormalization(Stabilized):
    num_groups: int = 1


class LayerNormalization(Stabilized):
    axis: int = -1


class RMSNormalization(Stabilized):
    axis: int = -1


class LpNormalization(Normalization):
    axis: int = -1
    p: int = 2


class LRN(Normalization):
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    size: int = 1


class MeanVarianceNormalization(Normalization):
    axes: Integers = (0, 2, 3)


# ---- values of several inputs side by side -------------------------------------------------------


# A join has one scale for all that it joins; see `intact.plan.untie` for where that loses much.
class Concat(Operator, kind=OpKind.JOIN, roles=(), variadic=DATA, selects=True, keeps_sign=True):
    axis: int = 0


Where = declare("Where", OpKind.JOIN, SHAPE, DATA, DATA, selects=True, numpy="where")


class ScatterND(Operator, kind=OpKind.JOIN, roles=(DATA, SHAPE, DATA), fails_by=1):
    reduction: str = "none"


class ScatterElements(ScatterND):
    axis: int = 0


class Scatter(Operator, kind=OpKind.JOIN, roles=(DATA, SHAPE, DATA)):
    axis: int = 0


TensorScatter = declare("TensorScatter", OpKind.JOIN, DATA, DATA, SHAPE)

# ---- values of one input, moved ------------------------------------------------------------------
# Pad, Resize and GridSample move only in some modes.


class Mover(
    Operator,
    kind=OpKind.MOVE,
    roles=(DATA,),
    variadic=SHAPE,
    moves_values=True,
    abstract=True,
):
    """An operator that reorders, selects or repeats; all further inputs steer it."""


class Identity(Mover, variadic=None, reshapes=True):
    pass


class Dropout(Mover, roles=(DATA, PARAMETER, SHAPE), variadic=None, reshapes=True):
    pass


class Expand(Mover, moves_axes=True):
    pass


class Tile(Mover, moves_axes=True):
    pass


class Reshape(Mover, reshapes=True, moves_axes=True):
    allowzero: int = 0


class Flatten(Mover, variadic=None, reshapes=True, moves_axes=True):
    axis: int = 1


class Squeeze(Mover, reshapes=True, moves_axes=True):
    axes: Integers = ()


class Unsqueeze(Squeeze):
    pass


class Transpose(Mover, variadic=None, moves_axes=True):
    perm: Integers = ()


class Slice(Mover):
    starts: Integers = ()
    ends: Integers = ()
    axes: Integers = ()


class Split(Mover):
    axis: int = 0
    split: Integers = ()


class Gather(Mover, moves_axes=True, fails_by=1):
    axis: int = 0


class GatherElements(Gather):
    pass


class GatherND(Mover, moves_axes=True, fails_by=1):
    batch_dims: int = 0


class TopK(Mover, decides=True, moves_axes=True):
    axis: int = -1
    largest: int = 1


class Compress(Mover, decides=True):
    axis: int | None = None


# The value is a parameter: it is quantized with the data that it stands beside.
class Pad(Mover, roles=(DATA, SHAPE, PARAMETER, SHAPE), variadic=None):
    mode: str = "constant"
    pads: Integers = ()
    value: float = 0.0


class Resize(Mover):
    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    antialias: int = 0
    axes: Integers = ()
    keep_aspect_ratio_policy: str = "stretch"


class DepthToSpace(Mover, variadic=None):
    blocksize: int = 1
    mode: str = "DCR"


class SpaceToDepth(Mover, variadic=None):
    blocksize: int = 1


class Trilu(Mover):
    upper: int = 1


class ReverseSequence(Mover):
    time_axis: int = 0
    batch_axis: int = 1


class CenterCropPad(Mover):
    axes: Integers = ()


class MaxUnpool(Mover):
    kernel_shape: Integers = ()
    strides: Integers = ()
    pads: Integers = ()


# ---- others --------------------------------------------------------------------------------------

Size = declare("Size", OpKind.OTHER, SHAPE, variadic=SHAPE)
ConstantOfShape = declare("ConstantOfShape", OpKind.OTHER, SHAPE, variadic=SHAPE)
Range = declare("Range", OpKind.OTHER, SHAPE, variadic=SHAPE)


class Shape(Operator, kind=OpKind.OTHER, roles=(SHAPE,), variadic=SHAPE):
    start: int = 0
    end: int | None = None


class OneHot(Operator, kind=OpKind.OTHER, roles=(SHAPE,), variadic=SHAPE, moves_axes=True):
    axis: int = -1


class EyeLike(Operator, kind=OpKind.OTHER, roles=(SHAPE,), variadic=SHAPE):
    k: int = 0
    dtype: int | None = None


IsNaN = declare("IsNaN", OpKind.OTHER, variadic=DATA, numpy="isnan")
NonZero = declare("NonZero", OpKind.OTHER, variadic=DATA, decides=True)
Unique = declare("Unique", OpKind.OTHER, variadic=DATA, decides=True)
Det = declare("Det", OpKind.OTHER, variadic=DATA)
Bernoulli = declare("Bernoulli", OpKind.OTHER, variadic=DATA)
RandomNormalLike = declare("RandomNormalLike", OpKind.OTHER, variadic=DATA)
RandomUniformLike = declare("RandomUniformLike", OpKind.OTHER, variadic=DATA)
Einsum = declare("Einsum", OpKind.OTHER, variadic=DATA, moves_axes=True)
Constant = declare("Constant", OpKind.OTHER)


class Attention(
    Operator, kind=OpKind.OTHER, roles=(DATA, DATA, DATA, PARAMETER, DATA, DATA, SHAPE)
):
    is_causal: int = 0
    scale: float | None = None
    softcap: float = 0.0
    q_num_heads: int = 0
    kv_num_heads: int = 0


class GridSample(Operator, kind=OpKind.OTHER, roles=(DATA, PARAMETER), places=True):
    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: int = 0


RotaryEmbedding = declare("RotaryEmbedding", OpKind.OTHER, DATA, PARAMETER, PARAMETER, SHAPE)
RoiAlign = declare("RoiAlign", OpKind.OTHER, DATA, PARAMETER, SHAPE, places=True)
MaxRoiPool = declare("MaxRoiPool", OpKind.OTHER, DATA, PARAMETER)
NonMaxSuppression = declare(
    "NonMaxSuppression", OpKind.OTHER, DATA, DATA, SHAPE, PARAMETER, PARAMETER, decides=True
)


class Recurrent(
    Operator,
    kind=OpKind.OTHER,
    roles=(DATA, PARAMETER, PARAMETER, PARAMETER, SHAPE, DATA),
    abstract=True,
):
    """The options of layers that hand their state from step to step."""

    direction: str = "forward"
    activations: tuple[str, ...] = ()
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    clip: float = 0.0
    layout: int = 0


class GRU(Recurrent):
    linear_before_reset: int = 0


class LSTM(
    Recurrent,
    roles=(DATA, PARAMETER, PARAMETER, PARAMETER, SHAPE, DATA, DATA, PARAMETER),
):
    input_forget: int = 0


class RNN(Recurrent):
    activations: tuple[str, ...] = ("Tanh", "Tanh")


class QuantizeLinear(Operator, kind=OpKind.OTHER, roles=(DATA, PARAMETER, PARAMETER)):
    axis: int = 1


class DequantizeLinear(Operator, kind=OpKind.OTHER, roles=(DATA, PARAMETER, PARAMETER)):
    axis: int = 1


for _each in FUNCTIONS.values():
    if _each.is_operator:
        _kind = OpKind.ACTIVATION if _each.is_activation else OpKind.ELEMENTWISE
        declare(_each.name, _kind, DATA, low=_each.low, high=_each.high)


# ---- operators without a row ---------------------------------------------------------------------
# Of these nothing is known: they are read, expanded or written, and never planned as integers.

BitCast = named("BitCast")
Col2Im = named("Col2Im")
ConvInteger = named("ConvInteger")
DFT = named("DFT")
DynamicQuantizeLinear = named("DynamicQuantizeLinear")
If = named("If")
Loop = named("Loop")
MatMulInteger = named("MatMulInteger")
Multinomial = named("Multinomial")
QLinearConv = named("QLinearConv")
QLinearMatMul = named("QLinearMatMul")
RandomNormal = named("RandomNormal")
RandomUniform = named("RandomUniform")
Scan = named("Scan")
SequenceConstruct = named("SequenceConstruct")
SequenceEmpty = named("SequenceEmpty")
SequenceInsert = named("SequenceInsert")
Upsample = named("Upsample")

# ---- asking --------------------------------------------------------------------------------------

Declared: TypeAlias = type[Operator] | Unary
"""An operator as others name it: ``Concat``, ``functions.sigmoid``."""

Named: TypeAlias = Declared | str
"""An operator, or its type."""


def is_a(node: ir.Node | None, *operators: Declared) -> TypeGuard[ir.Node]:
    """Tell whether a node is of one of these operators: ``is_a(node, Conv, Gemm)``."""
    return (
        node is not None
        and node.domain == ""
        and any(node.op_type == each.name for each in operators)
    )


def type_of(operator: Named) -> str:
    """Return the type of an operator, as nodes have it."""
    return operator if isinstance(operator, str) else operator.name


def types_of(*operators: Declared) -> frozenset[str]:
    """Return the types of operators, as nodes have them."""
    return frozenset(each.name for each in operators)


def operators_that(holds: Callable[[OpSpec], bool]) -> frozenset[str]:
    """Return the operators of which something holds: ``operators_that(lambda s: s.decides)``."""
    return frozenset(name for name, spec in OPS.items() if holds(spec))


CLAMPS = operators_that(lambda spec: spec.clamps)
"""Relu and Clip: what integers do by saturating."""

LAYERS = operators_that(lambda spec: spec.channel_axis is not None)
"""Sums of products with a weight that has output channels."""

CONVOLUTIONS = operators_that(lambda spec: spec.channel_axis == 1)
"""Those whose data has spatial axes."""

BIASED = operators_that(lambda spec: spec.channel_axis is not None and BIAS in spec.roles)
"""Those that add a bias themselves."""

REDUCTIONS = frozenset(name for name, each in OPERATORS.items() if issubclass(each, Reduce))
"""What makes one number of all along some axes."""

QUANTIZERS = types_of(QuantizeLinear, DequantizeLinear)
