"""Reads TFLite's layers with weights, and its product of two activations."""

from __future__ import annotations

import numpy as np

from intact.errors import Unsupported
from intact.formats.base.foreign import refuse_mixed_batch, slot
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.common import (
    READERS,
    add_activation,
    finish,
    optional_slot,
    positive_options,
    require_rank,
    require_shape,
    restore_clamp,
    window_pads,
)
from intact.formats.tflite.reader.file import Operator, Parameters, parameters_of
from intact.formats.tflite.reader.schema import Element, Fused, Padding
from intact.formats.tflite.reader.tensors import ChannelLayout, Operand
from intact.graph.builder import Attribute
from intact.ops.operators import Conv, ConvTranspose, Gemm, MatMul, Transpose

_WINDOW = ("stride_h", "stride_w")
_AXES = ("d", "h", "w")
"""How options call three spatial axes; two are the last of them."""
_WIDE = 48
"""Bits of the sums that LiteRT's int16 kernels are made for, whose biases are int64."""


@READERS.register("CONV_2D")
def convolution(builder: ModelBuilder, op: Operator) -> None:
    """Read CONV_2D, grouped where the weight has fewer channels than the data."""
    data, weight = builder.tensor(slot(op.inputs, 0)), builder.tensor(slot(op.inputs, 1))
    require_rank(data, 4)
    require_rank(weight, 4)
    channels, group = data.shape[3], weight.shape[3]
    # The file does not say how many groups there are.
    groups = channels // group
    if channels % group or weight.shape[0] % groups:
        raise Unsupported(f"its weight {list(weight.shape)} does not fit {channels} channels")
    _window(builder, op, _weight(builder, slot(op.inputs, 1), (0, 3, 1, 2), 0), groups)


@READERS.register("CONV_3D")
def volume(builder: ModelBuilder, op: Operator) -> None:
    """Read CONV_3D, which LiteRT computes in float, with a weight ``[*K, in, out]``."""
    data, weight = builder.tensor(slot(op.inputs, 0)), builder.tensor(slot(op.inputs, 1))
    require_rank(data, 5)
    require_rank(weight, 5)
    if builder.parameters(data.index) is not None or weight.shape[3] != data.shape[4]:
        raise Unsupported(f"it is of codes, or its weight fits no {data.shape[4]} channels")
    _window(builder, op, _weight(builder, slot(op.inputs, 1), (4, 3, 0, 1, 2), 0), 1)


@READERS.register("DEPTHWISE_CONV_2D")
def depthwise(builder: ModelBuilder, op: Operator) -> None:
    """Read DEPTHWISE_CONV_2D: a convolution with a group for each channel."""
    data, weight = builder.tensor(slot(op.inputs, 0)), builder.tensor(slot(op.inputs, 1))
    require_rank(data, 4)
    require_rank(weight, 4)
    channels = data.shape[3]
    if weight.shape[0] != 1 or weight.shape[3] % channels:
        raise Unsupported(f"its weight {list(weight.shape)} does not fit {channels} channels")
    _window(builder, op, _weight(builder, slot(op.inputs, 1), (3, 0, 1, 2), 0), channels)


def _window(builder: ModelBuilder, op: Operator, weight: Operand, groups: int) -> None:
    data, output = builder.tensor(slot(op.inputs, 0)), builder.tensor(op.outputs[0])
    kernel, channels = weight.shape[2:], weight.shape[0]
    axes = _AXES[-len(kernel) :]
    strides, dilations = (
        positive_options(op, *(f"{name}_{axis}" for axis in axes))
        for name in ("stride", "dilation")
    )
    require_rank(output, len(kernel) + 2)
    sizes = output.shape[1:-1]
    pads = window_pads(op, data.shape[1:-1], kernel, strides, dilations, sizes)
    require_shape(builder, op.outputs[0], (data.shape[0], *sizes, channels))
    source = builder.operand(slot(op.inputs, 0), ChannelLayout.FIRST)
    bias = _bias(builder, op, optional_slot(op, 2), source, weight, channels)
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "group": groups,
    }
    finish(builder, op, builder.node(Conv, [source, weight, bias], attributes), ChannelLayout.FIRST)


