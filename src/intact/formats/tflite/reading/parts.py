"""Operators that take tensors apart and put them together along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from intact.errors import Unsupported
from intact.formats.tflite.reading.canvas import Array, Input
from intact.formats.tflite.reading.common import (
    Read,
    axis_in,
    finish,
    keeps_scale,
    mixes_batch,
    needs_shape,
    slot,
)
from intact.formats.tflite.reading.draft import Draft
from intact.formats.tflite.reading.file import Operator
from intact.formats.tflite.reading.layouts import Layout, arranged
from intact.formats.tflite.reading.schema import Element

_LOWEST = -(2**31)


def concatenation(draft: Draft, op: Operator) -> None:
    """CONCATENATION; only the uint8 kernel brings its inputs to one scale."""
    output = draft.tensor(op.outputs[0])
    axis = axis_in(int(op.options["axis"]), output.rank)
    mixes_batch(draft, axis == 0)
    shapes = [draft.tensor(index).shape for index in op.inputs]
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes if len(shape) == output.rank}
    if not shapes or len(rest) != 1 or any(len(shape) != output.rank for shape in shapes):
        raise Unsupported(f"shapes {[list(shape) for shape in shapes[:4]]} do not fit together")
    total = sum(shape[axis] for shape in shapes)
    needs_shape(draft, op.outputs[0], (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))
    if output.element is not Element.UINT8:
        for index in op.inputs:
            keeps_scale(draft, index, op.outputs[0])
    layout = draft.layout_of(*op.inputs)
    operands = [draft.operand(index, layout) for index in op.inputs]
    attributes = {"axis": _place(axis, output.rank, layout)}
    finish(draft, op, draft.node("Concat", operands, attributes), layout)


def split(draft: Draft, op: Operator) -> None:
    """SPLIT: the axis, the data; equal parts."""
    _split(draft, op, slot(op, 1), draft.list_of(slot(op, 0)), None)


def split_v(draft: Draft, op: Operator) -> None:
    """SPLIT_V: the data, the sizes (one may be -1), the axis."""
    _split(draft, op, slot(op, 0), draft.list_of(slot(op, 2)), draft.list_of(slot(op, 1)))


def _split(
    draft: Draft, op: Operator, index: int, axes: tuple[int, ...], sizes: tuple[int, ...] | None
) -> None:
    shape, count = draft.tensor(index).shape, len(op.outputs)
    if len(axes) != 1 or not count:
        raise Unsupported(f"its axes are {list(axes)}, its outputs {count}")
    axis = axis_in(axes[0], len(shape))
    mixes_batch(draft, axis == 0)
    if sizes is None:
        sizes = (shape[axis] // count,) * count
    if sizes.count(-1) == 1:
        rest = shape[axis] - sum(size for size in sizes if size > 0)
        sizes = tuple(rest if size == -1 else size for size in sizes)
    if len(sizes) != count or sum(sizes) != shape[axis] or min(sizes) < 1:
        raise Unsupported(f"parts {list(sizes[:8])} of {shape[axis]} elements")
    for output, size in zip(op.outputs, sizes, strict=True):
        needs_shape(draft, output, (*shape[:axis], size, *shape[axis + 1 :]))
    keeps_scale(draft, index, *op.outputs)
    layout = draft.layout_of(index)
    inputs: list[Input] = [draft.operand(index, layout), draft.integers(*sizes)]
    attributes = {"axis": _place(axis, len(shape), layout)}
    for output, value in zip(
        op.outputs, draft.split("Split", inputs, attributes, count), strict=True
    ):
        draft.write(output, value, layout)


def pack(draft: Draft, op: Operator) -> None:
    """PACK: each input gets an axis of one element, along which they are put together."""
    output = draft.tensor(op.outputs[0])
    axis = axis_in(int(op.options["axis"]), output.rank)
    mixes_batch(draft, axis == 0)
    single = (*output.shape[:axis], 1, *output.shape[axis + 1 :])
    if len(op.inputs) != output.shape[axis]:
        raise Unsupported(f"{len(op.inputs)} inputs for {list(output.shape)}")
    operands = []
    for index in op.inputs:
        needs_shape(draft, index, (*single[:axis], *single[axis + 1 :]))
        keeps_scale(draft, index, op.outputs[0])
        mixes_batch(draft, draft.is_constant(index))
        operands.append(draft.reshaped(draft.operand(index), single))
    draft.write(op.outputs[0], draft.node("Concat", operands, {"axis": axis}))


def unpack(draft: Draft, op: Operator) -> None:
    """UNPACK, the inverse."""
    index = slot(op, 0)
    shape, count = draft.tensor(index).shape, len(op.outputs)
    axis = axis_in(int(op.options["axis"]), len(shape))
    mixes_batch(draft, axis == 0)
    if count != shape[axis]:
        raise Unsupported(f"{count} outputs of {list(shape)}")
    keeps_scale(draft, index, *op.outputs)
    source = draft.operand(index)
    single = (*shape[:axis], 1, *shape[axis + 1 :])
    values = draft.split("Split", [source, draft.integers(*(1,) * count)], {"axis": axis}, count)
    for output, value in zip(op.outputs, values, strict=True):
        needs_shape(draft, output, (*shape[:axis], *shape[axis + 1 :]))
        part = draft.passed_on(value, single, source)
        draft.write(output, draft.reshaped(part, draft.tensor(output).shape).value)


@dataclass(frozen=True)
class Cut:
    """What is kept of one axis; ``length`` elements from ``start`` in steps."""

    start: int
    step: int
    length: int

    @property
    def stop(self) -> int:
        """The end as ONNX writes it: before the first element is the lowest integer."""
        stop = self.start + self.step * self.length
        return _LOWEST if stop < 0 else stop


def slice_(draft: Draft, op: Operator) -> None:
    """SLICE: where it begins and how much of each axis is kept, -1 for the rest."""
    shape = draft.tensor(slot(op, 0)).shape
    begin, size = draft.list_of(slot(op, 1)), draft.list_of(slot(op, 2))
    if not len(begin) == len(size) == len(shape):
        raise Unsupported(f"it begins at {list(begin)} and keeps {list(size)}")
    cuts = [
        Cut(start, 1, length - start if kept == -1 else kept)
        for start, kept, length in zip(begin, size, shape, strict=True)
    ]
    for cut, length in zip(cuts, shape, strict=True):
        if cut.start < 0 or cut.length < 1 or cut.start + cut.length > length:
            raise Unsupported(f"it begins at {list(begin)} and keeps {list(size)}")
    needs_shape(draft, op.outputs[0], [cut.length for cut in cuts])
    _cut(draft, op, cuts)


def strided_slice(draft: Draft, op: Operator) -> None:
    """STRIDED_SLICE, with all masks."""
    cuts, shape = strided_cuts(draft, op)
    needs_shape(draft, op.outputs[0], shape)
    _cut(draft, op, cuts)


def strided_cuts(draft: Draft, op: Operator) -> tuple[list[Cut], tuple[int, ...]]:
    """Return what a STRIDED_SLICE keeps of each axis of its input, and its output's shape."""
    shape = draft.tensor(slot(op, 0)).shape
    begins, ends, steps = (draft.list_of(slot(op, number)) for number in (1, 2, 3))
    if not len(begins) == len(ends) == len(steps) or op.options["offset"]:
        raise Unsupported("its begins, ends and steps are of different lengths, or offsets")
    kinds = [_kind(op, k) for k in range(len(begins))]
    skipped = len(shape) - sum(kind in ("keep", "drop") for kind in kinds)
    if skipped < 0 or kinds.count("ellipsis") > 1 or 0 in steps:
        raise Unsupported(f"it cuts {len(begins)} axes of {list(shape)} in steps {list(steps)}")
    if "ellipsis" not in kinds:
        kinds.append("ellipsis")
    cuts: list[Cut] = []
    result: list[int] = []
    for k, kind in enumerate(kinds):
        axis = len(cuts)
        match kind:
            case "ellipsis":
                cuts += (Cut(0, 1, length) for length in shape[axis : axis + skipped])
                result += shape[axis : axis + skipped]
            case "new":
                result.append(1)
            case "drop":
                cuts.append(Cut(axis_in(begins[k], shape[axis]), 1, 1))
            case _:
                start = None if op.options["begin_mask"] >> k & 1 else begins[k]
                stop = None if op.options["end_mask"] >> k & 1 else ends[k]
                kept = range(*slice(start, stop, steps[k]).indices(shape[axis]))
                cuts.append(Cut(kept.start, steps[k], len(kept)))
                result.append(len(kept))
    return cuts, tuple(result)


