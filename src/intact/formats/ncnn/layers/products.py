"""Convolutions, dense layers and products of activations.

In the ``.bin`` a layer with weights has a tag of these, the weights as int8 codes or floats, the
bias, and where the weights are codes the reciprocals of their scales (one an output channel) and of
the input's scale.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.ncnn.builder import (
    WRITERS,
    Layer,
    NcnnBuilder,
    floats,
    input_of,
    name_of,
)
from intact.formats.ncnn.layers.elementwise import finite
from intact.formats.ncnn.model import (
    LARGEST_CODE,
    WINOGRAD_LIMIT,
    Parameter,
    WrittenProduct,
    rank_of,
    sample,
)
from intact.formats.ncnn.table import TableEntry
from intact.program import Array, Step, Tensor
from intact.program.operations import (
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    Lookup,
    TransposedConvolution,
)
from intact.program.passes.whole_inputs import is_whole

_INT8_TAG, _FLOAT_TAG = 0x000D4B38, 0
_BIAS_TERM, _INT8_SCALE_TERM = 5, 8
_ACTIVATION_TYPE, _ACTIVATION_PARAMS = 9, 10
_RELU, _CLIP = 1, 3


@WRITERS.register(Convolution)
def _convolution(operation: Convolution, step: Step, builder: NcnnBuilder) -> None:
    """Write ``Convolution``, or ``ConvolutionDepthWise`` where it has groups."""
    weight = np.moveaxis(_weight(step), -1, 1)
    if weight.ndim != 4:
        raise Unsupported("only convolutions of images are written")
    outputs, groups, is_int8 = len(weight), operation.groups, _is_int8(step)
    if is_int8 and 1 < groups != outputs:
        raise Unsupported(
            "ncnn has one scale for each group, and here a group has several output channels"
        )
    parameters: dict[int, Parameter] = {0: outputs, **_window(operation, weight)}
    parameters |= {_BIAS_TERM: _has_bias(step), 6: weight.size}
    if groups > 1:
        parameters[7] = groups
    if is_int8:
        parameters[_INT8_SCALE_TERM] = 2 if groups == 1 else 1
    parameters |= _activation(operation.bounds)
    data = _data(step, weight, outputs)
    kind = "Convolution" if groups == 1 else "ConvolutionDepthWise"
    layer = builder.unary(kind, step, dict(sorted(parameters.items())), data)
    _record(builder, step, layer, operation.bounds)
    if is_int8 and groups == 1 and _is_for_winograd(operation, weight):
        sums = np.abs(weight.astype(np.int64)).reshape(outputs, -1).sum(axis=1)
        if int(sums.max(initial=0)) * LARGEST_CODE > WINOGRAD_LIMIT:
            builder.wide.append(name_of(step))


def _is_for_winograd(operation: Convolution, weight: Array) -> bool:
    ones = (1, 1)
    return weight.shape[2:] == (3, 3) and operation.strides == operation.dilations == ones


@WRITERS.register(TransposedConvolution)
def _transposed(operation: TransposedConvolution, step: Step, builder: NcnnBuilder) -> None:
    """Write ``Deconvolution``, or ``DeconvolutionDepthWise``; in float only."""
    weight = np.moveaxis(_weight(step), -1, 1)
    if weight.ndim != 4 or _is_int8(step):
        raise Unsupported("ncnn has no int8 layer for it, and only images are written")
    outputs, groups = len(weight), operation.groups
    more = operation.output_padding
    parameters: dict[int, Parameter] = {0: outputs, **_window(operation, weight)}
    parameters |= {18: more[1], 19: more[0], _BIAS_TERM: _has_bias(step), 6: weight.size}
    if groups > 1:
        parameters[7] = groups
    parameters |= _activation(operation.bounds)
    data = _data(step, weight, outputs)
    kind = "Deconvolution" if groups == 1 else "DeconvolutionDepthWise"
    layer = builder.unary(kind, step, dict(sorted(parameters.items())), data)
    _record(builder, step, layer, operation.bounds)


@WRITERS.register(FullyConnected)
def _dense(operation: FullyConnected, step: Step, builder: NcnnBuilder) -> None:
    """Write ``InnerProduct``."""
    weight, source, result = _weight(step), input_of(step), step.outputs[0]
    rank, outputs = rank_of(source), len(weight)
    if rank not in (2, 3):
        raise Unsupported("only vectors, or rows of them, by a matrix are written")
    parameters: dict[int, Parameter] = {0: outputs, 1: _has_bias(step), 2: weight.size}
    if _is_int8(step):
        parameters[_INT8_SCALE_TERM] = 2
    parameters |= _activation(operation.bounds)
    data = _data(step, weight, outputs)
    bottom, top = builder.read(step), builder.blob(result)
    if rank == 3 and sample(source)[0] == 1:  # one row would come out as a vector
        inner = builder.inner(result)
        layer = builder.emit("InnerProduct", name_of(step), [bottom], [inner], parameters, data)
        builder.reshape(f"{name_of(step)}_rows", inner, top, (1, outputs))
    else:
        layer = builder.emit("InnerProduct", name_of(step), [bottom], [top], parameters, data)
    _record(builder, step, layer, operation.bounds)


@WRITERS.register(Lookup)
def _embed(operation: Lookup, step: Step, builder: NcnnBuilder) -> None:
    """Write ``Embed``, whose result has one row for each index."""
    table, indices, result = input_of(step).data, input_of(step, 1), step.outputs[0]
    if table is None or table.dtype != np.float32 or operation.axis:
        raise Unsupported("it looks up in no constant of floats, or not along its first axis")
    if not is_whole(indices):
        raise Unsupported("its indices are no whole numbers")
    width, shape = table[0].size, sample(result)
    rows = int(np.prod(shape)) // width
    parameters: dict[int, Parameter] = {0: width, 1: len(table), 2: 0, 3: table.size}
    data = struct.pack("<I", _FLOAT_TAG) + floats(table)
    top = builder.blob(result)
    whole = top if shape == (rows, width) else builder.inner(result)
    builder.emit("Embed", name_of(step), [builder.read(step, 1)], [whole], parameters, data)
    if whole != top:
        builder.reshape(f"{name_of(step)}_axes", whole, top, shape)


@WRITERS.register(BatchMatMul)
def _matmul(_operation: BatchMatMul, step: Step, builder: NcnnBuilder) -> None:
    """Write the product of two activations with equally many axes."""
    ranks = [rank_of(input_of(step, slot)) for slot in (0, 1)]
    if ranks[0] != ranks[1] or ranks[0] < 3:
        raise Unsupported("its operands are no matrices with equally many axes")
    bottoms = [builder.read(step, slot) for slot in (0, 1)]
    builder.emit("MatMul", name_of(step), bottoms, [builder.blob(step.outputs[0])])


def _record(builder: NcnnBuilder, step: Step, layer: Layer, bounds: Bounds) -> None:
    """Note a written product, and its row of the table."""
    data, weight = input_of(step), input_of(step, 1)
    is_int8 = _is_int8(step)
    blob = builder.blob(step.outputs[0])
    builder.products[name_of(step)] = WrittenProduct(layer.name, blob, bounds, is_int8)
    if is_int8:
        factors = _reciprocals(weight, weight.shape[0] or 0)
        builder.entries.append(TableEntry(layer.name, factors, float(_reciprocals(data, 1)[0])))


def _reciprocals(tensor: Tensor, count: int) -> npt.NDArray[np.float32]:
    """Compute what ncnn multiplies by to get codes: ``1 / scale`` in float32, ``[count]``."""
    if tensor.encoding is None:
        raise Unsupported(f"{tensor.value!r} has no scale")
    scale = tensor.encoding.scale.reshape(-1)
    if scale.size not in (1, count):
        raise Unsupported(f"its weight has {scale.size} scales, ncnn takes {count}")
    return np.broadcast_to(np.float32(1) / scale, (count,))


def _is_int8(step: Step) -> bool:
    return input_of(step, 1).encoding is not None


def _weight(step: Step) -> Array:
    array = input_of(step, 1).data
    if array is None:
        raise Unsupported("its weight is computed")
    return array


def _data(step: Step, weight: Array, outputs: int) -> bytes:
    """Encode a layer's part of the ``.bin``; ``weight`` lies as ncnn has it."""
    bias = _bias(step, outputs)
    if not _is_int8(step):
        return b"".join([struct.pack("<I", _FLOAT_TAG), floats(weight), bias])
    stored = np.ascontiguousarray(weight, np.int8).tobytes()
    padding = b"\0" * (-len(stored) % 4)
    factors = _reciprocals(input_of(step, 1), outputs), _reciprocals(input_of(step), 1)
    head = struct.pack("<I", _INT8_TAG)
    return b"".join([head, stored, padding, bias, floats(factors[0]), floats(factors[1])])