@READERS.register("TRANSPOSE_CONV")
def transposed_convolution(builder: ModelBuilder, op: Operator) -> None:
    """Read TRANSPOSE_CONV: output shape, weight ``[out, h, w, in]``, data, bias."""
    weight_index, data_index = slot(op.inputs, 1), slot(op.inputs, 2)
    data, output = builder.tensor(data_index), builder.tensor(op.outputs[0])
    require_rank(data, 4)
    require_rank(output, 4)
    require_rank(builder.tensor(weight_index), 4)
    weight = _weight(builder, weight_index, (3, 0, 1, 2), 1)
    strides, kernel = positive_options(op, *_WINDOW), weight.shape[2:]
    if weight.shape[0] != data.shape[3]:
        raise Unsupported(f"its weight does not fit {data.shape[3]} channels")
    before, after, more = [], [], []
    for axis, (stride, width) in enumerate(zip(strides, kernel, strict=True)):
        size, wanted = data.shape[1 + axis], output.shape[1 + axis]
        cut, rest = _cut(op, size, wanted, stride, width)
        before.append(cut)
        after.append(max(rest, 0))
        more.append(max(-rest, 0))
        # ONNX takes no output_padding of a whole stride.
        if not 0 <= more[-1] < stride:
            raise Unsupported(f"its output of {wanted} elements does not come of {size}")
    require_shape(builder, op.outputs[0], (data.shape[0], *output.shape[1:3], weight.shape[1]))
    source = builder.operand(data_index, ChannelLayout.FIRST)
    bias = _bias(builder, op, optional_slot(op, 3), source, weight, weight.shape[1])
    attributes = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": (*before, *after),
        "output_padding": tuple(more),
    }
    value = builder.node(ConvTranspose, [source, weight, bias], attributes)
    finish(builder, op, value, ChannelLayout.FIRST)


