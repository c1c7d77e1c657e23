"""Reads TFLite's operators that split and join tensors along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from intact.errors import Unsupported
from intact.formats.base.foreign import axis_in, refuse_mixed_batch, slot
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.common import (
    READERS,
    add_activation,
    finish,
    require_same_scale,
    require_shape,
)
from intact.formats.tflite.reader.file import Operator
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.reader.tensors import Array, ChannelLayout, Input, arranged
from intact.ops.operators import Concat, Slice, Split

_LOWEST = -(2**31)


@READERS.register("CONCATENATION")
def concatenation(builder: ModelBuilder, op: Operator) -> None:
    """Read CONCATENATION; only the uint8 kernel brings its inputs to one scale."""
    output = builder.tensor(op.outputs[0])
    axis = axis_in(int(op.options["axis"]), output.rank)
    # A constant has the batch of the file, which does not grow with an open one.
    refuse_mixed_batch(builder, axis == 0 or any(map(builder.is_constant, op.inputs)))
    shapes = [builder.tensor(index).shape for index in op.inputs]
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes if len(shape) == output.rank}
    if not shapes or len(rest) != 1 or any(len(shape) != output.rank for shape in shapes):
        raise Unsupported(f"shapes {[list(shape) for shape in shapes[:4]]} do not fit together")
    total = sum(shape[axis] for shape in shapes)
    require_shape(builder, op.outputs[0], (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))
    moves_codes = output.element is not Element.UINT8
    if moves_codes:
        for index in op.inputs:
            require_same_scale(builder, index, op.outputs[0])
    layout = builder.layout_of(*op.inputs)
    operands = [builder.operand(index, layout) for index in op.inputs]
    attributes = {"axis": _place(axis, output.rank, layout)}
    value = builder.node(Concat, operands, attributes)
    if moves_codes:  # whose range clamps nothing that their own does not
        value = add_activation(builder, value, int(op.options["fused"]))
        builder.write(op.outputs[0], value, layout)
    else:
        finish(builder, op, value, layout)


@READERS.register("SPLIT")
def split(builder: ModelBuilder, op: Operator) -> None:
    """Read SPLIT: the axis, the data; equal parts."""
    _split(builder, op, slot(op.inputs, 1), builder.list_of(slot(op.inputs, 0)), None)


@READERS.register("SPLIT_V")
def split_v(builder: ModelBuilder, op: Operator) -> None:
    """Read SPLIT_V: the data, the sizes (one may be -1), the axis."""
    _split(
        builder,
        op,
        slot(op.inputs, 0),
        builder.list_of(slot(op.inputs, 2)),
        builder.list_of(slot(op.inputs, 1)),
    )


def _split(
    builder: ModelBuilder,
    op: Operator,
    index: int,
    axes: tuple[int, ...],
    sizes: tuple[int, ...] | None,
) -> None:
    shape, count = builder.tensor(index).shape, len(op.outputs)
    if len(axes) != 1 or not count:
        raise Unsupported(f"its axes are {list(axes)}, its outputs {count}")
    axis = axis_in(axes[0], len(shape))
    refuse_mixed_batch(builder, axis == 0)
    if sizes is None:
        sizes = (shape[axis] // count,) * count
    if sizes.count(-1) == 1:
        rest = shape[axis] - sum(size for size in sizes if size > 0)
        sizes = tuple(rest if size == -1 else size for size in sizes)
    if len(sizes) != count or sum(sizes) != shape[axis] or min(sizes) < 1:
        raise Unsupported(f"parts {list(sizes[:8])} of {shape[axis]} elements")
    for output, size in zip(op.outputs, sizes, strict=True):
        require_shape(builder, output, (*shape[:axis], size, *shape[axis + 1 :]))
    require_same_scale(builder, index, *op.outputs)
    layout = builder.layout_of(index)
    inputs: list[Input] = [builder.operand(index, layout), builder.integers(*sizes)]
    attributes = {"axis": _place(axis, len(shape), layout)}
    for output, value in zip(
        op.outputs, builder.split(Split, inputs, attributes, count), strict=True
    ):
        builder.write(output, value, layout)


@READERS.register("PACK")
def pack(builder: ModelBuilder, op: Operator) -> None:
    """Read PACK: each input gets an axis of one element, along which they are put together."""
    output = builder.tensor(op.outputs[0])
    axis = axis_in(int(op.options["axis"]), output.rank)
    refuse_mixed_batch(builder, axis == 0)
    single = (*output.shape[:axis], 1, *output.shape[axis + 1 :])
    if len(op.inputs) != output.shape[axis]:
        raise Unsupported(f"{len(op.inputs)} inputs for {list(output.shape)}")
    operands = []
    for index in op.inputs:
        require_shape(builder, index, (*single[:axis], *single[axis + 1 :]))
        require_same_scale(builder, index, op.outputs[0])
        refuse_mixed_batch(builder, builder.is_constant(index))
        operands.append(builder.reshaped(builder.operand(index), single))
    builder.write(op.outputs[0], builder.node(Concat, operands, {"axis": axis}))


@READERS.register("UNPACK")
def unpack(builder: ModelBuilder, op: Operator) -> None:
    """Read UNPACK, the inverse."""
    index = slot(op.inputs, 0)
    shape, count = builder.tensor(index).shape, len(op.outputs)
    axis = axis_in(int(op.options["axis"]), len(shape))
    refuse_mixed_batch(builder, axis == 0)
    if count != shape[axis]:
        raise Unsupported(f"{count} outputs of {list(shape)}")
    require_same_scale(builder, index, *op.outputs)
    source = builder.operand(index)
    single = (*shape[:axis], 1, *shape[axis + 1 :])
    values = builder.split(Split, [source, builder.integers(*(1,) * count)], {"axis": axis}, count)
    for output, value in zip(op.outputs, values, strict=True):
        require_shape(builder, output, (*shape[:axis], *shape[axis + 1 :]))
        part = builder.on_grid_of(source, value, single)
        builder.write(output, builder.reshaped(part, builder.tensor(output).shape).value)


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


@READERS.register("SLICE")
def slice_(builder: ModelBuilder, op: Operator) -> None:
    """Read SLICE: where it begins and how much of each axis is kept, -1 for the rest."""
    shape = builder.tensor(slot(op.inputs, 0)).shape
    begin, size = builder.list_of(slot(op.inputs, 1)), builder.list_of(slot(op.inputs, 2))
    if not len(begin) == len(size) == len(shape):
        raise Unsupported(f"it begins at {list(begin)} and keeps {list(size)}")
    cuts = [
        Cut(start, 1, length - start if kept == -1 else kept)
        for start, kept, length in zip(begin, size, shape, strict=True)
    ]
    for cut, length in zip(cuts, shape, strict=True):
        # ONNX would clamp what lies outside, and compute another shape than the file's.
        if cut.start < 0 or cut.length < 1 or cut.start + cut.length > length:
            raise Unsupported(f"it begins at {list(begin)} and keeps {list(size)}")
    require_shape(builder, op.outputs[0], [cut.length for cut in cuts])
    _cut(builder, op, cuts)


@READERS.register("STRIDED_SLICE")
def strided_slice(builder: ModelBuilder, op: Operator) -> None:
    """Read STRIDED_SLICE, with all masks."""
    cuts, shape = strided_cuts(builder, op)
    require_shape(builder, op.outputs[0], shape)
    _cut(builder, op, cuts)


def strided_cuts(builder: ModelBuilder, op: Operator) -> tuple[list[Cut], tuple[int, ...]]:
    """Read which part of each axis a STRIDED_SLICE keeps, and its output's shape."""
    shape = builder.tensor(slot(op.inputs, 0)).shape
    begins, ends, steps = (builder.list_of(slot(op.inputs, number)) for number in (1, 2, 3))
    if not len(begins) == len(ends) == len(steps) or op.options["offset"]:
        raise Unsupported("its begins, ends and steps are of different lengths, or offsets")
    kinds = [_kind(op, k) for k in range(len(begins))]
    # The ellipsis stands for all axes that no other position names.
    skipped = len(shape) - sum(kind in ("keep", "drop") for kind in kinds)
    if skipped < 0 or kinds.count("ellipsis") > 1 or 0 in steps:
        raise Unsupported(f"it cuts {len(begins)} axes of {list(shape)} in steps {list(steps)}")
    # Axes that are not named at the end are kept whole, as by an ellipsis there.
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
                # Python cuts ends that lie outside as TFLite does.
                kept = range(*slice(start, stop, steps[k]).indices(shape[axis]))
                cuts.append(Cut(kept.start, steps[k], len(kept)))
                result.append(len(kept))
    return cuts, tuple(result)


