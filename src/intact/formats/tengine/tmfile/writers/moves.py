"""Operations that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.operators import BILINEAR, NEAREST
from intact.formats.tengine.tmfile.writers.builder import WRITERS, TmFileBuilder
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

_LAST_AXIS = 3
"""Where Flatten ends: no tensor of it has more dimensions."""


@WRITERS.register(Concat)
def _concat(operation: Concat, step: Step, builder: TmFileBuilder) -> None:
    values = [builder.value(step, slot) for slot in range(len(step.inputs))]
    builder.add(step, "Concat", values, {"axis": operation.axis})


@WRITERS.register(Reshape, Flatten)
def _reshape(_: Reshape | Flatten, step: Step, builder: TmFileBuilder) -> None:
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


@WRITERS.register(Transpose)
def _transpose(operation: Transpose, step: Step, builder: TmFileBuilder) -> None:
    builder.add(step, "Transpose", [builder.value(step)], {"order": operation.permutation})


@WRITERS.register(Slice)
def _slice(operation: Slice, step: Step, builder: TmFileBuilder) -> None:
    """Forwards: of one axis, or of several without steps."""
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


@WRITERS.register(Split)
def _split(operation: Split, step: Step, builder: TmFileBuilder) -> None:
    builder.refuse_rescaling(step)
    options = {
        "axis": operation.axis,
        "split_dim": len(operation.sizes),
        "is_caffe": 0,
        "is_onnx": 1,
        "sizes": operation.sizes,
    }
    builder.add(step, "Split", [builder.value(step)], options)


@WRITERS.register(Pad)
def _pad(operation: Pad, step: Step, builder: TmFileBuilder) -> None:
    """A number around images, in float."""
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


@WRITERS.register(Resize)
def _resize(operation: Resize, step: Step, builder: TmFileBuilder) -> None:
    """Images to the nearest pixel or between pixels, from the corner."""
    shape, result = builder.image_shape(step), builder.result_shape(step)
    rows = list(zip(shape[2:], result[2:], strict=True))
    is_linear = operation.mode is ResizeMode.LINEAR
    is_whole = all(after % before == 0 for before, after in rows)
    # Enlarged by a whole number, the nearest pixel is the same from the corner.
    if operation.align_corners or (operation.half_pixel and (is_linear or not is_whole)):
        raise Unsupported(f"it computes {operation.mode} from other places than the corner")
    factors = [float(np.float32(after) / np.float32(before)) for before, after in rows]
    lengths = [int(np.float32(n) * np.float32(f)) for n, f in zip(shape[2:], factors, strict=True)]
    if tuple(lengths) != result[2:] or result[:2] != shape[:2]:
        raise Unsupported(f"it makes {list(result)} of {list(shape)}")
    # The kernel reads two pixels of each axis, of the first image.
    if is_linear and (shape[0] != 1 or min(shape[2:]) < 2):
        raise Unsupported(f"it computes between the pixels of {list(shape)}")
    options = {
        "type": BILINEAR if is_linear else NEAREST,
        "scale_w": factors[1],
        "scale_h": factors[0],
        "output_w": result[3],
        "output_h": result[2],
    }
    builder.add(step, "Interp", [builder.value(step)], options)
