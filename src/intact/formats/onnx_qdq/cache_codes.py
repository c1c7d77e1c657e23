"""What the caches of a written decoder hold: codes; runs give and take floats.

ONNX Runtime keeps 8 bits as int8, and 4 bits as bytes of two codes, each 8 more than the code, the
even channel in the low half. Some channels of keys may have two codes (see
`intact.graph.key_basis`). In the place of a channel that is not kept the keys have the first one
again, and nodes in front of attention make of it what the first code loses, times 2**bits - 1; the
queries of the first channel meet both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import constant_array
from intact.graph.caches import is_attention
from intact.graph.edit import Editor
from intact.graph.key_basis import Steps, matrix_in_front
from intact.graph.passes.composite import Composite
from intact.ops import functions
from intact.ops.operators import Clip, Concat, Mul, QuantizeLinear, Sub, is_a
from intact.plan.caches import CachePoint

Floats: TypeAlias = npt.NDArray[np.float32]

KEY_SCALE, VALUE_SCALE = 12, 13
PAST_KEY, PAST_VALUE = 3, 4
WIDTH = "kv_cache_bit_width"
_OFFSET = 8
"""What is added to codes of 4 bits, so that bytes hold them."""


class SecondCodes(NamedTuple):
    """Channels of keys that are kept by two codes, the second in the place of another channel.

    Attributes:
        steps: What is kept.
        size: How many channels a head has.
    """

    steps: Steps
    size: int

    @classmethod
    def of(cls, point: CachePoint) -> SecondCodes | None:
        """Return those of a cache; None where each channel has one code."""
        steps = point.twice
        return None if steps is None else cls(steps, point.cache.size)

    @classmethod
    def written(cls, node: ir.Node, scale: npt.NDArray[Any] | None) -> SecondCodes | None:
        """Find what `write` wrote in front of a node; None where it did not.

        Args:
            node: A GroupQueryAttention over caches of codes.
            scale: The scale of its keys.
        """
        heads = int(node.attributes.get_int("kv_num_heads", 1) or 1)
        bits = int(node.attributes.get_int(WIDTH, 0) or 0)
        if scale is None or bits not in (4, 8) or not np.all(scale == 1):
            return None
        product = _made_by(node.inputs[1], Mul)
        lost = None if product is None else _made_by(product.inputs[0], Sub)
        factors = None if product is None or lost is None else constant_array(product.inputs[1])
        if factors is None or factors.ndim != 1 or factors.size % heads or np.all(factors == 1):
            return None
        twice = (factors != 1).reshape(heads, -1).sum(axis=1)
        found = cls(Steps(bits, tuple(map(int, twice)), ()), factors.size // heads)
        return found if np.array_equal(found.finer, factors) else None

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """Which channel is kept in the place of each."""
        return self.steps.places(self.size)

    @property
    def is_second(self) -> Floats:
        """1 where that is what a first code loses, else 0."""
        return np.asarray(self.places != np.arange(self.places.size), np.float32)

    @property
    def finer(self) -> Floats:
        """By what a number is multiplied there; else 1."""
        return np.asarray(1 + self.is_second * (self.steps.finer - 1), np.float32)

    def kept(self, keys: Floats) -> Floats:
        """Return what is kept of keys, as the written nodes compute it, ``[..., channels]``."""
        own = keys[..., self.places]
        first = np.clip(np.rint(own), *self.steps.codes).astype(np.float32)
        return np.asarray((own - first * self.is_second) * self.finer)

    @property
    def scale(self) -> Floats:
        """The scale of what `joined` gives, ``[channels]``."""
        found = np.ones(self.places.size, np.float32)
        found[self.places[self.is_second > 0]] /= np.float32(self.steps.finer)
        return found

    def joined(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Make one code of both of a channel, ``[..., channels]``; 0 where none is kept."""
        second = self.is_second > 0
        found = np.where(second, 0, codes).astype(np.int64)
        first = self.places[second]
        found[..., first] = found[..., first] * self.steps.finer + codes[..., second]
        return found

    def floats(self, codes: npt.NDArray[Any]) -> Floats:
        """Return what codes stand for, both of a channel together, ``[..., channels]``."""
        return np.asarray(self.joined(codes) * self.scale, np.float32)

    def write(self, editor: Editor, node: ir.Node) -> None:
        """Let queries meet both codes, and keys have both."""
        keys, shape = node.inputs[1], (len(self.steps.twice), 1, self.size)
        if keys is None:
            raise ValueError(f"{node.name} has no keys of its own")
        for slot, factors in ((0, 1 / self.finer), (1, np.ones_like(self.finer))):
            found = matrix_in_front(node, slot)
            if found is None:
                raise ValueError(f"{node.name} has no basis of its own")
            product, matrix = found
            own = np.take_along_axis(matrix, self.places.reshape(shape) % self.size, axis=2)
            changed = np.asarray(own * factors.reshape(shape), np.float32)
            constant = editor.initializer(f"{product.inputs[1].name}_twice", changed)  # type: ignore[union-attr]
            product.replace_input_with(1, constant)
        written = Composite(editor, node)
        low, high = (written.constant(np.asarray(code, np.float32)) for code in self.steps.codes)
        first = written(functions.round_half_even, keys)
        first = written(Mul, written(Clip, first, low, high), written.constant(self.is_second))
        lost = written(Sub, keys, first, shape=keys.shape)
        last = written(Mul, lost, written.constant(self.finer), shape=keys.shape)
        node.replace_input_with(1, last)


