"""Expands GridSample into rows of pixels that are gathered and weighed.

Each place reads up to four pixels, so what is written holds at most four times the result.

Sources: the ONNX operator specification, GridSample (opsets 16 and 20); ONNX Runtime's kernel.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.edit import Editor
from intact.graph.passes.composite import Composite, Length, axes_of
from intact.graph.passes.expand_rotation import count_up
from intact.ops.operators import GridSample

_MODES = {"linear": 2, "bilinear": 2, "nearest": 1}
"""Pixels along an axis that a place reads, with the names of both opsets."""

_EXACT = 2**24
"""Up to here each whole number is a float32."""


def expand_grid_sample(editor: Editor, node: ir.Node) -> None:
    """Expand GridSample of images.

    A pixel's row in a table is counted in float32, so an input of more pixels stays. So do cubic
    curves, volumes, and images whose sizes are not known.
    """
    written, options = Composite(editor, node), GridSample.of(node)
    data, grid = written.input(0), written.input(1)
    if options.mode not in _MODES:
        raise Unsupported("it fits cubic curves")
    lengths = [] if data is None else axes_of(data) or []
    if data is None or grid is None or len(lengths) != 4:
        raise Unsupported("it samples no image of two axes, or one of unknown rank")
    batch, *sizes = lengths
    if any(each.dtype is not ir.DataType.FLOAT for each in (data, grid)):
        raise Unsupported("it samples other numbers than float32")
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != 3 or axes_of(grid) is None:
        raise Unsupported("the sizes of its image are not known")
    channels, *image = known
    border = int(options.padding_mode == "zeros")
    padded = [size + 2 * border for size in image]
    rows = padded[0] * padded[1] * (batch if isinstance(batch, int) else 1)
    if rows >= _EXACT:
        raise Unsupported(f"its image has {rows:,} pixels, and {_EXACT:,} can be counted")
    if border:
        pads = written.integers(0, 0, 1, 1, 0, 0, 1, 1)
        data = written("Pad", data, pads, shape=[batch, channels, *padded])
    table = written.reshape(written.transpose(data, (0, 2, 3, 1)), [-1, channels])
    lines = [_pixels(written, grid, axis, image[1 - axis], border, options) for axis in (0, 1)]
    places = [written.length(grid, axis) for axis in range(3)]
    first = _first_rows(written, written.length(data, 0), padded[0] * padded[1])
    parts = []
    for x, along in lines[0]:
        for y, down in lines[1]:
            row = _plus(written, written("Mul", y, _number(written, padded[1])), x)
            row = written("Cast", row, shape=axes_of(row), dtype=ir.DataType.INT64, to=7)
            row = row if first is None else written("Add", row, first)
            found = _gather(written, table, written.reshape(row, places), channels)
            share = along if down is None or along is None else written("Mul", along, down)
            parts.append(found if share is None else written("Mul", found, share))
    result = parts[0]
    for part in parts[1:]:
        result = written("Add", result, part)
    written.put(written.transpose(result, (0, 3, 1, 2)))


_Pixels = list[tuple[ir.Value, ir.Value | None]]


def _pixels(
    written: Composite, grid: ir.Value, axis: int, size: int, border: int, options: GridSample
) -> _Pixels:
    """Return the pixels that places read along an axis, each with its weight.

    With a border of zeros, pixels are counted from it.
    """

    def number(value: float) -> ir.Value:
        return _number(written, value)

    place = written("Add", written.part(grid, 3, axis, axis + 1), number(1.0))
    if options.align_corners:
        place = written("Mul", place, number((size - 1) / 2))
        ends = (0.0, size - 1.0)
    else:
        place = written("Mul", place, number(size / 2))
        place = written("Sub", place, number(0.5))
        ends = (-0.5, size - 0.5)
    if options.padding_mode == "reflection":
        place = _reflected(written, place, *ends)
    place = _within(written, place, -border, size - 1 + border)
    if _MODES[options.mode] == 1:
        pixel = written("Round", place, shape=axes_of(place))
        return [(_plus(written, pixel, border), None)]
    pixel = written("Floor", place, shape=axes_of(place))
    share = written("Sub", place, pixel)
    pixel = _plus(written, pixel, border)
    after = written("Min", _plus(written, pixel, 1), number(size - 1 + 2 * border))
    return [(pixel, written("Sub", number(1.0), share)), (after, share)]


def _reflected(written: Composite, place: ir.Value, low: float, high: float) -> ir.Value:
    """Fold places beyond two ends back between them, as often as it takes."""
    span = high - low
    if span == 0:
        return written("Mul", place, _number(written, 0.0))
    away = written("Sub", place, _number(written, low))
    away = written("Abs", away, shape=axes_of(away))
    turns = written("Mul", away, _number(written, 1 / (2 * span)))
    turns = written("Floor", turns, shape=axes_of(turns))
    within = written("Sub", away, written("Mul", turns, _number(written, 2 * span)))
    back = written("Sub", within, _number(written, span))
    back = written("Abs", back, shape=axes_of(back))
    return written("Sub", _number(written, high), back)


def _within(written: Composite, value: ir.Value, low: int, high: int) -> ir.Value:
    raised = written("Max", value, _number(written, low))
    return written("Min", raised, _number(written, high))


def _plus(written: Composite, value: ir.Value, more: ir.Value | int) -> ir.Value:
    if isinstance(more, ir.Value):
        return written("Add", value, more)
    return written("Add", value, _number(written, more)) if more else value


def _number(written: Composite, value: float) -> ir.Value:
    return written.constant(np.array(value, np.float32))


def _first_rows(written: Composite, batch: Length, pixels: int) -> ir.Value | None:
    """Return the first row of each image of the batch; None where there is one image."""
    if batch == 1:
        return None
    return written("Mul", count_up(written, batch, [-1, 1, 1, 1]), written.integers(pixels))


def _gather(written: Composite, table: ir.Value, rows: ir.Value, channels: int) -> ir.Value:
    shape = [*(axes_of(rows) or []), channels]
    return written("Gather", table, rows, shape=shape, axis=0)
