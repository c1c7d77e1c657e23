"""Nets of every operator whose inputs, attributes or meaning changed between opsets 7 and 24.

Each operator stands between two layers that compute with integers, in a branch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tests.models import ModelBuilder

OPSETS = (7, 9, 10, 11, 12, 16, 18, 20, 24)
"""Before and after each change."""

_CHANNELS, _SIDE = 4, 6
SHAPE = (3, _SIDE, _SIDE)

Maker = Callable[[ModelBuilder, str], str]
_ROWS: list[tuple[str, int, int, Maker]] = []


def _row(name: str, since: int = 7, until: int = 99) -> Callable[[Maker], Maker]:
    def add(maker: Maker) -> Maker:
        _ROWS.append((name, since, until, maker))
        return maker

    return add


def operators(opset: int) -> list[str]:
    """List the branches of an opset."""
    return [name for name, since, until, _ in _ROWS if since <= opset < until]


def net(opset: int, only: Callable[[str], bool] = lambda _: True) -> onnx.ModelProto:
    """Return a model of the input ``x`` with an output for each branch, called like it."""
    builder = ModelBuilder(opset, seed=opset)
    x = builder.input("x", ["N", *SHAPE])
    for name, since, until, maker in _ROWS:
        if since <= opset < until and only(name):
            before = builder.conv(x, SHAPE[0], _CHANNELS)
            after = maker(builder, before)
            weight = builder.weight(_columns(name), 5)
            builder.node("MatMul", after, weight, out=name)
            builder.output(name)
    return builder.build()


_COLUMNS = {"Split": 3, "Slice": 3, "TopK": 3, "Pad": 9, "PadAxes": 9, "PadValue": 9, "GatherND": 6}
_COLUMNS |= dict.fromkeys(("Resize", "ResizeAxes", "Upsample", "UpsampleNearest"), 2 * _SIDE)
_COLUMNS |= dict.fromkeys(("AveragePoolCeil", "MaxPoolCeil", "LpPoolCeil"), 3)
_COLUMNS |= {"AveragePoolDilations": 2, "Gemm": 7, "RoiAlign": 3, "LSTM": 4, "GRU": 4}
_COLUMNS |= {"ArgMax": 6, "Flatten": _CHANNELS * _SIDE * _SIDE, "Unsqueeze": 6, "SplitParts": 3}
_COLUMNS |= {"AveragePool": 6}


def _floats(numbers: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.asarray(numbers, np.float32)


def _columns(name: str) -> int:
    return _COLUMNS.get(name, _SIDE)


def _axes(
    builder: ModelBuilder, since: int, **named: tuple[int, ...]
) -> tuple[list[str], dict[str, Any]]:
    """Return lists as inputs from an opset on, before as attributes."""
    if builder.opset >= since:
        return [builder.ints(*numbers) for numbers in named.values()], {}
    return [], {name: list(numbers) for name, numbers in named.items()}


for _kind in ("Softmax", "LogSoftmax", "Hardmax"):
    for _axis in (0, 1, 2, 3, None):

        def _soft(
            builder: ModelBuilder, x: str, kind: str = _kind, axis: int | None = _axis
        ) -> str:
            attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
            return builder.node(kind, x, **attributes)

        if _axis != 0:
            _row(f"{_kind}{'' if _axis is None else _axis}")(_soft)


@_row("SoftmaxPixel")
def _soft_pixel(builder: ModelBuilder, x: str) -> str:
    pooled = builder.node("GlobalAveragePool", x)
    soft = builder.node("Softmax", pooled, axis=1)
    return builder.node("Mul", x, soft)


@_row("SoftmaxNegative", 11)
def _soft_negative(builder: ModelBuilder, x: str) -> str:
    return builder.node("Softmax", x, axis=-2)


@_row("GroupNormalization", 18)
def _group_norm(builder: ModelBuilder, x: str) -> str:
    size = 2 if builder.opset < 21 else _CHANNELS
    scale = builder.constant(np.linspace(0.5, 2, size, dtype=np.float32))
    bias = builder.constant(np.linspace(-1, 1, size, dtype=np.float32))
    return builder.node("GroupNormalization", x, scale, bias, num_groups=2)


@_row("BatchNormalization")
def _batch_norm(builder: ModelBuilder, x: str) -> str:
    return builder.batch_norm(builder.node("Tanh", x), _CHANNELS)


@_row("Dropout")
def _dropout(builder: ModelBuilder, x: str) -> str:
    if builder.opset >= 12:
        return builder.node("Dropout", x, builder.scalar(0.3))
    return builder.node("Dropout", x, ratio=0.3)


@_row("Clip")
def _clip(builder: ModelBuilder, x: str) -> str:
    if builder.opset >= 11:
        return builder.clip(x, -0.5, 0.75)
    return builder.node("Clip", x, min=-0.5, max=0.75)


@_row("Pad")
def _pad(builder: ModelBuilder, x: str) -> str:
    return _padded(builder, x, 0.0)


@_row("PadValue")
def _pad_value(builder: ModelBuilder, x: str) -> str:
    return _padded(builder, x, 0.5)


def _padded(builder: ModelBuilder, x: str, number: float) -> str:
    inputs, attributes = _axes(builder, 11, pads=(0, 0, 1, 1, 0, 0, 0, 2))
    if builder.opset >= 11:
        return builder.node("Pad", x, *inputs, builder.scalar(number))
    return builder.node("Pad", x, **attributes, value=number)


@_row("PadAxes", 18)
def _pad_axes(builder: ModelBuilder, x: str) -> str:
    pads = builder.ints(1, 2)
    return builder.node("Pad", x, pads, builder.scalar(0.0), builder.ints(3))


@_row("Slice")
def _slice(builder: ModelBuilder, x: str) -> str:
    inputs, attributes = _axes(builder, 10, starts=(1, 1), ends=(3, 4), axes=(1, 3))
    return builder.node("Slice", x, *inputs, **attributes)


@_row("TopK")
def _top_k(builder: ModelBuilder, x: str) -> str:
    inputs, attributes = _axes(builder, 10, k=(3,))
    if attributes:
        attributes["k"] = 3
    node = builder.node("TopK", x, *inputs, **attributes)
    builder.nodes[-1].output.append(f"{node}_places")
    return node


@_row("Split")
def _split(builder: ModelBuilder, x: str) -> str:
    return builder.node("Sub", *builder.split(x, (3, 3), 3))


@_row("SplitParts")
def _split_parts(builder: ModelBuilder, x: str) -> str:
    parts: dict[str, Any] = {"num_outputs": 2} if builder.opset >= 18 else {}
    first = builder.node("Split", x, axis=3, **parts)
    builder.nodes[-1].output.append(f"{first}_rest")
    return builder.node("Mul", first, f"{first}_rest")


@_row("Squeeze")
def _squeeze(builder: ModelBuilder, x: str) -> str:
    wide = builder.with_axes("Unsqueeze", x, [2])
    return builder.with_axes("Squeeze", builder.node("Relu", wide), [2])


@_row("Unsqueeze")
def _unsqueeze(builder: ModelBuilder, x: str) -> str:
    return builder.with_axes("Unsqueeze", x, [0])


for _name in ("Mean", "Max", "Min", "L1", "L2", "LogSumExp", "SumSquare", "Prod"):

    @_row(f"Reduce{_name}")
    def _reduce(builder: ModelBuilder, x: str, kind: str = f"Reduce{_name}") -> str:
        return builder.with_axes(kind, x, [1], input_since=18, keepdims=1)

    @_row(f"Reduce{_name}Dropped")
    def _reduce_dropped(builder: ModelBuilder, x: str, kind: str = f"Reduce{_name}") -> str:
        return builder.with_axes(kind, x, [1, 2], input_since=18, keepdims=0)


@_row("ReduceSum")
def _reduce_sum(builder: ModelBuilder, x: str) -> str:
    return builder.with_axes("ReduceSum", x, [1], keepdims=1)


@_row("Upsample", 7, 10)
def _upsample(builder: ModelBuilder, x: str) -> str:
    return _up(builder, x, "linear")


@_row("UpsampleNearest", 7, 10)
def _upsample_nearest(builder: ModelBuilder, x: str) -> str:
    return _up(builder, x, "nearest")


def _up(builder: ModelBuilder, x: str, mode: str) -> str:
    scales = [1.0, 1.0, 2.0, 2.0]
    if builder.opset < 9:
        return builder.node("Upsample", x, mode=mode, scales=scales)
    return builder.node("Upsample", x, builder.constant(_floats(scales)), mode=mode)


@_row("Resize", 10)
def _resize(builder: ModelBuilder, x: str) -> str:
    scales = builder.constant(_floats([1, 1, 2, 2]))
    before = (
        []
        if builder.opset < 11
        else [""]
        if builder.opset >= 13
        else [builder.constant(_floats([]))]
    )
    return builder.node("Resize", x, *before, scales, mode="linear")


@_row("ResizeAxes", 18)
def _resize_axes(builder: ModelBuilder, x: str) -> str:
    scales = builder.constant(_floats([2, 2]))
    return builder.node("Resize", x, "", scales, mode="linear", axes=[2, 3])


@_row("AveragePool")
def _average(builder: ModelBuilder, x: str) -> str:
    return builder.node("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)


@_row("AveragePoolCeil", 10)
def _average_ceil(builder: ModelBuilder, x: str) -> str:
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    return builder.node("AveragePool", x, **window)


@_row("AveragePoolDilations", 19)
def _average_dilated(builder: ModelBuilder, x: str) -> str:
    return builder.node("AveragePool", x, kernel_shape=[3, 3], dilations=[2, 2])


@_row("MaxPoolCeil", 10)
def _max_ceil(builder: ModelBuilder, x: str) -> str:
    return builder.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)


@_row("LpPoolCeil", 18)
def _lp_ceil(builder: ModelBuilder, x: str) -> str:
    return builder.node("LpPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)


@_row("CumSum", 11)
def _cum_sum(builder: ModelBuilder, x: str) -> str:
    return builder.node("CumSum", x, builder.constant(np.int64(3)))


@_row("RoiAlign", 10, 22)  # ONNX Runtime has no kernel of later ones
def _roi_align(builder: ModelBuilder, x: str) -> str:
    rois = builder.constant(_floats([[0, 0, 5, 5], [1, 1, 4, 5]]))
    batch = builder.ints(0, 0)
    size: dict[str, Any] = {"output_height": 3, "output_width": 3, "sampling_ratio": 2}
    return builder.node("RoiAlign", x, rois, batch, **size)


@_row("GridSample", 16)
def _grid_sample(builder: ModelBuilder, x: str) -> str:
    grid = np.random.default_rng(0).uniform(-1, 1, (1, 6, 6, 2)).astype(np.float32)
    weight = builder.node("Shape", x)
    first = builder.node("Gather", weight, builder.ints(0))
    sizes = builder.node("Concat", first, builder.ints(6, 6, 2), axis=0)
    mode = "linear" if builder.opset >= 20 else "bilinear"
    return builder.node(
        "GridSample", x, builder.node("Expand", builder.constant(grid), sizes), mode=mode
    )


@_row("Reshape")
def _reshape(builder: ModelBuilder, x: str) -> str:
    return builder.node("Reshape", x, builder.ints(0, -1, 2, _SIDE))


@_row("ReshapeAllowZero", 14)
def _reshape_zero(builder: ModelBuilder, x: str) -> str:
    return builder.node("Reshape", x, builder.ints(-1, 8, 3, _SIDE), allowzero=1)


@_row("Flatten")
def _flatten(builder: ModelBuilder, x: str) -> str:
    return builder.node("Flatten", x)


@_row("Gemm")
def _gemm(builder: ModelBuilder, x: str) -> str:
    flat = builder.node("Flatten", x)
    weight = builder.weight(_CHANNELS * _SIDE * _SIDE, 7)
    return builder.node("Gemm", flat, weight, builder.weight(7), alpha=0.5, beta=2.0)


@_row("PRelu")
def _p_relu(builder: ModelBuilder, x: str) -> str:
    return builder.node("PRelu", x, builder.weight(_CHANNELS, 1, 1))


@_row("Pow")
def _pow(builder: ModelBuilder, x: str) -> str:
    return builder.node("Pow", x, builder.scalar(2.0))


@_row("Cast")
def _cast(builder: ModelBuilder, x: str) -> str:
    half = builder.node("Cast", x, to=onnx.TensorProto.DOUBLE)
    return builder.node("Cast", half, to=onnx.TensorProto.FLOAT)


@_row("Scatter", 9, 11)
def _scatter_old(builder: ModelBuilder, x: str) -> str:
    return _scattered(builder, x, "Scatter")


@_row("ScatterElements", 11)
def _scatter(builder: ModelBuilder, x: str) -> str:
    return _scattered(builder, x, "ScatterElements")


def _scattered(builder: ModelBuilder, x: str, kind: str) -> str:
    places = builder.constant(np.zeros((1, _CHANNELS, 1, _SIDE), np.int64))
    updates = builder.weight(1, _CHANNELS, 1, _SIDE)
    return builder.node(kind, x, places, updates, axis=2)


@_row("GatherND", 11)
def _gather_nd(builder: ModelBuilder, x: str) -> str:
    return builder.node("GatherND", x, builder.constant(np.array([[0, 1], [0, 2]], np.int64)))


@_row("Where", 9)
def _where(builder: ModelBuilder, x: str) -> str:
    wanted = builder.node("Greater", x, builder.scalar(0.1))
    return builder.node("Where", wanted, x, builder.scalar(-0.25))


@_row("ArgMax")
def _arg_max(builder: ModelBuilder, x: str) -> str:
    best = builder.node("ArgMax", x, axis=1, keepdims=1)
    number = builder.node("Cast", best, to=onnx.TensorProto.FLOAT)
    return builder.node("Mul", x, number)


for _name in ("Max", "Min", "Sum", "Mean"):

    @_row(_name, 8)
    def _joined(builder: ModelBuilder, x: str, kind: str = _name) -> str:
        return builder.node(kind, x, builder.node("Neg", x), builder.weight(_CHANNELS, 1, 1))


@_row("LSTM")
def _lstm(builder: ModelBuilder, x: str) -> str:
    return _recurrent(builder, x, "LSTM", 4)


@_row("GRU")
def _gru(builder: ModelBuilder, x: str) -> str:
    return _recurrent(builder, x, "GRU", 3)


def _recurrent(builder: ModelBuilder, x: str, kind: str, gates: int) -> str:
    rows = builder.node("Reshape", x, builder.ints(-1, _CHANNELS * _SIDE, _SIDE))
    steps = builder.node("Transpose", rows, perm=[1, 0, 2])
    weights = builder.weight(1, gates * 4, _SIDE), builder.weight(1, gates * 4, 4)
    result = builder.node(kind, steps, *weights, hidden_size=4)
    return builder.with_axes("Squeeze", result, [1])


@_row("LpNormalization")
def _lp_norm(builder: ModelBuilder, x: str) -> str:
    return builder.node("LpNormalization", x, axis=1, p=2)


@_row("InstanceNormalization")
def _instance_norm(builder: ModelBuilder, x: str) -> str:
    sizes = (builder.constant(_floats([1, 2, 0.5, 1])), builder.weight(_CHANNELS))
    return builder.node("InstanceNormalization", x, *sizes)


@_row("LRN")
def _lrn(builder: ModelBuilder, x: str) -> str:
    return builder.node("LRN", x, size=3)


@_row("DepthToSpace")
def _depth_to_space(builder: ModelBuilder, x: str) -> str:
    mode = {"mode": "CRD"} if builder.opset >= 11 else {}
    deep = builder.node("DepthToSpace", x, blocksize=2, **mode)
    return builder.node("SpaceToDepth", deep, blocksize=2)
