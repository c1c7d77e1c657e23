"""Operators that move elements."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.operators import ABSENT_AXIS, BILINEAR, NEAREST
from intact.formats.tengine.tmfile.readers.builder import (
    READERS,
    OnnxBuilder,
    Shape,
    axis_in,
    image,
    slot,
)
from intact.graph.builder import Attribute

_LARGEST_FACTOR = 1 << 20
_PADS = {0: "constant", 1: "edge", 2: "reflect"}
_AXES_OF_TENSORFLOW = (0, 2, 3, 1)
"""Squeeze names axes as they are with channels last."""


@READERS.register("Concat")
def _concat(builder: OnnxBuilder, node: FileNode) -> None:
    """Concat."""
    values = [builder.activation(index) for index in node.inputs]
    shapes = [builder.shapes[value] for value in values]
    rank = len(shapes[0]) if shapes else 0
    axis = axis_in(node.options["axis"], rank)
    rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rests) != 1 or {len(shape) for shape in shapes} != {rank}:
        raise Unsupported(f"shapes {[list(shape) for shape in shapes[:4]]} do not fit together")
    builder.mixes(axis == 0)
    total = sum(shape[axis] for shape in shapes)
    result = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    builder.compute(node, "Concat", values, result, {"axis": axis}, output=node.outputs[0])


@READERS.register("Flatten")
def _flatten(builder: OnnxBuilder, node: FileNode) -> None:
    """Flatten from an axis to another, to two dimensions or, in older files, to four."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    first, last = node.options["axis"], node.options["end_axis"]
    if first < 0 or not shape:
        raise Unsupported(f"it flattens axes {first} to {last}")
    rows = (shape[0], math.prod(shape[first : last + 1]))
    output = node.outputs[0]
    declared = builder.tensor(output).shape
    if declared == (*rows, 1, 1):
        builder.reshaped(node, value, declared, output=output)
    elif math.prod(rows) != math.prod(shape):
        raise Unsupported(f"it flattens axes {first} to {last} of {list(shape)}")
    else:
        builder.compute(node, "Flatten", [value], rows, {"axis": 1}, output=output)


@READERS.register("Reshape")
def _reshape(builder: OnnxBuilder, node: FileNode) -> None:
    """Reshape; 0 keeps a length where the option says so, and that of the batch."""
    options = node.options
    value = builder.activation(slot(node, 0))
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
    builder.reshaped(node, value, _completed(before, lengths), output=node.outputs[0])


