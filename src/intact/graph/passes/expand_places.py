"""Expands operators that read places into simpler ones: RotaryEmbedding, also within a
GroupQueryAttention, and GridSample.

Where caches are to hold codes, a GroupQueryAttention does not rotate itself: what it appends to its
caches is a value of the graph then, which can be observed and quantized. ONNX Runtime computes both
alike.

Sources: the ONNX operator specification, RotaryEmbedding (opset 23); ONNX Runtime's contributed
operator of that name; GridSample (opsets 16 and 20) and ONNX Runtime's kernel.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.caches import is_attention
from intact.graph.edit import Editor
from intact.graph.given_nodes import note_given_nodes
from intact.graph.graph import Graph
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.composite import Composite, Length, axes_of
from intact.graph.passes.library import remove_unused
from intact.ops import functions
from intact.ops.operators import (
    Add,
    Cast,
    Gather,
    GatherND,
    GridSample,
    Less,
    Max,
    Min,
    Mul,
    Pad,
    Range,
    Reshape,
    RotaryEmbedding,
    Squeeze,
    Sub,
    Where,
)

_INT64 = ir.DataType.INT64
_RUNTIME = "com.microsoft"
_COS, _SIN, _PLACES = 7, 8, 9
_Places: TypeAlias = dict[tuple[ir.Value | None, str], ir.Value]
"""The places of queries by the lengths that they follow from, and by how many queries there are."""

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
            # One number is the place of the first token, from which the others count.
            places = _counted_from(written, places, written.length(data, 2 if rank == 4 else 1))
        cos, sin = (written(Gather, each, places, shape=_rows(each, places)) for each in (cos, sin))
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
    return written(Add, count_up(written, count, [1, -1]), first)


def count_up(written: Composite, count: Length, lengths: list[int]) -> ir.Value:
    """Return 0, 1, 2 and so on, in a shape."""
    if isinstance(count, int):
        return written.constant(np.arange(count).reshape(lengths))
    zero, one = (written.constant(np.array(n, np.int64)) for n in (0, 1))
    end = written(Squeeze, count, shape=[])
    return written.reshape(written(Range, zero, end, one, shape=[None]), lengths)


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
    real = written(Sub, written(Mul, first, cos), written(Mul, second, sin))
    imaginary = written(Add, written(Mul, first, sin), written(Mul, second, cos))
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
        _unsqueeze(written, written(Gather, each, places, shape=_rows(each, places)), 1)
        for each in (cos, sin)
    ]
    interleaved = written.integer("rotary_interleaved") == 1
    cos, sin = tables
    turned = (_rotate(written, each, cos, sin, 2 * width, interleaved) for each in (query, key))
    first_of, second_of = turned
    return first_of, second_of


# ---- apart from attention ------------------------------------------------------------------------


def rotate_apart(graph: Graph) -> Graph:
    """Write rotations and operands of each GroupQueryAttention with caches apart.

    A node stays as it is whose operands have unknown lengths, or that norms keys itself.

    Args:
        graph: A normalized graph; not changed.
    """
    if not any(_is_whole(node) for node in graph.nodes):
        return graph
    editor = Editor(graph.model)
    known: _Places = {}
    # A list, because rewriting adds nodes to the graph.
    for node in [each for each in editor.model.graph if _is_whole(each)]:
        _rewrite(editor, node, known)
    remove_unused(editor.model)
    return Graph(note_given_nodes(graph.model, editor.finish()))


def _is_whole(node: ir.Node) -> bool:
    """Tell whether a node with caches rotates its keys, or has them in one operand with others."""
    if not is_attention(node):
        return False
    has_caches = all(input_value(node, slot) is not None for slot in (0, 3, 4, 5))
    norms = any(input_value(node, slot) is not None for slot in range(12, 17))
    is_packed = input_value(node, 1) is None
    return has_caches and not norms and (is_packed or bool(node.attributes.get_int("do_rotary", 0)))


def _rewrite(editor: Editor, node: ir.Node, known: _Places) -> None:
    written = Composite(editor, node)
    heads, kinds = written.integer("num_heads"), written.integer("kv_num_heads")
    operands = _operands(written, heads, kinds)
    if operands is None:
        return
    query, key, value = operands
    if written.integer("do_rotary"):
        rotated = _rotated(editor, written, node, ((query, heads), (key, kinds)), known)
        if rotated is None:
            return
        query, key = rotated
        # What is rotated outside must not be rotated once more.
        node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 0)
        node.attributes.pop("rotary_interleaved", None)
        for slot in (_COS, _SIN, _PLACES):
            if slot < len(node.inputs):
                node.replace_input_with(slot, None)
    for slot, operand in enumerate((query, key, value)):
        node.replace_input_with(slot, operand)


def _operands(
    written: Composite, heads: int, kinds: int
) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Return queries, keys and values, apart; None where their lengths are not known."""
    query, key, value = (written.input(slot) for slot in range(3))
    width = None if query is None else (axes_of(query) or [None])[-1]
    if query is None or not heads or not kinds or not isinstance(width, int):
        return None
    if key is not None and value is not None:
        return query, key, value
    size, rest = divmod(width, heads + 2 * kinds)
    if rest:
        return None
    ends = np.cumsum([0, heads * size, kinds * size, kinds * size]).tolist()
    first, second, third = (
        written.part(query, 2, start, stop) for start, stop in itertools.pairwise(ends)
    )
    return first, second, third


