"""Writes caches of decoders that hold codes; runs give and take floats.

ONNX Runtime's GroupQueryAttention keeps codes itself: 8 bits as int8, 4 bits as bytes of two, each
8 more than the code, the even channel in the low half. Its scales are ``[1]`` or ``[1, heads, 1,
size]``. Where a Concat appends, codes are made before it and floats behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.formats.base.comparison import LayerComparison
from intact.formats.base.float_layers import FloatComparison
from intact.formats.base.format import Feeds
from intact.graph import constant_array
from intact.graph.caches import is_attention
from intact.graph.edit import Editor
from intact.graph.key_basis import Steps, steps_of
from intact.graph.passes.composite import Composite
from intact.ops import functions
from intact.ops.operators import (
    Clip,
    Concat,
    DequantizeLinear,
    Gather,
    Mul,
    QuantizeLinear,
    Sub,
    is_a,
)
from intact.plan import Codes, Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.caches import CachePoint, cache_points

_KEY_SCALE, _VALUE_SCALE = 12, 13
_PAST_KEY, _PAST_VALUE = 3, 4
_WIDTH = "kv_cache_bit_width"
_OFFSET = 8
"""What is added to codes of 4 bits, so that bytes hold them."""

_Floats = npt.NDArray[np.float32]


def write_caches(editor: Editor, plan: QuantizedGraph) -> list[Note]:
    """Let a copy of the plan's model keep its caches as codes, as far as the plan has them so.

    Returns:
        What a user should know of them.
    """
    nodes: dict[str, list[CachePoint]] = {}
    for point in cache_points(plan):
        nodes.setdefault(str(point.cache.node.name), []).append(point)
    for name, points in nodes.items():
        node = editor.nodes_by_name[name]
        if is_attention(node):
            _attend(editor, node, points)
        else:
            _append(editor, node, points[0])
    points = list(cache_points(plan))
    codes, floats = (sum(each) for each in zip(*(p.bytes_per_token for p in points), strict=True))
    widths = sorted(Counter(point.config.bits for point in points).items())
    listed = " and ".join(
        f"{bits} bits" + (f" ({count} of them)" if len(widths) > 1 else "")
        for bits, count in widths
    )
    message = (
        f"{len(points)} caches hold codes of {listed}: {codes:,} bytes a token "
        f"instead of {floats:,}; inputs and outputs of the model are these codes"
    )
    return [Note(NoteKind.EXPORT, points[0].end.node, message)]


def _attend(editor: Editor, node: ir.Node, points: Iterable[CachePoint]) -> None:
    """Let attention keep keys and values as codes."""
    # Both scales stand behind optional inputs, which stay absent.
    node.resize_inputs(max(len(node.inputs), _VALUE_SCALE + 1))
    for point in points:
        cache, bits = point.cache, point.config.bits
        is_key = cache.past == _PAST_KEY
        if (second := _SecondCodes.of(point)) is not None:
            second.write(Composite(editor, node), node)
        scale = _scale(point)
        kind = "PER_TENSOR" if scale.size == 1 and point.config.granularity.axis is None else ""
        name = "k_quant_type" if is_key else "v_quant_type"
        node.attributes[name] = ir.AttrString(name, kind or "PER_CHANNEL")
        node.attributes[_WIDTH] = ir.AttrInt64(_WIDTH, bits)
        constant = editor.initializer(f"{cache.ports[0]}_scale", scale)
        node.replace_input_with(_KEY_SCALE if is_key else _VALUE_SCALE, constant)
        for value in (node.inputs[cache.past], node.outputs[cache.present]):
            if value is not None:
                _keep_codes(value, bits)


class _SecondCodes(NamedTuple):
    """Channels of keys that are kept by two codes, the second in the place of another channel.

    Attributes:
        steps: What is kept.
        size: How many channels a head has.
    """

    steps: Steps
    size: int

    @classmethod
    def of(cls, point: CachePoint) -> _SecondCodes | None:
        """Return those of a cache; None where each channel has one code."""
        steps = steps_of(point.cache.node) if point.config.grid.channel_codes else None
        return None if steps is None else cls(steps, point.cache.size)

    @classmethod
    def written(cls, node: ir.Node, heads: int, bits: int) -> _SecondCodes | None:
        """Find what `write` wrote in front of a node; None where it did not."""
        finer = _made_by(node.inputs[1], Mul)
        lost = None if finer is None else _made_by(finer.inputs[0], Sub)
        own = None if lost is None else _made_by(lost.inputs[0], Gather)
        places = None if own is None else constant_array(own.inputs[1])
        if places is None or places.ndim != 1 or places.size % heads:
            return None
        moved = (places != np.arange(places.size)).reshape(heads, -1)
        found = cls(Steps(bits, tuple(map(int, moved.sum(axis=1)))), places.size // heads)
        return found if np.array_equal(found.places, places) else None

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """Which channel is kept in the place of each."""
        return self.steps.places(self.size)

    @property
    def is_second(self) -> _Floats:
        """1 where that is what a first code loses, else 0."""
        return np.asarray(self.places != np.arange(self.places.size), np.float32)

    @property
    def finer(self) -> _Floats:
        """By what a number is multiplied there; else 1."""
        return np.asarray(1 + self.is_second * (self.steps.finer - 1), np.float32)

    def kept(self, keys: _Floats) -> _Floats:
        """Return what is kept of keys, as the written nodes compute it, ``[..., channels]``."""
        own = keys[..., self.places]
        first = np.clip(np.rint(own), *self.steps.codes).astype(np.float32)
        return np.asarray((own - first * self.is_second) * self.finer)

    def floats(self, codes: npt.NDArray[Any]) -> _Floats:
        """Return what codes stand for, both of a channel together, ``[..., channels]``."""
        kept = codes / self.finer
        second, found = self.is_second.astype(bool), kept * (1 - self.is_second)
        found[..., self.places[second]] += kept[..., second]
        return np.asarray(found, np.float32)

    def for_queries(self, shared: int) -> tuple[npt.NDArray[np.int64], _Floats]:
        """Return which channel of queries meets each that is kept, and its factors.

        Args:
            shared: Heads of queries that read one of keys.
        """
        own = self.places.reshape(-1, 1, self.size) % self.size
        first = np.arange(len(own) * shared).reshape(-1, shared, 1) * self.size
        factors = np.float32(1) / self.finer.reshape(-1, 1, self.size)
        return (first + own).reshape(-1), np.tile(factors, (1, shared, 1)).reshape(-1)

    def write(self, written: Composite, node: ir.Node) -> None:
        """Put nodes between keys and attention, and between queries and attention."""
        query, key = written.input(0), written.input(1)
        if query is None or key is None:
            raise ValueError(f"{node.name} has no queries and keys of their own")
        own = _gathered(written, key, self.places)
        low, high = (written.constant(np.asarray(code, np.float32)) for code in self.steps.codes)
        first = written(Clip, written(functions.round_half_even, own), low, high, shape=key.shape)
        lost = written(Sub, own, written(Mul, first, written.constant(self.is_second)))
        node.replace_input_with(1, written(Mul, lost, written.constant(self.finer)))
        width = int(list(query.shape or ())[-1])  # type: ignore[arg-type]
        places, factors = self.for_queries(width // self.places.size)
        own = _gathered(written, query, places)
        node.replace_input_with(0, written(Mul, own, written.constant(factors)))


def _made_by(value: ir.Value | None, operator: type) -> ir.Node | None:
    maker = None if value is None else value.producer()
    return maker if is_a(maker, operator) else None


def _gathered(written: Composite, value: ir.Value, places: npt.NDArray[np.int64]) -> ir.Value:
    return written(Gather, value, written.constant(places), shape=value.shape, axis=2)


def _keep_codes(value: ir.Value, bits: int) -> None:
    value.type = ir.TensorType(ir.DataType.INT8 if bits == 8 else ir.DataType.UINT8)
    lengths = [] if value.shape is None else list(value.shape)
    # Two codes share a byte along the last axis.
    if bits == 4 and lengths and isinstance(lengths[-1], int):
        value.shape = ir.Shape([*lengths[:-1], lengths[-1] // 2])


def _append(editor: Editor, node: ir.Node, point: CachePoint) -> None:
    """Append codes to codes, and make floats of them for all who read them."""
    cache, name = point.cache, point.cache.ports[0]
    appended, present = node.inputs[cache.new], node.outputs[cache.present]
    axis = point.config.granularity.axis
    options = {} if axis is None else {"axis": axis}
    scale = editor.initializer(f"{name}_scale", _scale(point))
    zero = editor.initializer(f"{name}_zero_point", np.zeros(_scale(point).shape, np.int8))
    int8, shape = ir.DataType.INT8, None if appended is None else appended.shape
    codes = editor.node(
        QuantizeLinear.name, [appended, scale, zero], f"{name}_new", options, int8, shape
    )
    node.replace_input_with(cache.new, codes)
    # Noted before the DequantizeLinear is made, which reads the same value and must go on reading
    # codes.
    readers = [(use.node, use.idx) for use in present.uses()]
    for value in (node.inputs[cache.past], present):
        if value is not None:
            _keep_codes(value, 8)
    floats = editor.node(
        DequantizeLinear.name,
        [present, scale, zero],
        f"{name}_floats",
        options,
        shape=present.shape,
    )
    for reader, slot in readers:
        reader.replace_input_with(slot, floats)


def _scale(point: CachePoint) -> _Floats:
    """Return the scale of a cache in the shape that its node reads."""
    params, cache = point.config.params, point.cache
    if params is None:
        raise ValueError(f"{point.end} has no scale")
    scale = np.asarray(params.scale, np.float32)
    if point.config.grid.channel_codes:  # steps: those of two codes together are finer
        scale = np.ones_like(scale)
    if not is_attention(cache.node):
        return scale
    return scale.reshape((1, cache.heads, 1, cache.size) if scale.ndim else (1,))


# ---- what a written model takes and gives --------------------------------------------------------


class CachePort(msgspec.Struct, frozen=True):
    """An input or output of codes ``[batch, heads, places, size]``, for floats.

    Attributes:
        scale: What codes are multiplied by, in a shape that broadcasts to theirs.
        bits: 8, or 4 for two codes a byte.
        second: Channels of which there are two codes; None where each has one.
    """

    scale: _Floats
    bits: int
    second: _SecondCodes | None = None

    def codes(self, floats: _Floats) -> _Floats:
        """Return the codes of floats that codes stand for, exactly."""
        low, high = -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        if self.second is not None:
            floats = _by_channels(self.second.kept, floats)
        # The floats are numbers of codes, so that the quotient is whole up to float32's rounding,
        # which `rint` takes away.
        return np.asarray(np.clip(np.rint(floats / self.scale), low, high))

    def to_codes(self, floats: _Floats) -> npt.NDArray[Any]:
        """Return the codes as they are stored."""
        codes = self.codes(floats)
        if self.bits == 8:
            return np.asarray(codes.astype(np.int8))
        # A code of 4 bits is moved into 0..15 first: the runtime packs numbers without sign.
        halves = (codes + _OFFSET).astype(np.uint8)
        return np.asarray(halves[..., ::2] | halves[..., 1::2] << 4)

    def to_floats(self, stored: npt.NDArray[Any]) -> _Floats:
        """Return the floats that codes stand for."""
        codes = stored.astype(np.float32)
        if self.bits == 4:
            halves = np.stack([stored & 15, stored >> 4], axis=-1).astype(np.float32) - _OFFSET
            codes = halves.reshape(*stored.shape[:-1], 2 * stored.shape[-1])
        if self.second is not None:
            return _by_channels(self.second.floats, codes)
        return np.asarray(codes * self.scale)


def _by_channels(function: Callable[[_Floats], _Floats], kept: _Floats) -> _Floats:
    """Apply a function of ``[..., channels]`` to ``[batch, heads, places, size]``."""
    batch, heads, places, size = kept.shape
    rows = kept.transpose(0, 2, 1, 3)
    found = function(rows.reshape(batch, places, heads * size)).reshape(rows.shape)
    return np.ascontiguousarray(found.transpose(0, 2, 1, 3))


def cache_ports(model: ir.Model) -> dict[str, CachePort]:
    """Find the inputs and outputs of a written model that are caches of codes, by name."""
    found: dict[str, CachePort] = {}
    for node in model.graph:
        if is_attention(node) and _WIDTH in node.attributes:
            bits = int(node.attributes.get_int(_WIDTH, 8) or 8)
            for past, at, present in ((_PAST_KEY, _KEY_SCALE, 1), (_PAST_VALUE, _VALUE_SCALE, 2)):
                scale = constant_array(node.inputs[at]) if len(node.inputs) > at else None
                heads = int(node.attributes.get_int("kv_num_heads", 1) or 1)
                second = _SecondCodes.written(node, heads, bits) if present == 1 else None
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
    second: _SecondCodes | None = None,
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
        self._given: dict[int, tuple[_Floats, npt.NDArray[Any]]] = {}

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


# ---- comparing -----------------------------------------------------------------------------------


Runner: TypeAlias = Callable[[ir.Model], Callable[[Feeds], Feeds]]
"""Loads a float model, and returns what runs it."""


class CacheLayers:
    """Compares the codes that the runtime appends to caches, and what attention makes of them.

    Args:
        plan: The plan.
        ports: Names of the inputs and outputs of what was written, which are seen anyway.
        runner: Loads a float model.

    Attributes:
        watched: Names of the values between that the runtime has to show.
    """

    def __init__(self, plan: QuantizedGraph, ports: Iterable[str], runner: Runner) -> None:
        self._points = list(cache_points(plan))
        self._codes = [
            LayerComparison(str(point.end), operation=f"cache of {point.cache.node.op_type}")
            for point in self._points
        ]
        # A name may be watched for two reasons, and is shown once.
        names = [str(point.cache.appended.name) for point in self._points]
        self._attentions = _attentions(plan, self._points, runner)
        for each in self._attentions:
            names += each.names
        self.watched = tuple(name for name in dict.fromkeys(names) if name not in set(ports))

    @property
    def layers(self) -> list[LayerComparison]:
        """The codes, in the order of the plan."""
        return self._codes

    @property
    def floats(self) -> list[FloatComparison]:
        """What attention gives, in the order of the plan."""
        return [each.found for each in self._attentions]

    def codes(self, values: Mapping[str, npt.NDArray[Any]]) -> dict[TensorEnd, Codes]:
        """Return what the plan says of the codes that a batch appends."""
        return {
            point.end: _appended(point, values[str(point.cache.appended.name)])
            for point in self._points
        }

    def add(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Compare one batch, with inputs, outputs and what is watched by name."""
        codes = self.codes(values)
        for point, found in zip(self._points, self._codes, strict=True):
            cache, config = point.cache, point.config
            expected = codes[point.end]
            present = values[cache.ports[1]]
            # The node takes [batch, places, heads * size] and keeps [batch, heads, places, size].
            if cache.axis == 2:  # heads are behind one another
                split = (*expected.shape[:2], cache.heads, cache.size)
                expected = expected.reshape(split).transpose(0, 2, 1, 3)
            # Places before were compared when they were appended.
            appended = present[:, :, present.shape[2] - expected.shape[2] :]
            port = CachePort(_scale(point), config.bits, _SecondCodes.of(point))
            found.add(port.codes(appended).astype(np.int64), expected.astype(np.int64))
        for each in self._attentions:
            each.add(values)


