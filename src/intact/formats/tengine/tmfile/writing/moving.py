"""Operators that move elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.operators import BILINEAR, NEAREST
from intact.formats.tengine.tmfile.writing.common import (
    Write,
    activation,
    attribute,
    given,
    has,
    image_shape,
    integers,
    refuse_integers,
    refuse_rescaling,
    scalar,
)
from intact.formats.tengine.tmfile.writing.forms import constant_of
from intact.formats.tengine.tmfile.writing.shapes import Shape
from intact.formats.tengine.tmfile.writing.sheet import Sheet

_LAST_AXIS = 3
"""Where Flatten ends: no tensor of it has more dimensions."""


def concat(sheet: Sheet, node: ir.Node) -> None:
    """Concat of activations."""
    values = [activation(sheet, node, slot) for slot in range(len(node.inputs))]
    axis = attribute(node, "axis", 0) % len(sheet.shape(values[0]))
    sheet.add(node, "Concat", values, {"axis": axis})


def flatten(sheet: Sheet, node: ir.Node) -> None:
    """Flatten to rows; from another axis on it is a Reshape."""
    rank = len(sheet.shape(activation(sheet, node)))
    if attribute(node, "axis", 1) % max(rank, 1) != 1 or rank > _LAST_AXIS + 1:
        reshape(sheet, node)
        return
    refuse_rescaling(sheet, node)
    sheet.add(node, "Flatten", [given(node, 0)], {"axis": 1, "end_axis": _LAST_AXIS})


def reshape(sheet: Sheet, node: ir.Node) -> None:
    """Reshape, and what only makes or drops axes of length 1."""
    refuse_rescaling(sheet, node)
    options = {
        "is_mxnet": 0,
        "reverse": 0,
        "shape": sheet.shape(node.outputs[0]),
        "is_onnx": 1,
    }
    sheet.add(node, "Reshape", [activation(sheet, node)], options)


def transpose(sheet: Sheet, node: ir.Node) -> None:
    """Transpose."""
    rank = len(sheet.shape(activation(sheet, node)))
    order = tuple(attribute(node, "perm", list(reversed(range(rank)))))
    sheet.add(node, "Transpose", [given(node, 0)], {"order": order})


def slice_(sheet: Sheet, node: ir.Node) -> None:
    """Slice forwards: of one axis, or of several without steps."""
    shape = sheet.shape(activation(sheet, node))
    refuse_rescaling(sheet, node)
    starts, ends = integers(sheet, node, 1), integers(sheet, node, 2)
    axes = integers(sheet, node, 3) if has(node, 3) else list(range(len(starts)))
    steps = integers(sheet, node, 4) if has(node, 4) else [1] * len(starts)
    pieces = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 1:
            raise Unsupported("it cuts backwards")
        first, last, _ = slice(start, end, step).indices(shape[axis])
        if (first, last, step) != (0, shape[axis], 1):
            pieces[axis % len(shape)] = (first, last, step)
    options: dict[str, int | list[int] | None] = {
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
        ((axis, (first, last, step)),) = pieces.items()
        options |= {"axis": axis, "is_onnx": 1, "begin": first, "end": last, "step": step}
    elif any(step != 1 for _, _, step in pieces.values()):
        raise Unsupported("it cuts several axes in steps")
    else:
        bounds = [pieces.get(axis, (0, length, 1)) for axis, length in enumerate(shape)]
        begins = [first for first, _, _ in bounds]
        options |= {"begins": begins, "sizes": [last - first for first, last, _ in bounds]}
    sheet.add(node, "Slice", [given(node, 0)], options)


def split(sheet: Sheet, node: ir.Node) -> None:
    """Split."""
    shape = sheet.shape(activation(sheet, node))
    refuse_rescaling(sheet, node)
    axis = attribute(node, "axis", 0) % len(shape)
    sizes = [sheet.shape(value)[axis] for value in node.outputs]
    options = {"axis": axis, "split_dim": len(sizes), "is_caffe": 0, "is_onnx": 1, "sizes": sizes}
    sheet.add(node, "Split", [given(node, 0)], options)


def pad(sheet: Sheet, node: ir.Node) -> None:
    """Pad of images with a constant."""
    refuse_integers(sheet, Element.INT8, Element.UINT8)
    image_shape(sheet, node)
    pads = integers(sheet, node, 1)
    if attribute(node, "mode", "constant") != "constant" or len(pads) != 8 or has(node, 3):
        raise Unsupported("it mirrors, or pads some axes only")
    if min(pads) < 0 or any(pads[axis] for axis in (0, 4)):
        raise Unsupported(f"it pads by {pads}")
    options = {
        f"{axis}_{end}": pads[number + 4 * end]
        for number, axis in enumerate("nchw")
        for end in (0, 1)
    }
    value = {"mode": 0, "value": scalar(sheet, node, 2, 0.0)}
    sheet.add(node, "Pad", [given(node, 0)], {**options, **value})


def resize(sheet: Sheet, node: ir.Node) -> None:
    """Resize of images to the nearest pixel or between pixels, from the corner."""
    shape = image_shape(sheet, node)
    result = sheet.shape(node.outputs[0])
    factors = _factors(sheet, node, shape, result)
    mode = attribute(node, "mode", "nearest")
    origin = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    whole = all(float(factor).is_integer() for factor in factors)
    exact = rounding == "floor" or (rounding == "round_prefer_floor" and {*factors} <= {1.0, 2.0})
    corner = origin == "asymmetric" and (mode == "linear" or exact)
    centred = mode == "nearest" and "half_pixel" in origin and "round" in rounding and whole
    if not (corner or centred) or mode not in ("nearest", "linear"):
        raise Unsupported(f"it computes {mode} from {origin} with {rounding}")
    lengths = [int(np.float32(n) * np.float32(f)) for n, f in zip(shape[2:], factors, strict=True)]
    if tuple(lengths) != result[2:] or result[:2] != shape[:2]:
        raise Unsupported(f"it makes {list(result)} of {list(shape)}")
    if mode == "linear":
        _refuse_between(shape, result, factors)
    options = {
        "type": NEAREST if mode == "nearest" else BILINEAR,
        "scale_w": factors[1],
        "scale_h": factors[0],
        "output_w": result[3],
        "output_h": result[2],
    }
    sheet.add(node, "Interp", [given(node, 0)], options)


def _refuse_between(shape: Shape, result: Shape, factors: list[float]) -> None:
    """Refuse to compute between pixels where Tengine does otherwise.

    Its kernel reads two pixels of each axis, of the first image, and takes the factors from the
    lengths.
    """
    rows = list(zip(shape[2:], result[2:], factors, strict=True))
    if shape[0] != 1 or any(before < 2 for before, _, _ in rows):
        raise Unsupported(f"it computes between the pixels of {list(shape)}")
    if any(np.float32(after) / np.float32(before) != np.float32(f) for before, after, f in rows):
        raise Unsupported(f"its factors are {factors}, those of its lengths are others")


def _factors(sheet: Sheet, node: ir.Node, shape: Shape, result: Shape) -> list[float]:
    """Return the factors of height and width."""
    if has(node, 2) and constant_of(sheet.graph, node, 2).size:
        given_factors = [float(each) for each in constant_of(sheet.graph, node, 2).reshape(-1)]
        axes = attribute(node, "axes", list(range(len(shape))))
        by_axis = dict(zip((axis % len(shape) for axis in axes), given_factors, strict=True))
        return [by_axis.get(axis, 1.0) for axis in (2, 3)]
    pairs = zip(result[2:], shape[2:], strict=True)
    return [float(np.float32(after) / np.float32(before)) for after, before in pairs]


TABLE: Mapping[str, Write] = {
    "Concat": concat,
    "Flatten": flatten,
    "Reshape": reshape,
    "Squeeze": reshape,
    "Unsqueeze": reshape,
    "Transpose": transpose,
    "Slice": slice_,
    "Split": split,
    "Pad": pad,
    "Resize": resize,
}
"""Write functions by operator of ONNX."""