def _rotated(
    editor: Editor,
    written: Composite,
    node: ir.Node,
    parts: tuple[tuple[ir.Value, int], ...],
    known: _Places,
) -> tuple[ir.Value, ir.Value] | None:
    cos, sin = written.input(_COS), written.input(_SIN)
    table = constant_array(cos)
    if cos is None or sin is None or table is None or table.ndim != 2:
        return None
    places = written.input(_PLACES) or _shared_places(written, parts[0][0], known)
    found = []
    for part, heads in parts:
        width = (axes_of(part) or [None])[-1]
        if not isinstance(width, int):
            return None
        size = width // heads
        options = {"num_heads": heads, "interleaved": written.integer("rotary_interleaved")}
        if 2 * table.shape[1] != size:  # only some numbers of a head are turned
            options["rotary_embedding_dim"] = 2 * table.shape[1]
        operands, name = [part, places, cos, sin], f"{node.name}_RotaryEmbedding"
        kind = part.dtype or ir.DataType.FLOAT
        found.append(
            editor.node(RotaryEmbedding, operands, name, options, kind, part.shape, _RUNTIME)
        )
    return found[0], found[1]


def _shared_places(written: Composite, query: ir.Value, known: _Places) -> ir.Value:
    """Return the places of queries, one value for all layers that are known to agree."""
    count = (axes_of(query) or [None] * 2)[1]
    name = str(getattr(count, "value", count) or "")  # of an open length, that of its symbol
    key = written.input(5), name
    # Two open lengths without a name may differ: each layer computes its own places then.
    if not name or key not in known:
        known[key] = _places(written, query)
    return known[key]


def _places(written: Composite, query: ir.Value) -> ir.Value:
    """Return the places of queries, ``[batch, sequence]``, as the node counts them.

    Its operand 5 has the index of each sequence's last key. The first query is at that index less
    the others; of a first run whose sequences are padded behind, at 0.
    """
    last = written.input(5)
    if last is None:
        raise ValueError("a GroupQueryAttention without lengths")
    zero, one = (written.constant(np.array(n, np.int64)) for n in (0, 1))
    count = written.length(query, 1)
    if isinstance(count, int):
        own = written.constant(np.array(count, np.int64))
    else:
        own = written(Squeeze, count, shape=[], dtype=_INT64)
    index = written(Cast, last, dtype=_INT64, to=int(_INT64), shape=axes_of(last))
    behind = written(Sub, written(Add, index, one), own, shape=axes_of(last))
    begin = written.reshape(written(Max, behind, zero, shape=axes_of(last)), [-1, 1])
    steps = written(Range, zero, own, one, shape=[None], dtype=_INT64)
    shape = [(axes_of(query) or [None])[0], (axes_of(query) or [None] * 2)[1]]
    return written(Add, begin, steps, shape=shape, dtype=_INT64)


_MODES = {"linear": 2, "bilinear": 2, "nearest": 1}
"""Pixels along an axis that a place reads, with the names of both opsets."""

_EXACT = 2**24
"""Up to here each whole number is a float32."""

_PLACES_END = 2**63
"""No int64 is a place from here on."""


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
    sizes = lengths[1:]
    if any(each.dtype is not ir.DataType.FLOAT for each in (data, grid)):
        raise Unsupported("it samples other numbers than float32")
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != 3 or axes_of(grid) is None:
        raise Unsupported("the sizes of its image are not known")
    channels, *image = known
    batches = [axes[0] for axes in (lengths, axes_of(grid) or [None])]
    batch = next((length for length in batches if isinstance(length, int)), lengths[0])
    border = int(options.padding_mode == "zeros")
    padded = [size + 2 * border for size in image]
    rows = padded[0] * padded[1] * (batch if isinstance(batch, int) else 1)
    if rows >= _EXACT:
        raise Unsupported(f"its image has {rows:,} pixels, and {_EXACT:,} can be counted")
    if border:
        pads = written.integers(0, 0, 1, 1, 0, 0, 1, 1)
        data = written(Pad, data, pads, shape=[batch, channels, *padded])
    table = written.transpose(data, (0, 2, 3, 1))
    if isinstance(batch, int):
        table = written.reshape(table, [-1, channels])
    else:  # each sample gathers in its own
        whole = [batch, padded[0] * padded[1], channels]
        table = written(Reshape, table, written.integers(0, -1, channels), shape=whole)
    grid = _countable(written, grid, image, options)
    lines = [_pixels(written, grid, axis, image[1 - axis], border, options) for axis in (0, 1)]
    first = _first_rows(written, batch, padded[0] * padded[1])
    parts = []
    for x, along in lines[0]:
        for y, down in lines[1]:
            row = _plus(written, written(Mul, y, _number(written, padded[1])), x)
            row = written(Cast, row, shape=axes_of(row), dtype=ir.DataType.INT64, to=7)
            row = row if first is None else written(Add, row, first)
            found = _gather(written, table, row, channels)
            share = along if down is None or along is None else written(Mul, along, down)
            parts.append(found if share is None else written(Mul, found, share))
    result = parts[0]
    for part in parts[1:]:
        result = written(Add, result, part)
    written.put(written.transpose(result, (0, 3, 1, 2)))


