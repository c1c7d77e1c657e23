"""Turns fake quantizers of training tools into pairs of Quantize- and DequantizeLinear.

The pairs have the attributes ``quant_min`` and ``quant_max`` where the codes do not fill their
type, as MQBench's own exports of opset 13 have them. A Clip of the codes between two of a pair,
which PyTorch writes for 7 bits and Brevitas for fewer than 8, becomes such attributes too. So does
a Cast of constant codes of 4 bits to bytes, as intact writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from intact._text import first_names
from intact.errors import ConfigError, DataError
from intact.formats.base.read_points import GraphEdits
from intact.formats.onnx_qdq.reader.given import Grid, fitting_axis, unreadable_quantizer
from intact.formats.onnx_qdq.reader.parameters import (
    container_of,
    container_of_range,
    integer_attribute,
    is_dequantize,
    is_quantize,
)
from intact.formats.onnx_qdq.reader.quantizers import is_quantizer, read_quantizer
from intact.formats.onnx_qdq.reader.widths import RANGE, say_ranges
from intact.graph import constant_array, input_value, is_constant, output_channel_axis
from intact.graph.passes import library
from intact.graph.passes.replace import add_constant, replace_value
from intact.graph.traversal import nodes_of
from intact.numerics.affine import quantize
from intact.ops.operators import (
    Cast,
    Clip,
    DequantizeLinear,
    If,
    Loop,
    Named,
    QuantizeLinear,
    Scan,
    is_a,
    type_of,
)
from intact.plan import Note, NoteKind, Overrides

_ANY = (-(2**31), 2**31 - 1)


def translate_quantizers(model: ir.Model, asked: Overrides | None = None) -> tuple[Note, ...]:
    """Put a pair in the place of every fake quantizer, in place.

    Args:
        model: The model.
        asked: Widths that a user gives to quantizers that do not say their range.

    Returns:
        What was made another number than the file's.

    Raises:
        ModelError: One cannot be read; the node is named.
    """
    quantizers = []
    for node in nodes_of(model.graph):
        if is_quantizer(node):
            if node.graph is not model.graph:
                raise unreadable_quantizer(node, "it stands in the body of another node")
            quantizers.append(node)
    # Before weights are looked at for their widths: what is said need not be guessed.
    _take_clips(model.graph)
    _take_casts(model.graph)
    _fold_operands(model)
    widths = tuple(say_ranges(model.graph, asked or Overrides()))
    pairs = _Pairs(model.graph)
    for node in quantizers:
        pairs.put(node, read_quantizer(node))
    return (*widths, *pairs.notes())


class _Pairs:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._names = GraphEdits(graph).names
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._quantized: dict[tuple[object, ...], ir.Value] = {}
        self._changed: dict[str, list[str]] = {}

    def put(self, node: ir.Node, grid: Grid) -> None:
        """Replace a node by a pair; equal ones of one value share the first half."""
        value, result = node.inputs[0], node.outputs[0]
        container = container_of_range(grid.quant_min, grid.quant_max)
        if value is None or container is None:
            span = f"{grid.quant_min}..{grid.quant_max}"
            raise unreadable_quantizer(node, f"its codes are {span}", "2 to 32 bits are read")
        # A plan's numbers are float32: half precision would round the scales.
        if value.dtype not in (None, ir.DataType.FLOAT):
            reason = f"it quantizes {value.dtype.name.lower()}"
            raise unreadable_quantizer(node, reason, "export the model in float32")
        axis = _axis(node, value, grid)
        grid = _narrowed(node, value, grid, axis)
        zero_points = np.broadcast_to(grid.zero_point.reshape(-1), grid.scale.size)
        scale = self._constant(f"{node.name}_scale", _shaped(grid.scale, axis))
        zero_point = self._constant(
            f"{node.name}_zero_point", _shaped(zero_points.astype(container.numpy), axis)
        )
        options = {"axis": axis or 0, "quant_min": grid.quant_min, "quant_max": grid.quant_max}
        # Constants of equal bytes are one value here, so that equal quantizers have equal keys.
        key = (value, scale, zero_point, *options.values())
        if key not in self._quantized:
            codes = self._node(node, QuantizeLinear, [value, scale, zero_point], options)
            codes.type, codes.shape = ir.TensorType(container.data_type), value.shape
            self._quantized[key] = codes
        numbers = self._node(
            node, DequantizeLinear, [self._quantized[key], scale, zero_point], options
        )
        numbers.type = ir.TensorType(ir.DataType.FLOAT)
        replace_value(result, numbers)
        numbers.shape = value.shape
        self._graph.remove(node, safe=True)
        for change in grid.changes:
            self._changed.setdefault(change, []).append(str(node.name))

    def notes(self) -> Iterator[Note]:
        """Yield what the files of this kind say otherwise, once for each kind."""
        for change, nodes in self._changed.items():
            where = first_names(list(map(repr, nodes)))
            yield Note(NoteKind.REWRITE, "", f"{change} (quantizers {where})")

    def _node(
        self,
        before: ir.Node,
        operator: Named,
        inputs: list[ir.Value],
        options: dict[str, int],
    ) -> ir.Value:
        op_type = type_of(operator)
        attributes = [ir.AttrInt64(key, value) for key, value in options.items()]
        made = ir.Node("", op_type, inputs, attributes, num_outputs=1)
        made.name = made.outputs[0].name = self._names.fresh(f"{before.name}_{op_type}")
        self._graph.insert_before(before, made)
        return made.outputs[0]

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = add_constant(self._graph, array, self._names.fresh(name))
        return self._constants[key]


def _shaped(array: np.ndarray, axis: int | None) -> np.ndarray:
    return array.reshape(() if axis is None else -1)


def _narrowed(node: ir.Node, value: ir.Value, grid: Grid, axis: int | None) -> Grid:
    """Return the range that a constant uses, where fewer bits are stored as 8."""
    array = constant_array(value)
    if array is None or not grid.holds_fewer:
        return grid
    try:
        codes = quantize(
            array,
            _shaped(grid.scale, axis),
            _shaped(grid.zero_point, axis),
            grid.quant_min,
            grid.quant_max,
            axis=axis,
        )
    except (ConfigError, DataError) as error:
        raise unreadable_quantizer(node, str(error)) from error
    return grid.narrowed(codes)


def _axis(node: ir.Node, value: ir.Value, grid: Grid) -> int | None:
    """Return the channel axis, counted from 0; None for one scale.

    Where the node does not say it, it is that of the reader's output channels, which weights have:
    MQBench leaves it out.
    """
    count = grid.scale.size
    if count == 1:
        return None
    if grid.axis is not None:
        return fitting_axis(node, grid.axis, count)
    fitting = [axis for axis, size in enumerate(value.shape or ()) if size == count]
    return fitting_axis(node, _channel_axis(node, value, fitting), count)


def _channel_axis(node: ir.Node, value: ir.Value, fitting: list[int]) -> int:
    """Find the axis of a weight's output channels, or else the first that has the length."""
    for use in tuple(node.outputs[0].uses()):
        # For a moment the reader gets the weight itself: which axis has its channels is asked of
        # the node.
        use.node.replace_input_with(use.idx, value)
        axis = output_channel_axis(use.node)
        use.node.replace_input_with(use.idx, node.outputs[0])
        if axis is not None and axis in fitting:
            return axis
    return fitting[0] if fitting else 0