def _completed(before: Shape, lengths: list[int]) -> Shape:
    """Return lengths with the one that is -1 worked out."""
    if lengths.count(-1) > 1 or 0 in lengths:
        raise Unsupported(f"{list(before)} cannot become {lengths[:8]}")
    known = math.prod(length for length in lengths if length > 0)
    return tuple(math.prod(before) // known if length == -1 else length for length in lengths)


@READERS.register("Squeeze")
def _squeeze(builder: OnnxBuilder, node: FileNode) -> None:
    """Squeeze: of the axes that are named, those of length 1; else all of length 1."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    given = [node.options[f"dim_{k}"] for k in range(4)]
    named = [axis for axis in given if axis != ABSENT_AXIS]
    if any(not 0 <= axis < 4 for axis in named):
        raise Unsupported(f"its axes are {named}")
    axes = {_AXES_OF_TENSORFLOW[axis] for axis in named} if named else set(range(len(shape)))
    result = tuple(length for axis, length in enumerate(shape) if axis not in axes or length != 1)
    builder.reshaped(node, value, result or (1,), output=node.outputs[0])


@READERS.register("Unsqueeze", "ExpandDims")
def _unsqueeze(builder: OnnxBuilder, node: FileNode) -> None:
    """Unsqueeze and ExpandDims: axes of length 1 more."""
    value = builder.activation(slot(node, 0))
    axes = node.options["axes"] or () if node.operator == "Unsqueeze" else (node.options["axis"],)
    result = list(builder.shapes[value])
    for axis in sorted(axes):
        if not 0 <= axis <= len(result) or len(result) > 7:
            raise Unsupported(f"it makes axes {list(axes[:8])}")
        result.insert(axis, 1)
    builder.reshaped(node, value, tuple(result), output=node.outputs[0])


@READERS.register("Permute", "Transpose")
def _transpose(builder: OnnxBuilder, node: FileNode) -> None:
    """Permute and Transpose."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    order: Shape = node.options.get("order") or ()
    if node.operator == "Permute":
        order = tuple(node.options[f"order_{k}"] for k in range(len(shape[:4])))
    if sorted(order) != list(range(len(shape))):
        raise Unsupported(f"it orders {len(shape)} axes as {list(order[:8])}")
    builder.mixes(order[:1] != (0,))
    result = tuple(shape[axis] for axis in order)
    builder.compute(node, "Transpose", [value], result, {"perm": order}, output=node.outputs[0])


@READERS.register("Slice")
def _slice(builder: OnnxBuilder, node: FileNode) -> None:
    """Slice: parts as Caffe cuts them, a piece of one axis, or a piece of each."""
    options = node.options
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    if options["is_caffe"]:
        axis = axis_in(options["axis"], len(shape))
        edges = (0, *(options["slice_points"] or ()), shape[axis])
        sizes = [after - before for before, after in pairwise(edges)]
        if not options["slice_points"]:
            sizes = [shape[axis] // len(node.outputs)] * len(node.outputs)
        _parts(builder, node, value, axis, sizes)
        return
    if options["is_mxnet"] or options["is_onnx"]:
        axis = axis_in(options["axis"], len(shape))
        step = max(options["step"], 1) if options["is_onnx"] else 1
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
        if not 0 <= begin < end <= shape[axis]:
            raise Unsupported(f"it keeps {begin} to {end} of {shape[axis]}")
        result[axis] = -(-(end - begin) // step)
    builder.mixes(0 in pieces)
    rows = list(zip(*pieces.values(), strict=True)) or [(), (), ()]
    lists = [builder.integers(*each) for each in (rows[0], rows[1], tuple(pieces), rows[2])]
    kind, inputs = ("Slice", [value, *lists]) if pieces else ("Identity", [value])
    builder.compute(node, kind, inputs, tuple(result), output=node.outputs[0])


@READERS.register("Split")
def _split(builder: OnnxBuilder, node: FileNode) -> None:
    """Split: in Caffe copies, else parts along an axis."""
    options = node.options
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    if options["is_caffe"]:
        for number, output in enumerate(node.outputs):
            part = f"copy_{number}"
            builder.compute(node, "Identity", [value], shape, part=part, output=output)
        return
    axis = axis_in(options["axis"], len(shape))
    count = len(node.outputs)
    sizes = list(options["sizes"] or ()) or [shape[axis] // count] * count
    _parts(builder, node, value, axis, sizes)


def _parts(
    builder: OnnxBuilder, node: FileNode, value: ir.Value, axis: int, sizes: list[int]
) -> None:
    shape = builder.shapes[value]
    if len(sizes) != len(node.outputs) or sum(sizes) != shape[axis] or min(sizes) < 1:
        raise Unsupported(f"parts {sizes[:8]} of {shape[axis]} for {len(node.outputs)} outputs")
    builder.mixes(axis == 0)
    shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    builder.split(node, value, axis, sizes, shapes)


@READERS.register("Pad")
def _pad(builder: OnnxBuilder, node: FileNode) -> None:
    """Pad."""
    value, shape = image(builder, node)
    options = node.options
    starts, ends = ([options[f"{axis}_{end}"] for axis in "nchw"] for end in (0, 1))
    if min(*starts, *ends) < 0 or options["mode"] not in _PADS:
        raise Unsupported(f"it pads {starts} and {ends} in mode {options['mode']}")
    reaches = max(*starts, *ends) >= min(shape[2:])
    if options["mode"] != 0 and (reaches or any((*starts[:2], *ends[:2]))):
        raise Unsupported(f"it mirrors {starts} and {ends} of {list(shape)}")
    builder.mixes(bool(starts[0] or ends[0]))
    inputs = [value, builder.integers(*starts, *ends), builder.number(options["value"])]
    result = tuple(sum(each) for each in zip(shape, starts, ends, strict=True))
    attributes = {"mode": _PADS[options["mode"]]}
    builder.compute(node, "Pad", inputs, result, attributes, output=node.outputs[0])


@READERS.register("Interp", "Resize", "Upsample")
def _interp(builder: OnnxBuilder, node: FileNode) -> None:
    """Interp, Resize and Upsample: to the nearest pixel or between pixels, from the corner."""
    options = node.options
    value, shape = image(builder, node)
    kind, named = NEAREST, ("scale_h", "scale_w")
    if node.operator == "Upsample":
        named = ("scale", "scale")
    elif node.operator == "Interp":
        kind = options["type"]
    elif options["type"] != 0:  # Resize counts from 0; its other kind starts inside the pixels
        kind = -1
    if kind not in (NEAREST, BILINEAR):
        raise Unsupported(f"it is of type {options['type']}")
    attributes: dict[str, Attribute] = {
        "mode": "nearest" if kind == NEAREST else "linear",
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
