"""Reads and writes the operators of a ``.tmfile`` that move elements."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import Shape, axis_in, refuse_mixed_batch, slot
from intact.formats.tengine.tmfile.file import Element, FileNode
from intact.formats.tengine.tmfile.file_builder import WRITERS, TmFileBuilder
from intact.formats.tengine.tmfile.onnx_builder import READERS, OnnxBuilder, image
from intact.formats.tengine.tmfile.operators import ABSENT_AXIS, BILINEAR, NEAREST
from intact.graph.builder import Attribute
from intact.program import Step
from intact.program.float_operations import Flatten
from intact.program.operations import (
    Concat,
    Pad,
    PadMode,
    Reshape,
    Resize,
    ResizeMode,
    Slice,
    Split,
    Transpose,
)

_LARGEST_FACTOR = 1 << 20
_PAD_MODES = {0: "constant", 1: "edge", 2: "reflect"}
_RESIZE_MODES = {NEAREST: ResizeMode.NEAREST, BILINEAR: ResizeMode.LINEAR}
_AXES_OF_TENSORFLOW = (0, 2, 3, 1)
"""Squeeze names axes as they are with channels last."""
_LAST_AXIS = 3
"""Where Flatten ends: no tensor of it has more dimensions."""


@READERS.register("Concat")
def _read_concat(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Concat."""
    values = [builder.activation(index) for index in node.inputs]
    shapes = [builder.shapes[value] for value in values]
    rank = len(shapes[0]) if shapes else 0
    axis = axis_in(node.options["axis"], rank)
    rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rests) != 1 or {len(shape) for shape in shapes} != {rank}:
        raise Unsupported(f"shapes {[list(shape) for shape in shapes[:4]]} do not fit together")
    refuse_mixed_batch(builder, axis == 0)
    total = sum(shape[axis] for shape in shapes)
    result = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    builder.compute(node, "Concat", values, result, {"axis": axis}, output=node.outputs[0])


@WRITERS.register(Concat)
def _write_concat(operation: Concat, step: Step, builder: TmFileBuilder) -> None:
    values = [builder.value(step, slot) for slot in range(len(step.inputs))]
    builder.add(step, "Concat", values, {"axis": operation.axis})


@READERS.register("Flatten")
def _read_flatten(builder: OnnxBuilder, node: FileNode) -> None:
    """Flatten from an axis to another, to two dimensions or, in older files, to four."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    first, last = node.options["axis"], node.options["end_axis"]
    if first < 0 or not shape:
        raise Unsupported(f"it flattens axes {first} to {last}")
    rows = (shape[0], math.prod(shape[first : last + 1]))
    output = node.outputs[0]
    declared = builder.tensor(output).shape
    # Some files note four dimensions for their rows, and their later nodes read these.
    if declared == (*rows, 1, 1):
        builder.reshape(node, value, declared, output=output)
    elif math.prod(rows) != math.prod(shape):
        raise Unsupported(f"it flattens axes {first} to {last} of {list(shape)}")
    else:
        builder.compute(node, "Flatten", [value], rows, {"axis": 1}, output=output)


@READERS.register("Reshape")
def _read_reshape(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Reshape; 0 keeps a length where the option says so, and that of the batch."""
    options = node.options
    value = builder.activation(slot(node.inputs, 0))
    before = builder.shapes[value]
    wanted = options["shape"]
    if wanted is None or options["reverse"] or any(length < -1 for length in wanted):
        raise Unsupported(f"it reshapes to {None if wanted is None else list(wanted[:8])}")
    copies = options["is_mxnet"] or options["is_onnx"]
    lengths = []
    for axis, length in enumerate(wanted):
        if length == 0 and not (copies or axis == 0):
            raise Unsupported(f"it reshapes to {list(wanted[:8])}")
        kept = before[axis] if axis < len(before) else 0
        lengths.append(kept if length == 0 else length)
    builder.reshape(node, value, _fill_in_length(before, lengths), output=node.outputs[0])


