"""Finds the caches of a decoder: the keys and values of earlier runs that a node appends to.

Sources: ONNX Runtime's contributed operators GroupQueryAttention and RotaryEmbedding, the ONNX
operator specification of RotaryEmbedding (opset 23), and how exporters write both out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import constant_array, input_value
from intact.ops import functions
from intact.ops.operators import (
    Add,
    Concat,
    Mul,
    RotaryEmbedding,
    Shape,
    Slice,
    Split,
    is_a,
    types_of,
)

_ATTENTION = "GroupQueryAttention"
_RUNTIME = "com.microsoft"
_SLOTS_OF_ATTENTION = ((3, 1, 1), (4, 2, 2))
"""The slots of past keys, keys and present keys; the same of values."""


class Cache(msgspec.Struct, frozen=True):
    """A cache that a node appends to: an input of the model that becomes an output.

    Attributes:
        node: The node.
        past: Its input slot of what is kept.
        new: Its input slot of what is appended.
        present: Its output slot of both.
        axis: The channels of what is appended: the last axis, or all heads' channels together.
        channels: How many there are.
        heads: How many heads are behind one another along that axis.
        numbers: How many numbers are kept of a token, in all heads.
    """

    node: ir.Node
    past: int
    new: int
    present: int
    axis: int
    channels: int
    heads: int
    numbers: int

    @property
    def appended(self) -> ir.Value:
        """What is appended."""
        value = self.node.inputs[self.new]
        if value is None:
            raise ValueError(f"{self.node.name} appends nothing")
        return value

    @property
    def ports(self) -> tuple[str, str]:
        """The names of the model's input and output."""
        past, present = self.node.inputs[self.past], self.node.outputs[self.present]
        return str(None if past is None else past.name), str(present.name)

    @property
    def size(self) -> int:
        """How many of them one head has."""
        return self.channels // self.heads


def is_attention(node: ir.Node) -> bool:
    """Tell whether a node is a GroupQueryAttention of ONNX Runtime."""
    return node.op_type == _ATTENTION and node.domain == _RUNTIME


def caches_of(node: ir.Node) -> tuple[Cache, ...]:
    """Return the caches that a node appends to, whose lengths are known; mostly none."""
    if is_attention(node):
        return tuple(_of_attention(node))
    if is_a(node, Concat):
        return tuple(_of_concat(node))
    return ()


def growing_inputs(graph: Graph) -> Mapping[str, str]:
    """Find the inputs that a node appends to, each with what the node makes of it, by name.

    Its size may be read besides. The axis along which it grows has no fixed size.
    """
    found = {}
    for value in graph.inputs:
        readers = [use for use in value.uses() if not is_a(use.node, Shape)]
        is_open = value.shape is not None and any(not isinstance(n, int) for n in value.shape)
        if not is_open or len(readers) != 1:
            continue
        node, slot = readers[0]
        if is_a(node, Concat):
            found[str(value.name)] = str(node.outputs[0].name)
        elif is_attention(node):
            presents = [present for past, _, present in _SLOTS_OF_ATTENTION if past == slot]
            made = [node.outputs[each] for each in presents if each < len(node.outputs)]
            found |= {str(value.name): str(each.name) for each in made}
    return found


def why_no_cache(node: ir.Node) -> str:
    """Say why what a GroupQueryAttention appends is in no cache that can hold codes; "" if it is.

    Of other nodes nothing is known.
    """
    if not is_attention(node) or len(caches_of(node)) == 2:
        return ""
    if node.attributes.get_string("k_quant_type", "NONE") != "NONE":
        return "its caches are quantized already"
    if node.attributes.get_int("do_rotary", 0) == 1:
        return "it rotates keys by tables or places that are not known"
    return "its caches are no inputs and outputs [batch, heads, places, size] of the model"


def _of_attention(node: ir.Node) -> Iterator[Cache]:
    heads = int(node.attributes.get_int("kv_num_heads", 0) or 0)
    is_plain = node.attributes.get_string("k_quant_type", "NONE") == "NONE"
    if not heads or not is_plain or node.attributes.get_int("do_rotary", 0) == 1:
        return
    for past, new, present in _SLOTS_OF_ATTENTION:
        kept, value = input_value(node, past), input_value(node, new)
        if kept is None or value is None or not _becomes_output(kept, node, present):
            continue
        shape, whole = _lengths(value), _lengths(kept)
        if len(shape) != 3 or len(whole) != 4 or not isinstance(shape[2], int):
            continue
        channels = shape[2]
        if whole[1] == heads and not channels % heads and whole[3] == channels // heads:
            yield Cache(node, past, new, present, 2, channels, heads, channels)


def _of_concat(node: ir.Node) -> Iterator[Cache]:
    if len(node.inputs) != 2:
        return
    kept, value = node.inputs
    if kept is None or value is None or not _becomes_output(kept, node, 0):
        return
    shape, whole = _lengths(value), _lengths(kept)
    if len(shape) != 4 or len(whole) != 4 or not isinstance(shape[3], int):
        return
    axis = Concat.of(node).axis % 4
    if axis == 2 and isinstance(whole[1], int) and whole[3] == shape[3]:
        yield Cache(node, 0, 1, 0, 3, shape[3], 1, whole[1] * shape[3])