def _kind(op: Operator, position: int) -> str:
    """Return what a position of a STRIDED_SLICE does with its axis."""
    masks = {"ellipsis": "ellipsis_mask", "new": "new_axis_mask", "drop": "shrink_axis_mask"}
    found = (kind for kind, mask in masks.items() if int(op.options[mask]) >> position & 1)
    return next(found, "keep")


def _cut(draft: Draft, op: Operator, cuts: list[Cut]) -> None:
    """Add the Slice of an operator whose output has been held against its cuts."""
    index, output = slot(op, 0), op.outputs[0]
    shape, wanted = draft.tensor(index).shape, draft.tensor(output).shape
    kept = tuple(cut.length for cut in cuts)
    keeps_scale(draft, index, output)
    whole = [cut == Cut(0, 1, length) for cut, length in zip(cuts, shape, strict=True)]
    mixes_batch(draft, not all(whole[:1]))
    same_rank = kept == wanted
    layout = draft.layout_of(index) if same_rank else Layout.FILE
    axes = [axis for axis, is_whole in enumerate(whole) if not is_whole]
    operand = draft.operand(index, layout)
    if shape and (axes or same_rank):
        axes = axes or [len(shape) - 1]
        lists = [
            draft.integers(*(cuts[axis].start for axis in axes)),
            draft.integers(*(cuts[axis].stop for axis in axes)),
            draft.integers(*(_place(axis, len(shape), layout) for axis in axes)),
            draft.integers(*(cuts[axis].step for axis in axes)),
        ]
        operand = draft.moved("Slice", [operand, *lists], None, arranged(kept, layout))
    if same_rank and shape:
        draft.write(output, operand.value, layout)
    else:
        draft.write(output, draft.reshaped(operand, wanted).value)


