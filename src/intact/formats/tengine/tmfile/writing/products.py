"""Convolutions and dense layers."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.operators import Activation
from intact.formats.tengine.tmfile.writing.common import (
    Write,
    activation,
    attribute,
    bias,
    given,
    image_shape,
    refuse_integers,
    scalar,
)
from intact.formats.tengine.tmfile.writing.forms import constant_of
from intact.formats.tengine.tmfile.writing.shapes import Shape
from intact.formats.tengine.tmfile.writing.sheet import Sheet

_PADS = ("pad_top", "pad_left", "pad_bottom", "pad_right")
_RELU6 = (0.0, 6.0)


def convolution(sheet: Sheet, node: ir.Node) -> None:
    """Conv of images; what the plan fuses behind it goes into it if Tengine's can apply it."""
    shape = image_shape(sheet, node)
    weight = constant_of(sheet.graph, node, 1)
    channels, group = weight.shape[0], attribute(node, "group", 1)
    kernel = tuple(weight.shape[2:])
    strides, dilations = (attribute(node, name, [1, 1]) for name in ("strides", "dilations"))
    options = {
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "stride_h": strides[0],
        "stride_w": strides[1],
        "dilation_h": dilations[0],
        "dilation_w": dilations[1],
        "input_channel": weight.shape[1] * group,
        "output_channel": channels,
        "group": group,
        **dict(zip(_PADS, _padding(node, shape, kernel, strides, dilations), strict=True)),
    }
    inputs: list[ir.Value | int] = [
        given(node, 0),
        sheet.constant(given(node, 1), sheet.form.constant(node, 1, 0)),
        *bias(sheet, node, 2, channels),
    ]
    reader = fused_reader(sheet, node)
    options["activation"] = Activation.NONE if reader is None else _activation(sheet, reader)
    outputs = None if reader is None else reader.outputs
    sheet.add(node, "Convolution", inputs, options, outputs=outputs)


def fused_reader(sheet: Sheet, node: ir.Node) -> ir.Node | None:
    """Return the node that a Conv of Tengine applies to its own sums; None where there is none.

    Others that the plan fuses become nodes of their own, with tensors of one scale between: the
    codes are those of the fused ones.
    """
    value = node.outputs[0]
    readers = sheet.graph.consumers(value)
    if node.op_type != "Conv" or len(readers) != 1 or value.is_graph_output():
        return None
    reader, slot = readers[0]
    fits = slot == 0 and _activation(sheet, reader) is not Activation.NONE
    return reader if fits and sheet.form.fuses(value) else None


def _activation(sheet: Sheet, node: ir.Node) -> Activation:
    if node.op_type == "Relu":
        return Activation.RELU
    if node.op_type == "Clip":
        try:
            bounds = tuple(scalar(sheet, node, slot, float("nan")) for slot in (1, 2))
        except Unsupported:
            return Activation.NONE
        if bounds == _RELU6:
            return Activation.RELU6
    return Activation.NONE


def deconvolution(sheet: Sheet, node: ir.Node) -> None:
    """ConvTranspose of images, in float."""
    refuse_integers(sheet, Element.INT8, Element.UINT8)
    image_shape(sheet, node)
    weight = constant_of(sheet.graph, node, 1)
    kernel, group = weight.shape[2:], attribute(node, "group", 1)
    strides, dilations = (attribute(node, name, [1, 1]) for name in ("strides", "dilations"))
    pads, more = attribute(node, "pads", [0] * 4), attribute(node, "output_padding", [0, 0])
    if 1 in strides:
        raise Unsupported("it has a stride of 1, where versions of Tengine differ in the size")
    if dilations[0] != dilations[1]:
        raise Unsupported("its dilations differ, which Tengine's kernel takes crosswise")
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
        raise Unsupported("its padding follows from its output")
    channels = weight.shape[1] * group
    options = {
        "output_channel": channels,
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "stride_h": strides[0],
        "stride_w": strides[1],
        **dict(zip(_PADS, pads, strict=True)),
        "dilation_h": dilations[0],
        "dilation_w": dilations[1],
        "group": group,
        "activation": Activation.NONE,
        "output_pad_h": more[0],
        "output_pad_w": more[1],
    }
    inputs: list[ir.Value | int] = [
        given(node, 0),
        sheet.constant(given(node, 1), sheet.form.constant(node, 1)),
        *bias(sheet, node, 2, channels),
    ]
    sheet.add(node, "Deconvolution", inputs, options)