def _cut(op: Operator, size: int, wanted: int, stride: int, width: int) -> tuple[int, int]:
    """Return how much is cut off the full result before and behind; less than 0 is added.

    The pads are those of the convolution that leads from the output back to the data.
    """
    total = 0
    if op.options["padding"] == Padding.SAME:
        total = max((-(-wanted // stride) - 1) * stride + width - wanted, 0)
    full = (size - 1) * stride + width
    return total // 2, full - total // 2 - wanted


@READERS.register("FULLY_CONNECTED")
def fully_connected(builder: ModelBuilder, op: Operator) -> None:
    """Read FULLY_CONNECTED: the data is a matrix of rows as wide as the weight's."""
    data, weight_tensor = builder.tensor(slot(op.inputs, 0)), builder.tensor(slot(op.inputs, 1))
    require_rank(weight_tensor, 2)
    if op.options["weights_format"]:
        raise Unsupported("its weight is shuffled")
    weight = _weight(builder, slot(op.inputs, 1), (0, 1), 0)
    outputs, width = weight.shape
    rows = data.size // width
    if data.size % width:
        raise Unsupported(f"its weight {[outputs, width]} does not fit data {list(data.shape)}")
    output = builder.tensor(op.outputs[0])
    if output.size != rows * outputs:
        require_shape(builder, op.outputs[0], (rows, outputs))
    # Rows are elements in the order of the file, however many axes it has.
    source = builder.in_file_order(slot(op.inputs, 0))
    if source.shape != (rows, width):
        source = builder.reshaped(source, (rows, width))
    bias = _bias(builder, op, optional_slot(op, 2), source, weight, outputs)
    value = builder.node(Gemm, [source, weight, bias], {"transB": 1})
    if output.shape == (rows, outputs):
        finish(builder, op, value)
        return
    activation = int(op.options["fused"])
    value = add_activation(builder, value, activation)
    value = restore_clamp(builder, op, value) if activation == Fused.NONE else value
    parameters = builder.parameters(op.outputs[0])
    if parameters is not None:
        # The rows are codes already: the reshape behind only moves them.
        builder.writes[value] = parameters
    result = Operand(value, (rows, outputs), parameters)
    builder.write(op.outputs[0], builder.reshaped(result, output.shape).value)


@READERS.register("BATCH_MATMUL")
def batch_matmul(builder: ModelBuilder, op: Operator) -> None:
    """Read BATCH_MATMUL, with either factor transposed."""
    left, right = (_factor(builder, op, number) for number in (0, 1))
    ranks = {builder.tensor(slot(op.inputs, number)).rank for number in (0, 1)}
    refuse_mixed_batch(builder, len(ranks) > 1 or min(ranks) < 3)
    if left.shape[-1] != right.shape[-2]:
        raise Unsupported(f"factors {list(left.shape)} and {list(right.shape)} do not fit")
    builder.write(op.outputs[0], builder.node(MatMul, [left, right]))


def _factor(builder: ModelBuilder, op: Operator, number: int) -> Operand:
    index, is_adjoint = slot(op.inputs, number), bool(op.options[("adj_x", "adj_y")[number]])
    tensor = builder.tensor(index)
    if tensor.rank < 2:
        raise Unsupported("a factor is a vector")
    order = (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2)
    if builder.is_constant(index):
        parameters = builder.parameters(index)
        if parameters is not None and parameters.axis is not None:
            raise Unsupported("a factor has one scale a channel")
        # With three dimensions it is not taken for the weight of a dense layer.
        other = builder.tensor(slot(op.inputs, 1 - number)).rank
        ahead = (1,) * (3 - tensor.rank) if other > 2 else ()
        return builder.rearranged(
            index,
            ("factor", is_adjoint, ahead),
            lambda array: (array.transpose(order) if is_adjoint else array).reshape(
                (*ahead, *(_swapped(array.shape) if is_adjoint else array.shape))
            ),
            parameters,
        )
    operand = builder.operand(index)
    if not is_adjoint:
        return operand
    return builder.moved(Transpose, [operand], {"perm": order}, _swapped(operand.shape))


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _weight(builder: ModelBuilder, index: int, order: tuple[int, ...], channels: int) -> Operand:
    """Return a constant weight with its axes in another order.

    Raises:
        Unsupported: It is computed, or its scales lie along another axis than ``channels`` then.
    """
    tensor = builder.tensor(index)
    if not builder.is_constant(index):
        raise Unsupported("its weight is computed")
    parameters = parameters_of(tensor)
    if parameters is None and tensor.element not in (Element.FLOAT32, Element.FLOAT16):
        raise Unsupported("its weight has integers without a scale")
    if parameters is not None:
        if parameters.bits > 8:
            raise Unsupported(f"its weight is {tensor.element.name.lower()}")
        if parameters.axis is not None:
            parameters = parameters.along(order.index(parameters.axis))
            if parameters.axis != channels:
                raise Unsupported("the scales of its weight do not lie along its output channels")
    return builder.rearranged(
        index, ("weight", order), lambda array: array.transpose(order), parameters
    )


def _bias(
    builder: ModelBuilder, op: Operator, index: int, data: Operand, weight: Operand, channels: int
) -> Operand | None:
    """Return the bias in units of the accumulator, as the kernels add it whatever its scale says.

    Raises:
        Unsupported: It is computed, of another length or of another type.
    """
    if index < 0:
        return None
    tensor = builder.tensor(index)
    if not builder.is_constant(index) or tensor.size != channels:
        raise Unsupported("its bias is not one stored number an output channel")
    wanted = Element.FLOAT32 if data.parameters is None else Element.INT32
    if data.parameters is not None and data.parameters.bits > 8:
        wanted = Element.INT64  # with int32 the kernels compute otherwise
    if tensor.element is not wanted:
        raise Unsupported(f"its bias is {tensor.element.name.lower()}")
    parameters = None
    if data.parameters is not None and weight.parameters is not None:
        # Kernels multiply the scales, which are float32 in the file, in float64.
        product = np.float64(data.parameters.scale) * weight.parameters.scale.astype(np.float64)
        with np.errstate(under="ignore", over="ignore"):
            scale = product.astype(np.float32)
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise Unsupported("the product of the scales of its data and weight is no float32")
        axis = None if scale.ndim == 0 else 0
        bits = _WIDE if tensor.element is Element.INT64 else 32
        parameters = Parameters(scale, np.zeros(scale.shape, np.int64), bits, True, axis)
        # Halved first, because the lowest int64 has no magnitude.
        if bits == _WIDE and np.abs(builder.array(index) // 2).max() >= parameters.high // 2:
            raise Unsupported(f"its bias leaves the {bits} bits of the kernels' sums")
    return builder.rearranged(
        index, ("bias", op.index), lambda array: array.reshape(channels), parameters
    )