def _place(axis: int, rank: int, layout: Layout) -> int:
    """Return where an axis of the file lies in a layout."""
    return arranged(range(rank), layout).index(axis)


TABLE: dict[str, Read] = {
    "CONCATENATION": concatenation,
    "SPLIT": split,
    "SPLIT_V": split_v,
    "PACK": pack,
    "UNPACK": unpack,
    "SLICE": slice_,
    "STRIDED_SLICE": strided_slice,
}

"""Read functions by operator."""

_MOST = 1 << 12

"""Elements; shapes have a handful."""

_INTEGERS = {Element.INT32: np.int32, Element.INT64: np.int64}


def is_known(draft: Draft, op: Operator) -> bool:
    """Tell whether an operator computes integers that follow from shapes and constants."""
    if op.name not in _KNOWN or len(op.outputs) != 1:
        return False
    tensors = [draft.tensor(index) for index in (*op.inputs, *op.outputs) if index >= 0]
    if any(tensor.size > _MOST for tensor in tensors) and op.name != "SHAPE":
        return False
    if draft.tensor(op.outputs[0]).element not in _INTEGERS or not op.inputs:
        return False
    return op.name == "SHAPE" or all(draft.is_constant(index) for index in op.inputs if index >= 0)


def compute(draft: Draft, op: Operator) -> None:
    """Compute them.

    Raises:
        Unsupported: They are not of the shape that the file says.
    """
    output = draft.tensor(op.outputs[0])
    if op.name == "SHAPE":
        result: Array = np.array(draft.tensor(op.inputs[0]).shape, np.int64)
    elif op.name == "STRIDED_SLICE":
        result = _cut_sizes(draft, op).reshape(output.shape)
    else:
        arrays = [draft.array(index) for index in op.inputs if index >= 0]
        try:
            _refuse_growth(op, arrays, output.size)
            with np.errstate(all="ignore"):
                result = np.asarray(_KNOWN[op.name](arrays, op))
                result = result.astype(_INTEGERS[output.element])
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise Unsupported(f"its integers do not fit together ({error})") from error
    _require_size(result.size, output.size)
    draft.charge(result.size)
    draft.known[op.outputs[0]] = result.reshape(output.shape).astype(_INTEGERS[output.element])


