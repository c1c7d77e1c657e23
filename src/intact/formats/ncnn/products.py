"""Writes convolutions, dense layers, pools, reductions and resizing as ncnn layers.

In the ``.bin`` a layer with weights has a tag of these, the weights as int8 codes or floats, the
bias, and where the weights are codes the reciprocals of their scales (one an output channel) and of
the input's scale.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.ncnn.blocks import write_in_blocks
from intact.formats.ncnn.builder import (
    WRITERS,
    Layer,
    NcnnBuilder,
    floats,
    input_of,
    name_of,
)
from intact.formats.ncnn.elementwise import finite, operand
from intact.formats.ncnn.model import (
    LARGEST_CODE,
    WINOGRAD_LIMIT,
    Parameter,
    WrittenProduct,
    known_lengths,
    lengths,
    rank_of,
    sample,
)
from intact.formats.ncnn.table import TableEntry
from intact.program import Array, Step, Tensor
from intact.program.forms import has_blocks
from intact.program.operations import (
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    Lookup,
    Pads,
    Pool,
    PoolKind,
    Reduce,
    Reduction,
    Resize,
    ResizeMode,
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
    operation, weight = _of_images(operation, np.moveaxis(_weight(step), -1, 1))
    outputs, groups, is_int8 = len(weight), operation.groups, _is_int8(step)
    # Kernels of such groups go wrong with packing besides (measured with 1.0.20261020).
    if is_int8 and 1 < groups != outputs:
        raise Unsupported(
            "ncnn has one scale for each group, and here a group has several output channels"
        )
    parameters: dict[int, Parameter] = {0: outputs, **_window(operation, weight)}
    parameters |= {_BIAS_TERM: _has_bias(step), 6: weight.size}
    if groups > 1:
        parameters[7] = groups
    if is_int8:
        # In layers with groups 2 would say that all of them have one scale.
        parameters[_INT8_SCALE_TERM] = 2 if groups == 1 else 1
    parameters |= _activation(operation.bounds)
    data = _data(step, weight, outputs)
    kind = "Convolution" if groups == 1 else "ConvolutionDepthWise"
    layer = _emit(builder, step, kind, dict(sorted(parameters.items())), data)
    _record(builder, step, layer, operation.bounds)
    if is_int8 and groups == 1 and _is_for_winograd(operation, weight):
        # The largest sum that any input can give: which images come is not known here.
        sums = np.abs(weight.astype(np.int64)).reshape(outputs, -1).sum(axis=1)
        if int(sums.max(initial=0)) * LARGEST_CODE > WINOGRAD_LIMIT:
            builder.wide.append(name_of(step))


def _is_for_winograd(operation: Convolution, weight: Array) -> bool:
    ones = (1, 1)
    return weight.shape[2:] == (3, 3) and operation.strides == operation.dilations == ones


@WRITERS.register(TransposedConvolution)
def _transposed(operation: TransposedConvolution, step: Step, builder: NcnnBuilder) -> None:
    """Write ``Deconvolution``, or ``DeconvolutionDepthWise``; in float only."""
    operation, weight = _of_images(operation, np.moveaxis(_weight(step), -1, 1))
    if len(operation.output_padding) == 1:
        operation = replace(operation, output_padding=(0, *operation.output_padding))
    if _is_int8(step):
        raise Unsupported("ncnn has no int8 layer for it")
    outputs, groups = len(weight), operation.groups
    more = operation.output_padding
    parameters: dict[int, Parameter] = {0: outputs, **_window(operation, weight)}
    parameters |= {18: more[1], 19: more[0], _BIAS_TERM: _has_bias(step), 6: weight.size}
    if groups > 1:
        parameters[7] = groups
    parameters |= _activation(operation.bounds)
    data = _data(step, weight, outputs)
    kind = "Deconvolution" if groups == 1 else "DeconvolutionDepthWise"
    layer = _emit(builder, step, kind, dict(sorted(parameters.items())), data)
    _record(builder, step, layer, operation.bounds)


_Spatial = TypeVar("_Spatial", Convolution, TransposedConvolution)


def _of_images(operation: _Spatial, weight: Array) -> tuple[_Spatial, Array]:
    """Return a convolution along one axis as that of images with one row.

    Raises:
        Unsupported: It runs along more than two axes.
    """
    if weight.ndim == 4:
        return operation, weight
    if weight.ndim != 3:
        raise Unsupported("only convolutions of images and of rows are written")
    one, none = (1,), ((0, 0),)
    found = replace(
        operation,
        strides=one + operation.strides,
        pads=none + operation.pads,
        dilations=one + operation.dilations,
    )
    return found, weight[:, :, None]


def _emit(
    builder: NcnnBuilder, step: Step, kind: str, parameters: dict[int, Parameter], data: bytes
) -> Layer:
    """Add a layer of images; rows ``[C, L]`` are ``[C, 1, L]`` for it."""
    source, result, name = input_of(step), step.outputs[0], name_of(step)
    if rank_of(source) == 4:
        return builder.unary(kind, step, parameters, data)
    shapes = [known_lengths(each) for each in (source, result)]
    (inner, outer), (before, after) = (builder.inner(source), builder.inner(result)), shapes
    # -1 is a length that ncnn finds out by itself.
    image, rows = (before[0] or -1, 1, before[1] or -1), (after[0] or -1, after[1] or -1)
    builder.reshape(f"{name}_image", builder.read(step), inner, image)
    layer = builder.emit(kind, name, [inner], [outer], parameters, data)
    builder.reshape(f"{name}_rows", outer, builder.blob(result), rows)
    return layer


@WRITERS.register(FullyConnected)
def _dense(operation: FullyConnected, step: Step, builder: NcnnBuilder) -> None:
    """Write ``InnerProduct``."""
    if has_blocks(input_of(step, 1)):
        write_in_blocks(step, operation.bounds, builder)
        return
    weight, source, result = _weight(step), input_of(step), step.outputs[0]
    rank, outputs = rank_of(source), len(weight)
    parameters: dict[int, Parameter] = {0: outputs, 1: _has_bias(step), 2: weight.size}
    if _is_int8(step):
        parameters[_INT8_SCALE_TERM] = 2
    parameters |= _activation(operation.bounds)
    data = _data(step, weight, outputs)
    bottom, top = builder.read(step), builder.blob(result)
    # ncnn's layer takes a vector or a matrix of rows; what has more axes becomes one.
    if rank > 3:
        shape = sample(source)
        rows, inner = builder.inner(source), builder.inner(result)
        builder.reshape(f"{name_of(step)}_rows", bottom, rows, (math.prod(shape[:-1]), shape[-1]))
        layer = builder.emit("InnerProduct", name_of(step), [rows], [inner], parameters, data)
        builder.reshape(f"{name_of(step)}_axes", inner, top, (*shape[:-1], outputs))
    elif rank == 3 and sample(source)[0] == 1:  # one row would come out as a vector
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
    ranks = {rank_of(tensor) for tensor in step.activations}
    if ranks != {rank_of(step.outputs[0])} or min(ranks) < 3:
        raise Unsupported("its operands are no matrices with equally many axes")
    bottoms = [operand(builder, step, slot) for slot in (0, 1)]
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
    # ncnn reads what follows from the next multiple of 4 bytes on.
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


_POOLS = {PoolKind.MAX: 0, PoolKind.AVERAGE: 1}
_IMAGE_POOLS = {Reduction.MAX: _POOLS[PoolKind.MAX], Reduction.MEAN: _POOLS[PoolKind.AVERAGE]}
"""Reductions of images that are pools over all of them."""
_ROUND_UP, _ROUND_DOWN = 0, 1
_REDUCTIONS: dict[Reduction, int] = {
    Reduction.SUM: 0,
    Reduction.MEAN: 3,
    Reduction.MAX: 4,
    Reduction.MIN: 5,
    Reduction.PRODUCT: 6,
    Reduction.L1: 7,
    Reduction.L2: 8,
}
_NEAREST, _LINEAR = 1, 2


@WRITERS.register(Pool)
def _pool(operation: Pool, step: Step, builder: NcnnBuilder) -> None:
    """Write a pool of images."""
    if rank_of(input_of(step)) != 4:
        raise Unsupported("only pools of images are written")
    pads, up = operation.pads, operation.added_by_ceil is not None
    if operation.added_by_ceil is not None:
        added = zip(pads, operation.added_by_ceil, strict=True)
        # ncnn rounds up by itself: what ceil_mode added behind is taken off again.
        pads = tuple((before, after - more) for (before, after), more in added)
        _refuse_other_rounding(operation, step, pads)
        # ncnn divides by the whole window there, and ONNX not by what ceil_mode added.
        if operation.kind is PoolKind.AVERAGE and operation.count_pads:
            raise Unsupported("it rounds its size up and counts pads")
    (top, bottom), (left, right) = pads
    (height, width), (down, along) = operation.kernel, operation.strides
    parameters: dict[int, Parameter] = {0: _POOLS[operation.kind]}
    parameters |= {1: width, 11: height, 2: along, 12: down}
    parameters |= {3: left, 13: top, 14: right, 15: bottom}
    parameters |= {5: _ROUND_UP if up else _ROUND_DOWN, 6: int(operation.count_pads)}
    builder.unary("Pooling", step, parameters)


def _refuse_other_rounding(operation: Pool, step: Step, pads: Pads) -> None:
    """Refuse windows that ONNX leaves out because they begin in the pads behind the data.

    What shape inference says is not asked: not all of its releases leave them out.
    """
    image = sample(input_of(step))[1:]
    sizes = zip(image, operation.kernel, operation.strides, pads, strict=True)
    for size, width, stride, (first, last) in sizes:
        windows = -(-(size + first + last - width) // stride) + 1
        if (windows - 1) * stride >= size + first:
            raise Unsupported("its last window begins in the pads")


@WRITERS.register(Reduce)
def _reduce(operation: Reduce, step: Step, builder: NcnnBuilder) -> None:
    rank = rank_of(input_of(step))
    if rank == 4 and operation.axes == (2, 3) and operation.kind in _IMAGE_POOLS:
        _pool_over_image(operation, step, builder)
    else:
        _reduction(operation, step, builder)


def _reduction(operation: Reduce, step: Step, builder: NcnnBuilder) -> None:
    """Write a reduction along axes of a sample."""
    axes, keeps = operation.axes, operation.keep_dims
    if 0 in axes:
        raise Unsupported("it reduces the batch")
    if len(axes) == rank_of(input_of(step)) - 1 and not keeps:
        raise Unsupported("nothing but the batch is left of its axes")
    parameters: dict[int, Parameter] = {0: _REDUCTIONS[operation.kind], 1: 0}
    parameters |= {3: tuple(axis - 1 for axis in axes), 4: int(keeps), 5: 1}
    builder.unary("Reduction", step, parameters)


def _pool_over_image(operation: Reduce, step: Step, builder: NcnnBuilder) -> None:
    """Write a pool over a whole image, which ncnn makes a vector; it may get its axes back."""
    data, result = input_of(step), step.outputs[0]
    channels = known_lengths(data)[0]
    if channels is None:
        raise Unsupported(f"a length of {data.value!r} is not known")
    bottom, top = builder.read(step), builder.blob(result)
    vector = builder.inner(result) if operation.keep_dims else top
    parameters: dict[int, Parameter] = {0: _IMAGE_POOLS[operation.kind], 4: 1}
    builder.emit("Pooling", name_of(step), [bottom], [vector], parameters)
    if operation.keep_dims:
        shape = lengths((channels, 1, 1))
        builder.emit("Reshape", f"{name_of(step)}_axes", [vector], [top], shape)


@WRITERS.register(Resize)
def _resize(operation: Resize, step: Step, builder: NcnnBuilder) -> None:
    """Write a Resize of images: nearest by whole factors, or linear."""
    before, after = (sample(tensor)[1:] for tensor in (input_of(step), step.outputs[0]))
    if len(after) != 2:
        raise Unsupported("it resizes other axes than those of an image")
    sizes: dict[int, Parameter] = {3: after[0], 4: after[1]}
    if operation.mode is ResizeMode.NEAREST:
        if operation.align_corners:
            raise Unsupported("it takes nearest samples by align_corners")
        if any(new % old for old, new in zip(before, after, strict=True)):
            raise Unsupported("it takes nearest samples by no whole factor")
        builder.unary("Interp", step, {0: _NEAREST, **sizes})
    elif operation.half_pixel or operation.align_corners:
        # ONNX takes the first sample there; the step of ncnn divides by 0.
        if 1 in after and operation.align_corners:
            raise Unsupported("it shrinks an axis to one sample")
        linear: dict[int, Parameter] = {0: _LINEAR, **sizes, 6: int(operation.align_corners)}
        builder.unary("Interp", step, linear)
    else:
        raise Unsupported("it resizes linearly and asymmetrically")
