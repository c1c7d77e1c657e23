"""Writes caches of decoders that hold codes, and compares them.

ONNX Runtime's GroupQueryAttention keeps codes itself. Its scales are ``[1]`` or ``[1, heads, 1,
size]``. Where a Concat appends, codes are made before it and floats behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.formats.base.comparison import LayerComparison
from intact.formats.base.float_layers import FloatComparison
from intact.formats.base.format import Feeds
from intact.formats.onnx_qdq.cache_codes import (
    KEY_SCALE,
    PAST_KEY,
    VALUE_SCALE,
    WIDTH,
    Floats,
    SecondCodes,
)
from intact.graph.caches import is_attention
from intact.graph.edit import Editor
from intact.ops.operators import (
    DequantizeLinear,
    QuantizeLinear,
)
from intact.plan import Codes, Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.caches import CachePoint, cache_points


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
    several = "ONNX Runtime's generative API takes one width for all caches" * (len(widths) > 1)
    return [Note(NoteKind.EXPORT, points[0].end.node, message, remedy=several)]


def _attend(editor: Editor, node: ir.Node, points: Sequence[CachePoint]) -> None:
    """Let attention keep keys and values as codes."""
    # The runtime takes one kind for both.
    is_one = all(point.config.granularity.axis is None for point in points)
    # Both scales stand behind optional inputs, which stay absent.
    node.resize_inputs(max(len(node.inputs), VALUE_SCALE + 1))
    for point in points:
        cache, bits = point.cache, point.config.bits
        is_key = cache.past == PAST_KEY
        if (second := SecondCodes.of(point)) is not None:
            second.write(editor, node)
        scale = _scale(point)
        if not is_one and scale.size == 1:
            scale = np.full((1, cache.heads, 1, cache.size), scale.item(), np.float32)
        name = "k_quant_type" if is_key else "v_quant_type"
        node.attributes[name] = ir.AttrString(name, "PER_TENSOR" if is_one else "PER_CHANNEL")
        node.attributes[WIDTH] = ir.AttrInt64(WIDTH, bits)
        constant = editor.initializer(f"{cache.ports[0]}_scale", scale)
        node.replace_input_with(KEY_SCALE if is_key else VALUE_SCALE, constant)
        for value in (node.inputs[cache.past], node.outputs[cache.present]):
            if value is not None:
                _keep_codes(value, bits)


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


def _scale(point: CachePoint) -> Floats:
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
            point.end: _appended(point, _widened(values[str(point.cache.appended.name)]))
            for point in self._points
        }

    def add(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Compare one batch, with inputs, outputs and what is watched by name."""
        codes = self.codes(values)
        for point, found in zip(self._points, self._codes, strict=True):
            cache = point.cache
            expected = codes[point.end]
            present = values[cache.ports[1]]
            # The node takes [batch, places, heads * size] and keeps [batch, heads, places, size].
            if cache.axis == 2:  # heads are behind one another
                split = (*expected.shape[:2], cache.heads, cache.size)
                expected = expected.reshape(split).transpose(0, 2, 1, 3)
            # Places before were compared when they were appended.
            appended = present[:, :, present.shape[2] - expected.shape[2] :]
            second, scale = SecondCodes.of(point), _scale(point)
            if second is not None:  # both codes of a channel are compared as one
                scale = second.scale.reshape(1, cache.heads, 1, cache.size)
            found.add(np.rint(appended / scale).astype(np.int64), expected.astype(np.int64))
        for each in self._attentions:
            each.add(values)


def _kept(
    point: CachePoint, values: Mapping[str, npt.NDArray[Any]], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return what the runtime kept of what was appended, in the shape of that."""
    present = values[point.cache.ports[1]]
    appended = present[:, :, present.shape[2] - shape[1] :]
    return appended.transpose(0, 2, 1, 3).reshape(shape)


def _widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what attention reads of values: of float16 the same numbers, as it computes wider."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _appended(point: CachePoint, values: npt.NDArray[Any]) -> Codes:
    """Return the codes of what is appended; where a channel has two, both as one.

    GroupQueryAttention multiplies by the reciprocal of the scale, in float32, where a
    QuantizeLinear divides: between two codes they differ.
    """
    config = point.config
    params = config.params
    second = SecondCodes.of(point)
    if not is_attention(point.cache.node) or params is None:
        return config.quantize(values)
    if second is not None:
        scaled = second.kept(values)
    else:
        scaled = values * (np.float32(1) / np.asarray(params.scale, np.float32))
    codes = np.clip(np.rint(scaled), config.quant_min, config.quant_max)
    codes = np.nan_to_num(codes, nan=config.quant_min).astype(np.int32)
    return np.asarray(codes if second is None else second.joined(codes))


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
        feeds = {name: _widened(values[source]) for name, (_, source) in self._inputs.items()}
        new = {point.cache.new: point for point in self._points}
        for name, (slot, _) in self._inputs.items():
            if slot in new:
                # The float kernel attends to what the codes stand for, the new places included:
                # to those that the runtime kept, whose codes are compared by themselves.
                feeds[name] = _kept(new[slot], values, feeds[name].shape)
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