def _appended(point: CachePoint, values: npt.NDArray[Any]) -> Codes:
    """Return the codes of what is appended.

    GroupQueryAttention multiplies by the reciprocal of the scale, in float32, where a
    QuantizeLinear divides: between two codes they differ.
    """
    config = point.config
    params = config.params
    second = _SecondCodes.of(point)
    if not is_attention(point.cache.node) or params is None:
        return config.quantize(values)
    if second is not None:
        scaled = second.kept(values)
    else:
        scaled = values * (np.float32(1) / np.asarray(params.scale, np.float32))
    codes = np.clip(np.rint(scaled), config.quant_min, config.quant_max)
    return np.asarray(np.nan_to_num(codes, nan=config.quant_min).astype(np.int32))


class _Attention:
    """An attention over caches of codes, against the same over the floats that they stand for."""

    def __init__(
        self, plan: QuantizedGraph, node: ir.Node, points: list[CachePoint], runner: Runner
    ) -> None:
        self._scale = float(node.attributes.get_float("scale", 0.0))
        self._points, self.found = points, FloatComparison(f"{node.name}.output[0]", node.op_type)
        editor = Editor(plan.graph.model)
        twin = editor.nodes_by_name[str(node.name)]
        self._inputs: dict[str, tuple[int, str]] = {}
        for slot, value in enumerate(twin.inputs):
            # Constants stay in the model: the runtime lays them out once, when it loads it.
            if value is None or value.const_value is not None or value.shape is None:
                continue
            given = editor.input(f"given_{slot}", value.dtype or ir.DataType.FLOAT, value.shape)
            twin.replace_input_with(slot, given)
            self._inputs[str(given.name)] = slot, str(value.name)
        editor.model.graph.outputs[:] = [twin.outputs[0]]
        # A model of one node: its inputs are given, and no other kernel has a part in the result.
        others = [each for each in editor.model.graph if each is not twin]
        editor.model.graph.remove(others, safe=False)
        inputs = editor.model.graph.inputs
        inputs[:] = [value for value in inputs if value.name in self._inputs]
        self._run = runner(editor.finish())
        self._result = str(node.outputs[0].name)
        self.names = [self._result, *(name for _, name in self._inputs.values())]

    def add(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        feeds = {name: values[source] for name, (_, source) in self._inputs.items()}
        new = {point.cache.new: point for point in self._points}
        for name, (slot, _) in self._inputs.items():
            if slot in new:
                # The float kernel attends to what the codes stand for, the new places included.
                codes, second = _appended(new[slot], feeds[name]), _SecondCodes.of(new[slot])
                feeds[name] = (
                    new[slot].config.dequantize(codes) if second is None else second.floats(codes)
                )
        operands = {slot: feeds[name] for name, (slot, _) in self._inputs.items()}
        expected = self._run(feeds)[self._result]
        self.found.add(values[self._result], expected, lambda: self._terms(operands))

    def _terms(self, operands: Mapping[int, npt.NDArray[Any]]) -> float:
        """Return the largest sum of magnitudes that a result may be added from.

        Scores err by their terms, at most ``|q| |k| scale``; weights, relatively, as scores do; and
        results are means of values by these weights.
        """
        cache = self._points[0].cache
        query, key = (
            np.linalg.norm(
                operands[slot].reshape(*operands[slot].shape[:-1], -1, cache.size), axis=-1
            )
            for slot in (0, 1)
        )
        scale = self._scale or 1 / np.sqrt(cache.size)
        score = float(query.max(initial=0.0) * key.max(initial=0.0) * scale)
        return float(np.abs(operands[2]).max(initial=0.0)) * (1 + score)


def _attentions(
    plan: QuantizedGraph, points: Iterable[CachePoint], runner: Runner
) -> list[_Attention]:
    nodes: dict[str, list[CachePoint]] = {}
    for point in points:
        if is_attention(point.cache.node):
            nodes.setdefault(str(point.cache.node.name), []).append(point)
    return [_Attention(plan, each[0].cache.node, each, runner) for each in nodes.values()]
