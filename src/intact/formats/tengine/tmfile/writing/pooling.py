"""Pooling and means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.operators import ABSENT_AXIS, COUNT_PADDING, Flavor, Pool
from intact.formats.tengine.tmfile.reading.pooling import windows
from intact.formats.tengine.tmfile.writing.common import (
    Write,
    activation,
    attribute,
    given,
    has,
    image_shape,
    integers,
    refuse_integers,
)
from intact.formats.tengine.tmfile.writing.shapes import Shape
from intact.formats.tengine.tmfile.writing.sheet import Sheet

_MEAN = 1
"""``type`` of Reduction."""


def global_pool(sheet: Sheet, node: ir.Node) -> None:
    """GlobalAveragePool and GlobalMaxPool."""
    shape = image_shape(sheet, node)
    method = Pool.AVERAGE if node.op_type == "GlobalAveragePool" else Pool.MAX
    _add(sheet, node, method, shape[2:], (1, 1), (0, 0, 0, 0), Flavor.FLOOR, is_global=True)


def pool(sheet: Sheet, node: ir.Node) -> None:
    """MaxPool and AveragePool, if one of the ways in which Tengine lays windows gives theirs."""
    shape = image_shape(sheet, node)
    kernel = tuple(attribute(node, "kernel_shape", []))
    strides = tuple(attribute(node, "strides", [1, 1]))
    if any(each != 1 for each in attribute(node, "dilations", [])) or len(node.outputs) > 1:
        raise Unsupported("its windows have gaps, or it hands out indices")
    is_mean = node.op_type == "AveragePool"
    counts = is_mean and bool(attribute(node, "count_include_pad", 0))
    pads = _padding(node, shape, kernel, strides)
    result = sheet.shape(node.outputs[0])[2:]
    if kernel == shape[2:] and (any(pads) or result != (1, 1)):
        raise Unsupported("its window is as large as the image, which Tengine takes for global")
    for flavor in _flavors(is_mean=is_mean, counts=counts, pads=pads):
        is_total = flavor == Flavor.TOTAL
        starts = _totals(pads) if is_total else pads[:2]
        if _lies(flavor, shape, kernel, strides, starts, pads, result, counts=counts):
            method = Pool.AVERAGE if is_mean else Pool.MAX
            ends = pads[2:] if is_total else starts  # Tengine works these out for itself
            _add(sheet, node, method, kernel, strides, (*starts, *ends), flavor)
            return
    raise Unsupported(f"Tengine lays no windows with the paddings {list(pads)} like that")


def _flavors(*, is_mean: bool, counts: bool, pads: Shape) -> Iterator[int]:
    """Yield the ways that give the numbers of a pool, if its windows lie so."""
    if counts and any(pads):
        yield Flavor.FLOOR | COUNT_PADDING
        return
    yield Flavor.FLOOR
    if not is_mean or not any(pads):  # these two count the padding
        yield Flavor.CAFFE
    if not is_mean:
        yield Flavor.TOTAL


def _lies(
    flavor: int,
    shape: Shape,
    kernel: Shape,
    strides: Shape,
    starts: Shape,
    pads: Shape,
    result: Shape,
    *,
    counts: bool,
) -> bool:
    """Tell whether Tengine's windows are those of ONNX."""
    for axis in (0, 1):
        row = (shape[2 + axis], kernel[axis], strides[axis], starts[axis])
        try:
            found = windows(flavor & ~COUNT_PADDING, *row)
        except Unsupported:
            return False
        if (found.count, found.first) != (result[axis], pads[axis]):
            return False
        if counts and found.last > min(pads[axis], pads[axis + 2]):
            return False  # beyond its padding ONNX counts nothing, Tengine beyond the first one
    return True


def _totals(pads: Shape) -> Shape:
    return pads[0] + pads[2], pads[1] + pads[3]


def _padding(node: ir.Node, shape: Shape, kernel: Shape, strides: Shape) -> Shape:
    kind = attribute(node, "auto_pad", "NOTSET")
    if kind == "NOTSET":
        return tuple(attribute(node, "pads", [0] * 4))
    if kind == "VALID":
        return (0,) * 4
    totals = [
        max((-(-length // stride) - 1) * stride + span - length, 0)
        for length, span, stride in zip(shape[2:], kernel, strides, strict=True)
    ]
    starts = [each // 2 if kind == "SAME_UPPER" else each - each // 2 for each in totals]
    return (*starts, *(total - start for total, start in zip(totals, starts, strict=True)))


def _add(
    sheet: Sheet,
    node: ir.Node,
    method: Pool,
    kernel: Shape,
    strides: Shape,
    pads: Shape,
    flavor: int,
    *,
    is_global: bool = False,
) -> None:
    options = {
        "method": method,
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "stride_h": strides[0],
        "stride_w": strides[1],
        "is_global": int(is_global),
        "flavor": flavor,
        "pad_top": pads[0],
        "pad_left": pads[1],
        "pad_bottom": pads[2],
        "pad_right": pads[3],
    }
    sheet.add(node, "Pooling", [given(node, 0)], options)


def mean(sheet: Sheet, node: ir.Node) -> None:
    """ReduceMean over one to four axes."""
    refuse_integers(sheet, Element.INT8)
    rank = len(sheet.shape(activation(sheet, node)))
    axes = integers(sheet, node, 1) if has(node, 1) else attribute(node, "axes", [])
    axes = sorted(axis % rank for axis in axes) or list(range(rank))
    if rank > 4 or 0 in axes:
        raise Unsupported(f"it is taken over axes {axes} of {rank}")
    named = [*axes, *(ABSENT_AXIS,) * (4 - len(axes))]
    options = {f"dim_{k}": axis for k, axis in enumerate(named)}
    options |= {"type": _MEAN, "keepdim": attribute(node, "keepdims", 1)}
    sheet.add(node, "Reduction", [given(node, 0)], options)


TABLE: Mapping[str, Write] = {
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "AveragePool": pool,
    "MaxPool": pool,
    "ReduceMean": mean,
}
"""Write functions by operator of ONNX."""
