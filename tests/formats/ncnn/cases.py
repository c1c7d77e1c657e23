"""One small model for each kind of layer that the writer knows, and how to run what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from intact.formats.ncnn.model import NcnnModel
from intact.formats.ncnn.run import NcnnRuntime
from intact.formats.ncnn.write import write_ncnn
from intact.plan import QuantizedGraph
from intact.program.lower import lower_nodes
from tests.models import ModelBuilder

Build = Callable[[ModelBuilder, str], str]

IMAGE = ("batch", 4, 6, 7)
VOLUME = ("batch", 2, 3, 4, 5)
ROWS = ("batch", 5, 8)
VECTOR = ("batch", 12)


def node(op_type: str, **attributes: Any) -> Build:
    return lambda b, x: b.node(op_type, x, **attributes)


def _scalar(op_type: str, value: float, *, first: bool = False) -> Build:
    def build(b: ModelBuilder, x: str) -> str:
        operands = (b.scalar(value), x) if first else (x, b.scalar(value))
        return b.node(op_type, *operands)

    return build


def _constant(op_type: str, *shape: int, first: bool = False) -> Build:
    def build(b: ModelBuilder, x: str) -> str:
        values = b.random.uniform(0.5, 1.5, shape).astype(np.float32)
        operands = (b.constant(values), x) if first else (x, b.constant(values))
        return b.node(op_type, *operands)

    return build


def _positive(op_type: str) -> Build:
    return lambda b, x: b.node(op_type, b.node("Exp", x))


def _two(op_type: str, *, squeezed: bool = False) -> Build:
    """Two activations; the second one a value a channel."""

    def build(b: ModelBuilder, x: str) -> str:
        other = b.node("GlobalAveragePool", x) if squeezed else b.node("Sigmoid", x)
        return b.node(op_type, x, other)

    return build


def _conv(
    outputs: int, kernel: tuple[int, int], inputs: int = 4, *, bias: bool = True, **attributes: Any
) -> Build:
    def build(b: ModelBuilder, x: str) -> str:
        group = attributes.get("group", 1)
        weight = b.weight(outputs, inputs // group, *kernel)
        return b.node("Conv", x, weight, *([b.weight(outputs)] if bias else []), **attributes)

    return build


def _deconv(outputs: int, kernel: int, **attributes: Any) -> Build:
    def build(b: ModelBuilder, x: str) -> str:
        group = attributes.get("group", 1)
        weight = b.weight(4, outputs // group, kernel, kernel)
        return b.node("ConvTranspose", x, weight, b.weight(outputs), **attributes)

    return build


def _gemm(*, trans: bool = True, bias: bool = True) -> Build:
    def build(b: ModelBuilder, x: str) -> str:
        weight = b.weight(7, 12) if trans else b.weight(12, 7)
        return b.node("Gemm", x, weight, *([b.weight(7)] if bias else []), transB=int(trans))

    return build


def _matmul(b: ModelBuilder, x: str) -> str:
    return b.node("Add", b.node("MatMul", x, b.weight(8, 6)), b.weight(6))


def _attention(b: ModelBuilder, x: str) -> str:
    turned = b.node("Transpose", x, perm=[0, 2, 1])
    return b.node("MatMul", b.node("Softmax", b.node("MatMul", x, turned), axis=-1), x)


def resize(mode: str, where: str, sizes: tuple[int, int], **attributes: Any) -> Build:
    def build(b: ModelBuilder, x: str) -> str:
        scales = b.constant(np.array([1, 1, sizes[0] / 6, sizes[1] / 7], np.float32))
        return b.node(
            "Resize", x, "", scales, mode=mode, coordinate_transformation_mode=where, **attributes
        )

    return build


def _stepped(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Build:
    return lambda b, x: b.node("Slice", x, *(b.ints(*each) for each in (starts, ends, axes, steps)))


def _gathered(indices: list[Any], axis: int) -> Build:
    return lambda b, x: b.node("Gather", x, b.constant(np.array(indices, np.int64)), axis=axis)


def _slice(starts: list[int], ends: list[int], axes: list[int]) -> Build:
    return lambda b, x: b.node("Slice", x, b.ints(*starts), b.ints(*ends), b.ints(*axes))


def _split(b: ModelBuilder, x: str) -> str:
    first, second = b.split(x, [1, 3], 1)
    return b.node("Concat", second, b.node("Neg", first), axis=1)


def _pad(pads: list[int], mode: str = "constant", value: float = 0.5) -> Build:
    def build(b: ModelBuilder, x: str) -> str:
        filled = [b.scalar(value)] if mode == "constant" else []
        return b.node("Pad", x, b.ints(*pads), *filled, mode=mode)

    return build


def _reshape(*sizes: int) -> Build:
    return lambda b, x: b.node("Reshape", x, b.ints(*sizes))


def mean(axes: list[int], keepdims: int, op_type: str = "ReduceMean") -> Build:
    since = {"ReduceMean": 18, "ReduceSum": 13}.get(op_type, 18)
    return lambda b, x: b.with_axes(op_type, x, axes, input_since=since, keepdims=keepdims)


def _layer_norm(b: ModelBuilder, x: str) -> str:
    return b.node("LayerNormalization", x, b.weight(8), b.weight(8), axis=-1, epsilon=1e-4)


def _gather(b: ModelBuilder, x: str) -> str:
    return b.node("Gather", x, b.constant(np.int64(-2)), axis=1)


def _reread(b: ModelBuilder, x: str) -> str:
    """A value that three nodes read."""
    y = b.node("Relu", x)
    return b.node("Add", b.node("Mul", y, b.node("Sigmoid", y)), y)


def _read_before_relu(b: ModelBuilder, x: str) -> str:
    y = _conv(6, (3, 3))(b, x)
    return b.node("Sub", b.node("Relu", y), y)


def _recurrent(kind: str, direction: str = "forward", *, output: str = "all") -> Build:
    """Samples first, as torch exports ``batch_first``."""
    gates, count = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 2 if direction[0] == "b" else 1
    size = 6

    def build(b: ModelBuilder, x: str) -> str:
        if kind == "RNN":  # data of channels first
            turned = b.node("Transpose", _reshape(0, 8, 5)(b, x), perm=[2, 0, 1])
        else:
            turned = b.node("Transpose", x, perm=[1, 0, 2])
        weight, recurrent = (b.weight(count, gates * size, n) for n in (8, size))
        bias = b.weight(count, 2 * gates * size)
        names = [f"{turned}_{k}" for k in range(3 if kind == "LSTM" else 2)]
        more: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
        b.node(
            kind,
            turned,
            weight,
            recurrent,
            bias,
            out=names[0],
            hidden_size=size,
            direction=direction,
            **more,
        )
        b.nodes[-1].output.extend(names[1:])
        if output != "all":
            state = names[-1] if output == "cell" else names[1]
            if count == 1:
                return b.with_axes("Squeeze", state, [0])
            turned_back = b.node("Transpose", state, perm=[1, 0, 2])
            return b.node("Reshape", turned_back, b.ints(-1, 2 * size))
        y = b.node("Transpose", names[0], perm=[0, 2, 1, 3])
        y = b.node("Reshape", y, b.ints(5, -1, count * size))
        return b.node("Transpose", y, perm=[1, 0, 2])

    return build


_POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}

IMAGE_CASES: dict[str, Build] = {
    "conv": _conv(6, (3, 3), pads=[1, 1, 1, 1]),
    "conv without bias": _conv(6, (1, 1), bias=False, strides=[2, 2]),
    "conv, odd window": _conv(5, (3, 2), strides=[2, 1], pads=[0, 1, 2, 0], dilations=[1, 2]),
    "conv, same": _conv(5, (4, 4), auto_pad="SAME_UPPER", strides=[2, 2]),
    "conv, relu": lambda b, x: b.node("Relu", _conv(6, (3, 3))(b, x)),
    "conv, read before its relu": _read_before_relu,
    "conv, clip": lambda b, x: b.clip(_conv(6, (3, 3))(b, x), -0.25, 0.5),
    "conv, grouped": _conv(6, (3, 3), group=2),
    "conv, depthwise": _conv(4, (3, 3), group=4, pads=[1, 1, 1, 1]),
    "conv, depthwise, clip": lambda b, x: b.clip(_conv(4, (3, 3), group=4)(b, x), 0, 0.5),
    "conv, multiplier": _conv(8, (3, 3), group=4),
    "deconv": _deconv(6, 3, strides=[2, 2], pads=[1, 0, 1, 2], output_padding=[1, 0]),
    "deconv, grouped": _deconv(6, 3, group=2, strides=[2, 1]),
    "deconv, depthwise": _deconv(4, 2, group=4, strides=[2, 2]),
    "max pool": node("MaxPool", **_POOL),
    "max pool, up": node("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "max pool, a window in the pads": node(
        "MaxPool", kernel_shape=[3, 3], strides=[4, 4], pads=[0, 0, 2, 2], ceil_mode=1
    ),
    "max pool, a window behind": node("MaxPool", kernel_shape=[1, 1], strides=[4, 4], ceil_mode=1),
    "average pool, pads counted, up": node(
        "AveragePool",
        kernel_shape=[2, 2],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=1,
    ),
    "average pool, counting, up": node(
        "AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=1
    ),
    "average pool, up": node("AveragePool", ceil_mode=1, **_POOL),
    "average pool": node("AveragePool", **_POOL),
    "average pool with pads": node("AveragePool", count_include_pad=1, **_POOL),
    "average pool, same": node(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    "global average": node("GlobalAveragePool"),
    "global max": node("GlobalMaxPool"),
    "mean of images": mean([2, 3], 0),
    "mean of images, kept": mean([-1, -2], 1),
    "mean of rows": mean([3], 1),
    "sum of channels": mean([1], 0, "ReduceSum"),
    "max of columns": mean([2], 0, "ReduceMax"),
    "add number": _scalar("Add", 0.75),
    "number less x": _scalar("Sub", 0.75, first=True),
    "x over number": _scalar("Div", 3.0),
    "number over x": lambda b, x: b.node("Div", b.scalar(3.0), b.node("Exp", x)),
    "square": _scalar("Pow", 2.0),
    "add channels": _constant("Add", 4, 1, 1),
    "mul row": _constant("Mul", 7),
    "mul column": _constant("Mul", 1, 1, 6, 1),
    "constant less x": _constant("Sub", 4, 6, 7, first=True),
    "divided by channels": _constant("Div", 1, 4, 1, 1),
    "max": _two("Max"),
    "min": _two("Min"),
    "mul by channels": _two("Mul", squeezed=True),
    "sub": _two("Sub"),
    "read three times": _reread,
    "batch norm": lambda b, x: b.batch_norm(b.node("Relu", x), 4),
    "relu": node("Relu"),
    "leaky relu": node("LeakyRelu", alpha=0.125),
    "prelu": lambda b, x: b.node(
        "PRelu", x, b.constant(np.array([[[0.1]], [[0.2]], [[0.3]], [[1.5]]], np.float32))
    ),
    "one prelu": lambda b, x: b.node("PRelu", x, b.constant(np.array([0.25], np.float32))),
    "elu": node("Elu", alpha=1.5),
    "clip": lambda b, x: b.clip(x, -0.5, 0.25),
    "clip above": lambda b, x: b.node("Clip", x, "", b.scalar(0.25)),
    "clip below": lambda b, x: b.node("Clip", x, b.scalar(-0.25)),
    "conv, clip above": lambda b, x: b.node("Clip", _conv(6, (3, 3))(b, x), "", b.scalar(0.25)),
    "sigmoid": node("Sigmoid"),
    "tanh": node("Tanh"),
    "hard sigmoid": node("HardSigmoid", alpha=0.3, beta=0.4),
    "hard swish": node("HardSwish"),
    "mish": node("Mish"),
    "erf": node("Erf"),
    "abs": node("Abs"),
    "neg": node("Neg"),
    "floor": node("Floor"),
    "ceil": node("Ceil"),
    "exp": node("Exp"),
    "sin": node("Sin"),
    "cos": node("Cos"),
    "sqrt": _positive("Sqrt"),
    "log": _positive("Log"),
    "reciprocal": _positive("Reciprocal"),
    "softmax of channels": node("Softmax", axis=1),
    "softmax of rows": node("Softmax", axis=-1),
    "concat of channels": lambda b, x: b.node("Concat", x, b.node("Relu", x), axis=1),
    "concat of columns": lambda b, x: b.node("Concat", x, b.node("Relu", x), axis=-1),
    "flatten": node("Flatten"),
    "pad of rows": lambda b, x: _pad([0, 1, 0, 0, 0, 2])(b, _reshape(-1, 8, 21)(b, x)),
    "pad of rows by edges": lambda b, x: _pad([0, 1, 2, 0, 0, 1], "edge")(
        b, _reshape(-1, 8, 21)(b, x)
    ),
    "pad of numbers": lambda b, x: _pad([0, 3, 0, 1])(b, b.node("Flatten", x)),
    "reshape": _reshape(-1, 8, 21),
    "reshape, kept": _reshape(0, 2, 2, 42),
    "squeeze": lambda b, x: b.with_axes("Squeeze", b.node("GlobalMaxPool", x), [2, 3]),
    "unsqueeze": lambda b, x: b.with_axes("Unsqueeze", x, [2]),
    "transpose": node("Transpose", perm=[0, 2, 3, 1]),
    "transpose, turned": node("Transpose", perm=[0, 3, 1, 2]),
    "transpose, swapped": node("Transpose", perm=[0, 2, 1, 3]),
    "transpose of an image": node("Transpose", perm=[0, 1, 3, 2]),
    "transpose, reversed": node("Transpose", perm=[0, 3, 2, 1]),
    "slice": _slice([1, -6], [3, 2**40], [1, 3]),
    "slice by steps": _stepped([1, 0, 1], [2**40, 2**40, 6], [1, 2, 3], [2, 3, 1]),
    "slice backwards": _stepped([-1, -1], [-(2**40), -(2**40)], [2, 3], [-1, -2]),
    "a list of neighbours": _gathered([1, 2, 3], 2),
    "a list of a few runs": _gathered([4, 0, 1, 1, 3], 2),
    "a list of every second": _gathered([0, 2, 4, 6], 3),
    "a list of many": _gathered([5, 3, 1] * 8, 2),
    "a table": _gathered([[0, 1, 2], [2, 3, 4]], 3),
    "gather": _gather,
    "split": _split,
    "pad": _pad([0, 0, 1, 2, 0, 0, 0, 1]),
    "pad channels": _pad([0, 1, 1, 0, 0, 2, 0, 0], value=-1.0),
    "pad of named axes": lambda b, x: b.node("Pad", x, b.ints(1, 2), "", b.ints(3)),
    "pad by edges": _pad([0, 0, 1, 2, 0, 0, 2, 1], "edge"),
    "pad by reflection": _pad([0, 0, 1, 2, 0, 0, 2, 1], "reflect"),
    "nearest": resize("nearest", "asymmetric", (12, 21), nearest_mode="floor"),
    "nearest, half pixels": resize("nearest", "half_pixel", (12, 21)),
    "nearest, half pixels, up": resize(
        "nearest", "pytorch_half_pixel", (18, 14), nearest_mode="round_prefer_ceil"
    ),
    "nearest along named axes": lambda b, x: b.node(
        "Resize", x, "", b.constant(np.array([3, 2], np.float32)), mode="nearest", axes=[-1, 2]
    ),
    "linear": resize("linear", "half_pixel", (9, 14)),
    "linear, aligned": resize("linear", "align_corners", (12, 14)),
    "depth to space": node("DepthToSpace", blocksize=2),
    "depth to space, CRD": node("DepthToSpace", blocksize=2, mode="CRD"),
}
IMAGE_CASES |= {
    "selu": node("Selu"),
    "selu of other numbers": node("Selu", alpha=1.5, gamma=1.25),
    "softplus": lambda b, x: b.node("Softplus", b.node("Mul", x, b.scalar(60.0))),
    "round": lambda b, x: b.node("Round", b.node("Mul", b.node("Round", x), b.scalar(0.5))),
    "sign": node("Sign"),
    "tan": node("Tan"),
    "asin": lambda b, x: b.node("Asin", b.clip(x, -1, 1)),
    "acos": lambda b, x: b.node("Acos", b.clip(x, -1, 1)),
    "atan": node("Atan"),
    "space to depth": lambda b, x: b.node(
        "SpaceToDepth", _reshape(-1, 3, 4, 14)(b, x), blocksize=2
    ),
    "tile": lambda b, x: b.node("Tile", x, b.ints(1, 2, 1, 3)),
    "expand": lambda b, x: b.node("Expand", b.node("GlobalMaxPool", x), b.ints(4, 3, 2)),
    "expand what is open": lambda b, x: b.node("Expand", mean([1], 1)(b, x), b.ints(1, 5, 1, 1)),
    "sum up to each row": lambda b, x: b.node("CumSum", x, b.constant(np.int64(2))),
    "sum up to each channel": lambda b, x: b.node("CumSum", x, b.constant(np.int64(-3))),
    "local response": node("LRN", size=3, alpha=0.3, beta=0.6, bias=1.5),
    "instances": lambda b, x: b.node("InstanceNormalization", x, b.weight(4), b.weight(4)),
    "groups": lambda b, x: b.node(
        "Reshape",
        b.node("InstanceNormalization", _reshape(0, 2, -1)(b, x), b.weight(2), b.weight(2)),
        b.ints(0, 4, 6, 7),
    ),
    "dense of images": lambda b, x: b.node("MatMul", x, b.weight(7, 5)),
}
VOLUME_CASES: dict[str, Build] = {
    f"transpose {''.join(map(str, order))}": node("Transpose", perm=[0, *order])
    for order in permutations((1, 2, 3, 4))
}
VOLUME_CASES |= {
    "global average of volumes": node("GlobalAveragePool"),
    "global max of volumes": node("GlobalMaxPool"),
}
ROW_CASES: Mapping[str, Build] = {
    "matmul": _matmul,
    "attention": _attention,
    "layer norm": _layer_norm,
    "layer norm by one factor": lambda b, x: b.node(
        "LayerNormalization", x, b.weight(1), b.weight(1), axis=-1
    ),
    "softmax of a matrix": node("Softmax", axis=1),
    "transpose of a matrix": node("Transpose", perm=[0, 2, 1]),
    "add to rows": _constant("Add", 8),
    "mean of a matrix": mean([1], 0),
    "global average of a signal": node("GlobalAveragePool"),
    "lstm": _recurrent("LSTM"),
    "lstm, both ways": _recurrent("LSTM", "bidirectional"),
    "lstm, its cell": _recurrent("LSTM", output="cell"),
    "gru": _recurrent("GRU"),
    "gru, backwards": _recurrent("GRU", "reverse"),
    "gru, its last state": _recurrent("GRU", "bidirectional", output="state"),
    "rnn": _recurrent("RNN"),
    "conv along rows": lambda b, x: b.node(
        "Conv", x, b.weight(6, 5, 3), b.weight(6), pads=[2, 1], strides=[2], dilations=[2]
    ),
    "conv along rows, depthwise": lambda b, x: b.node(
        "Relu", b.node("Conv", x, b.weight(5, 1, 3), b.weight(5), group=5)
    ),
    "conv along rows, grouped": lambda b, x: b.node(
        "Conv", _reshape(0, 4, 10)(b, x), b.weight(6, 2, 3), group=2
    ),
    "deconv along rows": lambda b, x: b.node(
        "ConvTranspose", x, b.weight(5, 3, 4), strides=[2], pads=[1, 0], output_padding=[1]
    ),
    "instances of rows": lambda b, x: b.node(
        "InstanceNormalization", x, b.weight(5), b.weight(5), epsilon=1e-3
    ),
    "identity": lambda b, x: b.node("Identity", x),
}
VECTOR_CASES: Mapping[str, Build] = {
    "gemm": _gemm(),
    "gemm, turned": _gemm(trans=False),
    "gemm without bias": _gemm(bias=False),
    "gemm, relu": lambda b, x: b.node("Relu", _gemm()(b, x)),
    "add to a vector": _constant("Add", 12),
    "softmax of a vector": node("Softmax", axis=-1),
    "vector as image": _reshape(-1, 3, 2, 2),
}
CASES: Mapping[str, tuple[Build, tuple[str | int, ...]]] = {
    **{name: (build, IMAGE) for name, build in IMAGE_CASES.items()},
    **{name: (build, VOLUME) for name, build in VOLUME_CASES.items()},
    **{name: (build, ROWS) for name, build in ROW_CASES.items()},
    **{name: (build, VECTOR) for name, build in VECTOR_CASES.items()},
}


def build_case(name: str, opset: int = 18) -> onnx.ModelProto:
    """Return the model of a case."""
    build, shape = CASES[name]
    b = ModelBuilder(opset)
    b.output(build(b, b.input("x", shape)))
    return b.build()


def written_from(plan: QuantizedGraph) -> NcnnModel:
    """Write a calibrated plan."""
    return write_ncnn(lower_nodes(plan))


def outputs_of(
    model: NcnnModel, feeds: Mapping[str, npt.NDArray[Any]], *, plain: bool = True
) -> dict[str, npt.NDArray[np.float32]]:
    """Run the samples of a batch in ncnn; return the outputs, ``[N, ...]``."""
    runtime = NcnnRuntime(model.param, model.weights, threads=1, plain=plain)
    count = len(next(iter(feeds.values())))
    runs = [
        runtime.run({model.inputs[k]: v[n] for k, v in feeds.items()}, model.outputs.values())
        for n in range(count)
    ]
    return {name: np.stack([run[blob] for run in runs]) for name, blob in model.outputs.items()}
