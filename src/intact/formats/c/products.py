"""Writes convolutions, dense layers and matrix products as calls of C kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.c.layer import WRITERS, Layer, encoding_of, image_of, plane_of
from intact.formats.c.moves import broadcast_strides, grid
from intact.formats.c.requantization import Requantization, fixed_point, right_shift, zero_point
from intact.program import Array, Tensor
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import (
    RESIDUAL_SLOT,
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    TransposedConvolution,
)


@WRITERS.register(Convolution, TransposedConvolution)
def write_convolution(layer: Layer) -> None:
    """Write a convolution, depthwise or transposed or neither."""
    operation = layer.step.operation
    if not isinstance(operation, Convolution | TransposedConvolution):
        raise Unsupported("it is no convolution", "")
    # CMSIS-NN's kernels take no residual, and added later it would be rounded first.
    if layer.step.inputs[RESIDUAL_SLOT:]:
        raise Unsupported(
            "a tensor is added to its sums before they are rounded",
            "choose a target that adds by an operation of its own",
        )
    kind, data, weights = layer.requantization(), layer.input(0), _weights(layer)
    batches, input_height, input_width, channels = image_of(layer.shape(data))
    _, output_height, output_width, outputs = image_of(layer.shape(layer.output))
    _, kernel_height, kernel_width, _ = image_of(weights.shape)
    stride_height, stride_width = plane_of(operation.strides, 1)
    dilation_height, dilation_width = plane_of(operation.dilations, 1)
    pad_top, pad_left = plane_of([before for before, _ in operation.pads], 0)
    name, note = "convolution", "[output channels, kernel height, kernel width, channels]"
    if isinstance(operation, TransposedConvolution):
        name = "transposed_convolution"
    elif operation.groups == channels > 1:
        name, note = "depthwise_convolution", "[1, kernel height, kernel width, output channels]"
        # CMSIS-NN's depthwise kernel runs along channels, which lie last in data and weights.
        weights = np.moveaxis(weights.reshape(outputs, kernel_height, kernel_width), 0, -1)
    arrays, per_channel = _channel_arrays(layer, kind, full=True)
    params = layer.params(
        "convolution",
        {
            "batches": batches,
            "input_height": input_height,
            "input_width": input_width,
            "input_channels": channels,
            "output_height": output_height,
            "output_width": output_width,
            "output_channels": outputs,
            "kernel_height": kernel_height,
            "kernel_width": kernel_width,
            "stride_height": stride_height,
            "stride_width": stride_width,
            "dilation_height": dilation_height,
            "dilation_width": dilation_width,
            "pad_top": pad_top,
            "pad_left": pad_left,
            "groups": operation.groups,
            "per_channel": per_channel,
            **_codes(layer, operation.bounds),
        },
    )
    held = layer.array(weights.astype(np.int8), "_weights", f"weights {note}")
    layer.call(
        name, params, layer.pointer(data), held, *arrays, layer.pointer(layer.output), kind=kind
    )


@WRITERS.register(FullyConnected)
def write_fully_connected(layer: Layer) -> None:
    """Write a fully connected layer."""
    operation = layer.step.operation
    if not isinstance(operation, FullyConnected):
        raise Unsupported("it is no fully connected layer", "")
    kind, data, weights = layer.requantization(), layer.input(0), _weights(layer)
    outputs, depth = weights.shape
    arrays, per_channel = _channel_arrays(layer, kind, full=False)
    params = layer.params(
        "fully_connected",
        {
            # Whatever axes stand in front: a row is what is multiplied.
            "rows": layer.size(data) // depth,
            "depth": depth,
            "output_channels": outputs,
            "per_channel": per_channel,
            **_codes(layer, operation.bounds),
        },
    )
    held = layer.array(weights.astype(np.int8), "_weights", "weights [output channels, depth]")
    layer.call(
        "fully_connected",
        params,
        layer.pointer(data),
        held,
        *arrays,
        layer.pointer(layer.output),
        kind=kind,
    )


@WRITERS.register(BatchMatMul)
def write_batch_matmul(layer: Layer) -> None:
    """Write a product of two activations."""
    operation = layer.step.operation
    if not isinstance(operation, BatchMatMul):
        raise Unsupported("it is no product of activations", "")
    kind, arithmetic = layer.requantization(), layer.step.arithmetic
    first, second, output = layer.input(0), layer.input(1), layer.output
    (*a_lead, rows, depth), (*b_lead, _, columns) = layer.shape(first), layer.shape(second)
    lead = np.broadcast_shapes(tuple(a_lead), tuple(b_lead))
    blocks = (rows * depth, depth * columns)
    strides = [
        tuple(stride * block for stride in broadcast_strides(each, lead))
        for each, block in zip((a_lead, b_lead), blocks, strict=True)
    ]
    # An axis of 1 behind, because a grid keeps its last axis apart and there may be no other.
    cells = grid((*lead, 1), [(*each, 1) for each in strides])
    encodings = encoding_of(first), encoding_of(second)
    real = real_multiplier(arithmetic, [each.scale for each in encodings], encoding_of(output))
    low, high = code_bounds(arithmetic, encoding_of(output), operation.bounds)
    params = layer.params(
        "batch_matmul",
        {
            "products": cells.rows * cells.length,
            "axes": len(cells.lengths) + 1,
            "lengths": (*cells.lengths, cells.length),
            "first_strides": (*cells.strides[0], cells.steps[0]),
            "second_strides": (*cells.strides[1], cells.steps[1]),
            "rows": rows,
            "depth": depth,
            "columns": columns,
            "first_offset": -zero_point(encodings[0]),
            "second_offset": -zero_point(encodings[1]),
            "output_offset": zero_point(encoding_of(output)),
            **output_scale(layer, kind, real),
            "activation_min": low,
            "activation_max": high,
        },
    )
    pointers = [layer.pointer(each) for each in (first, second, output)]
    layer.call("batch_matmul", params, *pointers, kind=kind)


def output_scale(layer: Layer, kind: Requantization, real: npt.ArrayLike) -> dict[str, int]:
    """Return the fields that bring one number to the output's scale."""
    if kind.shifts:
        return {"output_shift": int(right_shift(real).flat[0])}
    multiplier, shift = fixed_point(layer.step.arithmetic, real)
    return {
        "output_multiplier": int(multiplier.flat[0]),
        "output_shift": int(shift.flat[0]),
    }


