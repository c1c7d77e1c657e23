"""RotaryEmbedding as simpler operators, and the same within a GroupQueryAttention.

Sources: the ONNX operator specification, RotaryEmbedding (opset 23); ONNX Runtime's contributed
operator of that name.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.edit import Editor
from intact.graph.passes.composite import Composite, Length, axes_of

UNKNOWN = "a rank, a length or an operand of it is not known"
"""Why a node stays as it is."""


def expand_rotation(editor: Editor, node: ir.Node) -> None:
    """Expand RotaryEmbedding of opset 23 and of ONNX Runtime.

    A node stays whose ranks are not known or whose batches are packed.
    """
    written = Composite(editor, node)
    is_runtime = node.domain != ""
    data = written.input(0)
    cos, sin, places = (written.input(k) for k in ((2, 3, 1) if is_runtime else (1, 2, 3)))
    if data is None or cos is None or sin is None or written.integer("is_packed_batching"):
        raise Unsupported("its batches are packed")
    if len(axes_of(data) or ()) not in (3, 4) or cos.shape is None:
        raise Unsupported(UNKNOWN)
    if is_runtime and written.number("scale", 1.0) != 1.0:
        raise Unsupported("it scales")
    rank, heads = len(axes_of(data) or ()), written.integer("num_heads")
    size, rows = written.integer("rotary_embedding_dim"), written.integer
    width = (axes_of(cos) or [None])[-1]
    if not size:
        size = 2 * width if isinstance(width, int) else 0
    given = (axes_of(data) or [None])[-1]
    if rank == 3 and not heads and isinstance(given, int) and size:
        heads = given // size
    if not size or (rank == 3 and not heads):
        raise Unsupported(UNKNOWN)
    if places is not None:
        if places.shape is None:
            raise Unsupported(UNKNOWN)
        if is_runtime and len(places.shape) == 1:
            places = _counted_from(written, places, written.length(data, 2 if rank == 4 else 1))
        cos, sin = (
            written("Gather", each, places, shape=_rows(each, places)) for each in (cos, sin)
        )
    where = 1 if rank == 4 else 2  # of the heads, along which all rotate alike
    whole = data
    if rank == 3:
        lengths = [written.length(data, 0), written.length(data, 1), heads, -1]
        if isinstance(given, int):
            lengths[-1] = given // heads
        whole = written.reshape(data, lengths)
    cos, sin = (_unsqueeze(written, each, where) for each in (cos, sin))
    result = _rotate(written, whole, cos, sin, size, rows("interleaved") == 1)
    if rank == 3:
        result = written.reshape(result, [written.length(data, axis) for axis in range(rank)])
    written.put(result)


def _rows(table: ir.Value, places: ir.Value) -> list[int | ir.SymbolicDim | None]:
    return [*(axes_of(places) or []), *(axes_of(table) or [])[1:]]


def _counted_from(written: Composite, first: ir.Value, count: Length) -> ir.Value:
    """Return ``[1, count]`` places from a first one."""
    return written("Add", count_up(written, count, [1, -1]), first)


def count_up(written: Composite, count: Length, lengths: list[int]) -> ir.Value:
    """Return 0, 1, 2 and so on, in a shape."""
    if isinstance(count, int):
        return written.constant(np.arange(count).reshape(lengths))
    zero, one = (written.constant(np.array(n, np.int64)) for n in (0, 1))
    end = written("Squeeze", count, shape=[])
    return written.reshape(written("Range", zero, end, one, shape=[None]), lengths)


def _unsqueeze(written: Composite, value: ir.Value, axis: int) -> ir.Value:
    """Give a value an axis of length 1; one of two axes gets another in front by broadcasting."""
    rank = len(axes_of(value) or [])
    at = axis - (3 - rank)
    lengths: list[Length] = [written.length(value, k) for k in range(rank)]
    return written.reshape(value, [*lengths[:at], 1, *lengths[at:]])


def _rotate(
    written: Composite, data: ir.Value, cos: ir.Value, sin: ir.Value, size: int, interleaved: bool
) -> ir.Value:
    """Rotate pairs of the first ``size`` of the last axis, which is the fourth."""
    if interleaved:
        first, second = (written.part(data, 3, k, size, 2) for k in (0, 1))
    else:
        first, second = (written.part(data, 3, k, k + size // 2) for k in (0, size // 2))
    real = written("Sub", written("Mul", first, cos), written("Mul", second, sin))
    imaginary = written("Add", written("Mul", first, sin), written("Mul", second, cos))
    if interleaved:
        lengths: list[Length] = [written.length(real, axis) for axis in range(4)]
        pairs = [written.reshape(each, [*lengths, 1]) for each in (real, imaginary)]
        pair = written.concat(pairs, 4)
        rotated = written.reshape(pair, [*(written.length(pair, k) for k in range(3)), size])
    else:
        rotated = written.concat([real, imaginary], 3)
    if (axes_of(data) or [None])[-1] == size:
        return rotated
    return written.concat([rotated, written.part(data, 3, size, None)], 3)


def rotate_at(
    written: Composite, query: ir.Value, key: ir.Value, past: Length
) -> tuple[ir.Value, ir.Value]:
    """Rotate queries and keys of a GroupQueryAttention."""
    cos, sin, places = (written.input(slot) for slot in (7, 8, 9))
    if cos is None or sin is None:
        raise Unsupported(UNKNOWN)
    width = (axes_of(cos) or [None])[-1]
    if not isinstance(width, int):
        raise Unsupported(UNKNOWN)
    if places is None:
        first = written.constant(np.array(past)) if isinstance(past, int) else past
        places = _counted_from(written, first, written.length(query, 2))
    tables = [
        _unsqueeze(written, written("Gather", each, places, shape=_rows(each, places)), 1)
        for each in (cos, sin)
    ]
    interleaved = written.integer("rotary_interleaved") == 1
    cos, sin = tables
    turned = (_rotate(written, each, cos, sin, 2 * width, interleaved) for each in (query, key))
    first_of, second_of = turned
    return first_of, second_of
