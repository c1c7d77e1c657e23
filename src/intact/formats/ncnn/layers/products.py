"""Convolutions and dense layers, with weights as int8 codes or as floats.

In the ``.bin`` a layer has a tag of its weights, the weights, the bias, and where the weights are
codes the reciprocals of their scales (one an output channel) and of the input's scale.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.ncnn.draft import Draft, Layer, floats
from intact.formats.ncnn.shapes import Parameter, known_lengths, lengths, present, rank_of, sample
from intact.graph import constant_array, input_value
from intact.plan import QuantPoint
from intact.program.lower.attributes import integers, window_pads
from intact.program.operations import Bounds

_INT8_TAG, _FLOAT_TAG = 0x000D4B38, 0
_BIAS_TERM, _INT8_SCALE_TERM = 5, 8
_ACTIVATION_TYPE, _ACTIVATION_PARAMS = 9, 10
_RELU, _CLIP = 1, 3

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Scales:
    """The codes of one layer.

    Attributes:
        data: Where its input is quantized.
        weight: Where its weight is.
    """

    data: QuantPoint
    weight: QuantPoint


@dataclass(frozen=True)
class Product:
    """A layer that multiplies, and what is fused into it.

    Attributes:
        node: The node.
        result: The value that the layer hands out: of the node, or of the fused activation.
        bounds: What the fused activation clamps to.
        scales: None where the layer computes in float.
    """

    node: ir.Node
    result: ir.Value
    bounds: Bounds
    scales: Scales | None


def reciprocals(point: QuantPoint, count: int) -> npt.NDArray[np.float32]:
    """Return what ncnn multiplies by to get codes: ``1 / scale`` in float32, ``[count]``."""
    params = point.config.params
    if params is None:
        raise Unsupported(f"{point.end} has no scale")
    scale = np.asarray(params.scale, np.float32).reshape(-1)
    if scale.size not in (1, count):
        raise Unsupported(f"its weight has {scale.size} scales, ncnn takes {count}")
    return np.broadcast_to(np.float32(1) / scale, (count,))


def convolution(draft: Draft, product: Product) -> Layer:
    """Conv: ``Convolution``, or ``ConvolutionDepthWise`` where it has groups."""
    node = product.node
    weight = _weight(node)
    if weight.ndim != 4:
        raise Unsupported("only convolutions of images are written")
    outputs, groups = weight.shape[0], node.attributes.get_int("group", 1) or 1
    parameters: dict[int, Parameter] = {0: outputs, **_window(node, weight.shape[2:])}
    parameters[_BIAS_TERM] = _has_bias(node)
    parameters[6] = weight.size
    scales = outputs
    if groups > 1:
        parameters[7] = scales = groups
    if product.scales is not None:
        parameters[_INT8_SCALE_TERM] = 2 if groups == 1 else 1
    if product.scales is not None and 1 < groups != outputs:
        raise Unsupported(
            "ncnn has one scale for each group, and here a group has several output channels"
        )
    parameters |= _activation(product.bounds)
    data = _data(product, weight, outputs, scales)
    kind = "Convolution" if groups == 1 else "ConvolutionDepthWise"
    bottom, top = draft.read(node, 0), draft.blob(product.result)
    return draft.emit(kind, str(node.name), [bottom], [top], dict(sorted(parameters.items())), data)


def transposed_convolution(draft: Draft, product: Product) -> Layer:
    """ConvTranspose: ``Deconvolution``, or ``DeconvolutionDepthWise``; in float only."""
    node = product.node
    weight = _weight(node)
    if weight.ndim != 4 or product.scales is not None:
        raise Unsupported("ncnn has no int8 layer for it, and only images are written")
    if integers(node, "output_shape") is not None or _auto_pad(node) not in {"NOTSET", "VALID"}:
        raise Unsupported("its pads follow from an output shape")
    groups = node.attributes.get_int("group", 1) or 1
    inputs, per_group, *kernel = weight.shape
    apart = weight.reshape(groups, inputs // groups, per_group, *kernel).swapaxes(1, 2)
    parameters: dict[int, Parameter] = {0: groups * per_group, **_window(node, weight.shape[2:])}
    more = integers(node, "output_padding") or (0, 0)
    parameters |= {18: more[1], 19: more[0], _BIAS_TERM: _has_bias(node), 6: weight.size}
    if groups > 1:
        parameters[7] = groups
    parameters |= _activation(product.bounds)
    data = _data(product, apart, groups * per_group, 0)
    kind = "Deconvolution" if groups == 1 else "DeconvolutionDepthWise"
    bottom, top = draft.read(node, 0), draft.blob(product.result)
    return draft.emit(kind, str(node.name), [bottom], [top], dict(sorted(parameters.items())), data)


def dense(draft: Draft, product: Product) -> Layer:
    """Gemm and MatMul with a constant matrix on the right: ``InnerProduct``."""
    node = product.node
    weight = _weight(node)
    rank = rank_of(present(node, 0))
    if weight.ndim != 2 or rank not in (2, 3):
        raise Unsupported("only vectors, or rows of them, by a matrix are written")
    if node.op_type == "Gemm":
        _refuse_factors(node)
    transposed = node.attributes.get_int("transB", 0) != 1
    rows = weight.T if transposed else weight
    outputs = len(rows)
    parameters: dict[int, Parameter] = {0: outputs, 1: _has_bias(node), 2: weight.size}
    if product.scales is not None:
        parameters[_INT8_SCALE_TERM] = 2
    parameters |= _activation(product.bounds)
    data = _data(product, rows, outputs, outputs, transposed=transposed)
    bottom, top = draft.read(node, 0), draft.blob(product.result)
    if rank == 3 and sample(present(node, 0))[0] == 1:  # one row would come out as a vector
        inner = draft.inner(product.result)
        layer = draft.emit("InnerProduct", str(node.name), [bottom], [inner], parameters, data)
        draft.emit("Reshape", f"{node.name}_rows", [inner], [top], lengths((1, outputs)))
        return layer
    return draft.emit("InnerProduct", str(node.name), [bottom], [top], parameters, data)


def _refuse_factors(node: ir.Node) -> None:
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    if factors != [1.0, 1.0] or node.attributes.get_int("transA", 0) == 1:
        raise Unsupported("it has factors, or a transposed left operand")


def _weight(node: ir.Node) -> npt.NDArray[Any]:
    array = constant_array(input_value(node, 1))
    if array is None:
        raise Unsupported("its weight is computed")
    return array


def _data(
    product: Product,
    weight: npt.NDArray[Any],
    outputs: int,
    scales: int,
    *,
    transposed: bool = False,
) -> bytes:
    """Return a layer's part of the ``.bin``; ``weight`` lies as ncnn has it."""
    bias = _bias(product.node, outputs)
    if product.scales is None:
        return b"".join([struct.pack("<I", _FLOAT_TAG), floats(weight), bias])
    codes = product.scales.weight.constant_codes()
    stored = np.ascontiguousarray(codes.T if transposed else codes, np.int8).tobytes()
    padding = b"\0" * (-len(stored) % 4)
    factors = reciprocals(product.scales.weight, scales), reciprocals(product.scales.data, 1)
    head = struct.pack("<I", _INT8_TAG)
    return b"".join([head, stored, padding, bias, floats(factors[0]), floats(factors[1])])


