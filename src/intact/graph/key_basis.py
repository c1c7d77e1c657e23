"""Keeps the keys of a decoder's caches in another basis, and multiplies queries by its inverse.

Attention multiplies each query with each key, ``q . k = (q A^-1) . (A k)`` for every invertible A.
Keys are also kept without an offset c: ``q . (k - c)`` is less by the same for all keys of a query,
which a softmax does not see. Both follow the rotary embedding, whose angles differ from place to
place, and stand in front of ONNX Runtime's GroupQueryAttention, which computes all else as before.
Values are kept without an offset too: shares add up to 1, so it is added to the result.

Keys are kept in steps of their codes, whose scales are 1. Some of their channels may be kept twice,
in the place of others that are not: as their codes, and finer what these lose (`Steps`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.caches import (
    Cache,
    Rotation,
    caches_of,
    is_attention,
    rotary_tables,
    rotation_of,
)
from intact.graph.edit import Editor
from intact.graph.given_nodes import note_given_nodes
from intact.graph.graph import Graph
from intact.graph.metadata import FLOAT_KEY, STEPS_KEY
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.composite import Composite
from intact.graph.passes.library import remove_unused
from intact.ops.operators import Add, MatMul, Named, Reshape, RotaryEmbedding, Sub, Transpose, is_a

Numbers = npt.NDArray[np.float64]

_QUERY, _KEY, _VALUE, _SINKS = 0, 1, 2, 11
_WHY = "it gives keys and queries the basis in which caches hold them"
_LEAST = 1e-30
"""Smaller steps than this, or larger ones than its reciprocal, are none of a float32."""
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it lie evenly between whole numbers, whatever their count."""


@dataclass(frozen=True)
class Turns:
    """What a rotary embedding does to a head's numbers at each place of its tables.

    Attributes:
        source: What is turned, ``[batch, sequence, heads * size]``.
        size: How many numbers a head has.
        rotation: Which of them are pairs.
        tables: Cosines and sines, ``[places, pairs]``.
    """

    source: ir.Value
    size: int
    rotation: Rotation
    tables: tuple[np.ndarray, np.ndarray]

    @cached_property
    def partner(self) -> Numbers:
        """The signed other number of each one's pair, as a matrix ``[size, size]``."""
        found = np.zeros((self.size, self.size))
        first, second = (np.arange(self.size)[half] for half in self.rotation.pairs)
        found[first, second], found[second, first] = -1, 1
        return found

    def at(self, numbers: npt.ArrayLike) -> tuple[Numbers, Numbers]:
        """Return cosines and sines for some places, ``[len(numbers), size]``.

        Args:
            numbers: Whole numbers from 0; the first ones, however many, are spread over the tables.
        """
        cos, sin = self.tables
        share = np.asarray(numbers, np.float64) * _GOLDEN % 1.0
        rows = (share * len(cos)).astype(np.int64)
        # What is not turned keeps its number.
        cosines, sines = np.ones((rows.size, self.size)), np.zeros((rows.size, self.size))
        for half in self.rotation.pairs:
            cosines[:, half], sines[:, half] = cos[rows], sin[rows]
        return cosines, sines

    def turned(self, keys: npt.NDArray[Any], numbers: npt.ArrayLike) -> Numbers:
        """Turn keys as they are at places; for the order of these see `at`.

        Args:
            keys: ``[batch, sequence, heads, size]``.
            numbers: ``[sequence]``.
        """
        cosines, sines = (each[:, None] for each in self.at(numbers))
        return np.asarray(keys * cosines + keys.astype(np.float64) @ self.partner.T * sines)


def turns_of(value: ir.Value | None, size: int) -> Turns | None:
    """Return the rotary embedding that makes a value; None where it has no constant tables."""
    maker = None if value is None else value.producer()
    if value is None or maker is None or maker.op_type != RotaryEmbedding.name:
        return None
    rotation, tables, source = rotation_of(value, size), rotary_tables(maker), maker.inputs[0]
    if rotation is None or tables is None or source is None:
        return None
    cos, _ = tables
    return Turns(source, size, rotation, tables) if 2 * cos.shape[1] == rotation.size else None


