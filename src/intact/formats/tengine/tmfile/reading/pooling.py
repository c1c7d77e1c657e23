"""Pooling, which gives the size of its output in three ways, and reductions over axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.operators import (
    ABSENT_AXIS,
    COUNT_PADDING,
    REDUCTIONS,
    Flavor,
    Pool,
)
from intact.formats.tengine.tmfile.reading.common import Read, axis_in, image, slot
from intact.formats.tengine.tmfile.reading.draft import Attribute, Draft


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


def pooling(draft: Draft, node: FileNode) -> None:
    """Pooling: the largest or the mean of windows, or of the whole image."""
    options = node.options
    value, shape = image(draft, node)
    if options["method"] not in {*Pool}:
        raise Unsupported(f"its method is {options['method']}")
    is_mean = options["method"] == Pool.AVERAGE
    kernel = (options["kernel_h"], options["kernel_w"])
    output = node.outputs[0]
    if options["is_global"] or kernel == shape[2:]:  # Tengine drops the padding there
        kind = "GlobalAveragePool" if is_mean else "GlobalMaxPool"
        draft.add(node, kind, [value], (*shape[:2], 1, 1), output=output)
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
    draft.add(node, kind, [value], result, attributes, output=output)


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


def reduction(draft: Draft, node: FileNode) -> None:
    """Reduction over up to four axes, over all where none is given."""
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    kind = REDUCTIONS.get(node.options["type"])
    if kind is None:
        raise Unsupported(f"its type is {node.options['type']}")
    given = [node.options[f"dim_{k}"] for k in range(4)]
    axes = sorted({axis_in(each, len(shape)) for each in given if each != ABSENT_AXIS})
    axes = axes or list(range(len(shape)))
    draft.mixes(0 in axes)
    keeps = int(bool(node.options["keepdim"]))
    result = tuple(
        1 if axis in axes else length
        for axis, length in enumerate(shape)
        if keeps or axis not in axes
    )
    inputs = [value, draft.integers(*axes)]
    draft.add(node, kind, inputs, result or (1,), {"keepdims": keeps}, output=node.outputs[0])


TABLE: Mapping[str, Read] = {"Pooling": pooling, "Reduction": reduction}
"""Read functions by operator."""