def gemm(sheet: Sheet, node: ir.Node) -> None:
    """Gemm of rows by constant weights."""
    factors = (attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0))
    if factors != (1.0, 1.0) or attribute(node, "transA", 0):
        raise Unsupported("it has factors, or transposes its input")
    _fully_connected(sheet, node, 0 if attribute(node, "transB", 0) else 1)


def matmul(sheet: Sheet, node: ir.Node) -> None:
    """MatMul of rows by constant weights."""
    _fully_connected(sheet, node, 1)


def _fully_connected(sheet: Sheet, node: ir.Node, channel_axis: int) -> None:
    rank = len(sheet.shape(activation(sheet, node)))
    weight = constant_of(sheet.graph, node, 1)
    if rank != 2 or weight.ndim != 2:
        raise Unsupported(f"it multiplies {rank} dimensions by {weight.ndim}")
    channels = weight.shape[channel_axis]
    if channels == 1 and sheet.form.element is Element.INT8:
        # A single scale is loaded as that of the tensor; the kernel reads a list, which is NULL.
        raise Unsupported("it has one output, with which Tengine's int8 kernel crashes")
    inputs: list[ir.Value | int] = [
        given(node, 0),
        sheet.constant(given(node, 1), sheet.form.constant(node, 1, channel_axis)),
        *bias(sheet, node, 2, channels),
    ]
    sheet.add(node, "FullyConnected", inputs, {"output_channel": channels})


def _padding(
    node: ir.Node,
    shape: Shape,
    kernel: tuple[int, ...],
    strides: list[int],
    dilations: list[int],
) -> list[int]:
    """Return the padding above, left, below and right."""
    kind = attribute(node, "auto_pad", "NOTSET")
    if kind == "NOTSET":
        return [int(each) for each in attribute(node, "pads", [0] * 4)]
    if kind == "VALID":
        return [0] * 4
    starts, ends = [], []
    for axis in (0, 1):
        length, span = shape[2 + axis], dilations[axis] * (kernel[axis] - 1) + 1
        total = max((-(-length // strides[axis]) - 1) * strides[axis] + span - length, 0)
        half = total // 2
        starts.append(half if kind == "SAME_UPPER" else total - half)
        ends.append(total - starts[-1])
    return [*starts, *ends]


def batch_normalization(sheet: Sheet, node: ir.Node) -> None:
    """BatchNormalization that stands alone, in float."""
    refuse_integers(sheet, Element.INT8, Element.UINT8)
    shape = sheet.shape(activation(sheet, node))
    if len(shape) not in (3, 4) or attribute(node, "training_mode", 0):
        raise Unsupported(f"its input has {len(shape)} dimensions, or it is in training")
    constants = [
        sheet.constant(given(node, slot), sheet.form.constant(node, slot)) for slot in (1, 2, 3, 4)
    ]
    options = {
        "rescale_factor": 1.0,
        "epsilon": attribute(node, "epsilon", 1e-5),
        "caffe_flavor": 0,
    }
    sheet.add(node, "BatchNormalization", [given(node, 0), *constants], options)


TABLE: Mapping[str, Write] = {
    "Conv": convolution,
    "ConvTranspose": deconvolution,
    "Gemm": gemm,
    "MatMul": matmul,
    "BatchNormalization": batch_normalization,
}
"""Write functions by operator of ONNX."""
