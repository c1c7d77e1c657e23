"""Convolutions and dense layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.operators import Activation
from intact.formats.tengine.tmfile.reading.common import Read, image, slot
from intact.formats.tengine.tmfile.reading.constants import Shape
from intact.formats.tengine.tmfile.reading.draft import Attribute, Draft
from intact.formats.tengine.tmfile.reading.pointwise import activated

_SAME_UPPER, _SAME_LOWER = -1, -2
"""Paddings that keep the size, the odd one at the end or at the start."""
_SIDES = ("left", "right")
_SMALLEST = float(np.finfo(np.float32).tiny)


def convolution(draft: Draft, node: FileNode) -> None:
    """Convolution, with what it applies to its sums."""
    options = node.options
    value, shape = image(draft, node)
    weight = draft.tensor(slot(node, 1)).shape
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
    _weighted(draft, node, "Conv", value, result, attributes, weight[0])


def deconvolution(draft: Draft, node: FileNode) -> None:
    """Deconvolution; weights lie as ONNX has them, input channels first."""
    options = node.options
    value, shape = image(draft, node)
    weight = draft.tensor(slot(node, 1)).shape
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
    _weighted(draft, node, "ConvTranspose", value, result, attributes, channels)


def fully_connected(draft: Draft, node: FileNode) -> None:
    """FullyConnected: images are taken as rows, and results have the rank of the input."""
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    weight = draft.tensor(slot(node, 1)).shape
    rows = (shape[0], math.prod(shape[1:]))
    if len(weight) != 2 or not 2 <= len(shape) <= 4 or weight[0] != node.options["output_channel"]:
        raise Unsupported(f"its weight has the shape {list(weight)}, its input {list(shape)}")
    if weight[1] != rows[1]:
        raise Unsupported(f"{weight[1]} weights a row do not fit {list(shape)}")
    if len(shape) > 2:
        value = draft.add(node, "Flatten", [value], rows, {"axis": 1}, part="flatten")
    bias = [draft.constant(slot(node, 2), (weight[0],))] if len(node.inputs) > 2 else []
    inputs = [value, draft.constant(slot(node, 1)), *bias]
    rows = (shape[0], weight[0])
    output = node.outputs[0]
    if len(shape) == 2:
        draft.add(node, "Gemm", inputs, rows, {"transB": 1}, output=output)
        return
    value = draft.add(node, "Gemm", inputs, rows, {"transB": 1})
    result = (*rows, *(1,) * (len(shape) - 2))
    draft.reshaped(node, value, result, part="reshape", output=output)


def gemm(draft: Draft, node: FileNode) -> None:
    """Gemm, with constant weights."""
    options = node.options
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    weight = draft.tensor(slot(node, 1)).shape
    if len(weight) != 2 or len(shape) != 2 or options["trans_a"]:
        raise Unsupported(f"it multiplies {list(shape)} by {list(weight)}")
    across = int(bool(options["trans_b"]))
    if weight[across] != shape[1]:
        raise Unsupported(f"it multiplies {list(shape)} by {list(weight)}")
    channels = weight[1 - across]
    bias = [draft.constant(slot(node, 2), (channels,))] if len(node.inputs) > 2 else []
    attributes = {"alpha": options["alpha"], "beta": options["beta"], "transB": across}
    inputs = [value, draft.constant(slot(node, 1)), *bias]
    result = (shape[0], channels)
    draft.add(node, "Gemm", inputs, result, attributes, output=node.outputs[0])


def batch_normalization(draft: Draft, node: FileNode) -> None:
    """BatchNormalization; Caffe's has no gamma and beta, and a factor on its statistics."""
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    if len(shape) not in (2, 3, 4):
        raise Unsupported(f"its input has the shape {list(shape)}")
    given = node.options["rescale_factor"]
    if given and not _SMALLEST <= abs(given) < np.inf:
        raise Unsupported(f"its factor is {given}")
    factor = np.float32(1 / given) if given else np.float32(0)
    arrays = [draft.numbers(slot(node, number)).reshape(-1) for number in (1, 2, 3, 4)]
    if any(array.size != shape[1] for array in arrays):
        raise Unsupported(f"its statistics are not those of {shape[1]} channels")
    gamma, beta, mean, variance = arrays
    if node.options["caffe_flavor"]:
        gamma, beta = np.ones_like(mean), np.zeros_like(mean)
    names = [draft.name(index) for index in node.inputs[1:5]]
    constants = [
        draft.initializer(draft.tensor_names.fresh(f"{name}/channels"), array)
        for name, array in zip(names, (gamma, beta, mean * factor, variance * factor), strict=True)
    ]
    attributes = {"epsilon": node.options["epsilon"]}
    output = node.outputs[0]
    inputs = [value, *constants]
    draft.add(node, "BatchNormalization", inputs, shape, attributes, output=output)


def scale(draft: Draft, node: FileNode) -> None:
    """Scale: a factor for each channel, and perhaps a summand."""
    value, shape = image(draft, node)
    along = (1, shape[1], 1, 1)
    for index in node.inputs[1:3]:
        if draft.tensor(index).size != shape[1]:
            raise Unsupported(f"{draft.tensor(index).size} factors for {shape[1]} channels")
    factors = draft.constant(slot(node, 1), along)
    if len(node.inputs) == 2:
        draft.add(node, "Mul", [value, factors], shape, output=node.outputs[0])
        return
    value = draft.add(node, "Mul", [value, factors], shape, part="mul")
    summands = draft.constant(slot(node, 2), along)
    draft.add(node, "Add", [value, summands], shape, output=node.outputs[0])


def _weighted(
    draft: Draft,
    node: FileNode,
    op_type: str,
    value: ir.Value,
    shape: Shape,
    attributes: dict[str, Attribute],
    channels: int,
) -> None:
    """Add a convolution and what is applied to its sums."""
    bias = [draft.constant(slot(node, 2), (channels,))] if len(node.inputs) > 2 else []
    inputs = [value, draft.constant(slot(node, 1)), *bias]
    activation = node.options["activation"]
    if activation < 0:
        draft.add(node, op_type, inputs, shape, attributes, output=node.outputs[0])
        return
    activated(draft, node, draft.add(node, op_type, inputs, shape, attributes), activation)


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


TABLE: Mapping[str, Read] = {
    "Convolution": convolution,
    "Deconvolution": deconvolution,
    "FullyConnected": fully_connected,
    "Gemm": gemm,
    "BatchNormalization": batch_normalization,
    "Scale": scale,
}
"""Read functions by operator."""