class Steps(NamedTuple):
    """The codes that a basis was chosen for.

    Attributes:
        bits: Their bits.
        values: The steps of values, ``[heads * size]``; those of keys are 1.
        twice: How many channels of a head's keys are kept twice, ``[heads]``: the first ones, by
            two codes each. The second takes the place of one of as many last ones, which are not
            kept.
    """

    bits: int
    twice: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def finer(self) -> int:
        """How many steps of a second code are one of the first."""
        return (1 << self.bits) - 1

    @property
    def codes(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        return -(1 << self.bits - 1), (1 << self.bits - 1) - 1

    def channel_codes(self, size: int) -> tuple[tuple[int, int], ...]:
        """Return the ranges of codes of keys, for each channel; empty where nothing is kept twice.

        Two codes of a channel together are one of ``first * finer + second``.

        Args:
            size: How many channels a head has.
        """
        if not any(self.twice):
            return ()
        low, high = self.codes
        both = low * self.finer + low, high * self.finer + high
        return tuple(
            codes
            for count in self.twice
            for codes in (*[both] * count, *[(low, high)] * (size - 2 * count), *[(0, 0)] * count)
        )

    def places(self, size: int) -> npt.NDArray[np.int64]:
        """Return which channel is kept in the place of each, ``[heads * size]``.

        Args:
            size: How many channels a head has.
        """
        found = np.arange(len(self.twice) * size).reshape(-1, size)
        for row, count in zip(found, self.twice, strict=True):
            row[size - count :] = row[:count]
        return found.reshape(-1)


def steps_of(node: ir.Node) -> Steps | None:
    """Return the codes that the basis of a node's keys was chosen for; None where it has none."""
    try:
        found = msgspec.json.decode(node.metadata_props.get(STEPS_KEY, ""), type=Steps)
    except msgspec.MsgspecError:  # there is none, or another's
        return None
    caches = caches_of(node)
    if not caches or not 2 <= found.bits <= 8:
        return None
    cache, most = caches[0], max(found.twice, default=0)
    lengths = (len(found.twice), len(found.values))
    is_sound = 0 <= min(found.twice, default=0) <= most <= cache.size // 2
    is_sound &= all(_LEAST < each < 1 / _LEAST for each in found.values)
    is_sound &= lengths == (cache.heads, cache.channels)
    matrices = (matrix_in_front(node, slot) for slot in (_QUERY, _KEY))
    shape = (cache.heads, cache.size, cache.size)
    is_sound &= all(each is not None and each[1].shape == shape for each in matrices)
    return found if is_sound else None


class Basis(NamedTuple):
    """How the keys and values of a node are kept, for each head.

    Attributes:
        offset: What is subtracted from keys, ``[heads, size]``.
        matrix: The channels of what is left, in steps: ``matrix @ (key - offset)``, ``[heads, size,
            size]``.
        values: What is subtracted from values, ``[heads, size]``.
        steps: Of what codes.
    """

    offset: Numbers
    matrix: Numbers
    values: Numbers
    steps: Steps


def matrix_in_front(node: ir.Node, slot: int) -> tuple[ir.Node, npt.NDArray[Any]] | None:
    """Return the MatMul that gives queries or keys their basis, and its constant.

    That is ``[kept heads, size, size]``, multiplied from the right. None where there is none.
    """
    value = input_value(node, slot)
    maker = None if value is None else value.producer()
    while is_a(maker, Reshape) or is_a(maker, Transpose):
        maker = None if maker.inputs[0] is None else maker.inputs[0].producer()
    matrix = constant_array(maker.inputs[1]) if is_a(maker, MatMul) else None
    return None if maker is None or matrix is None else (maker, matrix)


def is_key(cache: Cache) -> bool:
    """Tell whether a cache has the keys of a GroupQueryAttention."""
    return is_attention(cache.node) and cache.new == _KEY


def outputs_in_bases(graph: Graph) -> frozenset[str]:
    """Return the names of the outputs that hold keys in a basis of their own, and their values."""
    changed = (node for node in graph.nodes if steps_of(node) is not None)
    return frozenset(each.ports[1] for node in changed for each in caches_of(node))


def takes_offset(node: ir.Node) -> bool:
    """Tell whether a GroupQueryAttention gives the same where all scores of a query are less."""
    is_capped = node.attributes.get_float("softcap", 0.0) != 0
    has_sinks = node.attributes.get_int("smooth_softmax", 0) == 1
    return not is_capped and not has_sinks and input_value(node, _SINKS) is None


def change_bases(graph: Graph, bases: Mapping[str, Basis]) -> Graph:
    """Give the keys of nodes other bases, and their values an offset.

    Args:
        graph: Is not changed.
        bases: By the names of GroupQueryAttentions whose keys and queries are turned in front.
    """
    editor = Editor(graph.model)
    for name, basis in bases.items():
        node = editor.nodes_by_name[name]
        written = _Written(Composite(editor, node))
        query, key, value = (written.input(slot) for slot in (_QUERY, _KEY, _VALUE))
        if query is None or key is None or value is None:
            raise ValueError(f"{name} has no queries, keys and values of their own")
        if basis.offset.any():
            key = written.less(key, basis.offset)
        inverse = np.asarray(np.linalg.inv(basis.matrix), np.float64)
        node.replace_input_with(_QUERY, written.by_heads(query, inverse))
        matrix = basis.matrix.transpose(0, 2, 1)
        node.replace_input_with(_KEY, written.by_heads(key, matrix))
        node.metadata_props[STEPS_KEY] = msgspec.json.encode(basis.steps).decode()
        if basis.values.any():
            node.replace_input_with(_VALUE, written.less(value, basis.values))
            _add_behind(editor, node, basis.values)
    remove_unused(editor.model)
    return Graph(note_given_nodes(graph.model, editor.finish()))


def _add_behind(editor: Editor, node: ir.Node, offset: Numbers) -> None:
    """Add to the results of attention what was subtracted from values."""
    result = node.outputs[0]
    readers = [(use.node, use.idx) for use in result.uses()]
    whole = _Written(Composite(editor, node)).more(result, offset)
    for reader, slot in readers:
        reader.replace_input_with(slot, whole)
    editor.replace_output(result, whole)


class _Written:
    """Writes what stands around one node; all of it stays float."""

    def __init__(self, composite: Composite) -> None:
        self._composite = composite

    def input(self, slot: int) -> ir.Value | None:
        return self._composite.input(slot)

    def less(self, value: ir.Value, offset: Numbers) -> ir.Value:
        return self._make(Sub, value, self._row(offset))

    def by_heads(self, value: ir.Value, matrix: Numbers) -> ir.Value:
        """Multiply the numbers of each head from the right, ``[kept heads, size, size]``.

        Several heads of queries that follow one another share the keys of one head.
        """
        make = self._composite
        heads, size, _ = matrix.shape
        width = int(list(value.shape or ())[-1])  # type: ignore[arg-type]
        shared = width // heads // size
        lengths = make.length(value, 0), make.length(value, 1)
        rows = make.reshape(value, (*lengths, heads, shared, size))
        # The rows of a head together, so that one product has many rows.
        rows = make.transpose(rows, (0, 2, 1, 3, 4))
        rows = make.reshape(rows, (make.length(rows, 0), heads, -1, size))
        constant = make.constant(np.ascontiguousarray(matrix, np.float32))
        product = _stay_float(make.matmul(rows, constant))
        product = make.reshape(product, (make.length(product, 0), heads, -1, shared, size))
        product = make.transpose(product, (0, 2, 1, 3, 4))
        return make.reshape(product, (*(make.length(product, axis) for axis in (0, 1)), width))

    def more(self, result: ir.Value, offset: Numbers) -> ir.Value:
        shared = self._composite.integer("num_heads") // len(offset)  # heads that read one
        return self._make(Add, result, self._row(offset.repeat(shared, axis=0)))

    def _row(self, numbers: Numbers) -> ir.Value:
        return self._composite.constant(numbers.reshape(-1).astype(np.float32))

    def _make(self, operator: Named, value: ir.Value, *others: ir.Value) -> ir.Value:
        return _stay_float(self._composite(operator, value, *others, shape=value.shape))


def _stay_float(value: ir.Value) -> ir.Value:
    maker = value.producer()
    if maker is not None:
        maker.metadata_props[FLOAT_KEY] = _WHY
    return value