def _take_clips(graph: ir.Graph) -> None:
    """Let QuantizeLinear and DequantizeLinear say the range to which a Clip brings their codes."""
    names = GraphEdits(graph).names
    for node in tuple(graph):
        if not is_a(node, Clip) or len(node.outputs) != 1:
            continue
        pair, bounds = _around(node), _bounds(node)
        source, result = node.inputs[0], node.outputs[0]
        if not pair or bounds is None or source is None or result.is_graph_output():
            continue
        for each in pair:
            each.attributes.update({key: ir.AttrInt64(key, value) for key, value in bounds.items()})
        codes = constant_array(source)
        if codes is not None:
            low, high = (bounds.get(key, limit) for key, limit in zip(RANGE, _ANY, strict=True))
            clipped = np.clip(codes.astype(np.int64), low, high)
            name = names.fresh(f"{source.name}_clipped")
            source = add_constant(graph, clipped.astype(codes.dtype), name)
        result.replace_all_uses_with(source)
        graph.remove(node, safe=True)


def _take_casts(graph: ir.Graph) -> None:
    """Let DequantizeLinear say the range of constant codes that a Cast brings from 4 to 8 bits."""
    names = GraphEdits(graph).names
    for node in tuple(graph):
        if not is_a(node, Cast) or len(node.outputs) != 1:
            continue
        source, result = node.inputs[0], node.outputs[0]
        codes = constant_array(source)
        container = None if source is None else container_of(source.dtype)
        if source is None or codes is None or container is None or not container.is_packed:
            continue
        widened, uses = container.in_bytes, tuple(result.uses())
        if integer_attribute(node, "to", 0) != widened.data_type or result.is_graph_output():
            continue
        if not all(is_dequantize(use.node) and use.idx == 0 for use in uses):
            continue
        for use in uses:
            for key, bound in zip(RANGE, (container.low, container.high), strict=True):
                use.node.attributes.setdefault(key, ir.AttrInt64(key, bound))
        name = names.fresh(str(source.name))
        result.replace_all_uses_with(add_constant(graph, codes.astype(widened.numpy), name))
        graph.remove(node, safe=True)


