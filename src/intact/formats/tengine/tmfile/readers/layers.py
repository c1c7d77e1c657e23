"""Convolutions, dense layers, normalization, pools and reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.operators import (
    ABSENT_AXIS,
    COUNT_PADDING,
    REDUCTIONS,
    Activation,
    Flavor,
    PoolMethod,
)
from intact.formats.tengine.tmfile.readers.builder import (
    READERS,
    OnnxBuilder,
    Shape,
    axis_in,
    image,
    slot,
)
from intact.formats.tengine.tmfile.readers.pointwise import activated
from intact.graph.builder import Attribute

_SAME_UPPER, _SAME_LOWER = -1, -2

"""Paddings that keep the size, the odd one at the end or at the start."""

_SIDES = ("left", "right")

_SMALLEST = float(np.finfo(np.float32).tiny)


@READERS.register("Convolution")
def _convolution(builder: OnnxBuilder, node: FileNode) -> None:
    """Convolution, with what it applies to its sums."""
    options = node.options
    value, shape = image(builder, node)
    weight = builder.tensor(slot(node, 1)).shape
    kernel = (options["kernel_h"], options["kernel_w"])
    if len(weight) != 4 or weight[2:] != kernel or weight[0] != options["output_channel"]:
        raise Unsupported(f"its weight has the shape {list(weight)}, its kernel {list(kernel)}")
    group = options["group"]
    if group < 1 or weight[1] * group != shape[1] or weight[0] % group:
        raise Unsupported(f"{group} groups of {list(weight)} do not fit {shape[1]} channels")
    tops = [_padding(options, axis, shape[2 + k]) for k, axis in enumerate("hw")]
    spans = [_span(options, axis, kernel[k]) for k, axis in enumerate("hw")]
    lengths = []
    for k, axis in enumerate("hw"):
        room = shape[2 + k] + sum(tops[k]) - spans[k]
        lengths.append(room // _positive(options, f"stride_{axis}") + 1)
        if room < 0:
            raise Unsupported(f"its kernel reaches over images of {list(shape[2:])}")
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": (options["stride_h"], options["stride_w"]),
        "dilations": (options["dilation_h"], options["dilation_w"]),
        "pads": (tops[0][0], tops[1][0], tops[0][1], tops[1][1]),
        "group": group,
    }
    result = (shape[0], weight[0], *lengths)
    _weighted(builder, node, "Conv", value, result, attributes, weight[0])


@READERS.register("Deconvolution")
def _deconvolution(builder: OnnxBuilder, node: FileNode) -> None:
    """Deconvolution; weights lie as ONNX has them, input channels first."""
    options = node.options
    value, shape = image(builder, node)
    weight = builder.tensor(slot(node, 1)).shape
    kernel = (options["kernel_h"], options["kernel_w"])
    group, channels = options["group"], options["output_channel"]
    fits = len(weight) == 4 and weight[2:] == kernel and weight[0] == shape[1]
    if not fits or group < 1 or weight[0] % group or weight[1] * group != channels:
        raise Unsupported(f"its weight {list(weight)} in {group} groups does not fit {list(shape)}")
    pads = [[options[f"pad_{end}"] for end in ends] for ends in (("top", "bottom"), _SIDES)]
    more = [options["output_pad_h"], options["output_pad_w"]]
    strides = [_positive(options, f"stride_{axis}") for axis in "hw"]
    if min(map(min, pads)) < 0 or min(more) < 0:
        raise Unsupported(f"its paddings are {pads} and {more}")
    if 1 in strides:  # later versions of Tengine lose a row there
        raise Unsupported("it has a stride of 1, where versions of Tengine differ in the size")
    lengths = [
        (shape[2 + k] - 1) * strides[k] + _span(options, axis, kernel[k]) - sum(pads[k]) + more[k]
        for k, axis in enumerate("hw")
    ]
    if any(more[k] >= strides[k] for k in (0, 1)):
        raise Unsupported(f"its output is padded by {more} at strides {strides}")
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": (options["dilation_h"], options["dilation_w"]),
        "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1]),
        "output_padding": more,
        "group": group,
    }
    if options["activation"] not in (Activation.NONE, Activation.RELU):
        raise Unsupported(f"its activation is {options['activation']}")
    result = (shape[0], channels, *lengths)
    _weighted(builder, node, "ConvTranspose", value, result, attributes, channels)


@READERS.register("FullyConnected")
def _fully_connected(builder: OnnxBuilder, node: FileNode) -> None:
    """FullyConnected: images are taken as rows, and results have the rank of the input."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    weight = builder.tensor(slot(node, 1)).shape
    rows = (shape[0], math.prod(shape[1:]))
    if len(weight) != 2 or not 2 <= len(shape) <= 4 or weight[0] != node.options["output_channel"]:
        raise Unsupported(f"its weight has the shape {list(weight)}, its input {list(shape)}")
    if weight[1] != rows[1]:
        raise Unsupported(f"{weight[1]} weights a row do not fit {list(shape)}")
    if len(shape) > 2:
        value = builder.compute(node, "Flatten", [value], rows, {"axis": 1}, part="flatten")
    bias = [builder.stored(slot(node, 2), (weight[0],))] if len(node.inputs) > 2 else []
    inputs = [value, builder.stored(slot(node, 1)), *bias]
    rows = (shape[0], weight[0])
    output = node.outputs[0]
    if len(shape) == 2:
        builder.compute(node, "Gemm", inputs, rows, {"transB": 1}, output=output)
        return
    value = builder.compute(node, "Gemm", inputs, rows, {"transB": 1})
    result = (*rows, *(1,) * (len(shape) - 2))
    builder.reshaped(node, value, result, part="reshape", output=output)


