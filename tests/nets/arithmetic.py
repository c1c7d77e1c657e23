"""How operators that compute with elements get into a random net: products, functions, choices."""

from __future__ import annotations

import math
from typing import Any

from tests.nets.draw import MOST, Draw, makes

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
