"""Reads and writes the layers with weights of a ``.tmfile``: convolutions, dense layers, Scale.

For each there is first the reader, which adds nodes to a float ONNX graph, then the writer, which
adds one node to the file. BatchNormalization, which is one of these once folded, is here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import Shape, slot
from intact.formats.tengine.tmfile.file import Element, FileNode, FileTensor
from intact.formats.tengine.tmfile.file_builder import WRITERS, Operand, TmFileBuilder
from intact.formats.tengine.tmfile.onnx_builder import READERS, OnnxBuilder, image
from intact.formats.tengine.tmfile.operators import (
    Activation,
)
from intact.formats.tengine.tmfile.pointwise import ACTIVATIONS, add_activation
from intact.graph.builder import Attribute
from intact.program import Step
from intact.program.float_operations import BatchNormalization
from intact.program.operations import (
    RESIDUAL_SLOT,
    BatchMatMul,
    Convolution,
    FullyConnected,
    Pads,
    TransposedConvolution,
)

_SAME_UPPER, _SAME_LOWER = -1, -2
"""Paddings that keep the size, the odd one at the end or at the start."""
_SIDES = ("left", "right")
_SMALLEST = float(np.finfo(np.float32).tiny)
PADS = ("pad_top", "pad_left", "pad_bottom", "pad_right")


@READERS.register("Convolution")
def _read_convolution(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Convolution, with what it applies to its sums."""
    options = node.options
    value, shape = image(builder, node)
    weight = builder.tensor(slot(node.inputs, 1)).shape
    kernel = (options["kernel_h"], options["kernel_w"])
    # Options and weight say the same twice, and a damaged file says two things.
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
        lengths.append(room // positive(options, f"stride_{axis}") + 1)
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
    _add_weighted(builder, node, "Conv", value, result, attributes, weight[0])


@WRITERS.register(Convolution)
def _write_convolution(operation: Convolution, step: Step, builder: TmFileBuilder) -> None:
    """Write a convolution of images; bounds become its own activation where it has such a one."""
    builder.image_shape(step)
    if step.inputs[RESIDUAL_SLOT:]:
        raise Unsupported("a tensor is added to its sums")
    weight = builder.constant(step, 1)
    array = weight.in_model
    channels, *_ = array.shape
    # By the operator too, so that what is read back has the model's own.
    clamp = (builder.last_operator(step), operation.bounds)
    activation = next((theirs for theirs, each in ACTIVATIONS.items() if each == clamp), None)
    options = {
        **_window(array.shape[2:], operation),
        "input_channel": array.shape[1] * operation.groups,
        "output_channel": channels,
        "activation": Activation.NONE if activation is None else activation,
    }
    inputs: list[Operand] = [
        builder.value(step),
        builder.store(weight, array, by_channel=True),
        *_bias(step, builder),
    ]
    builder.add(step, "Convolution", inputs, options, clamps=activation is None)


@READERS.register("Deconvolution")
def _read_deconvolution(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Deconvolution; weights lie as ONNX has them, input channels first."""
    options = node.options
    value, shape = image(builder, node)
    weight = builder.tensor(slot(node.inputs, 1)).shape
    kernel = (options["kernel_h"], options["kernel_w"])
    group, channels = options["group"], options["output_channel"]
    fits = len(weight) == 4 and weight[2:] == kernel and weight[0] == shape[1]
    if not fits or group < 1 or weight[0] % group or weight[1] * group != channels:
        raise Unsupported(f"its weight {list(weight)} in {group} groups does not fit {list(shape)}")
    pads = [[options[f"pad_{end}"] for end in ends] for ends in (("top", "bottom"), _SIDES)]
    more = [options["output_pad_h"], options["output_pad_w"]]
    strides = [positive(options, f"stride_{axis}") for axis in "hw"]
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
    _add_weighted(builder, node, "ConvTranspose", value, result, attributes, channels)


@WRITERS.register(TransposedConvolution)
def _write_transposed_convolution(
    operation: TransposedConvolution, step: Step, builder: TmFileBuilder
) -> None:
    """Write a transposed convolution of images, in float."""
    builder.refuse_elements(Element.INT8, Element.UINT8)
    builder.image_shape(step)
    if 1 in operation.strides:
        raise Unsupported("it has a stride of 1, where versions of Tengine differ in the size")
    # Height and width are mixed up in its kernel, which shows only where they differ.
    if len({*operation.dilations}) > 1:
        raise Unsupported("its dilations differ, which Tengine's kernel exchanges")
    weight = builder.constant(step, 1)
    channels, *kernel, _ = weight.data.shape
    options = {
        **_window(kernel, operation),
        "output_channel": channels,
        "activation": Activation.NONE,
        "output_pad_h": operation.output_padding[0],
        "output_pad_w": operation.output_padding[1],
    }
    array = _inputs_first(weight.data, operation.groups)
    inputs: list[Operand] = [
        builder.value(step),
        # In float alone, hence without scales by channel.
        builder.store(weight, array),
        *_bias(step, builder),
    ]
    builder.add(step, "Deconvolution", inputs, options)


def _inputs_first(weight: np.ndarray, groups: int) -> np.ndarray:
    """Return ``[O, *K, C / groups]`` as ``[C, O / groups, *K]``."""
    outputs, *kernel, inputs = weight.shape
    apart = weight.reshape(groups, outputs // groups, *kernel, inputs)
    last = apart.ndim - 1
    return apart.transpose(0, last, 1, *range(2, last)).reshape(
        groups * inputs, outputs // groups, *kernel
    )


def _window(
    kernel: Sequence[int], operation: Convolution | TransposedConvolution
) -> dict[str, Any]:
    return {
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "stride_h": operation.strides[0],
        "stride_w": operation.strides[1],
        "dilation_h": operation.dilations[0],
        "dilation_w": operation.dilations[1],
        "group": operation.groups,
        **dict(zip(PADS, flat(operation.pads), strict=True)),
    }


def flat(pads: Pads) -> Shape:
    """Return paddings in the order of `PADS`: above, left, below and right."""
    return (*(before for before, _ in pads), *(after for _, after in pads))


def _bias(step: Step, builder: TmFileBuilder) -> Iterator[FileTensor]:
    if step.inputs[2] is not None:
        bias = builder.constant(step, 2)
        yield builder.store(bias, bias.data, by_channel=True)


@READERS.register("FullyConnected")
def _read_fully_connected(builder: OnnxBuilder, node: FileNode) -> None:
    """Read FullyConnected: images are taken as rows, and results have the rank of the input."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    weight = builder.tensor(slot(node.inputs, 1)).shape
    rows = (shape[0], math.prod(shape[1:]))
    if len(weight) != 2 or not 2 <= len(shape) <= 4 or weight[0] != node.options["output_channel"]:
        raise Unsupported(f"its weight has the shape {list(weight)}, its input {list(shape)}")
    if weight[1] != rows[1]:
        raise Unsupported(f"{weight[1]} weights a row do not fit {list(shape)}")
    # Its kernel reads rows as they lie in memory, whatever the axes are.
    if len(shape) > 2:
        value = builder.compute(node, "Flatten", [value], rows, {"axis": 1}, part="flatten")
    bias = [builder.store(slot(node.inputs, 2), (weight[0],))] if len(node.inputs) > 2 else []
    inputs = [value, builder.store(slot(node.inputs, 1)), *bias]
    rows = (shape[0], weight[0])
    output = node.outputs[0]
    if len(shape) == 2:
        builder.compute(node, "Gemm", inputs, rows, {"transB": 1}, output=output)
        return
    value = builder.compute(node, "Gemm", inputs, rows, {"transB": 1})
    result = (*rows, *(1,) * (len(shape) - 2))
    builder.reshape(node, value, result, part="reshape", output=output)


@WRITERS.register(FullyConnected)
def _write_fully_connected(_: FullyConnected, step: Step, builder: TmFileBuilder) -> None:
    """Write a dense layer, whose input is a matrix."""
    rank = len(builder.shape(builder.value(step)))
    weight = builder.constant(step, 1)
    if rank != 2:
        raise Unsupported(f"it multiplies {rank} dimensions by {weight.data.ndim}")
    channels = len(weight.data)
    if channels == 1 and builder.scales.element is Element.INT8:
        # A single scale is loaded as that of the tensor; the kernel reads a list, which is NULL.
        raise Unsupported("it has one output, with which Tengine's int8 kernel crashes")
    inputs: list[Operand] = [
        builder.value(step),
        builder.store(weight, weight.data, by_channel=True),
        *_bias(step, builder),
    ]
    builder.add(step, "FullyConnected", inputs, {"output_channel": channels})


@READERS.register("Gemm")
def _read_gemm(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Gemm, with constant weights."""
    options = node.options
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    weight = builder.tensor(slot(node.inputs, 1)).shape
    if len(weight) != 2 or len(shape) != 2 or options["trans_a"]:
        raise Unsupported(f"it multiplies {list(shape)} by {list(weight)}")
    across = int(bool(options["trans_b"]))
    if weight[across] != shape[1]:
        raise Unsupported(f"it multiplies {list(shape)} by {list(weight)}")
    channels = weight[1 - across]
    bias = [builder.store(slot(node.inputs, 2), (channels,))] if len(node.inputs) > 2 else []
    attributes = {"alpha": options["alpha"], "beta": options["beta"], "transB": across}
    inputs = [value, builder.store(slot(node.inputs, 1)), *bias]
    result = (shape[0], channels)
    builder.compute(node, "Gemm", inputs, result, attributes, output=node.outputs[0])


@READERS.register("BatchNormalization")
def _read_batch_normalization(builder: OnnxBuilder, node: FileNode) -> None:
    """Read BatchNormalization; Caffe's has no gamma and beta, and a factor on its statistics."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    if len(shape) not in (2, 3, 4):
        raise Unsupported(f"its input has the shape {list(shape)}")
    given = node.options["rescale_factor"]
    # Statistics are multiplied by its reciprocal, which has to be a float32.
    if given and not _SMALLEST <= abs(given) < np.inf:
        raise Unsupported(f"its factor is {given}")
    # As in Caffe, where a factor of 0 says that no statistics were gathered.
    factor = np.float32(1 / given) if given else np.float32(0)
    arrays = [builder.numbers(slot(node.inputs, number)).reshape(-1) for number in (1, 2, 3, 4)]
    if any(array.size != shape[1] for array in arrays):
        raise Unsupported(f"its statistics are not those of {shape[1]} channels")
    gamma, beta, mean, variance = arrays
    # The file has tensors for gamma and beta all the same, which mean nothing.
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


@WRITERS.register(BatchNormalization)
def _write_batch_normalization(
    operation: BatchNormalization, step: Step, builder: TmFileBuilder
) -> None:
    """Write a normalization that was not folded into a convolution, in float."""
    builder.refuse_elements(Element.INT8, Element.UINT8)
    rank = len(builder.shape(builder.value(step)))
    if rank not in (3, 4):
        raise Unsupported(f"its input has {rank} dimensions; Tengine's has 3 or 4")
    constants = [builder.constant(step, slot) for slot in (1, 2, 3, 4)]
    inputs: list[Operand] = [builder.value(step)]
    inputs += [builder.store(constant, constant.data) for constant in constants]
    options = {"rescale_factor": 1.0, "epsilon": operation.epsilon, "caffe_flavor": 0}
    builder.add(step, "BatchNormalization", inputs, options)


@READERS.register("Scale")
def _read_scale(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Scale: a factor for each channel, and perhaps a summand."""
    value, shape = image(builder, node)
    along = (1, shape[1], 1, 1)
    for index in node.inputs[1:3]:
        if builder.tensor(index).size != shape[1]:
            raise Unsupported(f"{builder.tensor(index).size} factors for {shape[1]} channels")
    factors = builder.store(slot(node.inputs, 1), along)
    if len(node.inputs) == 2:
        builder.compute(node, "Mul", [value, factors], shape, output=node.outputs[0])
        return
    value = builder.compute(node, "Mul", [value, factors], shape, part="mul")
    summands = builder.store(slot(node.inputs, 2), along)
    builder.compute(node, "Add", [value, summands], shape, output=node.outputs[0])


def _add_weighted(
    builder: OnnxBuilder,
    node: FileNode,
    op_type: str,
    value: ir.Value,
    shape: Shape,
    attributes: dict[str, Attribute],
    channels: int,
) -> None:
    """Add a convolution to the ONNX graph, and its fused activation behind it."""
    bias = [builder.store(slot(node.inputs, 2), (channels,))] if len(node.inputs) > 2 else []
    inputs = [value, builder.store(slot(node.inputs, 1)), *bias]
    activation = node.options["activation"]
    if activation < 0:
        builder.compute(node, op_type, inputs, shape, attributes, output=node.outputs[0])
        return
    add_activation(
        builder, node, builder.compute(node, op_type, inputs, shape, attributes), activation
    )


def _padding(options: Mapping[str, int], axis: str, length: int) -> tuple[int, int]:
    """Return the padding at both ends of an axis."""
    ends = ("top", "bottom") if axis == "h" else _SIDES
    first, last = (options[f"pad_{end}"] for end in ends)
    if first >= 0 and last >= 0:
        return first, last
    stride, kernel = positive(options, f"stride_{axis}"), options[f"kernel_{axis}"]
    total = (length - 1) // stride * stride + kernel - length
    if first not in (_SAME_UPPER, _SAME_LOWER) or total < 0:
        raise Unsupported(f"its paddings are {first} and {last}")
    # How far a dilated window reaches is not in Tengine's formula for padding that keeps the size.
    if options[f"dilation_{axis}"] != 1:
        raise Unsupported("it keeps the size with dilated kernels")
    half = total // 2
    return (half, total - half) if first == _SAME_UPPER else (total - half, half)


def positive(options: Mapping[str, int], name: str) -> int:
    """Return an option that is a length, at least 1."""
    if options[name] < 1:
        raise Unsupported(f"its {name} is {options[name]}")
    return options[name]


def _span(options: Mapping[str, int], axis: str, kernel: int) -> int:
    """Return how far a kernel reaches along an axis."""
    return positive(options, f"dilation_{axis}") * (kernel - 1) + 1


@WRITERS.register(BatchMatMul)
def _write_matmul(_: BatchMatMul, _step: Step, _builder: TmFileBuilder) -> None:
    raise Unsupported("input 1 is no constant matrix")