def _fill_in_length(before: Shape, lengths: list[int]) -> Shape:
    """Return lengths with the one that is -1 worked out."""
    # A 0 that is left stands for no axis that was there, and would divide by 0.
    if lengths.count(-1) > 1 or 0 in lengths:
        raise Unsupported(f"{list(before)} cannot become {lengths[:8]}")
    known = math.prod(length for length in lengths if length > 0)
    return tuple(math.prod(before) // known if length == -1 else length for length in lengths)


@WRITERS.register(Reshape, Flatten)
def _write_reshape(_: Reshape | Flatten, step: Step, builder: TmFileBuilder) -> None:
    """Flatten where that is the node of the model and makes rows; otherwise Reshape."""
    builder.refuse_rescaling(step)
    value, result = builder.value(step), builder.result_shape(step)
    shape = builder.shape(value)
    is_rows = len(result) == 2 and result[0] == shape[0] and 1 < len(shape) <= _LAST_AXIS + 1
    if builder.operator(step) == "Flatten" and is_rows:
        builder.add(step, "Flatten", [value], {"axis": 1, "end_axis": _LAST_AXIS})
        return
    options = {"is_mxnet": 0, "reverse": 0, "shape": result, "is_onnx": 1}
    builder.add(step, "Reshape", [value], options)


@READERS.register("Squeeze")
def _read_squeeze(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Squeeze: of the axes that are named, those of length 1; else all of length 1."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    given = [node.options[f"dim_{k}"] for k in range(4)]
    named = [axis for axis in given if axis != ABSENT_AXIS]
    if any(not 0 <= axis < 4 for axis in named):
        raise Unsupported(f"its axes are {named}")
    axes = {_AXES_OF_TENSORFLOW[axis] for axis in named} if named else set(range(len(shape)))
    result = tuple(length for axis, length in enumerate(shape) if axis not in axes or length != 1)
    # Tengine has no tensor without axes.
    builder.reshape(node, value, result or (1,), output=node.outputs[0])


@READERS.register("Unsqueeze", "ExpandDims")
def _read_unsqueeze(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Unsqueeze and ExpandDims: axes of length 1 more."""
    value = builder.activation(slot(node.inputs, 0))
    axes = node.options["axes"] or () if node.operator == "Unsqueeze" else (node.options["axis"],)
    result = list(builder.shapes[value])
    # Ascending, since they are axes of the result.
    for axis in sorted(axes):
        if not 0 <= axis <= len(result) or len(result) > 7:
            raise Unsupported(f"it makes axes {list(axes[:8])}")
        result.insert(axis, 1)
    builder.reshape(node, value, tuple(result), output=node.outputs[0])


@READERS.register("Permute", "Transpose")
def _read_transpose(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Permute and Transpose."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    order: Shape = node.options.get("order") or ()
    if node.operator == "Permute":
        order = tuple(node.options[f"order_{k}"] for k in range(len(shape[:4])))
    if sorted(order) != list(range(len(shape))):
        raise Unsupported(f"it orders {len(shape)} axes as {list(order[:8])}")
    refuse_mixed_batch(builder, order[:1] != (0,))
    result = tuple(shape[axis] for axis in order)
    builder.compute(node, "Transpose", [value], result, {"perm": order}, output=node.outputs[0])


@WRITERS.register(Transpose)
def _write_transpose(operation: Transpose, step: Step, builder: TmFileBuilder) -> None:
    builder.add(step, "Transpose", [builder.value(step)], {"order": operation.permutation})


@READERS.register("Slice")
def _read_slice(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Slice: parts as Caffe cuts them, a piece of one axis, or a piece of each."""
    options = node.options
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    if options["is_caffe"]:
        axis = axis_in(options["axis"], len(shape))
        edges = (0, *(options["slice_points"] or ()), shape[axis])
        sizes = [after - before for before, after in pairwise(edges)]
        if not options["slice_points"]:
            # Lengths that leave a rest are refused in `_add_parts`.
            sizes = [shape[axis] // len(node.outputs)] * len(node.outputs)
        _add_parts(builder, node, value, axis, sizes)
        return
    if options["is_mxnet"] or options["is_onnx"]:
        axis = axis_in(options["axis"], len(shape))
        step = max(options["step"], 1) if options["is_onnx"] else 1
        # An end of 0 or less counts from the end, and one beyond it is the end.
        begin, end = options["begin"], min(options["end"], shape[axis])
        pieces = {axis: (begin, end if end > 0 else shape[axis] + end, step)}
    else:
        begins, sizes = options["begins"] or (), list(options["sizes"] or ())
        if not len(begins) == len(sizes) == len(shape):
            raise Unsupported(f"it begins at {list(begins[:8])} and keeps {sizes[:8]}")
        pieces = {
            axis: (begin, begin + size, 1)
            for axis, (begin, size) in enumerate(zip(begins, sizes, strict=True))
            if (begin, size) != (0, shape[axis])
        }
    result = list(shape)
    for axis, (begin, end, step) in pieces.items():
        # ONNX would clamp what lies outside, and compute another shape than the file's.
        if not 0 <= begin < end <= shape[axis]:
            raise Unsupported(f"it keeps {begin} to {end} of {shape[axis]}")
        result[axis] = -(-(end - begin) // step)
    refuse_mixed_batch(builder, 0 in pieces)
    rows = list(zip(*pieces.values(), strict=True)) or [(), (), ()]
    lists = [builder.integers(*each) for each in (rows[0], rows[1], tuple(pieces), rows[2])]
    kind, inputs = ("Slice", [value, *lists]) if pieces else ("Identity", [value])
    builder.compute(node, kind, inputs, tuple(result), output=node.outputs[0])


@WRITERS.register(Slice)
def _write_slice(operation: Slice, step: Step, builder: TmFileBuilder) -> None:
    """Write one that goes forwards: of one axis, or of several without steps."""
    value = builder.value(step)
    shape = builder.shape(value)
    builder.refuse_rescaling(step)
    if min(operation.steps) < 1:
        raise Unsupported("it cuts backwards")
    limits = zip(operation.starts, operation.stops, operation.steps, shape, strict=True)
    bounds = [slice(*limit).indices(length) for *limit, length in limits]
    pieces = {
        axis: piece
        for axis, (piece, length) in enumerate(zip(bounds, shape, strict=True))
        if piece != (0, length, 1)
    }
    options: dict[str, Any] = {
        "axis": 0,
        "slice_points": None,
        "begins": None,
        "sizes": None,
        "is_caffe": 0,
        "is_mxnet": 0,
        "is_onnx": 0,
        "begin": 0,
        "end": 0,
        "step": 1,
    }
    if len(pieces) == 1:
        ((axis, (first, last, step_)),) = pieces.items()
        options |= {"axis": axis, "is_onnx": 1, "begin": first, "end": last, "step": step_}
    elif any(each != 1 for _, _, each in pieces.values()):
        raise Unsupported("it cuts several axes in steps")
    else:
        options["begins"] = [first for first, _, _ in bounds]
        options["sizes"] = [last - first for first, last, _ in bounds]
    builder.add(step, "Slice", [value], options)


@READERS.register("Split")
def _read_split(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Split: in Caffe copies, else parts along an axis."""
    options = node.options
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    if options["is_caffe"]:
        for number, output in enumerate(node.outputs):
            part = f"copy_{number}"
            builder.compute(node, "Identity", [value], shape, part=part, output=output)
        return
    axis = axis_in(options["axis"], len(shape))
    count = len(node.outputs)
    sizes = list(options["sizes"] or ()) or [shape[axis] // count] * count
    _add_parts(builder, node, value, axis, sizes)


def _add_parts(
    builder: OnnxBuilder, node: FileNode, value: ir.Value, axis: int, sizes: list[int]
) -> None:
    shape = builder.shapes[value]
    if len(sizes) != len(node.outputs) or sum(sizes) != shape[axis] or min(sizes) < 1:
        raise Unsupported(f"parts {sizes[:8]} of {shape[axis]} for {len(node.outputs)} outputs")
    refuse_mixed_batch(builder, axis == 0)
    shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    builder.split(node, value, axis, sizes, shapes)


@WRITERS.register(Split)
def _write_split(operation: Split, step: Step, builder: TmFileBuilder) -> None:
    builder.refuse_rescaling(step)
    options = {
        "axis": operation.axis,
        "split_dim": len(operation.sizes),
        "is_caffe": 0,
        "is_onnx": 1,
        "sizes": operation.sizes,
    }
    builder.add(step, "Split", [builder.value(step)], options)


@READERS.register("Pad")
def _read_pad(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Pad."""
    value, shape = image(builder, node)
    options = node.options
    starts, ends = ([options[f"{axis}_{end}"] for axis in "nchw"] for end in (0, 1))
    if min(*starts, *ends) < 0 or options["mode"] not in _PAD_MODES:
        raise Unsupported(f"it pads {starts} and {ends} in mode {options['mode']}")
    reaches = max(*starts, *ends) >= min(shape[2:])
    if options["mode"] != 0 and (reaches or any((*starts[:2], *ends[:2]))):
        raise Unsupported(f"it mirrors {starts} and {ends} of {list(shape)}")
    refuse_mixed_batch(builder, bool(starts[0] or ends[0]))
    inputs = [value, builder.integers(*starts, *ends), builder.number(options["value"])]
    result = tuple(sum(each) for each in zip(shape, starts, ends, strict=True))
    attributes = {"mode": _PAD_MODES[options["mode"]]}
    builder.compute(node, "Pad", inputs, result, attributes, output=node.outputs[0])


@WRITERS.register(Pad)
def _write_pad(operation: Pad, step: Step, builder: TmFileBuilder) -> None:
    """Write a number around images, in float."""
    if operation.mode is not PadMode.CONSTANT:
        raise Unsupported("it mirrors, or repeats what is outermost")
    pads = operation.pads
    builder.refuse_elements(Element.INT8, Element.UINT8)
    builder.image_shape(step)
    if any(pads[0]) or min(min(pair) for pair in pads) < 0:
        raise Unsupported(f"it pads by {[list(pair) for pair in pads]}")
    ends = {f"{axis}_{end}": pads[k][end] for k, axis in enumerate("nchw") for end in (0, 1)}
    options = {**ends, "mode": 0, "value": operation.value}
    builder.add(step, "Pad", [builder.value(step)], options)


@READERS.register("Interp", "Resize", "Upsample")
def _read_interp(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Interp, Resize and Upsample: to the nearest pixel or between pixels, from the corner."""
    options = node.options
    value, shape = image(builder, node)
    kind, named = NEAREST, ("scale_h", "scale_w")
    if node.operator == "Upsample":
        named = ("scale", "scale")
    elif node.operator == "Interp":
        kind = options["type"]
    elif options["type"] != 0:  # Resize counts from 0; its other kind starts inside the pixels
        kind = -1
    if kind not in _RESIZE_MODES:
        raise Unsupported(f"it is of type {options['type']}")
    attributes: dict[str, Attribute] = {
        "mode": _RESIZE_MODES[kind].value,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
        "axes": (2, 3),
    }
    factors = [options[name] for name in named]
    if not all(np.isfinite(factor) and 0 <= factor < _LARGEST_FACTOR for factor in factors):
        raise Unsupported(f"its factors are {factors}")
    lengths = [options.get(name, 0) for name in ("output_h", "output_w")]
    if all(factors):  # products are rounded to float32 before they are cut
        lengths = [
            int(np.float32(length) * np.float32(factor))
            for length, factor in zip(shape[2:], factors, strict=True)
        ]
    if all(factors) and kind == NEAREST:
        inputs = [value, None, builder.floats(*factors)]
    else:  # between pixels the factors follow from the lengths
        inputs = [value, None, None, builder.integers(*lengths)]
    result = (*shape[:2], *lengths)
    builder.compute(node, "Resize", inputs, result, attributes, output=node.outputs[0])


@WRITERS.register(Resize)
def _write_resize(operation: Resize, step: Step, builder: TmFileBuilder) -> None:
    """Write images to the nearest pixel or between pixels, from the corner."""
    shape, result = builder.image_shape(step), builder.result_shape(step)
    rows = list(zip(shape[2:], result[2:], strict=True))
    is_linear = operation.mode is ResizeMode.LINEAR
    is_whole = all(after % before == 0 for before, after in rows)
    # Enlarged by a whole number, the nearest pixel is the same from the corner.
    if operation.align_corners or (operation.half_pixel and (is_linear or not is_whole)):
        raise Unsupported(f"it computes {operation.mode} from other places than the corner")
    factors = [float(np.float32(after) / np.float32(before)) for before, after in rows]
    # Computed as Tengine does from the factors in the file: a rounded factor may give a row less.
    lengths = [int(np.float32(n) * np.float32(f)) for n, f in zip(shape[2:], factors, strict=True)]
    if tuple(lengths) != result[2:] or result[:2] != shape[:2]:
        raise Unsupported(f"it makes {list(result)} of {list(shape)}")
    # The kernel reads two pixels of each axis, of the first image.
    if is_linear and (shape[0] != 1 or min(shape[2:]) < 2):
        raise Unsupported(f"it computes between the pixels of {list(shape)}")
    options = {
        "type": next(theirs for theirs, mode in _RESIZE_MODES.items() if mode is operation.mode),
        "scale_w": factors[1],
        "scale_h": factors[0],
        "output_w": result[3],
        "output_h": result[2],
    }
    builder.add(step, "Interp", [builder.value(step)], options)
