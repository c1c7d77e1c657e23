"""Reads and writes the pools and reductions of a ``.tmfile``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from intact.errors import Unsupported
from intact.formats.base.foreign import Shape, axis_in, refuse_mixed_batch, slot
from intact.formats.tengine.tmfile.file import Element, FileNode
from intact.formats.tengine.tmfile.file_builder import WRITERS, TmFileBuilder
from intact.formats.tengine.tmfile.onnx_builder import READERS, OnnxBuilder, image
from intact.formats.tengine.tmfile.operators import (
    ABSENT_AXIS,
    COUNT_PADDING,
    Flavor,
    PoolMethod,
)
from intact.formats.tengine.tmfile.products import PADS, flat
from intact.graph.builder import Attribute
from intact.program import Step
from intact.program.operations import (
    Pool,
    PoolKind,
    Reduce,
    Reduction,
)

_POOLS: Mapping[PoolMethod, tuple[PoolKind, str, str]] = {
    PoolMethod.MAX: (PoolKind.MAX, "MaxPool", "GlobalMaxPool"),
    PoolMethod.AVERAGE: (PoolKind.AVERAGE, "AveragePool", "GlobalAveragePool"),
}
"""``method`` of Pooling; ours, and ONNX's operators of windows and of whole images."""
_REDUCTIONS: Mapping[int, tuple[Reduction, str]] = {
    0: (Reduction.SUM, "ReduceSum"),
    1: (Reduction.MEAN, "ReduceMean"),
    4: (Reduction.MAX, "ReduceMax"),
    5: (Reduction.MIN, "ReduceMin"),
}
"""``type`` of Reduction; ours, and ONNX's operator."""


@dataclass(frozen=True)
class Windows:
    """How windows lie along one axis.

    Attributes:
        count: How many there are.
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
        # As in TensorFlow's SAME: the odd one goes behind.
        first = max((count - 1) * stride + kernel - length, 0) // 2
    elif flavor == Flavor.CAFFE:
        count = 2 + _cut(length - kernel + 2 * padding - 1, stride)
        # Caffe drops a last window that begins in padding, but looks for one only where there is
        # some.
        if padding > 0 and (count - 1) * stride >= length + padding:
            count -= 1
    elif flavor == Flavor.TOTAL:
        count = 1 + _cut(length - kernel + padding, stride)
        first = padding // 2
    else:
        count = 1 + _cut(length - kernel + 2 * padding, stride)
    last = max((count - 1) * stride + kernel - length - first, 0)
    # A window of padding only has no maximum, and no mean.
    if count < 1 or max(first, last) >= kernel:
        raise Unsupported(f"windows of {kernel} over {length} elements, {padding} padded")
    return Windows(count, first, last)


def _cut(number: int, by: int) -> int:
    """Divide as C does, towards zero."""
    return number // by if number >= 0 else -(-number // by)


@READERS.register("Pooling")
def _read_pooling(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Pooling: the largest or the mean of windows, or of the whole image."""
    options = node.options
    value, shape = image(builder, node)
    if options["method"] not in {*PoolMethod}:
        raise Unsupported(f"its method is {options['method']}")
    kind, of_windows, of_images = _POOLS[PoolMethod(options["method"])]
    is_mean = kind is PoolKind.AVERAGE
    kernel = (options["kernel_h"], options["kernel_w"])
    output = node.outputs[0]
    if options["is_global"] or kernel == shape[2:]:  # Tengine drops the padding there
        builder.compute(node, of_images, [value], (*shape[:2], 1, 1), output=output)
        return
    flavor = options["flavor"] & ~COUNT_PADDING
    strides = (options["stride_h"], options["stride_w"])
    starts = (options["pad_top"], options["pad_left"])
    rows = list(zip(shape[2:], kernel, strides, starts, strict=True))
    axes = [windows(flavor, *row) for row in rows]
    ends = [_padding_behind(each, *row[:3]) for each, row in zip(axes, rows, strict=True)]
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": (axes[0].first, axes[1].first, *ends),
    }
    # Means leave the padding out in FLOOR alone, and there only without the bit.
    if is_mean and options["flavor"]:
        attributes["count_include_pad"] = _counts_padding(axes)
    result = (*shape[:2], axes[0].count, axes[1].count)
    builder.compute(node, of_windows, [value], result, attributes, output=output)


def _padding_behind(each: Windows, length: int, kernel: int, stride: int) -> int:
    """Return the padding behind the elements: as before them if that makes no window more."""
    count = 1 + (length + 2 * each.first - kernel) // stride
    return each.first if count == each.count else each.last


def _counts_padding(axes: list[Windows]) -> int:
    """Return whether means count the padding, as ONNX has it."""
    if not any(each.first for each in axes):
        return 0  # what reaches over the edge is not counted
    if any(each.last > each.first for each in axes):
        raise Unsupported("its means count a part of the padding")
    return 1


