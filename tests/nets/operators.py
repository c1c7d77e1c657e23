"""How each operator of the op table gets into a random net: one function for one or a family.

A function takes a `Draw`, from which it asks for tensors and choices, and returns the name of its
result; None where no tensor fits. Numbers stay finite: operators that are not defined everywhere
get an argument that keeps them in their domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tests.models import ModelBuilder

Shape = tuple[int, ...]
"""Without the batch."""
_Choice = TypeVar("_Choice")

MOST = 2048
"""Elements of a sample; larger results are not made."""


@dataclass
class Draw:
    """The model that is built, and the numbers that decide.

    Attributes:
        b: The model so far.
        shapes: Tensors by name, in the order in which they were made.
        codes: Numbers from 0 to 255, used one after the other and then again.
    """

    b: ModelBuilder
    shapes: dict[str, Shape]
    codes: Sequence[int] = (0,)
    used: int = field(default=0)

    def number(self, below: int) -> int:
        code = self.codes[self.used % len(self.codes)]
        self.used += 1
        return code % below

    def choice(self, among: Sequence[_Choice]) -> _Choice:
        return among[self.number(len(among))]

    def data(self, *ranks: int, where: Callable[[Shape], bool] = lambda _: True) -> str | None:
        """A tensor of one of these ranks, the batch included; newer ones are first choices."""
        fit = [n for n, s in self.shapes.items() if len(s) + 1 in (ranks or (2, 3, 4)) and where(s)]
        return self.choice(fit[::-1]) if fit else None

    def made(self, op_type: str, *inputs: str, shape: Shape, **attributes: Any) -> str:
        """Add a node whose result can be read by others."""
        out = self.b.node(op_type, *inputs, **attributes)
        self.shapes[out] = shape
        return out

    def positive(self, x: str) -> str:
        """Not below 0.5: what logarithms and quotients take."""
        return self.b.node("Add", self.b.node("Abs", x), self.b.scalar(0.5))

    def bounded(self, x: str) -> str:
        """Between -0.9 and 0.9."""
        return self.b.node("Mul", self.b.node("Tanh", x), self.b.scalar(0.9))


Maker = Callable[[Draw, str], str | None]
"""Adds the operator of this name."""
OPERATORS: dict[str, Maker] = {}


def makes(names: str) -> Callable[[Maker], Maker]:
    """Register a function for the operators of these names."""

    def register(function: Maker) -> Maker:
        OPERATORS.update(dict.fromkeys(names.split(), function))
        return function

    return register


# ---- multiply and accumulate --------------------------------------------------------------------


@makes("Conv")
def _conv(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    if x is None:
        return None
    channels, *sizes = d.shapes[x]
    kernel = [min(d.choice((3, 1, 2)), size) for size in sizes]
    group = d.choice((1, channels, 1, math.gcd(channels, 2)))
    outputs = group * d.choice((1, 2, 3)) if group > 1 else d.choice((4, 1, 6, 3))
    stride, dilation = d.choice((1, 1, 2)), d.choice((1, 1, 2))
    around = [(k - 1) * dilation for k in kernel]
    before = [d.number(each // 2 + 1) for each in around]
    pads = [*before, *((each + 1) // 2 for each in around)]
    lengths = [
        (size + a + b - around_ - 1) // stride + 1
        for size, a, b, around_ in zip(sizes, before, pads[len(sizes) :], around, strict=True)
    ]
    if min(lengths) < 1:
        return None
    weight = d.b.weight(outputs, channels // group, *kernel)
    bias = [d.b.weight(outputs)] if d.number(3) else []
    attributes = {
        "group": group,
        "strides": [stride] * len(sizes),
        "dilations": [dilation] * len(sizes),
        "pads": pads,
    }
    return d.made(op, x, weight, *bias, shape=(outputs, *lengths), **attributes)


@makes("ConvTranspose")
def _transposed(d: Draw, op: str) -> str | None:
    x = d.data(4, where=lambda s: math.prod(s) <= MOST // 4)
    if x is None:
        return None
    channels, *sizes = d.shapes[x]
    kernel, stride, outputs = d.choice((2, 3, 1)), d.choice((2, 1)), d.choice((4, 2, 3))
    pad = d.number(kernel)
    extra = d.number(stride)
    lengths = tuple((size - 1) * stride + kernel + extra - 2 * pad for size in sizes)
    if min(lengths) < 1:
        return None
    weight = d.b.weight(channels, outputs, kernel, kernel)
    bias = [d.b.weight(outputs)] if d.number(3) else []
    return d.made(
        op,
        x,
        weight,
        *bias,
        shape=(outputs, *lengths),
        strides=[stride] * 2,
        pads=[pad] * 4,
        output_padding=[extra] * 2,
    )


@makes("Gemm")
def _gemm(d: Draw, op: str) -> str | None:
    x = d.data(2)
    if x is None:
        return None
    (inputs,), outputs = d.shapes[x], d.choice((5, 1, 8))
    flipped = d.number(2)
    weight = d.b.weight(*((outputs, inputs) if flipped else (inputs, outputs)))
    bias = [d.b.weight(outputs)] if d.number(3) else []
    factors = {"alpha": 0.5, "beta": 2.0} if d.number(4) == 1 else {}
    return d.made(op, x, weight, *bias, shape=(outputs,), transB=flipped, **factors)


@makes("MatMul")
def _matmul(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    *outer, inputs = d.shapes[x]
    kind = d.choice(("weight", "weight of rank 3", "activations", "itself"))
    if kind == "weight of rank 3" and len(outer) == 1:
        return d.made(op, x, d.b.weight(1, inputs, 3), shape=(*outer, 3))
    if kind in ("activations", "itself") and outer:
        inner = len(outer) + 1
        order = [*range(inner - 1), inner, inner - 1]
        flipped = d.b.node("Transpose", x, perm=order)
        return d.made(op, x, flipped, shape=(*outer, outer[-1]))
    return d.made(op, x, d.b.weight(inputs, 6), shape=(*outer, 6))


@makes("Einsum")
def _einsum(d: Draw, op: str) -> str | None:
    x = d.data(3)
    if x is None:
        return None
    rows, inputs = d.shapes[x]
    weight = d.b.weight(inputs, 4)
    return d.made(op, x, weight, shape=(rows, 4), equation="abc,cd->abd")


# ---- element by element -------------------------------------------------------------------------


@makes("Add Sub Mul Div Pow Min Max Sum Mean PRelu")
def _binary(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    shape = d.shapes[x]
    other: str | None
    if op == "PRelu":
        other = d.b.weight(*(1 for _ in shape), name=None) if d.number(2) else d.b.weight(*shape)
    elif op == "Pow":
        return d.made(op, d.positive(d.bounded(x)), d.b.scalar(d.choice((2, 0.5))), shape=shape)
    else:
        kind = d.choice(("tensor", "same", "scalar", "channel", "constant", "pooled"))
        other = None
        if kind == "tensor":
            other = d.data(len(shape) + 1, where=lambda s: s == shape)
        elif kind == "channel":
            other = d.b.weight(shape[0], *(1 for _ in shape[1:]))
        elif kind == "constant":
            other = d.b.weight(*shape)
        elif kind == "pooled" and len(shape) == 3:
            other = d.b.node("GlobalAveragePool", x)
        elif kind == "scalar":
            other = d.b.scalar(d.choice((0.3, -1.7, 2.0)))
        other = x if other is None else other
    if op == "Div":
        other = d.positive(other)
    order = (other, x) if op not in ("Div", "PRelu") and d.number(3) == 1 else (x, other)
    return d.made(op, *order, shape=shape)


@makes("Mod")
def _mod(d: Draw, op: str) -> str | None:
    x = d.data()
    return None if x is None else d.made(op, x, d.b.scalar(0.7), shape=d.shapes[x], fmod=1)


_POSITIVE = {"Sqrt", "Log", "Reciprocal"}
_BOUNDED = {"Tan", "Asin", "Acos", "Atanh", "Exp", "Sinh", "Cosh"}


@makes(
    "Abs Neg Sqrt Exp Log Reciprocal Sign Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh"
    " Asinh Atanh Relu Sigmoid HardSwish Tanh Softplus Softsign Erf Selu Identity Acosh Clip"
    " LeakyRelu ThresholdedRelu Elu Celu HardSigmoid Shrink Softmax LogSoftmax Hardmax Dropout"
)
def _unary(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    shape, rank = d.shapes[x], len(d.shapes[x]) + 1
    attributes: dict[str, Any] = {}
    more: list[str] = []
    if op in _POSITIVE:
        x = d.positive(x)
    elif op in _BOUNDED:
        x = d.bounded(x)
    elif op == "Acosh":
        x = d.b.node("Add", d.positive(x), d.b.scalar(0.6))
    elif op == "Clip":
        low, high = d.choice(((0, 6), (-1, 1), (0.2, 0.8), (-3, 0)))
        more = [d.b.scalar(low), d.b.scalar(high)]
    elif op in ("LeakyRelu", "ThresholdedRelu", "Elu", "Celu"):
        attributes = {"alpha": d.choice((0.1, 0.5, 1.0))}
    elif op == "HardSigmoid":
        attributes = d.choice(({}, {"alpha": 1 / 6, "beta": 0.5}))
    elif op == "Shrink":
        attributes = {"lambd": 0.3, "bias": d.choice((0.0, 0.2))}
    elif op in ("Softmax", "LogSoftmax", "Hardmax"):
        attributes = {"axis": d.choice((-1, 1, rank - 1))}
    return d.made(op, x, *more, shape=shape, **attributes)


@makes("Cast")
def _cast(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    there = d.b.node("Cast", x, to=d.choice((11, 10, 7)))  # double, half, int64
    return d.made(op, there, shape=d.shapes[x], to=1)


@makes("Where Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not")
def _where(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    compare = op if op in ("Equal", "GreaterOrEqual", "Less", "LessOrEqual") else "Greater"
    asked = d.b.node(compare, x, d.b.scalar(0.1))
    if op in ("And", "Or", "Xor"):
        asked = d.b.node(op, asked, d.b.node("Less", x, d.b.scalar(1)))
    elif op == "Not":
        asked = d.b.node(op, asked)
    other = d.b.scalar(d.choice((0, -0.5)))
    return d.made("Where", asked, x, other, shape=d.shapes[x])


# ---- pools, reductions, normalizations ----------------------------------------------------------


@makes("MaxPool AveragePool LpPool")
def _pool(d: Draw, op: str) -> str | None:
    x = d.data(3, 4, where=lambda s: min(s[1:]) > 1)
    if x is None:
        return None
    channels, *sizes = d.shapes[x]
    kernel, stride = d.choice((2, 3, 1)), d.choice((1, 2))
    if kernel > min(sizes):
        return None
    before = d.number(2) if kernel > 1 else 0
    behind = before if d.number(3) else 0
    ceil = op != "LpPool" and d.number(3) == 1
    spans = [size + before + behind - kernel for size in sizes]
    lengths = [
        (
            -(-span // stride)
            if ceil and (-(-span // stride)) * stride < size + before
            else span // stride
        )
        + 1
        for span, size in zip(spans, sizes, strict=True)
    ]
    attributes: dict[str, Any] = {"count_include_pad": d.number(2)} if op == "AveragePool" else {}
    if ceil:
        attributes["ceil_mode"] = 1
    return d.made(
        op,
        x,
        shape=(channels, *lengths),
        kernel_shape=[kernel] * len(sizes),
        strides=[stride] * len(sizes),
        pads=[before] * len(sizes) + [behind] * len(sizes),
        **attributes,
    )


@makes("GlobalAveragePool GlobalMaxPool GlobalLpPool")
def _global(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    if x is None:
        return None
    channels, *sizes = d.shapes[x]
    return d.made(op, x, shape=(channels, *(1 for _ in sizes)))


@makes(
    "ReduceMean ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
    " ReduceMax ReduceMin"
)
def _reduce(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    if x is None:
        return None
    shape = d.shapes[x]
    axis, keep = 1 + d.number(len(shape)), d.number(2)
    rest = tuple(1 if k + 1 == axis else n for k, n in enumerate(shape) if keep or k + 1 != axis)
    x = d.positive(d.bounded(x)) if op in ("ReduceProd", "ReduceLogSum") else x
    if op == "ReduceSum":
        return d.made(op, x, d.b.ints(axis), shape=rest, keepdims=keep)
    return d.made(op, x, shape=rest, axes=[axis], keepdims=keep)


@makes("CumSum")
def _cumsum(d: Draw, op: str) -> str | None:
    x = d.data()
    return None if x is None else d.made(op, x, d.b.ints(1), shape=d.shapes[x])


@makes("ArgMax ArgMin")
def _arg(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    if x is None:
        return None
    found = d.b.node(op, x, axis=1, keepdims=0)
    return d.made("Cast", found, shape=d.shapes[x][1:], to=1)


@makes("BatchNormalization InstanceNormalization LayerNormalization LRN LpNormalization")
def _norm(d: Draw, op: str) -> str | None:
    x = d.data(4) if op == "LRN" else d.data(3, 4)
    if x is None:
        return None
    shape = d.shapes[x]
    if op == "LRN":
        return d.made(op, x, shape=shape, size=3)
    if op == "LpNormalization":
        return d.made(op, x, shape=shape, axis=1)
    size = shape[-1] if op == "LayerNormalization" else shape[0]
    scale = d.b.constant(d.b.random.uniform(0.5, 1.5, size).astype(np.float32))
    more = [scale, d.b.weight(size)]
    if op == "BatchNormalization":
        spread = d.b.random.uniform(0.3, 2, size).astype(np.float32)
        more += [d.b.weight(size), d.b.constant(spread)]
    return d.made(op, x, *more, shape=shape)


# ---- joining and moving -------------------------------------------------------------------------


@makes("Concat")
def _concat(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    shape = d.shapes[x]
    others = [n for n, s in d.shapes.items() if len(s) == len(shape) and s[1:] == shape[1:]]
    parts = [x, *(d.choice(others[::-1]) for _ in range(d.choice((1, 2))))]
    channels = sum(d.shapes[part][0] for part in parts)
    return d.made(op, *parts, shape=(channels, *shape[1:]), axis=1)


@makes("Transpose")
def _transpose(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    if x is None:
        return None
    shape = d.shapes[x]
    turned = d.choice((shape[::-1], (*shape[1:], shape[0]), (shape[-1], *shape[:-1])))
    orders = {
        shape[::-1]: [0, *range(len(shape), 0, -1)],
        (*shape[1:], shape[0]): [0, *range(2, len(shape) + 1), 1],
        (shape[-1], *shape[:-1]): [0, len(shape), *range(1, len(shape))],
    }
    return d.made(op, x, shape=turned, perm=orders[turned])


@makes("Flatten Reshape Squeeze Unsqueeze")
def _reshape(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    if x is None:
        return None
    shape = d.shapes[x]
    if op == "Flatten":
        return d.made(op, x, shape=(math.prod(shape),))
    if op == "Reshape":
        new = (shape[0], math.prod(shape[1:])) if len(shape) == 3 else (1, *shape)
        return d.made(op, x, d.b.ints(0, *new), shape=new)
    if op == "Unsqueeze":
        return d.made(op, x, d.b.ints(1), shape=(1, *shape)) if len(shape) == 2 else None
    thin = [k for k, n in enumerate(shape) if n == 1]
    if not thin:
        return None
    rest = tuple(n for k, n in enumerate(shape) if k != thin[0])
    return d.made(op, x, d.b.ints(thin[0] + 1), shape=rest)


@makes("DepthToSpace SpaceToDepth")
def _depth(d: Draw, op: str) -> str | None:
    there = op == "DepthToSpace"
    x = d.data(4, where=lambda s: s[0] % 4 == 0 if there else not (s[1] % 2 or s[2] % 2))
    if x is None:
        return None
    c, h, w = d.shapes[x]
    if not there:
        return d.made(op, x, shape=(c * 4, h // 2, w // 2), blocksize=2)
    mode = d.choice(("DCR", "CRD"))
    return d.made(op, x, shape=(c // 4, h * 2, w * 2), blocksize=2, mode=mode)


@makes("Slice")
def _slice(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    shape = d.shapes[x]
    axis = d.number(len(shape))
    size, step = shape[axis], d.choice((1, 2, -1))
    start, stop = (size - 1, -size - 1) if step < 0 else (d.number(size), size)
    length = len(range(size)[::-1]) if step < 0 else len(range(start, stop, step))
    new = (*shape[:axis], length, *shape[axis + 1 :])
    arguments = [d.b.ints(each) for each in (start, stop, axis + 1, step)]
    return d.made(op, x, *arguments, shape=new)


@makes("Split")
def _split(d: Draw, _op: str) -> str | None:
    x = d.data(where=lambda s: s[0] > 1)
    if x is None:
        return None
    channels, *rest = d.shapes[x]
    first = 1 + d.number(channels - 1)
    sizes = (first, channels - first)
    outs = d.b.split(x, list(sizes), axis=1)
    for out, size in zip(outs, sizes, strict=True):
        d.shapes[out] = (size, *rest)
    return outs[0]


@makes("Pad")
def _pad(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    if x is None:
        return None
    shape = d.shapes[x]
    mode = d.choice(("constant", "reflect", "edge"))
    if mode == "reflect" and shape[-1] < 2:
        mode = "edge"
    pads = [0] * (len(shape) + 1) + [0] * len(shape) + [1]
    value = [d.b.scalar(d.choice((0, 0.5)))] if mode == "constant" else []
    return d.made(op, x, d.b.ints(*pads), *value, shape=(*shape[:-1], shape[-1] + 1), mode=mode)


@makes("Resize")
def _resize(d: Draw, op: str) -> str | None:
    x = d.data(4)
    if x is None:
        return None
    c, h, w = d.shapes[x]
    mode, how = d.choice(
        (("nearest", "asymmetric"), ("linear", "half_pixel"), ("nearest", "half_pixel"))
    )
    more = {"nearest_mode": "floor"} if how == "asymmetric" else {}
    scales = d.b.constant(np.array([1, 1, 2, 2], np.float32))
    return d.made(
        op,
        x,
        "",
        scales,
        shape=(c, h * 2, w * 2),
        mode=mode,
        coordinate_transformation_mode=how,
        **more,
    )


@makes("Tile Expand")
def _tile(d: Draw, op: str) -> str | None:
    x = d.data(3, 4, where=lambda s: op == "Tile" or s[-1] == 1)
    if x is None:
        return None
    shape = d.shapes[x]
    new = (*shape[:-1], shape[-1] * 2)
    values = [1] * len(shape) + [2] if op == "Tile" else [1, *new]
    return d.made(op, x, d.b.ints(*values), shape=new)


@makes("Gather")
def _gather(d: Draw, op: str) -> str | None:
    x = d.data()
    if x is None:
        return None
    shape = d.shapes[x]
    places = [d.number(shape[0]) for _ in range(3)]
    return d.made(op, x, d.b.ints(*places), shape=(3, *shape[1:]), axis=1)


@makes("Trilu")
def _trilu(d: Draw, op: str) -> str | None:
    x = d.data(3, 4)
    return None if x is None else d.made(op, x, shape=d.shapes[x], upper=d.number(2))


@makes("LSTM GRU RNN")
def _recurrent(d: Draw, op: str) -> str | None:
    x = d.data(3)
    if x is None:
        return None
    steps, width = d.shapes[x]
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 3
    first = d.b.node("Transpose", x, perm=[1, 0, 2])
    weight = d.b.weight(1, gates * hidden, width)
    again = d.b.weight(1, gates * hidden, hidden)
    result = d.b.node(op, first, weight, again, hidden_size=hidden)
    flat = d.b.node("Squeeze", result, d.b.ints(1))
    return d.made("Transpose", flat, shape=(steps, hidden), perm=[1, 0, 2])


LEFT_OUT = {
    "indices, shapes, sizes or no floats come out": (
        "Shape Size ConstantOfShape Range OneHot EyeLike BitShift BitwiseAnd BitwiseOr"
        " BitwiseXor BitwiseNot NonZero Unique NonMaxSuppression IsNaN IsInf"
    ),
    "the result is random": "Bernoulli RandomNormalLike RandomUniformLike",
    "quantizes by itself: `intact import` reads it": "QuantizeLinear DequantizeLinear",
    "ends as an initializer": "Constant",
    "needs an opset above 17": (
        "Attention RotaryEmbedding TensorScatter Swish Gelu Mish RMSNormalization"
        " GroupNormalization CumProd CenterCropPad DeformConv"
    ),
    "takes places or regions beside the data; stays float everywhere": (
        "ScatterND ScatterElements Scatter GatherND GatherElements Compress ReverseSequence"
        " MaxUnpool TopK GridSample RoiAlign MaxRoiPool CastLike Det MeanVarianceNormalization"
    ),
}
"""Operators of the op table that no net has, with the reason."""