def _refuse_growth(op: Operator, arrays: list[Array], wanted: int) -> None:
    """Refuse what would make more than its output holds: small operands may make gigabytes."""
    match op.name:
        case "CONCATENATION" | "PACK":
            _require_size(sum(array.size for array in arrays), wanted)
        case "ADD" | "SUB" | "MUL" | "MAXIMUM" | "MINIMUM":
            shapes = (array.shape for array in arrays)
            _require_size(math.prod(np.broadcast_shapes(*shapes)), wanted)
        case "GATHER":
            data, indices = arrays
            axis = axis_in(int(op.options["axis"]), data.ndim)
            _require_size(data.size // data.shape[axis] * indices.size, wanted)


def _require_size(found: int, wanted: int) -> None:
    if found != wanted:
        raise Unsupported(f"it gives {found} integers where its output has {wanted}")


def _cut_sizes(draft: Draft, op: Operator) -> Array:
    array = draft.array(op.inputs[0])
    for axis, cut in enumerate(strided_cuts(draft, op)[0]):
        kept = range(cut.start, cut.start + cut.step * cut.length, cut.step)
        array = np.take(array, list(kept), axis=axis)
    if array.size != draft.tensor(op.outputs[0]).size:
        raise Unsupported(f"it keeps {array.size} integers")
    return array


def _concatenate(arrays: list[Array], op: Operator) -> Array:
    return np.concatenate(arrays, axis=int(op.options["axis"]))


def _stack(arrays: list[Array], op: Operator) -> Array:
    return np.stack(arrays, axis=int(op.options["axis"]))


def _take(arrays: list[Array], op: Operator) -> Array:
    axis = axis_in(int(op.options["axis"]), arrays[0].ndim)
    return np.take(arrays[0], arrays[1], axis=axis)


def _product(arrays: list[Array], op: Operator) -> Array:
    axes = tuple(int(axis) for axis in arrays[1].reshape(-1))
    keep = bool(op.options["keep_dims"])
    return np.asarray(np.prod(arrays[0], axis=axes, keepdims=keep))


def _same(arrays: list[Array], _op: Operator) -> Array:
    return arrays[0]


_KNOWN: dict[str, Callable[[list[Array], Operator], Array]] = {
    "SHAPE": _same,
    "STRIDED_SLICE": _same,
    "CONCATENATION": _concatenate,
    "PACK": _stack,
    "GATHER": _take,
    "REDUCE_PROD": _product,
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "CAST"), _same),
    "ADD": lambda arrays, _: arrays[0] + arrays[1],
    "SUB": lambda arrays, _: arrays[0] - arrays[1],
    "MUL": lambda arrays, _: arrays[0] * arrays[1],
    "MAXIMUM": lambda arrays, _: np.maximum(arrays[0], arrays[1]),
    "MINIMUM": lambda arrays, _: np.minimum(arrays[0], arrays[1]),
}