def _weights(layer: Layer) -> Array:
    tensor = layer.input(1)
    if tensor.data is None or tensor.encoding is None:
        raise Unsupported(
            "its weights are computed", "keep the node float, or fold what makes them"
        )
    # A zero point of weights would cost a sum over the data for every result.
    if tensor.encoding.dtype != np.int8 or np.any(tensor.encoding.zero_point):
        raise Unsupported(
            f"the weights are {tensor.encoding.dtype} with a zero point",
            "use a target with symmetric int8 weights",
        )
    outputs, axis = len(tensor.data), tensor.encoding.axis
    if tensor.encoding.scale.size not in (1, outputs) or axis not in (0, None):
        raise Unsupported(f"the weights have scales along axis {axis}", "use one an output channel")
    return tensor.data


def _channel_arrays(layer: Layer, kind: Requantization, *, full: bool) -> tuple[list[str], int]:
    """Return bias and scales as arguments, and whether there is one scale for each channel."""
    data, weight, bias = layer.input(0), layer.input(1), layer.optional(2)
    scales = [encoding_of(data).scale, _scale(weight)]
    real = real_multiplier(layer.step.arithmetic, scales, encoding_of(layer.output))
    outputs = layer.shape(weight)[0]
    arguments = ["NULL" if bias is None else _bias(layer, bias)]
    if kind.shifts:
        shift = right_shift(real)
        channels = np.shape(shift) or (1,)
        bias_shift = np.broadcast_to(_bias_shift(layer, bias), channels).astype(np.int32)
        arguments.append(layer.array(bias_shift, "_bias_shift", "shifts of the bias to the left"))
        shifts = np.broadcast_to(shift, channels)
        arguments.append(layer.array(shifts, "_output_shift", "shifts of sums to the right"))
        return arguments, int(channels[0] > 1)
    multiplier, shift = fixed_point(layer.step.arithmetic, real)
    # Convolutions have one for each channel even where all are equal, as CMSIS-NN reads them.
    channels = (outputs,) if full or real.size > 1 else (1,)
    for values, suffix, note in (
        (multiplier, "_multiplier", "multipliers, Q31"),
        (shift, "_shift", "shifts, positive is left"),
    ):
        arguments.append(layer.array(np.broadcast_to(values, channels), suffix, note))
    return arguments, int(channels[0] > 1)


def _scale(weight: Tensor) -> Array:
    if weight.encoding is None:
        raise Unsupported("its weights are float", "quantize them")
    return weight.encoding.scale


def _bias(layer: Layer, bias: Tensor) -> str:
    if bias.data is None or bias.encoding is None:
        raise Unsupported("its bias is computed or float", "quantize it, or add it by a node")
    return layer.array(bias.data.astype(np.int32), "_bias", "bias")


def _bias_shift(layer: Layer, bias: Tensor | None) -> Array:
    """Return by how much the bias goes to the left, to the scale of the sums."""
    if bias is None or bias.encoding is None:
        return np.zeros((), np.int32)
    product = np.asarray(
        encoding_of(layer.input(0)).scale.astype(np.float64)
        * _scale(layer.input(1)).astype(np.float64)
    )
    shift = -right_shift(bias.encoding.scale.astype(np.float64) / product)
    # C leaves shifts undefined by less than 0 or more than 31.
    if np.any(shift < 0) or np.any(shift > 31):
        raise Unsupported("its bias is finer than the sums", "give the bias their scale")
    return shift


def _codes(layer: Layer, bounds: Bounds) -> dict[str, int]:
    output = encoding_of(layer.output)
    low, high = code_bounds(layer.step.arithmetic, output, bounds)
    return {
        "input_offset": -zero_point(encoding_of(layer.input(0))),
        "output_offset": zero_point(output),
        "activation_min": low,
        "activation_max": high,
    }