def _kind(op: Operator, position: int) -> str:
    """Return the effect of a position of a STRIDED_SLICE on its axis."""
    masks = {"ellipsis": "ellipsis_mask", "new": "new_axis_mask", "drop": "shrink_axis_mask"}
    found = (kind for kind, mask in masks.items() if int(op.options[mask]) >> position & 1)
    return next(found, "keep")


def _cut(builder: ModelBuilder, op: Operator, cuts: list[Cut]) -> None:
    """Add the Slice of an operator whose output has been held against its cuts."""
    index, output = slot(op.inputs, 0), op.outputs[0]
    shape, wanted = builder.tensor(index).shape, builder.tensor(output).shape
    kept = tuple(cut.length for cut in cuts)
    require_same_scale(builder, index, output)
    whole = [cut == Cut(0, 1, length) for cut, length in zip(cuts, shape, strict=True)]
    refuse_mixed_batch(builder, not all(whole[:1]))
    same_rank = kept == wanted
    layout = builder.layout_of(index) if same_rank else ChannelLayout.FILE
    axes = [axis for axis, is_whole in enumerate(whole) if not is_whole]
    operand = builder.operand(index, layout)
    if shape and (axes or same_rank):
        # A Slice that keeps everything, because the output needs a value of its own.
        axes = axes or [len(shape) - 1]
        lists = [
            builder.integers(*(cuts[axis].start for axis in axes)),
            builder.integers(*(cuts[axis].stop for axis in axes)),
            builder.integers(*(_place(axis, len(shape), layout) for axis in axes)),
            builder.integers(*(cuts[axis].step for axis in axes)),
        ]
        operand = builder.moved(Slice, [operand, *lists], None, arranged(kept, layout))
    if same_rank and shape:
        builder.write(output, operand.value, layout)
    else:
        builder.write(output, builder.reshaped(operand, wanted).value)