@READERS.register("Gemm")
def _gemm(builder: OnnxBuilder, node: FileNode) -> None:
    """Gemm, with constant weights."""
    options = node.options
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    weight = builder.tensor(slot(node, 1)).shape
    if len(weight) != 2 or len(shape) != 2 or options["trans_a"]:
        raise Unsupported(f"it multiplies {list(shape)} by {list(weight)}")
    across = int(bool(options["trans_b"]))
    if weight[across] != shape[1]:
        raise Unsupported(f"it multiplies {list(shape)} by {list(weight)}")
    channels = weight[1 - across]
    bias = [builder.stored(slot(node, 2), (channels,))] if len(node.inputs) > 2 else []
    attributes = {"alpha": options["alpha"], "beta": options["beta"], "transB": across}
    inputs = [value, builder.stored(slot(node, 1)), *bias]
    result = (shape[0], channels)
    builder.compute(node, "Gemm", inputs, result, attributes, output=node.outputs[0])


@READERS.register("BatchNormalization")
def _batch_normalization(builder: OnnxBuilder, node: FileNode) -> None:
    """BatchNormalization; Caffe's has no gamma and beta, and a factor on its statistics."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    if len(shape) not in (2, 3, 4):
        raise Unsupported(f"its input has the shape {list(shape)}")
    given = node.options["rescale_factor"]
    if given and not _SMALLEST <= abs(given) < np.inf:
        raise Unsupported(f"its factor is {given}")
    factor = np.float32(1 / given) if given else np.float32(0)
    arrays = [builder.numbers(slot(node, number)).reshape(-1) for number in (1, 2, 3, 4)]
    if any(array.size != shape[1] for array in arrays):
        raise Unsupported(f"its statistics are not those of {shape[1]} channels")
    gamma, beta, mean, variance = arrays
    if node.options["caffe_flavor"]:
        gamma, beta = np.ones_like(mean), np.zeros_like(mean)
    names = [builder.name(index) for index in node.inputs[1:5]]
    constants = [
        builder.initializer(f"{name}/channels", array)
        for name, array in zip(names, (gamma, beta, mean * factor, variance * factor), strict=True)
    ]
    attributes = {"epsilon": node.options["epsilon"]}
    output = node.outputs[0]
    inputs = [value, *constants]
    builder.compute(node, "BatchNormalization", inputs, shape, attributes, output=output)


@READERS.register("Scale")
def _scale(builder: OnnxBuilder, node: FileNode) -> None:
    """Scale: a factor for each channel, and perhaps a summand."""
    value, shape = image(builder, node)
    along = (1, shape[1], 1, 1)
    for index in node.inputs[1:3]:
        if builder.tensor(index).size != shape[1]:
            raise Unsupported(f"{builder.tensor(index).size} factors for {shape[1]} channels")
    factors = builder.stored(slot(node, 1), along)
    if len(node.inputs) == 2:
        builder.compute(node, "Mul", [value, factors], shape, output=node.outputs[0])
        return
    value = builder.compute(node, "Mul", [value, factors], shape, part="mul")
    summands = builder.stored(slot(node, 2), along)
    builder.compute(node, "Add", [value, summands], shape, output=node.outputs[0])


def _weighted(
    builder: OnnxBuilder,
    node: FileNode,
    op_type: str,
    value: ir.Value,
    shape: Shape,
    attributes: dict[str, Attribute],
    channels: int,
) -> None:
    """Add a convolution and what is applied to its sums."""
    bias = [builder.stored(slot(node, 2), (channels,))] if len(node.inputs) > 2 else []
    inputs = [value, builder.stored(slot(node, 1)), *bias]
    activation = node.options["activation"]
    if activation < 0:
        builder.compute(node, op_type, inputs, shape, attributes, output=node.outputs[0])
        return
    activated(builder, node, builder.compute(node, op_type, inputs, shape, attributes), activation)


def _padding(options: Mapping[str, int], axis: str, length: int) -> tuple[int, int]:
    """Return the padding at both ends of an axis."""
    ends = ("top", "bottom") if axis == "h" else _SIDES
    first, last = (options[f"pad_{end}"] for end in ends)
    if first >= 0 and last >= 0:
        return first, last
    stride, kernel = _positive(options, f"stride_{axis}"), options[f"kernel_{axis}"]
    total = (length - 1) // stride * stride + kernel - length
    if first not in (_SAME_UPPER, _SAME_LOWER) or total < 0:
        raise Unsupported(f"its paddings are {first} and {last}")
    if options[f"dilation_{axis}"] != 1:
        raise Unsupported("it keeps the size with dilated kernels")
    half = total // 2
    return (half, total - half) if first == _SAME_UPPER else (total - half, half)


def _positive(options: Mapping[str, int], name: str) -> int:
    if options[name] < 1:
        raise Unsupported(f"its {name} is {options[name]}")
    return options[name]


def _span(options: Mapping[str, int], axis: str, kernel: int) -> int:
    """Return how far a kernel reaches along an axis."""
    return _positive(options, f"dilation_{axis}") * (kernel - 1) + 1


@dataclass(frozen=True)
class Windows:
    """How windows lie along one axis.

    Attributes:
        count: Of them.
        first: Padding before the elements. Of the padding behind them, an average that counts
            padding counts as much.
        last: Padding behind them, so that the last window fits.
    """

    count: int
    first: int
    last: int


def windows(flavor: int, length: int, kernel: int, stride: int, padding: int) -> Windows:
    """Return the windows along an axis as Tengine lays them.

    Args:
        flavor: The option, without the bit for counting.
        length: Elements.
        kernel: Elements of a window.
        stride: From one window to the next.
        padding: The first of the node's two paddings; Tengine does not use the second one. A
            negative one keeps the size.

    Raises:
        Unsupported: There is no window, or a window that sees padding only.

    >>> windows(Flavor.FLOOR, 8, 3, 2, 0), windows(Flavor.CAFFE, 8, 3, 2, 0)
    (Windows(count=3, first=0, last=0), Windows(count=4, first=0, last=1))
    """
    if min(kernel, stride, length) < 1 or flavor not in {*Flavor}:
        raise Unsupported(f"its kernel is {kernel}, its stride {stride}, its flavor {flavor}")
    first = padding
    if padding < 0:
        count = 1 + (length - 1) // stride
        first = max((count - 1) * stride + kernel - length, 0) // 2
    elif flavor == Flavor.CAFFE:
        count = 2 + _cut(length - kernel + 2 * padding - 1, stride)
        if padding > 0 and (count - 1) * stride >= length + padding:
            count -= 1
    elif flavor == Flavor.TOTAL:
        count = 1 + _cut(length - kernel + padding, stride)
        first = padding // 2
    else:
        count = 1 + _cut(length - kernel + 2 * padding, stride)
    last = max((count - 1) * stride + kernel - length - first, 0)
    if count < 1 or max(first, last) >= kernel:
        raise Unsupported(f"windows of {kernel} over {length} elements, {padding} padded")
    return Windows(count, first, last)


def _cut(number: int, by: int) -> int:
    """Divide as C does, towards zero."""
    return number // by if number >= 0 else -(-number // by)


@READERS.register("Pooling")
def _pooling(builder: OnnxBuilder, node: FileNode) -> None:
    """Pooling: the largest or the mean of windows, or of the whole image."""
    options = node.options
    value, shape = image(builder, node)
    if options["method"] not in {*PoolMethod}:
        raise Unsupported(f"its method is {options['method']}")
    is_mean = options["method"] == PoolMethod.AVERAGE
    kernel = (options["kernel_h"], options["kernel_w"])
    output = node.outputs[0]
    if options["is_global"] or kernel == shape[2:]:  # Tengine drops the padding there
        kind = "GlobalAveragePool" if is_mean else "GlobalMaxPool"
        builder.compute(node, kind, [value], (*shape[:2], 1, 1), output=output)
        return
    flavor = options["flavor"] & ~COUNT_PADDING
    strides = (options["stride_h"], options["stride_w"])
    starts = (options["pad_top"], options["pad_left"])
    rows = list(zip(shape[2:], kernel, strides, starts, strict=True))
    axes = [windows(flavor, *row) for row in rows]
    ends = [_behind(each, *row[:3]) for each, row in zip(axes, rows, strict=True)]
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": (axes[0].first, axes[1].first, *ends),
    }
    if is_mean and options["flavor"]:
        attributes["count_include_pad"] = _counts(axes)
    kind = "AveragePool" if is_mean else "MaxPool"
    result = (*shape[:2], axes[0].count, axes[1].count)
    builder.compute(node, kind, [value], result, attributes, output=output)


def _behind(each: Windows, length: int, kernel: int, stride: int) -> int:
    """Return the padding behind the elements: as before them if that makes no window more."""
    count = 1 + (length + 2 * each.first - kernel) // stride
    return each.first if count == each.count else each.last


def _counts(axes: list[Windows]) -> int:
    """Return whether means count the padding, as ONNX has it."""
    if not any(each.first for each in axes):
        return 0  # what reaches over the edge is not counted
    if any(each.last > each.first for each in axes):
        raise Unsupported("its means count a part of the padding")
    return 1


@READERS.register("Reduction")
def _reduction(builder: OnnxBuilder, node: FileNode) -> None:
    """Reduction over up to four axes, over all where none is given."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    kind = REDUCTIONS.get(node.options["type"])
    if kind is None:
        raise Unsupported(f"its type is {node.options['type']}")
    given = [node.options[f"dim_{k}"] for k in range(4)]
    axes = sorted({axis_in(each, len(shape)) for each in given if each != ABSENT_AXIS})
    axes = axes or list(range(len(shape)))
    builder.mixes(0 in axes)
    keeps = int(bool(node.options["keepdim"]))
    result = tuple(
        1 if axis in axes else length
        for axis, length in enumerate(shape)
        if keeps or axis not in axes
    )
    inputs = [value, builder.integers(*axes)]
    builder.compute(node, kind, inputs, result or (1,), {"keepdims": keeps}, output=node.outputs[0])
