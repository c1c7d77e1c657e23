"""Expands Attention into products, sums, Softmax and moves.

Sources: the ONNX operator specification, Attention (opsets 23 to 25); ONNX Runtime's contributed
operators MultiHeadAttention and GroupQueryAttention.

Masked scores get `MASKED` added, so that no infinity is left: where a row has nothing but masked
scores, its weights are equal instead of zero or undefined.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.edit import Editor
from intact.graph.ops import constant_array
from intact.graph.passes.composite import Composite, Length, axes_of
from intact.graph.passes.expand_places import UNKNOWN, count_up, rotate_at
from intact.ops import functions
from intact.ops.operators import Add, And, Cast, Less, Mul, Softmax, Sub, Where

MASKED = -1e30
"""Two of them, and the lowest float, add up to no infinity."""

_INT64 = ir.DataType.INT64
_BOOL = ir.DataType.BOOL
_RAW, _SOFTMAX = 0, 3
"""Modes of Attention's fourth output: products, and what a Softmax made of them."""


def expand_attention(editor: Editor, node: ir.Node) -> None:
    """Expand Attention of opset 23 and later.

    A node stays whose ranks are not known, that computes in doubles, or whose scores are read
    between cap, mask and Softmax.
    """
    written = Composite(editor, node)
    given = [written.input(slot) for slot in range(3)]
    query, key, value = given
    if query is None or key is None or value is None:
        raise Unsupported(UNKNOWN)
    ranks = {len(each.shape) if each.shape is not None else 0 for each in (query, key, value)}
    mode, cap = written.integer("qk_matmul_output_mode"), written.number("softcap")
    if len(ranks) != 1 or not ranks <= {3, 4} or _is_double(written):
        raise Unsupported("its ranks are not known, or it computes in doubles")
    if written.reads(3) and mode != _SOFTMAX and (mode != _RAW or cap):
        raise Unsupported("its scores are read between cap, mask and Softmax")
    is_flat = ranks == {3}
    heads, kinds = written.integer("q_num_heads"), written.integer("kv_num_heads")
    if is_flat:
        if not heads or not kinds:
            raise Unsupported(UNKNOWN)
        query, key, value = (
            _by_heads(written, each, count)
            for each, count in ((query, heads), (key, kinds), (value, kinds))
        )
    past_key, past_value, seen = (written.input(slot) for slot in (4, 5, 6))
    past: Length = 0
    if past_key is not None and past_value is not None:
        if past_key.shape is None:
            raise Unsupported(UNKNOWN)
        past = written.length(past_key, 2)
        key = written.concat([past_key, key], 2)
        value = written.concat([past_value, value], 2)
    masks = _Masks(written, written.length(query, 2), written.length(key, 2))
    offset: Length = past
    if seen is not None:
        offset = masks.behind(seen)
        masks.end(seen)
    before, after = (written.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    masks.window(offset, before, 0 if written.integer("is_causal") else after)
    mask = written.input(3)
    if mask is not None:
        masks.add(mask)
    scale = written.number("scale") or _scale(query)
    result = _attend(written, query, key, value, scale, masks, cap)
    whole = _flat(written, result.value) if is_flat else result.value
    written.put(whole, key, value, result.weights if mode == _SOFTMAX else result.scores)


def expand_heads(editor: Editor, node: ir.Node) -> None:
    """Expand MultiHeadAttention of ONNX Runtime.

    A node stays whose operands are packed, whose masks are lengths, or whose cache is shared.
    """
    written = Composite(editor, node)
    query, key, value, bias = (written.input(slot) for slot in range(4))
    heads = written.integer("num_heads")
    if query is None or key is None or value is None or not heads or written.reads(3):
        raise Unsupported("its operands are packed, or its scores are read")
    if any(written.input(slot) is not None for slot in (8, 9)):
        raise Unsupported("its caches are written in place")
    shapes = [axes_of(each) for each in (query, key, value)]
    if [len(shape) if shape else 0 for shape in shapes] not in ([3, 3, 3], [3, 4, 4]):
        raise Unsupported("its operands are packed")
    if bias is not None:
        query, key, value = _add_bias(written, (query, key, value), bias)
    query = _by_heads(written, query, heads)
    if len(shapes[1] or ()) == 3:
        key, value = (_by_heads(written, each, heads) for each in (key, value))
    past_key, past_value = written.input(6), written.input(7)
    past: Length = 0
    if past_key is not None and past_value is not None:
        if past_key.shape is None:
            raise Unsupported(UNKNOWN)
        past = written.length(past_key, 2)
        key = written.concat([past_key, key], 2)
        value = written.concat([past_value, value], 2)
    masks = _Masks(written, written.length(query, 2), written.length(key, 2))
    if written.integer("unidirectional"):
        masks.window(past, -1, 0)
    padding, addend = written.input(4), written.input(5)
    filler = written.number("mask_filter_value", -10000.0)
    if padding is not None:
        masks.pad(padding, filler)
    if addend is not None:
        masks.add(addend)
    # ONNX Runtime takes 0 for a scale that is not given.
    scale = written.number("scale") or _scale(query)
    result = _attend(written, query, key, value, scale, masks)
    written.put(_flat(written, result.value), key, value)


def expand_grouped_attention(editor: Editor, node: ir.Node) -> None:
    """Expand GroupQueryAttention of ONNX Runtime where each run appends to its caches.

    A node stays whose caches are quantized or written in place, that has sinks, or norms of its
    own. All sequences of a batch have the same past; shorter ones are padded behind.
    """
    written = Composite(editor, node)
    heads, kinds = written.integer("num_heads"), written.integer("kv_num_heads")
    query, key, value = (written.input(slot) for slot in range(3))
    lengths = written.input(5)
    if query is None or lengths is None or len(axes_of(query) or ()) != 3 or written.reads(3):
        raise Unsupported("its ranks are not known, or its scores are read")
    if any(written.input(slot) is not None for slot in range(11, 17)) or not heads or not kinds:
        raise Unsupported("it has sinks, norms or quantized caches")
    if written.integer("smooth_softmax", 0) == 1 or not written.integer("causal", 1):
        raise Unsupported("it is not causal, or its Softmax is smooth")
    if key is None or value is None:
        width = (axes_of(query) or [])[2]
        if not isinstance(width, int) or width % (heads + 2 * kinds):
            raise Unsupported(UNKNOWN)
        size = width // (heads + 2 * kinds)
        # Queries, keys and values lie behind one another in one operand.
        ends = np.cumsum([0, heads * size, kinds * size, kinds * size]).tolist()
        query, key, value = (
            written.part(query, 2, first, last) for first, last in itertools.pairwise(ends)
        )
    past_key, past_value = written.input(3), written.input(4)
    if past_key is not None and (past_key.shape is None or _is_buffer(written, past_key)):
        raise Unsupported("its caches are written in place")
    query, key, value = (
        _by_heads(written, each, count)
        for each, count in ((query, heads), (key, kinds), (value, kinds))
    )
    past: Length = 0 if past_key is None else written.length(past_key, 2)
    if written.integer("do_rotary"):
        query, key = rotate_at(written, query, key, past)
    if past_key is not None and past_value is not None:
        key = written.concat([past_key, key], 2)
        value = written.concat([past_value, value], 2)
    masks = _Masks(written, written.length(query, 2), written.length(key, 2))
    # The runtime's window counts the place itself, this one what is before it.
    reach = written.integer("local_window_size", -1)
    masks.window(past, reach - 1 if reach > 0 else -1, 0)
    one = written.constant(np.array(1, np.int64))
    count = written(Cast, lengths, dtype=_INT64, to=int(_INT64))
    # The runtime gives the index of each sequence's last key, not their number.
    masks.end(written(Add, count, one))
    addend = written.input(10)
    if addend is not None:
        masks.add(addend)
    scale = written.number("scale") or _scale(query)
    result = _attend(written, query, key, value, scale, masks, written.number("softcap"))
    written.put(_flat(written, result.value), key, value)


def _is_buffer(written: Composite, past: ir.Value) -> bool:
    """Tell whether a cache has room for what is appended: the whole is as long as the past."""
    total, length = constant_array(written.input(6)), (axes_of(past) or [None] * 3)[2]
    return total is not None and isinstance(length, int) and int(total.reshape(-1)[0]) <= length


def _is_double(written: Composite) -> bool:
    return written.integer("softmax_precision") == int(ir.DataType.DOUBLE)


def _scale(query: ir.Value) -> float:
    """Return ``1 / sqrt(length of a head)``."""
    size = (axes_of(query) or [None])[-1]
    if not isinstance(size, int) or not size:
        raise Unsupported(UNKNOWN)
    return float(1 / np.sqrt(size))


def _by_heads(written: Composite, value: ir.Value, heads: int) -> ir.Value:
    """Return ``[batch, places, heads * size]`` as ``[batch, heads, places, size]``."""
    width = (axes_of(value) or [None])[-1]
    size = width // heads if isinstance(width, int) else -1
    lengths = [written.length(value, 0), written.length(value, 1), heads, size]
    return written.transpose(written.reshape(value, lengths), (0, 2, 1, 3))


def _flat(written: Composite, value: ir.Value) -> ir.Value:
    """Return ``[batch, heads, places, size]`` as ``[batch, places, heads * size]``."""
    moved = written.transpose(value, (0, 2, 1, 3))
    last = [written.length(moved, axis) for axis in (2, 3)]
    width = last[0] * last[1] if isinstance(last[0], int) and isinstance(last[1], int) else -1
    return written.reshape(moved, [written.length(moved, 0), written.length(moved, 1), width])


def _add_bias(
    written: Composite, values: tuple[ir.Value, ir.Value, ir.Value], bias: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Add the parts of one bias to queries, keys and values of known widths."""
    found, first = [], 0
    for value in values:
        shape = axes_of(value) or []
        width = shape[-1] if len(shape) == 3 else None
        if not isinstance(width, int):
            raise Unsupported(UNKNOWN)
        array = constant_array(bias)
        if array is not None:
            own = written.constant(array[first : first + width])
        else:
            own = written.part(bias, 0, first, first + width)
        found.append(written(Add, value, own, shape=shape))
        first += width
    return found[0], found[1], found[2]


@dataclass(frozen=True)
class _Attended:
    """The results of attention: products of queries and keys, weights, and the weighted values."""

    scores: ir.Value
    weights: ir.Value
    value: ir.Value


def _attend(
    written: Composite,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    scale: float,
    masks: _Masks,
    cap: float = 0.0,
) -> _Attended:
    """Write ``softmax(cap(query @ key' * scale) + masks) @ value``.

    Heads may share keys and values. Those of one key and value are rows of one product, so that
    nothing is repeated.
    """
    heads, kinds = ((axes_of(each) or [])[1] for each in (query, key))
    is_shared = heads != kinds and isinstance(heads, int) and isinstance(kinds, int)
    if scale != 1.0:
        # Before the product, where there are fewer numbers than scores.
        query = written(Mul, query, written.constant(np.array(scale), query))
    turned = written.transpose(key, (0, 1, 3, 2))

    def together(each: ir.Value) -> ir.Value:
        return _regroup(written, each, kinds) if is_shared else each

    def apart(each: ir.Value) -> ir.Value:
        return _regroup(written, each, heads) if is_shared else each

    scores = apart(written.matmul(together(query), turned))
    masked = scores
    if cap:
        inverse, factor = (written.constant(np.array(n), scores) for n in (1 / cap, cap))
        masked = written(Mul, written(functions.tanh, written(Mul, scores, inverse)), factor)
    for addend in masks.addends():
        masked = written(Add, masked, addend, shape=axes_of(scores))
    weights = written(Softmax, masked, axis=-1)
    return _Attended(scores, weights, apart(written.matmul(together(weights), value)))


def _regroup(written: Composite, value: ir.Value, count: object) -> ir.Value:
    """Return ``[batch, heads, places, n]`` with another number of heads, and of places."""
    shape, ends = axes_of(value) or [], [written.length(value, axis) for axis in (0, 3)]
    if not isinstance(count, int):
        return value
    places: Length = -1
    if isinstance(shape[1], int) and isinstance(shape[2], int):
        places = shape[1] * shape[2] // count
    return written.reshape(value, [ends[0], count, places, ends[1]])


class _Masks:
    """What is added to scores ``[batch, heads, queries, keys]``.

    Args:
        written: The node under expansion.
        queries: How many.
        keys: How many.
    """

    def __init__(self, written: Composite, queries: Length, keys: Length) -> None:
        self._written, self._queries, self._keys = written, queries, keys
        self._allowed: list[ir.Value] = []
        self._constant: np.ndarray | None = None
        self._floats: list[ir.Value] = []

    def behind(self, seen: ir.Value) -> ir.Value:
        """Return the place of each sequence's first query, ``[batch, 1, 1, 1]``."""
        lengths = self._written.reshape(seen, [-1, 1, 1, 1])
        count = self._queries
        own = self._written.integers(count) if isinstance(count, int) else count
        return self._written(Sub, lengths, own)

    def end(self, lengths: ir.Value) -> None:
        """Allow the first keys of each sequence alone, by their number."""
        written = self._written
        columns = count_up(written, self._keys, [1, 1, 1, -1])
        last = written.reshape(lengths, [-1, 1, 1, 1])
        self._allowed.append(written(Less, columns, last, dtype=_BOOL))

    def window(self, offset: Length, before: int, after: int) -> None:
        """Allow each query the keys around its place alone; -1 for any number of them."""
        queries, keys = self._queries, self._keys
        if before < 0 and after < 0:
            return
        if isinstance(queries, int) and isinstance(keys, int) and isinstance(offset, int):
            distance = np.arange(queries)[:, None] + offset - np.arange(keys)
            allowed = np.ones(distance.shape, bool)
            allowed &= (distance <= before) | (before < 0)
            allowed &= (-distance <= after) | (after < 0)
            # A mask that forbids nothing is left out.
            if not allowed.all():
                self._constant = allowed
            return
        written = self._written
        rows, columns = (
            count_up(written, count, lengths)
            for count, lengths in ((queries, [-1, 1]), (keys, [1, -1]))
        )
        first = written.integers(offset) if isinstance(offset, int) else offset
        distance_of = written(Sub, written(Add, rows, first), columns)
        if before >= 0:
            limit = written.integers(before + 1)
            self._allowed.append(written(Less, distance_of, limit, dtype=_BOOL))
        if after >= 0:
            limit = written.integers(-after - 1)
            self._allowed.append(written(Less, limit, distance_of, dtype=_BOOL))

    def add(self, mask: ir.Value) -> None:
        """Add a mask of booleans, or of numbers.

        A mask of fewer keys forbids the rest.
        """
        shape, keys = axes_of(mask), self._keys
        if shape is None or mask.dtype not in (_BOOL, ir.DataType.FLOAT):
            raise Unsupported("its mask is of unknown rank or type")
        length, written, array = shape[-1], self._written, constant_array(mask)
        is_short = isinstance(length, int) and isinstance(keys, int) and 1 < length < keys
        if mask.dtype is _BOOL and array is not None:
            array = np.where(array, 0, MASKED).astype(np.float32)
        if array is not None:
            # Not below it: exporters write -inf, and a row of nothing else makes Softmax NaN.
            mask = written.constant(np.maximum(array, np.float32(MASKED)))
        elif mask.dtype is _BOOL:
            if not is_short:
                self._allowed.append(mask)
                return
            mask = self._numbers(mask)
        if is_short and isinstance(length, int) and isinstance(keys, int):
            rest = written.constant(np.full((*(1,) * (len(shape) - 1), keys - length), MASKED))
            if any(n != 1 for n in shape[:-1]):
                raise Unsupported("its mask is shorter than its keys")
            mask = written.concat([mask, rest], len(shape) - 1)
        self._floats.append(mask)

    def pad(self, mask: ir.Value, filler: float) -> None:
        """Add a mask ``[batch, keys]`` or ``[batch, queries, keys]`` that is 0 where none may look.

        Raises:
            Unsupported: It is no such mask.
        """
        shape, written = axes_of(mask), self._written
        if shape is None or len(shape) not in (2, 3):
            raise Unsupported("its mask holds lengths")
        lengths: list[Length] = [written.length(mask, axis) for axis in range(len(shape))]
        whole = written.reshape(mask, [lengths[0], *(1,) * (4 - len(shape)), *lengths[1:]])
        allowed = written(Cast, whole, dtype=_BOOL, to=int(_BOOL))
        self._floats.append(self._numbers(allowed, filler))

    def addends(self) -> list[ir.Value]:
        """Return all that is added, what is constant as one."""
        found = list(self._floats)
        if self._constant is not None:
            numbers = np.where(self._constant, np.float32(0), np.float32(MASKED))
            found.append(self._written.constant(numbers.astype(np.float32)))
        if self._allowed:
            allowed = self._allowed[0]
            for each in self._allowed[1:]:
                allowed = self._written(And, allowed, each, dtype=_BOOL)
            found.append(self._numbers(allowed))
        return found

    def _numbers(self, allowed: ir.Value, filler: float = MASKED) -> ir.Value:
        zero, least = (self._written.constant(np.array(n, np.float32)) for n in (0, filler))
        dtype = ir.DataType.FLOAT
        return self._written(Where, allowed, zero, least, dtype=dtype, shape=axes_of(allowed))
