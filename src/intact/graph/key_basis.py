"""Keeps the keys of a decoder's caches in another basis, and multiplies queries by its inverse.

Attention multiplies each query with each key, ``q . k = (q A^-1) . (A k)`` for every invertible A.
Keys are also kept without an offset c: ``q . (k - c)`` is less by the same for all keys of a query,
which a softmax does not see. Both follow the rotary embedding, whose angles differ from place to
place, and stand in front of ONNX Runtime's GroupQueryAttention, which computes all else as before.
Values are kept without an offset too: shares add up to 1, so it is added to the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
from intact.graph.metadata import FLOAT_KEY
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.composite import Composite
from intact.graph.passes.library import remove_unused
from intact.ops.operators import Add, MatMul, Reshape, RotaryEmbedding, Sub, is_a

Numbers = npt.NDArray[np.float64]

_QUERY, _KEY, _VALUE, _SINKS = 0, 1, 2, 11
_WHY = "it gives keys and queries the basis in which caches hold them"
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


class Basis(NamedTuple):
    """How keys are kept: ``matrix @ (key - offset)`` for each head.

    Attributes:
        offset: ``[heads, size]``.
        matrix: ``[heads, size, size]``.
        turns: The rotary embedding in front.
        values: The offset of values, ``[heads, size]``; None where it is not known, or none.
    """

    offset: Numbers
    matrix: Numbers
    turns: Turns
    values: Numbers | None = None

    def kept(self, keys: npt.NDArray[np.float32], numbers: npt.ArrayLike) -> Numbers:
        """Return what is kept of keys at places; for their order see `Turns.at`.

        Args:
            keys: As they are before they are turned, ``[batch, sequence, heads, size]``.
            numbers: ``[sequence]``.
        """
        cosines, sines = (each[:, None] for each in self.turns.at(numbers))
        turned = keys * cosines + keys.astype(np.float64) @ self.turns.partner.T * sines
        return np.asarray(np.einsum("bshi,hji->bshj", turned - self.offset, self.matrix))


def is_key(cache: Cache) -> bool:
    """Tell whether a cache has the keys of a GroupQueryAttention."""
    return is_attention(cache.node) and cache.new == _KEY


def basis_of(cache: Cache) -> Basis | None:
    """Return the basis of what is appended to a cache; None where it has none of its own."""
    if not is_key(cache):
        return None
    product = _maker(cache.appended, Reshape)
    rows = None if product is None else _maker(product.inputs[0], MatMul)
    split = None if rows is None else _maker(rows.inputs[0], Reshape)
    matrix = None if rows is None else constant_array(rows.inputs[1])
    if split is None or matrix is None or matrix.shape != (cache.heads, cache.size, cache.size):
        return None
    value, offset = split.inputs[0], np.zeros((cache.heads, cache.size))
    moved = _maker(value, Sub)
    if moved is not None:
        array = constant_array(moved.inputs[1])
        if array is None or array.size != cache.channels:
            return None
        value, offset = moved.inputs[0], array.reshape(offset.shape).astype(np.float64)
    turns = turns_of(value, cache.size)
    if turns is None:
        return None
    return Basis(offset, matrix.astype(np.float64).transpose(0, 2, 1), turns)


def outputs_in_bases(graph: Graph) -> frozenset[str]:
    """Return the names of the outputs that hold keys in a basis of their own, and their values."""
    found = (caches_of(node) for node in graph.nodes)
    changed = (caches for caches in found if any(basis_of(each) is not None for each in caches))
    return frozenset(each.ports[1] for caches in changed for each in caches)


def _maker(value: ir.Value | None, operator: type) -> ir.Node | None:
    maker = None if value is None else value.producer()
    return maker if is_a(maker, operator) else None


def takes_offset(node: ir.Node) -> bool:
    """Tell whether a GroupQueryAttention gives the same where all scores of a query are less."""
    is_capped = node.attributes.get_float("softcap", 0.0) != 0
    has_sinks = node.attributes.get_int("smooth_softmax", 0) == 1
    return not is_capped and not has_sinks and input_value(node, _SINKS) is None


def change_bases(graph: Graph, bases: Mapping[str, Basis]) -> Graph:
    """Give the keys of nodes other bases.

    Args:
        graph: Is not changed.
        bases: By the names of GroupQueryAttentions whose keys and queries are turned in front.
    """
    editor = Editor(graph.model)
    for name, basis in bases.items():
        node = editor.nodes_by_name[name]
        written = Composite(editor, node)
        query, key = written.input(_QUERY), written.input(_KEY)
        if query is None or key is None:
            raise ValueError(f"{name} has no queries and keys of their own")
        inverse = np.asarray(np.linalg.inv(basis.matrix), np.float64)
        if basis.offset.any():
            key = _stay_float(written(Sub, key, _row(written, basis.offset), shape=key.shape))
        matrix = basis.matrix.transpose(0, 2, 1)
        node.replace_input_with(_QUERY, _by_heads(written, query, inverse))
        node.replace_input_with(_KEY, _by_heads(written, key, matrix))
        if basis.values is not None and basis.values.any():
            _offset_values(editor, node, basis.values)
    remove_unused(editor.model)
    return Graph(note_given_nodes(graph.model, editor.finish()))


def _offset_values(editor: Editor, node: ir.Node, offset: Numbers) -> None:
    written = Composite(editor, node)
    value, result = written.input(_VALUE), node.outputs[0]
    if value is None:
        raise ValueError(f"{node.name} has no values of their own")
    less = written(Sub, value, _row(written, offset), shape=value.shape)
    node.replace_input_with(_VALUE, _stay_float(less))
    shared = written.integer("num_heads") // len(offset)  # heads of queries that read one of values
    readers = [(use.node, use.idx) for use in result.uses()]
    whole = written(Add, result, _row(written, offset.repeat(shared, axis=0)), shape=result.shape)
    for reader, slot in readers:
        reader.replace_input_with(slot, _stay_float(whole))
    editor.replace_output(result, whole)


def _row(written: Composite, offset: Numbers) -> ir.Value:
    return written.constant(offset.reshape(-1).astype(np.float32))


def _by_heads(written: Composite, value: ir.Value, matrix: Numbers) -> ir.Value:
    """Multiply the numbers of each head from the right, ``[kept heads, size, size]``.

    Several heads of queries that follow one another share the keys of one head.
    """
    heads, size, _ = matrix.shape
    width = int(list(value.shape or ())[-1])  # type: ignore[arg-type]
    lengths = written.length(value, 0), written.length(value, 1)
    rows = written.reshape(value, (*lengths, heads, width // heads // size, size))
    constant = written.constant(np.ascontiguousarray(matrix, np.float32))
    product = _stay_float(written.matmul(rows, constant))
    lengths = written.length(product, 0), written.length(product, 1)
    return written.reshape(product, (*lengths, width))


def _stay_float(value: ir.Value) -> ir.Value:
    maker = value.producer()
    if maker is not None:
        maker.metadata_props[FLOAT_KEY] = _WHY
    return value
