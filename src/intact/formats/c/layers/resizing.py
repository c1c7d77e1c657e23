"""Resize: what each row and column of the output samples is computed here, not on the chip."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.c.layer import Layer, Write, encoding_of, image_of
from intact.program.operations import Resize, ResizeMode

_BITS = 10
"""Of a weight, in TFLite's integer kernel."""


def write_resize(layer: Layer) -> None:
    """Write a Resize over one or two axes."""
    operation = layer.step.operation
    if not isinstance(operation, Resize):
        raise Unsupported("it is no Resize", "")
    source, output = layer.input(), layer.output
    if not encoding_of(source).same_as(encoding_of(output)):
        raise Unsupported("its result has another scale than its input", "tie the two")
    batches, input_height, input_width, channels = image_of(layer.shape(source))
    _, output_height, output_width, _ = image_of(layer.shape(output))
    params = layer.params(
        "resize",
        {
            "batches": batches,
            "input_height": input_height,
            "input_width": input_width,
            "channels": channels,
            "output_height": output_height,
            "output_width": output_width,
        },
    )
    nearest = operation.mode is ResizeMode.NEAREST
    sample = _nearest if nearest else _linear
    ys = sample(operation, input_height, output_height)
    xs = sample(operation, input_width, output_width)
    samples = (
        layer.array(ys, "_rows", "rows that are sampled"),
        layer.array(xs, "_columns", "columns that are sampled"),
    )
    pointers = layer.pointer(source), layer.pointer(output)
    if nearest:
        layer.call("resize_nearest", params, *samples, *pointers)
        return
    kind = layer.kind()
    if kind.name == "single":
        raise Unsupported(
            "it interpolates with one rounding", "use a target with fixed_point_double"
        )
    layer.call("resize_linear", params, *samples, *pointers, kind=kind)


def _nearest(operation: Resize, length: int, size: int) -> npt.NDArray[np.int32]:
    """Return which element each output takes, computed in float32 as TFLite does, ``[size]``."""
    if operation.align_corners and size > 1:
        step = np.float32(length - 1) / np.float32(size - 1)
    else:
        step = np.float32(length) / np.float32(size)
    places = np.arange(size, dtype=np.float32)
    if operation.half_pixel:
        places += np.float32(0.5)
    scaled = places * step
    if operation.align_corners:
        scaled = scaled + np.float32(0.5)
    return np.asarray(np.clip(np.floor(scaled), 0, length - 1), np.int32)


def _linear(operation: Resize, length: int, size: int) -> npt.NDArray[np.int32]:
    """Return two elements and the second's weight, ``[size, 3]``, in integers as TFLite does."""
    one = 1 << _BITS
    spans = (length - 1, size - 1) if operation.align_corners and size > 1 else (length, size)
    step = (one * spans[0] + spans[1] // 2) // max(spans[1], 1)
    places = np.arange(size, dtype=np.int64) * step
    if operation.half_pixel:
        places += step // 2 - one // 2
    first = np.clip(places >> _BITS, 0, length - 1)
    second = np.clip((places + one - 1) >> _BITS, 0, length - 1)
    return np.stack([first, second, places - (first << _BITS)], axis=1).astype(np.int32)


WRITERS: dict[type, Write] = {Resize: write_resize}