@WRITERS.register(Pool)
def _write_pool(operation: Pool, step: Step, builder: TmFileBuilder) -> None:
    """Write windows, if one of the ways in which Tengine lays them gives those of the step."""
    shape, result = builder.image_shape(step)[2:], builder.result_shape(step)[2:]
    pads = flat(operation.pads)
    # Tengine asks the kernel's size and not the option, and drops the pads then.
    if operation.kernel == shape and (any(pads) or result != (1, 1)):
        raise Unsupported("its window is as large as the image, which Tengine takes for global")
    method = next(theirs for theirs, (kind, *_) in _POOLS.items() if kind is operation.kind)
    # The plainest way first, where several give the same windows.
    for flavor in _flavors(operation, pads):
        is_total = flavor == Flavor.TOTAL
        starts = _totals(pads) if is_total else pads[:2]
        if _gives_windows(flavor, shape, operation, starts, pads, result):
            ends = pads[2:] if is_total else starts  # Tengine works these out for itself
            padding = (*starts, *ends)
            _add_pool(step, builder, method, operation.kernel, operation.strides, padding, flavor)
            return
    raise Unsupported(f"Tengine lays no windows with the paddings {list(pads)} like that")


def _flavors(operation: Pool, pads: Shape) -> Iterator[int]:
    """Yield the ways that give the numbers of a pool, if its windows lie so."""
    is_mean = operation.kind is PoolKind.AVERAGE
    if operation.count_pads and any(pads):
        yield Flavor.FLOOR | COUNT_PADDING
        return
    yield Flavor.FLOOR
    if not is_mean or not any(pads[:2]):  # a mean of these two counts the padding in front
        yield Flavor.CAFFE
    if not is_mean:
        yield Flavor.TOTAL


def _gives_windows(
    flavor: int, shape: Shape, operation: Pool, starts: Shape, pads: Shape, result: Shape
) -> bool:
    """Whether Tengine's windows are those of the step."""
    for axis in (0, 1):
        row = (shape[axis], operation.kernel[axis], operation.strides[axis], starts[axis])
        try:
            found = windows(flavor & ~COUNT_PADDING, *row)
        except Unsupported:
            return False
        if (found.count, found.first) != (result[axis], pads[axis]):
            return False
        if operation.count_pads and found.last > min(pads[axis], pads[axis + 2]):
            return False  # behind its padding ONNX counts nothing, Tengine behind the first one
    return True


def _totals(pads: Shape) -> Shape:
    return pads[0] + pads[2], pads[1] + pads[3]


def _add_pool(
    step: Step,
    builder: TmFileBuilder,
    method: PoolMethod,
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
        **dict(zip(PADS, pads, strict=True)),
    }
    builder.add(step, "Pooling", [builder.value(step)], options)


@READERS.register("Reduction")
def _read_reduction(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Reduction over up to four axes, over all where none is given."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    if node.options["type"] not in _REDUCTIONS:
        raise Unsupported(f"its type is {node.options['type']}")
    _, kind = _REDUCTIONS[node.options["type"]]
    given = [node.options[f"dim_{k}"] for k in range(4)]
    axes = sorted({axis_in(each, len(shape)) for each in given if each != ABSENT_AXIS})
    axes = axes or list(range(len(shape)))
    refuse_mixed_batch(builder, 0 in axes)
    keeps = int(bool(node.options["keepdim"]))
    result = tuple(
        1 if axis in axes else length
        for axis, length in enumerate(shape)
        if keeps or axis not in axes
    )
    inputs = [value, builder.integers(*axes)]
    builder.compute(node, kind, inputs, result or (1,), {"keepdims": keeps}, output=node.outputs[0])


@WRITERS.register(Reduce)
def _write_reduce(operation: Reduce, step: Step, builder: TmFileBuilder) -> None:
    """Write pools of whole images, and means over one to four axes."""
    operator = builder.operator(step)
    method = next((theirs for theirs, (*_, name) in _POOLS.items() if name == operator), None)
    if method is not None:
        shape, pads = builder.image_shape(step), (0, 0, 0, 0)
        _add_pool(step, builder, method, shape[2:], (1, 1), pads, Flavor.FLOOR, is_global=True)
        return
    if operation.kind is not Reduction.MEAN:
        raise builder.not_written(step)
    builder.refuse_elements(Element.INT8)
    rank, axes = len(builder.shape(builder.value(step))), operation.axes
    if rank > 4 or 0 in axes:
        raise Unsupported(f"it is taken over axes {list(axes)} of {rank}")
    theirs = next(theirs for theirs, (kind, _) in _REDUCTIONS.items() if kind is operation.kind)
    named = [*axes, *(ABSENT_AXIS,) * (4 - len(axes))]
    options = {f"dim_{k}": axis for k, axis in enumerate(named)}
    options |= {"type": theirs, "keepdim": int(operation.keep_dims)}
    builder.add(step, "Reduction", [builder.value(step)], options)