def _has_bias(step: Step) -> int:
    return int(step.inputs[2] is not None)


def _bias(step: Step, outputs: int) -> bytes:
    bias = step.inputs[2]
    if bias is None:
        return b""
    if bias.data is None or bias.data.shape != (outputs,):
        raise Unsupported("its bias is not one constant for each output channel")
    return floats(bias.data)


def _activation(bounds: Bounds) -> dict[int, Parameter]:
    if bounds == Bounds():
        return {}
    if bounds == Bounds(0.0):
        return {_ACTIVATION_TYPE: _RELU}
    return {_ACTIVATION_TYPE: _CLIP, _ACTIVATION_PARAMS: finite(bounds)}


def _window(operation: Convolution | TransposedConvolution, weight: Array) -> dict[int, Parameter]:
    """Make the parameters of kernel, dilations, strides and pads; widths have the lower numbers."""
    (top, bottom), (left, right) = operation.pads
    if min(top, bottom, left, right) < 0:
        raise Unsupported("it has negative pads")
    kernel, dilations, strides = weight.shape[2:], operation.dilations, operation.strides
    return {
        1: kernel[1],
        11: kernel[0],
        2: dilations[1],
        12: dilations[0],
        3: strides[1],
        13: strides[0],
        4: left,
        14: top,
        15: right,
        16: bottom,
    }