def _becomes_output(kept: ir.Value, node: ir.Node, present: int) -> bool:
    """Tell whether an input of floats with an open length is read by a node alone, and returned."""
    # Its length may be read without its values, as masks and places are computed from it.
    readers = {reader for reader, _ in kept.uses() if not is_a(reader, Shape)}
    return (
        kept.is_graph_input()
        and kept.const_value is None
        and kept.dtype is ir.DataType.FLOAT
        and readers == {node}
        and len(node.outputs) > present
        and node.outputs[present].is_graph_output()
    )


def _lengths(value: ir.Value) -> list[int | ir.SymbolicDim | None]:
    return [] if value.shape is None else list(value.shape)


class Rotation(msgspec.Struct, frozen=True):
    """A rotary embedding: pairs of numbers of a head, turned by angles that follow from the place.

    Attributes:
        size: How many numbers of a head are turned, the first ones.
        interleaved: Whether pairs are neighbours; else a number and that half of ``size`` behind.
        growth: By how much a pair may be longer at other places than at those that were observed;
            1 where tables are cosines and sines, or their lengths are the same everywhere.
    """

    size: int
    interleaved: bool
    growth: float = 1.0

    @property
    def pairs(self) -> tuple[slice, slice]:
        """Where the first and the second numbers of the pairs are."""
        if self.interleaved:
            return slice(0, self.size, 2), slice(1, self.size, 2)
        return slice(0, self.size // 2), slice(self.size // 2, self.size)

    def envelope(self, values: np.ndarray) -> np.ndarray:
        """Return what magnitudes are at most at any place, ``[..., size of a head]``.

        A turned pair (a cos t - b sin t, a sin t + b cos t) has the length sqrt(a^2 + b^2) for
        every angle t, and reaches it in either number: no place gives a larger magnitude. What is
        not turned has its own.
        """
        found = np.abs(values.astype(np.float64))
        first, second = self.pairs
        length = np.hypot(found[..., first], found[..., second]) * self.growth
        found[..., first] = found[..., second] = length
        return found


def rotation_of(value: ir.Value, size: int) -> Rotation | None:
    """Return the rotary embedding that makes a value; None where none is recognized.

    Args:
        value: What is appended to a cache.
        size: How many numbers a head has.
    """
    maker = value.producer()
    if maker is None:
        return None
    if maker.op_type == RotaryEmbedding.name:
        return _by_operator(maker, size)
    return _written_out(maker, size)


def rotary_tables(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return cosines and sines of a RotaryEmbedding, ``[places, pairs]``; None if not constant."""
    slots = (2, 3) if node.domain == _RUNTIME else (1, 2)
    cos, sin = (constant_array(input_value(node, slot)) for slot in slots)
    if cos is None or sin is None or cos.ndim != 2 or cos.shape != sin.shape:
        return None
    return cos, sin


def _by_operator(node: ir.Node, size: int) -> Rotation:
    turned = int(node.attributes.get_int("rotary_embedding_dim", 0) or 0)
    interleaved = node.attributes.get_int("interleaved", 0) == 1
    growth, tables = 1.0, rotary_tables(node)
    if tables is not None:
        turned = turned or 2 * tables[0].shape[1]
        growth = _growth(*tables)
    return Rotation(min(turned or size, size), interleaved, growth)


def _growth(cos: np.ndarray, sin: np.ndarray) -> float:
    """Compare the longest and the shortest of a pair's turns, over the places of the tables."""
    lengths = np.hypot(cos.astype(np.float64), sin.astype(np.float64))
    # A place that sets a pair to 0 (a row of padding) shows nothing of what the others do.
    least = np.where(lengths > 0, lengths, np.inf).min(axis=0, initial=np.inf)
    return float((lengths.max(axis=0, initial=0) / least).max(initial=1.0))


def _written_out(node: ir.Node, size: int) -> Rotation | None:
    """Recognize ``x * cos + concat(-second half, first half) * sin``, and a part behind it.

    Cosines and sines are taken to be such.
    """
    if is_a(node, Concat):  # the first numbers of a head are turned, the others are not
        first = node.inputs[0]
        length = _lengths(first)[-1] if first is not None and _lengths(first) else None
        maker = None if first is None else first.producer()
        return _written_out(maker, length) if maker and isinstance(length, int) else None
    if not is_a(node, Add):
        return None
    products = [value.producer() for value in node.inputs if value is not None]
    factors = [
        [value for value in each.inputs if value is not None]
        for each in products
        if is_a(each, Mul)
    ]
    if len(factors) != 2:
        return None
    # Either product may be that of the cosines, and either factor the turned one.
    for mine, other in (factors, factors[::-1]):
        for turned in mine:
            source = _half_turned(turned)
            if source is not None and source in other:
                return Rotation(size, interleaved=False)
    return None


def _half_turned(value: ir.Value) -> ir.Value | None:
    """Return what ``concat(-second half, first half)`` is made of."""
    maker = value.producer()
    if not is_a(maker, Concat) or len(maker.inputs) != 2:
        return None
    negated, first = (None if each is None else each.producer() for each in maker.inputs)
    if not is_a(negated, functions.negative) or first is None:
        return None
    second = None if negated.inputs[0] is None else negated.inputs[0].producer()
    if second is None or not {first.op_type, second.op_type} <= types_of(Slice, Split):
        return None
    source = first.inputs[0]
    return source if source is not None and source is second.inputs[0] else None