def _place(axis: int, rank: int, layout: ChannelLayout) -> int:
    """Return where an axis of the file lies in a layout."""
    return arranged(range(rank), layout).index(axis)


_MOST = 1 << 12
"""Elements; shapes have a handful."""

_INTEGERS = {Element.INT32: np.int32, Element.INT64: np.int64}


def is_known(builder: ModelBuilder, op: Operator) -> bool:
    """Tell whether an operator computes integers that follow from shapes and constants."""
    if op.name not in _KNOWN or len(op.outputs) != 1:
        return False
    tensors = [builder.tensor(index) for index in (*op.inputs, *op.outputs) if index >= 0]
    # The shape of a large tensor is small all the same.
    if any(tensor.size > _MOST for tensor in tensors) and op.name != "SHAPE":
        return False
    if builder.tensor(op.outputs[0]).element not in _INTEGERS or not op.inputs:
        return False
    return op.name == "SHAPE" or all(
        builder.is_constant(index) for index in op.inputs if index >= 0
    )


def compute(builder: ModelBuilder, op: Operator) -> None:
    """Compute them.

    Raises:
        Unsupported: They are not of the shape that the file says.
    """
    output = builder.tensor(op.outputs[0])
    if op.name == "SHAPE":
        result: Array = np.array(builder.tensor(op.inputs[0]).shape, np.int64)
    elif op.name == "STRIDED_SLICE":
        result = _cut_sizes(builder, op).reshape(output.shape)
    else:
        arrays = [builder.array(index) for index in op.inputs if index >= 0]
        try:
            # Before it is computed: the result may not fit into memory.
            _check_growth(op, arrays, output.size)
            # Integers of shapes wrap as LiteRT's do, and a warning would name our code.
            with np.errstate(all="ignore"):
                result = np.asarray(_KNOWN[op.name](arrays, op))
                result = result.astype(_INTEGERS[output.element])
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise Unsupported(f"its integers do not fit together ({error})") from error
    _require_size(result.size, output.size)
    builder.charge(result.size)
    builder.known[op.outputs[0]] = result.reshape(output.shape).astype(_INTEGERS[output.element])


def _check_growth(op: Operator, arrays: list[Array], wanted: int) -> None:
    """Check that a result is no larger than its output: small operands may make gigabytes."""
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


def _cut_sizes(builder: ModelBuilder, op: Operator) -> Array:
    array = builder.array(op.inputs[0])
    for axis, cut in enumerate(strided_cuts(builder, op)[0]):
        kept = range(cut.start, cut.start + cut.step * cut.length, cut.step)
        array = np.take(array, list(kept), axis=axis)
    if array.size != builder.tensor(op.outputs[0]).size:
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