def _around(clip: ir.Node) -> list[ir.Node]:
    """List the quantizers on both sides of a Clip; none where it clips no codes."""
    source = clip.inputs[0]
    readers = [use.node for use in clip.outputs[0].uses()]
    if source is None or not readers or not all(map(is_dequantize, readers)):
        return []
    if is_constant(source):
        return readers
    maker = source.producer()
    is_alone = len(source.uses()) == 1 and not source.is_graph_output()
    return [*readers, maker] if maker is not None and is_quantize(maker) and is_alone else []


def _bounds(clip: ir.Node) -> dict[str, int] | None:
    """Return the whole numbers to which a Clip clips; None where they are none."""
    found = {}
    for slot, key in enumerate(RANGE, start=1):
        value = input_value(clip, slot)
        array = constant_array(value)
        if array is not None and array.size == 1 and array.dtype.kind in "iu":
            found[key] = int(array.item())
        elif value is not None:
            return None
    return found


def _fold_operands(model: ir.Model) -> None:
    """Compute what quantizers are given and the model computes from constants only, in place.

    A weight that is transformed before it is quantized (DoReFa), a zero point behind a Cast, codes
    behind a Transpose.
    """
    folded = set[ir.Node]()
    for node in model.graph:
        if not node.inputs or _is_any_quantizer(node) or is_a(node, If, Loop, Scan):
            continue
        if all(v is None or is_constant(v) or v.producer() in folded for v in node.inputs):
            folded.add(node)
    waiting = []
    for node in model.graph:
        if _is_any_quantizer(node):
            waiting += [v.producer() for v in node.inputs if v is not None]
    wanted = set[ir.Node]()
    while waiting:
        maker = waiting.pop()
        if maker is not None and maker in folded and maker not in wanted:
            wanted.add(maker)
            waiting += [v.producer() for v in maker.inputs if v is not None]
    if wanted:
        # Only what quantizers need: folding everything would write large tables out.
        library.attempt(partial(library.fold_constants, only=wanted), model)


def _is_any_quantizer(node: ir.Node) -> bool:
    return is_quantize(node) or is_dequantize(node) or is_quantizer(node)
