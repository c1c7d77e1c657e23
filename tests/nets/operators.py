"""How each operator of the op table gets into a random net: one function for one or a family.

A function takes a `Draw`, from which it asks for tensors and choices, and returns the name of its
result; None where no tensor fits. Numbers stay finite: operators that are not defined everywhere
get an argument that keeps them in their domain.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.nets import arithmetic
from tests.nets.draw import OPERATORS, Draw, makes

__all__ = ["LEFT_OUT", "OPERATORS"]

_MODULES = (arithmetic,)
"""Its makers are registered when it is imported: before those here."""

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
