"""Cases of operators element by element, normalizations, reductions and products."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tests.improve.learn.operators.case import (
    Case,
    floats,
    make_case,
    scalar,
    steer,
    whole,
)

_DOMAINS = {
    "Acos": (-0.9, 0.9),
    "Acosh": (1.1, 3.0),
    "Asin": (-0.9, 0.9),
    "Atanh": (-0.9, 0.9),
    "Log": (0.1, 3.0),
    "Reciprocal": (0.3, 3.0),
    "Sqrt": (0.1, 3.0),
    "Tan": (-1.2, 1.2),
}
_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Neg Reciprocal "
    "Relu Round Sigmoid Sign Sin Sinh Softsign Softplus Sqrt Tan Tanh Elu Selu Celu "
    "LeakyRelu HardSigmoid HardSwish Mish ThresholdedRelu Shrink IsNaN IsInf Identity "
    "Dropout"
)


def elementwise() -> Iterator[Case]:
    c = make_case
    for op in _UNARY.split():
        low, high = _DOMAINS.get(op, (-3.0, 3.0))
        yield c(op, floats(3, 4, low=low, high=high))
    yield c("Softplus", np.array([-100, -20, 15, 25, 100], np.float32))
    yield c("Elu", floats(3, 4), alpha=0.5)
    yield c("Selu", floats(3, 4), alpha=1.5, gamma=0.8)
    yield c("Celu", floats(3, 4), alpha=0.7)
    yield c("LeakyRelu", floats(3, 4), alpha=0.3)
    yield c("HardSigmoid", floats(3, 4), alpha=0.3, beta=0.4)
    yield c("ThresholdedRelu", floats(3, 4), alpha=0.3)
    yield c("Shrink", floats(3, 4), lambd=0.7, bias=0.2)
    yield c("Gelu", floats(3, 4), opset=20)
    yield c("Gelu", floats(3, 4), opset=20, approximate="tanh")
    yield c("PRelu", floats(2, 3, 4), floats(3, 1))
    yield c("Swish", floats(2, 3, 4), opset=24, alpha=1.5)
    infinite = np.array([-np.inf, np.inf, np.nan, 0], np.float32)
    yield c("IsInf", infinite, detect_negative=0)
    yield c("IsInf", infinite, detect_positive=0)
    yield c("Dropout", floats(3, 4), outputs=2)
    for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"):
        x, y = floats(2, 3, 4, low=0.3), floats(3, 1, low=0.3)
        yield c(op, x, y)
        yield c(op, y, x, rows=False)
        yield c(op, whole(-7, 7, 9, -9), whole(2, 3, 1, 3), rows=False)
    yield c("Pow", floats(3, 4), scalar(2))
    yield c("Pow", floats(3, 4), scalar(3.0))
    yield c("Pow", floats(3, 4, low=0.2), scalar(-0.5))
    yield c("Pow", floats(3, 4, low=0.2), steer(0.5, kind=np.float32))
    yield c("Pow", whole(2, 3), scalar(2.0))
    for op in ("Max", "Min", "Sum", "Mean"):
        yield c(op, floats(2, 3, 4))
        yield c(op, floats(2, 3, 4), floats(1, 4), floats(3, 1))
    for fmod in (0, 1):
        numbers = whole(-7, 7, -7, 7), whole(3, 3, -3, -3)
        yield c("Mod", *numbers, fmod=fmod)
    yield c("Mod", floats(3, 4), floats(4, low=0.5), fmod=1)
    for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        yield c(op, np.array([[1, 2, 3]], np.float32), np.array([3, 2, 1], np.float32))
    for op in ("And", "Or", "Xor"):
        yield c(op, np.array([[True, False]]), np.array([True, True]))
    yield c("Not", np.array([True, False]))
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield c(op, whole(5, 12, -3, kind=np.int32), whole(3, 10, 6, kind=np.int32), rows=False)
    yield c("BitwiseNot", whole(5, -12, kind=np.int32))
    for way in ("LEFT", "RIGHT"):
        yield c(
            "BitShift",
            whole(5, 12, kind=np.uint8),
            whole(1, 2, kind=np.uint8),
            direction=way,
            rows=False,
        )
    yield c("Where", np.array([[True], [False]]), floats(2, 3), floats(3), rows=False)
    bounds = scalar(-0.5), scalar(1.0)
    yield c("Clip", floats(3, 4), *bounds)
    yield c("Clip", floats(3, 4), None, bounds[1])
    yield c("Clip", floats(3, 4), bounds[0])
    yield c("Clip", floats(3, 4))
    yield c("Clip", floats(3, 4), bounds[1], bounds[0])
    yield c("Clip", whole(-5, 0, 5), scalar(-2, np.int64), scalar(3, np.int64))
    for opset, axis in product((11, 13), (0, 1, -1)):
        for op in ("Softmax", "LogSoftmax", "Hardmax"):
            yield c(op, floats(2, 3, 4), axis=axis, opset=opset, rows=axis != 0)
    for opset in (11, 13):
        yield c("Softmax", floats(2, 3, 4), opset=opset)
    yield c("Hardmax", np.array([[1, 3, 3], [2, 2, 1]], np.float32))


def normalizations() -> Iterator[Case]:
    c = make_case
    four = floats(3), floats(3), floats(3), floats(3, low=0.2)
    yield c("BatchNormalization", floats(2, 3, 4, 5), *four, epsilon=1e-3)
    yield c("BatchNormalization", floats(2, 3), *four, opset=14)
    yield c("InstanceNormalization", floats(2, 3, 4, 5), floats(3), floats(3))
    yield c("InstanceNormalization", floats(1, 3, 6), floats(3), floats(3), epsilon=0.1)
    yield c("GroupNormalization", floats(2, 4, 3), floats(2), floats(2), num_groups=2)
    yield c("GroupNormalization", floats(2, 4, 3), floats(4), floats(4), num_groups=2, opset=21)
    for axis in (1, 2, -1):
        shape = (3, 4) if axis == 1 else (4,)
        yield c("LayerNormalization", floats(2, 3, 4), floats(*shape), floats(*shape), axis=axis)
        yield c("RMSNormalization", floats(2, 3, 4), floats(*shape), axis=axis, opset=23)
    yield c("LayerNormalization", floats(2, 3, 4), floats(4), epsilon=0.1, outputs=3)
    for p, axis in product((1, 2), (1, -1)):
        yield c("LpNormalization", floats(2, 3, 4), p=p, axis=axis)
    for size in (1, 3, 5):
        yield c("LRN", floats(2, 6, 3, 2), size=size, alpha=0.5, beta=0.6, bias=1.5)
    yield c("MeanVarianceNormalization", floats(2, 3, 4, 5), rows=False)
    yield c("MeanVarianceNormalization", floats(2, 3, 4), axes=[1, 2])


_REDUCE = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum ReduceSumSquare"
)


def reductions() -> Iterator[Case]:
    c = make_case
    for op in _REDUCE.split():
        x = floats(2, 3, 4, low=0.2)
        yield c(op, x, steer(1, -1), keepdims=0)
        yield c(op, x, steer(-2))
        yield c(op, x, keepdims=0, rows=False)
        old = 11 if op != "ReduceSum" else 12
        yield c(op, x, axes=[2, 1], opset=old)
    for op in ("ReduceMax", "ReduceSum", "ReduceMean", "ReduceProd"):
        yield c(op, whole([3, -4, 6], [1, 2, 3], kind=np.int32), steer(1))
    yield c("ReduceSum", floats(2, 3), steer(), noop_with_empty_axes=1)
    yield c("ReduceSum", floats(2, 3), noop_with_empty_axes=1)
    yield c("ReduceMax", floats(2, 3), steer(), rows=False)
    ties = np.array([[1, 3, 3], [2, 2, 1]], np.float32)
    for op, axis, last in product(("ArgMax", "ArgMin"), (0, -1), (0, 1)):
        yield c(op, ties, axis=axis, select_last_index=last, keepdims=last, rows=axis != 0)
    for exclusive, reverse in product((0, 1), (0, 1)):
        more: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse}
        yield c("CumSum", floats(2, 4), scalar(1, np.int64), **more)
        yield c("CumSum", whole(3, 4, 5, kind=np.int32), scalar(0, np.int64), rows=False, **more)
    for largest in (0, 1):
        yield c(
            "TopK",
            np.array([[1, 3, 3, 0], [2, 2, 1, 2]], np.float32),
            steer(3),
            outputs=2,
            largest=largest,
        )
    yield c("TopK", floats(4, 3), steer(2), axis=0, outputs=2, rows=False)


def products() -> Iterator[Case]:
    c = make_case
    yield c("Gemm", floats(2, 3), floats(3, 4), floats(4))
    yield c("Gemm", floats(2, 3), floats(3, 4))
    yield c(
        "Gemm",
        floats(3, 2),
        floats(4, 3),
        floats(2, 1),
        transA=1,
        transB=1,
        alpha=0.5,
        beta=2.0,
        rows=False,
    )
    yield c("Gemm", floats(2, 3), floats(4, 3), floats(1), transB=1, beta=0.0)
    for left, right in (
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((2, 1, 4, 3), (5, 3, 2)),
        ((3,), (2, 3, 4)),
        ((2, 5, 3), (3,)),
    ):
        yield c("MatMul", floats(*left), floats(*right), rows=len(left) > 2)
    yield c("Einsum", floats(2, 3, 4), floats(2, 4, 5), equation="bij, bjk -> bik", rows=False)
    yield c("Einsum", floats(2, 3, 3), equation="...ii->...i")
    wide = floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 4)
    heads: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "opset": 23, "rows": False}
    yield c("Attention", *wide, **heads)
    yield c("Attention", *wide, floats(3, 5), **heads, scale=0.3)
    yield c("Attention", *wide, np.tri(3, 5, 1, dtype=np.bool_), **heads)
    yield c("Attention", *wide, floats(3, 5), **heads, is_causal=1)
    four = floats(2, 4, 3, 5), floats(2, 2, 6, 5), floats(2, 2, 6, 4)
    yield c("Attention", *four, is_causal=1, opset=23, rows=False)
    yield c("Det", floats(2, 3, 3), opset=22)