def _countable(
    written: Composite, grid: ir.Value, image: list[int], options: GridSample
) -> ir.Value:
    """Move places without an int64, such as NaN, to where an image begins, as ONNX Runtime does."""
    sizes = np.array(image[::-1], np.float64) - options.align_corners
    with np.errstate(divide="ignore"):  # of one pixel every place is it
        ends = written.constant((2.0 * _PLACES_END / sizes).astype(np.float32))
    away = written(functions.absolute, grid, shape=axes_of(grid))
    is_near = written(Less, away, ends, dtype=ir.DataType.BOOL)
    return written(Where, is_near, grid, _number(written, -1.0), dtype=grid.dtype)


_Pixels = list[tuple[ir.Value, ir.Value | None]]


def _pixels(
    written: Composite, grid: ir.Value, axis: int, size: int, border: int, options: GridSample
) -> _Pixels:
    """Return the pixels that places read along an axis, each with its weight.

    With a border of zeros, pixels are counted from it.
    """

    def number(value: float) -> ir.Value:
        return _number(written, value)

    place = written(Add, written.part(grid, 3, axis, axis + 1), number(1.0))
    if options.align_corners:
        place = written(Mul, place, number((size - 1) / 2))
        ends = (0.0, size - 1.0)
    else:
        place = written(Mul, place, number(size / 2))
        place = written(Sub, place, number(0.5))
        ends = (-0.5, size - 0.5)
    is_nearest = _MODES[options.mode] == 1
    if is_nearest:  # before it is reflected, which turns ties around
        place = written(functions.round_half_even, place, shape=axes_of(place))
    if options.padding_mode == "reflection":
        place = _reflected(written, place, *ends)
    place = _within(written, place, -border, size - 1 + border)
    if is_nearest:
        return [(_plus(written, place, border), None)]
    pixel = written(functions.floor, place, shape=axes_of(place))
    share = written(Sub, place, pixel)
    pixel = _plus(written, pixel, border)
    after = written(Min, _plus(written, pixel, 1), number(size - 1 + 2 * border))
    return [(pixel, written(Sub, number(1.0), share)), (after, share)]


def _reflected(written: Composite, place: ir.Value, low: float, high: float) -> ir.Value:
    """Fold places beyond two ends back between them, as often as it takes."""
    span = high - low
    if span == 0:
        return written(Mul, place, _number(written, 0.0))
    away = written(Sub, place, _number(written, low))
    away = written(functions.absolute, away, shape=axes_of(away))
    turns = written(Mul, away, _number(written, 1 / (2 * span)))
    turns = written(functions.floor, turns, shape=axes_of(turns))
    within = written(Sub, away, written(Mul, turns, _number(written, 2 * span)))
    back = written(Sub, within, _number(written, span))
    back = written(functions.absolute, back, shape=axes_of(back))
    return written(Sub, _number(written, high), back)


def _within(written: Composite, value: ir.Value, low: int, high: int) -> ir.Value:
    raised = written(Max, value, _number(written, low))
    return written(Min, raised, _number(written, high))


def _plus(written: Composite, value: ir.Value, more: ir.Value | int) -> ir.Value:
    if isinstance(more, ir.Value):
        return written(Add, value, more)
    return written(Add, value, _number(written, more)) if more else value


def _number(written: Composite, value: float) -> ir.Value:
    return written.constant(np.array(value, np.float32))


def _first_rows(
    written: Composite, batch: int | ir.SymbolicDim | None, pixels: int
) -> ir.Value | None:
    """Return the first row of each image of the batch; None where a table has one image."""
    if batch == 1 or not isinstance(batch, int):
        return None
    return written.constant(pixels * np.arange(batch).reshape(-1, 1, 1, 1))


def _gather(written: Composite, table: ir.Value, rows: ir.Value, channels: int) -> ir.Value:
    shape = [*(axes_of(rows) or [])[:-1], channels]
    if len(axes_of(table) or []) == 2:
        places = written.reshape(rows, [written.length(rows, axis) for axis in range(3)])
        return written(Gather, table, places, shape=shape, axis=0)
    return written(GatherND, table, rows, shape=shape, batch_dims=1)
