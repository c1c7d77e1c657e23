"""Small cases of each operator: what `test_cases.py` runs in ONNX Runtime and in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from intact.graph import OPS, OpKind

Array = npt.NDArray[Any]

_seeds = count()


@dataclass(frozen=True)
class Steer:
    """An argument that is a constant of the graph in most models, and computed in some."""

    array: Array


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        operator: Its type.
        inputs: By slot; None for one that is absent.
        attributes: As the opset has them.
        opset: Of the default domain.
        outputs: How many slots.
        rows: The first axis of the first input is a batch.
    """

    operator: str
    inputs: tuple[Array | Steer | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    outputs: int = 1
    rows: bool = False

    def __str__(self) -> str:
        words = ",".join(f"{name}={value}" for name, value in self.attributes.items())
        shapes = "".join(str(list(each.shape)) for each in self.arrays() if each is not None)
        return f"{self.operator}{self.opset}({words}){shapes}".replace(" ", "")

    def arrays(self) -> tuple[Array | None, ...]:
        """The inputs by slot."""
        return tuple(each.array if isinstance(each, Steer) else each for each in self.inputs)

    def is_exact(self) -> bool:
        """Whether elements are only moved, or are no floats."""
        spec = OPS.get(self.operator)
        is_mean = self.attributes.get("mode") in ("linear", "cubic", "bilinear")
        return spec is not None and spec.kind in (OpKind.MOVE, OpKind.JOIN) and not is_mean

    def model(self, *, fixed: bool = True) -> onnx.ModelProto:
        """The model of this node; what steers it is constant, or an input."""
        names = ["" if each is None else f"x{k}" for k, each in enumerate(self.inputs)]
        results = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.operator, names, results, name="node", **self.attributes)
        inputs, constants = [], []
        for name, each, array in zip(names, self.inputs, self.arrays(), strict=True):
            if array is None:
                continue
            if isinstance(each, Steer) and fixed:
                constants.append(numpy_helper.from_array(array, name))
                continue
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            shape = [
                None if name == "x0" and self.rows and k == 0 else n
                for k, n in enumerate(array.shape)
            ]
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
        ends = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph([node], "case", inputs, ends, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    """Distinct numbers between two bounds."""
    random = np.random.default_rng(next(_seeds))
    return random.uniform(low, high, shape).astype(np.float32)


def whole(*numbers: int | list[Any], kind: type = np.int64) -> Array:
    """A list of integers."""
    return np.array(numbers, kind)


def steer(*numbers: float, kind: type = np.int64) -> Steer:
    """A list of numbers that steers."""
    return Steer(np.array(numbers, kind))


def scalar(value: float, kind: type = np.float32) -> Steer:
    """A number that steers."""
    return Steer(np.array(value, kind))


def _case(
    operator: str,
    *inputs: Array | Steer | None,
    opset: int = 18,
    outputs: int = 1,
    rows: bool = True,
    **attributes: Any,
) -> Case:
    return Case(operator, inputs, attributes, opset, outputs, rows)


def _convolutions() -> Iterator[Case]:
    c = _case
    yield c("Conv", floats(2, 3, 7), floats(4, 3, 3), floats(4), pads=[2, 0])
    yield c("Conv", floats(2, 4, 7, 6), floats(6, 2, 3, 2), group=2, strides=[2, 1])
    yield c("Conv", floats(2, 4, 7, 6), floats(4, 1, 3, 3), floats(4), group=4, pads=[1] * 4)
    yield c("Conv", floats(1, 2, 8, 9), floats(3, 2, 3, 3), dilations=[2, 3], pads=[1, 2, 3, 0])
    yield c("Conv", floats(2, 2, 4, 5, 4), floats(3, 2, 2, 3, 2), floats(3), pads=[1] * 6)
    for mode, size in product(("SAME_UPPER", "SAME_LOWER", "VALID"), (7, 8)):
        yield c("Conv", floats(2, 2, size, 6), floats(3, 2, 4, 3), auto_pad=mode, strides=[2, 3])
    t = "ConvTranspose"
    yield c(t, floats(2, 3, 5), floats(3, 2, 3), floats(2), strides=[2], pads=[1, 0])
    yield c(t, floats(2, 4, 4, 5), floats(4, 3, 3, 2), group=2, strides=[2, 3], dilations=[2, 1])
    yield c(
        t,
        floats(2, 3, 4, 4),
        floats(3, 2, 3, 3),
        floats(2),
        strides=[2, 2],
        pads=[1] * 4,
        output_padding=[1, 1],
    )
    yield c(t, floats(1, 2, 3, 3, 2), floats(2, 2, 2, 3, 2), floats(2), strides=[1, 2, 2])
    yield c(t, floats(1, 2, 4, 4), floats(2, 2, 3, 3), floats(2), strides=[2, 2], pads=[0, 0, 1, 2])
    yield c(t, floats(1, 2, 4, 4), floats(2, 2, 3, 3), strides=[3, 3], output_shape=[10, 12])
    yield c(
        t,
        floats(1, 2, 4, 4),
        floats(2, 2, 3, 3),
        floats(2),
        strides=[2, 2],
        output_shape=[8, 9],
        auto_pad="SAME_UPPER",
    )
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        yield c(t, floats(2, 2, 4, 3), floats(2, 3, 4, 3), floats(3), strides=[2, 2], auto_pad=mode)
    yield c(
        t, floats(2, 2, 4), floats(2, 2, 3), floats(2), strides=[2], pads=[2, 2], output_padding=[1]
    )


def _products() -> Iterator[Case]:
    c = _case
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
    yield c("Det", floats(2, 3, 3), opset=22)


def _pools() -> Iterator[Case]:
    c, x = _case, floats(2, 3, 8, 7)
    for op, up in product(("MaxPool", "AveragePool", "LpPool"), (0, 1)):
        yield c(op, x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=up)
        yield c(op, x, kernel_shape=[3, 3], strides=[3, 2], ceil_mode=up)
        yield c(op, floats(2, 3, 9), kernel_shape=[3], strides=[2], pads=[0, 1], ceil_mode=up)
        yield c(op, floats(1, 2, 5, 4, 6), kernel_shape=[2, 3, 2], strides=[2, 1, 3], ceil_mode=up)
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield c("MaxPool", x, kernel_shape=[4, 3], strides=[2, 2], auto_pad=mode)
        yield c("AveragePool", x, kernel_shape=[4, 3], strides=[2, 2], auto_pad=mode)
    for up, opset in product((0, 1), (18, 19, 22)):
        yield c(
            "AveragePool",
            x,
            kernel_shape=[3, 3],
            pads=[1, 1, 0, 1],
            count_include_pad=1,
            strides=[2, 3],
            ceil_mode=up,
            opset=opset,
        )
    yield c("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    yield c("AveragePool", x, kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 0, 1], opset=19)
    yield c(
        "AveragePool",
        x,
        kernel_shape=[3, 2],
        dilations=[2, 3],
        pads=[2, 1, 0, 1],
        opset=19,
        count_include_pad=1,
    )
    yield c("MaxPool", x, kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 0, 1])
    yield c("MaxPool", x, kernel_shape=[1, 1], strides=[2, 2])
    yield c("MaxPool", x, kernel_shape=[2, 2], outputs=2)
    yield c("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 0, 1], outputs=2, dilations=[2, 1])
    yield c("MaxPool", x, kernel_shape=[2, 3], pads=[1, 1, 0, 2], outputs=2, storage_order=1)
    yield c(
        "MaxPool",
        np.arange(30, dtype=np.uint8).reshape(1, 1, 5, 6),
        kernel_shape=[2, 2],
        pads=[1] * 4,
    )
    yield c("LpPool", x, kernel_shape=[3, 3], p=3, strides=[2, 2])
    yield c("LpPool", x, kernel_shape=[2, 2], p=1, dilations=[2, 2])
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield c(op, floats(2, 3, 5))
        yield c(op, floats(2, 3, 5, 4))
    yield c("GlobalLpPool", floats(2, 3, 5, 4), p=3)
    places = np.array([[[[5, 7], [13, 15]]]])
    yield c(
        "MaxUnpool", floats(1, 1, 2, 2), places, kernel_shape=[2, 2], strides=[2, 2], rows=False
    )
    yield c(
        "MaxUnpool",
        floats(1, 1, 2, 2),
        places,
        steer(1, 1, 5, 5),
        kernel_shape=[2, 2],
        strides=[2, 2],
        rows=False,
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
_UNARY = ["Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softsign", "Softplus", "Sqrt", "Tan", "Tanh", "Elu", "Selu", "Celu", "LeakyRelu", "HardSigmoid", "HardSwish", "Mish", "ThresholdedRelu", "Shrink", "IsNaN", "IsInf", "Identity", "Dropout"]  # fmt: skip


def _elementwise() -> Iterator[Case]:
    c = _case
    for op in _UNARY:
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


def _normalizations() -> Iterator[Case]:
    c = _case
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


_REDUCE = ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"]  # fmt: skip


def _reductions() -> Iterator[Case]:
    c = _case
    for op in _REDUCE:
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
        more = {"exclusive": exclusive, "reverse": reverse}
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


def _moves() -> Iterator[Case]:
    c, x = _case, floats(2, 3, 4)
    for shape in ((0, -1), (-1, 6), (0, 0, 2, 2), (0, 4, 3), (-1,)):
        yield c("Reshape", x, steer(*shape))
    yield c(
        "Reshape",
        floats(0, 3, 4),
        steer(3, 0, -1) if False else steer(3, 0),
        allowzero=1,
        rows=False,
    )
    yield c("Reshape", floats(1), Steer(np.zeros(0, np.int64)), rows=False)
    yield c("Transpose", x, rows=False)
    yield c("Transpose", x, perm=[1, 0, 2], rows=False)
    yield c("Transpose", x, perm=[0, 2, 1])
    for axis in (0, 1, 2, 3, -1):
        yield c("Flatten", x, axis=axis, rows=axis != 0)
    thin = floats(1, 3, 1, 4)
    yield c("Squeeze", thin, rows=False)
    yield c("Squeeze", thin, steer(0, -2), rows=False)
    yield c("Squeeze", thin, axes=[2], opset=11)
    yield c("Unsqueeze", x, steer(0, -1))
    yield c("Unsqueeze", x, steer(4, 1))
    yield c("Unsqueeze", x, axes=[1, 3], opset=11)
    yield c("Concat", x, floats(2, 3, 1), floats(2, 3, 0), axis=-1, rows=False)
    yield c("Concat", x, axis=0)
    yield c("Split", x, steer(1, 3), axis=2, outputs=2)
    yield c("Split", x, axis=2, split=[3, 1], opset=11, outputs=2)
    yield c("Split", x, axis=-1, opset=13, outputs=2)
    yield c("Split", floats(2, 7), axis=1, outputs=3, num_outputs=3)
    yield c("Split", x, steer(2), outputs=1, rows=False)
    low, high = -(2**63), 2**63 - 1
    for start, end, axis, step in (
        (1, 3, 2, 1),
        (-2, high, -1, 1),
        (0, -1, 1, 2),
        (-1, low, 2, -1),
        (3, 0, 2, -2),
        (10, -10, 1, -1),
        (2, 2, 1, 1),
        (1, 0, 1, 1),
    ):
        yield c("Slice", x, *(steer(each) for each in (start, end, axis, step)))
    yield c("Slice", x, steer(0, 1), steer(1, 3), rows=False)
    yield c("Slice", x, steer(0, 1), steer(1, 3), steer(2, 1))
    yield c("Slice", x, steer(-1, 3), steer(low, 0), steer(1, 2), steer(-1, -2))
    inner = [0, 1, 2, 0, 2, 1]
    for mode in ("constant", "reflect", "edge", "wrap"):
        opset = 19 if mode == "wrap" else 18
        yield c("Pad", floats(2, 4, 5), steer(*inner), mode=mode, opset=opset)
        yield c("Pad", floats(2, 4, 5), steer(1, 2), None, steer(-1), mode=mode, opset=opset)
        yield c("Pad", floats(2, 4, 5), steer(2, -1), None, steer(-1), mode=mode, opset=opset)
        yield c("Pad", floats(2, 4, 5), steer(-2, -1), None, steer(1), mode=mode, opset=opset)
    yield c("Pad", floats(2, 4, 5), steer(*inner), scalar(1.5))
    yield c("Pad", floats(2, 4, 5), steer(0, -1, 2, 0, -2, -1), scalar(1.5))
    yield c("Pad", whole([1, 2], [3, 4]), steer(0, 1, 0, 1), scalar(7, np.int64))
    yield c("Tile", x, steer(1, 2, 3))
    yield c("Tile", x, steer(2, 1, 0), rows=False)
    yield c("Expand", floats(3, 1), steer(2, 1, 4), rows=False)
    yield c("Expand", floats(2, 3, 1), steer(1, 4))
    for mode in ("DCR", "CRD"):
        yield c("DepthToSpace", floats(2, 8, 2, 3), blocksize=2, mode=mode)
    yield c("SpaceToDepth", floats(2, 3, 4, 6), blocksize=2)
    for upper, k in product((0, 1), (-1, 0, 2)):
        yield c("Trilu", floats(2, 3, 4), scalar(k, np.int64), upper=upper)
    yield c("Trilu", floats(3, 4), rows=False)
    yield c("CenterCropPad", floats(2, 5, 4), steer(3, 7), axes=[1, 2])
    yield c("CenterCropPad", floats(2, 5, 4), steer(4, 3), axes=[-1, -2])


def _indices() -> Iterator[Case]:
    c, x = _case, floats(3, 4, 5)
    for axis in (0, 1, -1):
        yield c("Gather", x, whole([0, -1], [2, 1]), axis=axis, rows=axis != 0)
        yield c("GatherElements", x, whole([[0, -1], [2, 1]]), axis=axis, rows=False)
    yield c("Gather", x, Steer(np.array(-1)), axis=1)
    yield c("Gather", x, whole(1, 0, kind=np.int32), axis=2)
    yield c("GatherND", x, whole([0, 1], [-1, 2]), rows=False)
    yield c("GatherND", x, whole([0, 1, 2], [-1, 2, 3]), rows=False)
    yield c("GatherND", x, whole([1], [-1], [2]), batch_dims=1, rows=False)
    yield c("GatherND", x, whole([[1, 2]], [[-1, 0]], [[0, 3]]), batch_dims=1, rows=False)
    for how in ("none", "add", "mul", "max", "min"):
        places, more = whole([0, -1, 2]), {"reduction": how}
        more = more if how != "none" else {}
        yield c("ScatterElements", floats(3, 4), places, floats(1, 3), axis=1, rows=False, **more)
        yield c("ScatterND", x, whole([0], [-1]), floats(2, 4, 5), rows=False, **more)
        yield c("ScatterND", x, whole([[0, 1], [-1, 2]]), floats(1, 2, 5), rows=False, **more)
    yield c(
        "ScatterElements",
        floats(3, 4),
        whole([0, 0]),
        floats(1, 2),
        reduction="add",
        axis=1,
        rows=False,
    )
    for axis in (-1, 0, 1):
        yield c("OneHot", whole([0, -1], [3, 5]), scalar(4, np.int64), floats(2), axis=axis)
    yield c("NonZero", np.array([[1, 0], [2, 3]], np.float32))
    yield c("Compress", x, np.array([True, False, True]), axis=1)
    yield c("Compress", x, np.array([False, True, True]), rows=False)
    yield c("ReverseSequence", floats(4, 3, 2), whole(4, 1, 2), rows=False)
    yield c("ReverseSequence", floats(3, 4), whole(4, 1, 2), time_axis=1, batch_axis=0, rows=False)


def _shapes() -> Iterator[Case]:
    c, x = _case, floats(2, 3, 4)
    yield c("Shape", x)
    yield c("Shape", x, start=1)
    yield c("Shape", x, start=-2, end=-1)
    yield c("Size", x)
    yield c("ConstantOfShape", steer(2, 3), rows=False)
    for value in (np.array([7], np.int64), np.array([1.5], np.float32)):
        tensor = numpy_helper.from_array(value)
        yield c("ConstantOfShape", steer(2, 0, 3), value=tensor, rows=False)
    for start, end, step in ((1, 7, 2), (5, -1, -2), (3, 1, 1)):
        arguments = (start, end, step)
        yield c("Range", *(scalar(each, np.int64) for each in arguments), rows=False)
        yield c("Range", *(scalar(each + 0.25) for each in arguments), rows=False)
    yield c("EyeLike", floats(3, 4))
    yield c("EyeLike", floats(3, 4), k=1, dtype=6)
    yield c("EyeLike", floats(4, 3), k=-2)
    for to in (1, 6, 7, 9, 11):
        yield c("Cast", np.array([-1.7, 0, 2.5], np.float32), to=to)
    yield c("Cast", whole(3, 0), to=1)
    yield c("CastLike", whole(3, 0), floats(1), rows=False)


_TRANSFORMS = ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "tf_half_pixel_for_nn", "half_pixel_symmetric"]  # fmt: skip


def _resizes() -> Iterator[Case]:
    def resize(
        x: Array,
        factors: Sequence[float] | None,
        sizes: Sequence[int] | None = None,
        region: Steer | None = None,
        **attributes: Any,
    ) -> Case:
        one = None if factors is None else steer(*factors, kind=np.float32)
        two = None if sizes is None else steer(*sizes)
        return _case("Resize", x, region, one, *([] if two is None else [two]), **attributes)

    x = floats(2, 3, 4, 5)
    ways: tuple[tuple[Sequence[float] | None, Sequence[int] | None], ...] = (
        ((1, 1, 2, 3), None), ((1, 1, 0.6, 0.8), None), (None, (2, 3, 7, 3)), (None, (2, 3, 1, 1)),
        ((1, 1, 2.5, 1), None),
    )  # fmt: skip
    for transform, (factors, sizes) in product(_TRANSFORMS, ways):
        how = {"coordinate_transformation_mode": transform, "rows": sizes is None}
        opset = 19 if transform == "half_pixel_symmetric" else 18
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            yield resize(x, factors, sizes, nearest_mode=rounding, opset=opset, **how)
        if transform == "tf_half_pixel_for_nn":
            continue
        yield resize(x, factors, sizes, mode="linear", opset=opset, **how)
        yield resize(x, factors, sizes, mode="cubic", opset=opset, **how)
        yield resize(
            x,
            factors,
            sizes,
            mode="cubic",
            exclude_outside=1,
            cubic_coeff_a=-0.5,
            opset=opset,
            **how,
        )
    for factors, sizes in ways:
        region = steer(0, 0, 0.2, -0.1, 1, 1, 0.7, 1.3, kind=np.float32)
        how = {"coordinate_transformation_mode": "tf_crop_and_resize", "rows": False}
        for mode in ("nearest", "linear", "cubic"):
            yield resize(x, factors, sizes, region, mode=mode, extrapolation_value=9.0, **how)
    yield resize(x, (2.0, 3.0), axes=[2, 3], mode="linear")
    yield resize(x, (3.0, 2.0), axes=[3, 2], mode="linear")
    for policy in ("not_larger", "not_smaller"):
        yield resize(x, None, (7, 8), axes=[2, 3], keep_aspect_ratio_policy=policy)
        yield resize(x, None, (3, 3), axes=[2, 3], keep_aspect_ratio_policy=policy, mode="linear")
    for mode in ("linear", "cubic"):
        yield resize(x, (1, 1, 0.6, 0.5), mode=mode, antialias=1)
        yield resize(x, None, (2, 3, 3, 2), mode=mode, antialias=1, rows=False)
        yield resize(x, (1, 1, 2.0, 0.7), mode=mode, antialias=1, exclude_outside=1)
    yield resize(floats(2, 3, 5), (1, 1, 1.7), mode="linear")
    yield resize(floats(1, 2, 3, 4, 3), (1, 1, 2, 0.5, 2), mode="linear")
    yield resize(floats(6, 5), (2, 0.6), mode="linear", rows=False)
    grid = floats(2, 3, 4, 2, low=-1.3, high=1.3)
    for mode, padding, aligned in product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        yield _case(
            "GridSample",
            x,
            grid,
            mode=mode,
            padding_mode=padding,
            align_corners=aligned,
            rows=False,
            opset=16,
        )
    yield _case("GridSample", x, grid, mode="linear", opset=20, rows=False)


def _recurrent() -> Iterator[Case]:
    steps, batch, width, hidden = 4, 3, 2, 3
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):

        def make(
            directions: int,
            *more: Array | None,
            op: str = op,
            gates: int = gates,
            first: Array | None = None,
            **attributes: Any,
        ) -> Case:
            x = floats(steps, batch, width) if first is None else first
            w, r = (
                floats(directions, gates * hidden, width),
                floats(directions, gates * hidden, hidden),
            )
            return _case(
                op,
                x,
                w,
                r,
                *more,
                hidden_size=hidden,
                rows=False,
                outputs=3 if op == "LSTM" else 2,
                **attributes,
            )

        ways = (("forward", 1), ("reverse", 1), ("bidirectional", 2))
        for direction, count_ in ways:
            bias = floats(count_, 2 * gates * hidden)
            start = floats(count_, batch, hidden)
            memory = [floats(count_, batch, hidden)] if op == "LSTM" else []
            lengths = whole(4, 2, 3, kind=np.int32)
            yield make(count_, direction=direction)
            yield make(count_, bias, None, start, *memory, direction=direction)
            yield make(count_, bias, lengths, start, *memory, direction=direction)
        yield make(1, floats(1, 2 * gates * hidden), clip=0.5)
    gates, hidden = 3, 3
    gru = floats(steps, batch, width), floats(1, 9, width), floats(1, 9, hidden), floats(1, 18)
    yield _case("GRU", *gru, hidden_size=hidden, linear_before_reset=1, outputs=2, rows=False)
    yield _case(
        "GRU",
        *gru,
        hidden_size=hidden,
        activations=["HardSigmoid", "LeakyRelu"],
        activation_alpha=[0.3, 0.2],
        activation_beta=[0.4],
        outputs=2,
        rows=False,
    )
    lstm = floats(steps, batch, width), floats(1, 12, width), floats(1, 12, hidden), floats(1, 24)
    none = (None, None, None)
    yield _case("LSTM", *lstm, *none, floats(1, 9), hidden_size=hidden, outputs=3, rows=False)
    yield _case("LSTM", *lstm, hidden_size=hidden, input_forget=1, outputs=3, rows=False)


_FAMILIES: tuple[Callable[[], Iterator[Case]], ...] = (
    _convolutions, _products, _pools, _elementwise, _normalizations, _reductions, _moves, _indices,
    _shapes, _resizes, _recurrent,
)  # fmt: skip

CASES: tuple[Case, ...] = tuple(case for family in _FAMILIES for case in family())