def _has_bias(node: ir.Node) -> int:
    return int(input_value(node, 2) is not None)


def _bias(node: ir.Node, outputs: int) -> bytes:
    value = input_value(node, 2)
    if value is None:
        return b""
    array = constant_array(value)
    if (
        array is None
        or array.size not in (1, outputs)
        or (array.ndim and array.size != array.shape[-1])
    ):
        raise Unsupported("its bias is not one constant for each output channel")
    return floats(np.broadcast_to(array.reshape(-1), (outputs,)))


def _activation(bounds: Bounds) -> dict[int, Parameter]:
    if bounds == Bounds():
        return {}
    if bounds == Bounds(0.0):
        return {_ACTIVATION_TYPE: _RELU}
    ends = tuple(max(min(end, _LARGEST), -_LARGEST) for end in (bounds.low, bounds.high))
    return {_ACTIVATION_TYPE: _CLIP, _ACTIVATION_PARAMS: ends}


def _auto_pad(node: ir.Node) -> str:
    return node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"


def _window(node: ir.Node, kernel: tuple[int, ...]) -> dict[int, Parameter]:
    """Return kernel, dilations, strides and pads; widths have the lower numbers."""
    strides = integers(node, "strides") or (1, 1)
    dilations = integers(node, "dilations") or (1, 1)
    shape = (None, *known_lengths(present(node, 0)))
    try:
        pads = window_pads(node, shape, kernel, strides, dilations)
    except Unsupported as reason:
        raise Unsupported(str(reason)) from None
    (top, bottom), (left, right) = pads
    if min(top, bottom, left, right) < 0:
        raise Unsupported("it has negative pads")
    return {
        1: int(kernel[1]),
        11: int(kernel[0]),
        2: dilations[1],
        12: dilations[0],
        3: strides[1],
        13: strides[0],
        4: left,
        14: top,
        15: right,
        16: bottom,
    }
