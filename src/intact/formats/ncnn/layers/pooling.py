"""Pools, reductions and resizing."""

from __future__ import annotations

from itertools import product

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.ncnn.draft import Draft, Write
from intact.formats.ncnn.shapes import Parameter, known_lengths, lengths, present, rank_of, sample
from intact.graph import constant_array, input_value
from intact.program.lower.attributes import integers, window_pads

_MAX, _AVERAGE = 0, 1
_ROUND_UP, _ROUND_DOWN = 0, 1
_REDUCTIONS = {
    "ReduceSum": 0,
    "ReduceMean": 3,
    "ReduceMax": 4,
    "ReduceMin": 5,
    "ReduceProd": 6,
    "ReduceL1": 7,
    "ReduceL2": 8,
}
_NEAREST, _LINEAR = 1, 2
_HALF_PIXELS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
_REPEATING = {
    ("asymmetric", "floor"),
    *product(_HALF_PIXELS, ("round_prefer_floor", "round_prefer_ceil")),
}
"""By which coordinates and rounding nearest samples are each repeated a whole number of times."""


def pool(kind: int) -> Write:
    """MaxPool or AveragePool of images."""

    def write(draft: Draft, node: ir.Node) -> None:
        if len([value for value in node.outputs if value.name]) > 1:
            raise Unsupported("it hands out indices")
        draft.unary("Pooling", node, {0: kind, **_window(node, kind)})

    return write


def global_pool(kind: int) -> Write:
    """GlobalMaxPool or GlobalAveragePool: ncnn hands out a vector, which gets its axes back."""

    def write(draft: Draft, node: ir.Node) -> None:
        _over_image(draft, node, kind, (1, 1))

    return write


def reduction(draft: Draft, node: ir.Node) -> None:
    """ReduceMean and the like along axes of a sample."""
    rank = rank_of(present(node, 0))
    try:
        axes = integers(node, "axes", 1)
    except Unsupported as reason:
        raise Unsupported(str(reason)) from None
    if not axes:
        raise Unsupported("it reduces all axes, the batch too, or none")
    positive = sorted(axis % rank for axis in axes)
    if 0 in positive:
        raise Unsupported("it reduces the batch")
    keeps = node.attributes.get_int("keepdims", 1) == 1
    if rank == 4 and positive == [2, 3] and node.op_type in ("ReduceMean", "ReduceMax"):
        kind = _AVERAGE if node.op_type == "ReduceMean" else _MAX
        _over_image(draft, node, kind, (1, 1) if keeps else ())
        return
    if len(positive) == rank - 1 and not keeps:
        raise Unsupported("nothing but the batch is left of its axes")
    parameters: dict[int, Parameter] = {0: _REDUCTIONS[node.op_type], 1: 0}
    parameters |= {3: tuple(axis - 1 for axis in positive), 4: int(keeps), 5: 1}
    draft.unary("Reduction", node, parameters)


def _over_image(draft: Draft, node: ir.Node, kind: int, ones: tuple[int, ...]) -> None:
    value, result = present(node, 0), node.outputs[0]
    if rank_of(value) != 4:
        raise Unsupported("only pools of images are written")
    channels = known_lengths(value)[0]
    if channels is None:
        raise Unsupported(f"a length of {value.name!r} is not known")
    bottom, top = draft.read(node, 0), draft.blob(result)
    vector = draft.inner(result) if ones else top
    draft.emit("Pooling", str(node.name), [bottom], [vector], {0: kind, 4: 1})
    if ones:
        draft.emit("Reshape", f"{node.name}_axes", [vector], [top], lengths((channels, *ones)))


def _window(node: ir.Node, kind: int) -> dict[int, Parameter]:
    value = present(node, 0)
    kernel = integers(node, "kernel_shape")
    if kernel is None or rank_of(value) != 4 or len(kernel) != 2:
        raise Unsupported("only pools of images are written")
    strides, dilations = integers(node, "strides") or (1, 1), integers(node, "dilations") or (1, 1)
    if dilations != (1, 1):
        raise Unsupported("its window is dilated")
    shape = (None, *known_lengths(value))
    try:
        (top, bottom), (left, right) = window_pads(node, shape, kernel, strides, dilations)
    except Unsupported as reason:
        raise Unsupported(str(reason)) from None
    counts = node.attributes.get_int("count_include_pad", 0)
    up = node.attributes.get_int("ceil_mode", 0) == 1
    if up:
        _refuse_other_rounding(node, kernel, strides, ((top, bottom), (left, right)))
        if kind == _AVERAGE and counts:
            raise Unsupported("it rounds its size up and counts pads")
    return {
        1: kernel[1],
        11: kernel[0],
        2: strides[1],
        12: strides[0],
        3: left,
        13: top,
        14: right,
        15: bottom,
        5: _ROUND_UP if up else _ROUND_DOWN,
        6: counts,
    }


def _refuse_other_rounding(
    node: ir.Node,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
) -> None:
    """Refuse windows that ONNX leaves out because they begin in the pads behind the data.

    What shape inference says is not asked: not all of its releases leave them out.
    """
    sizes = zip(sample(present(node, 0))[1:], kernel, strides, pads, strict=True)
    for size, width, stride, (first, last) in sizes:
        windows = -(-(size + first + last - width) // stride) + 1
        if (windows - 1) * stride >= size + first:
            raise Unsupported("its last window begins in the pads")


def resize(draft: Draft, node: ir.Node) -> None:
    """Resize of images: nearest by whole factors, or linear."""
    value, result = present(node, 0), node.outputs[0]
    before, after = sample(value), sample(result)
    if len(before) != 3 or before[0] != after[0]:
        raise Unsupported("it resizes other axes than those of an image")
    _refuse_odd_scales(node, before, after)
    mode = node.attributes.get_string("mode", "nearest")
    where = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    sizes: dict[int, Parameter] = {3: after[1], 4: after[2]}
    if node.attributes.get_int("antialias", 0):
        raise Unsupported("it smooths what it shrinks")
    if mode == "nearest":
        if any(new % old for old, new in zip(before, after, strict=True)):
            raise Unsupported("it takes nearest samples by no whole factor")
        rounds = node.attributes.get_string("nearest_mode", "round_prefer_floor")
        if (where, rounds) not in _REPEATING:
            raise Unsupported(f"it takes nearest samples by {where} and {rounds}")
        draft.unary("Interp", node, {0: _NEAREST, **sizes})
    elif mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        if 1 in after[1:] and where != "half_pixel":
            raise Unsupported("it shrinks an axis to one sample")
        draft.unary("Interp", node, {0: _LINEAR, **sizes, 6: int(where == "align_corners")})
    else:
        raise Unsupported(f"it resizes by mode {mode} and {where}")


def _refuse_odd_scales(node: ir.Node, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Refuse scales that are not the quotients of the lengths, which ncnn takes."""
    scales = constant_array(input_value(node, 2))
    if scales is None or not scales.size:
        return
    axes = integers(node, "axes") or tuple(range(len(before) + 1))
    for axis, scale in zip(axes, scales.tolist(), strict=True):
        inner = axis % (len(before) + 1) - 1
        if inner >= 0 and abs(scale * before[inner] - after[inner]) > 1e-3:
            raise Unsupported("its lengths are no whole multiples by its scales")


TABLE: dict[str, Write] = {
    **dict.fromkeys(_REDUCTIONS, reduction),
    "AveragePool": pool(_AVERAGE),
    "GlobalAveragePool": global_pool(_AVERAGE),
    "GlobalMaxPool": global_pool(_MAX),
    "MaxPool": pool(_MAX),
    "Resize": resize,
}