def _made_by(value: ir.Value | None, operator: type) -> ir.Node | None:
    maker = None if value is None else value.producer()
    return maker if is_a(maker, operator) else None


class CachePort(msgspec.Struct, frozen=True):
    """An input or output of codes ``[batch, heads, places, size]``, for floats.

    Attributes:
        scale: What codes are multiplied by, in a shape that broadcasts to theirs.
        bits: 8, or 4 for two codes a byte.
        second: Channels of which there are two codes; None where each has one.
    """

    scale: Floats
    bits: int
    second: SecondCodes | None = None

    def to_codes(self, floats: Floats) -> npt.NDArray[Any]:
        """Return the codes of floats that codes stand for, exactly, as they are stored.

        Two codes of a channel may be others that stand for the same.
        """
        low, high = -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        if self.second is not None:
            floats = _by_channels(self.second.kept, floats)
        # The floats are numbers of codes, so that the quotient is whole up to float32's rounding,
        # which `rint` takes away.
        codes = np.clip(np.rint(floats / self.scale), low, high)
        if self.bits == 8:
            return np.asarray(codes.astype(np.int8))
        # A code of 4 bits is moved into 0..15 first: the runtime packs numbers without sign.
        halves = (codes + _OFFSET).astype(np.uint8)
        return np.asarray(halves[..., ::2] | halves[..., 1::2] << 4)

    def to_floats(self, stored: npt.NDArray[Any]) -> Floats:
        """Return the floats that codes stand for."""
        codes = stored.astype(np.float32)
        if self.bits == 4:
            halves = np.stack([stored & 15, stored >> 4], axis=-1).astype(np.float32) - _OFFSET
            codes = halves.reshape(*stored.shape[:-1], 2 * stored.shape[-1])
        if self.second is not None:
            return _by_channels(self.second.floats, codes)
        return np.asarray(codes * self.scale)


def _by_channels(function: Callable[[Floats], Floats], kept: Floats) -> Floats:
    """Apply a function of ``[..., channels]`` to ``[batch, heads, places, size]``."""
    batch, heads, places, size = kept.shape
    rows = kept.transpose(0, 2, 1, 3)
    found = function(rows.reshape(batch, places, heads * size)).reshape(rows.shape)
    return np.ascontiguousarray(found.transpose(0, 2, 1, 3))


def cache_ports(model: ir.Model) -> dict[str, CachePort]:
    """Find the inputs and outputs of a written model that are caches of codes, by name."""
    found: dict[str, CachePort] = {}
    for node in model.graph:
        if is_attention(node) and WIDTH in node.attributes:
            bits = int(node.attributes.get_int(WIDTH, 8) or 8)
            for past, at, present in ((PAST_KEY, KEY_SCALE, 1), (PAST_VALUE, VALUE_SCALE, 2)):
                scale = constant_array(node.inputs[at]) if len(node.inputs) > at else None
                second = SecondCodes.written(node, scale) if at == KEY_SCALE else None
                found |= _ports(node.inputs[past], node.outputs[present], scale, bits, second)
        elif is_a(node, Concat) and len(node.inputs) == 2:
            new = None if node.inputs[1] is None else node.inputs[1].producer()
            is_quantized = new is not None and new.op_type == QuantizeLinear.name
            scale = constant_array(new.inputs[1]) if new is not None and is_quantized else None
            found |= _ports(node.inputs[0], node.outputs[0], scale, 8)
    return found


def _ports(
    past: ir.Value | None,
    present: ir.Value,
    scale: npt.NDArray[Any] | None,
    bits: int,
    second: SecondCodes | None = None,
) -> dict[str, CachePort]:
    if past is None or scale is None or not past.is_graph_input():
        return {}
    port = CachePort(scale.astype(np.float32), bits, second)
    return {str(value.name): port for value in (past, present)}


class CacheFloats:
    """Gives a model of codes the floats of its caches, and takes them.

    Args:
        model: As it was written.
    """

    def __init__(self, model: ir.Model) -> None:
        self._ports = cache_ports(model)
        self._given: dict[int, tuple[Floats, npt.NDArray[Any]]] = {}

    def feeds(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return inputs as the model takes them; those that it gave before as they were."""
        found = dict(feeds)
        for name in self._ports.keys() & found.keys():
            array = found[name]
            if array.dtype.kind == "f":
                floats, codes = self._given.get(id(array), (None, None))
                # What the model gave itself goes back byte by byte; from floats the same codes
                # would be computed again, at a cost for each token.
                found[name] = (
                    codes
                    if codes is not None and floats is array
                    else self._ports[name].to_codes(array)
                )
        return found

    def outputs(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return outputs as the plan has them."""
        # Only arrays of the last run are known: an id may be used again once its array is gone. The
        # floats are held beside, so that it is not.
        self._given = {}
        for name in self._ports.keys() & arrays.keys():
            codes = arrays[name]
            floats = self._ports[name].to_floats(codes)
            arrays[name], self._given[id(floats)] = floats, (floats, codes)
        return arrays
