"""The network of a report: each node with its configurations, distributions, weights and errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec import UNSET

from intact.analyze.layers import LayerErrors, ModelErrors
from intact.analyze.report import figures
from intact.analyze.report.layout import layered
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.config import QuantState, TensorQuantConfig
from intact.graph import Graph, is_constant, weight_slot
from intact.graph.ops import bias_slot, output_channel_axis
from intact.plan import Note, QuantizedGraph, QuantPoint, TensorEnd, quantization_points
from intact.plan.inspection import NodeReport, inspect_plan

_BINS = 64
_MOST_CHANNELS = 256
"""Entries of one layer's channels; more channels are shown as groups of neighbours."""
_ALL_CHANNELS = 40_000
"""Entries of all layers together, about."""
_UNITS = 1000
"""Integers that the largest magnitude of a weight is shown as."""
_MOST_BIN_VALUES = 1_000_000
_EXACT_DB = 999

Floats = npt.NDArray[np.float64]


def network_of(
    plan: QuantizedGraph,
    statistics: Statistics | None,
    errors: ModelErrors | None,
    findings: Sequence[figures.Finding] = (),
    times: Mapping[str, float] | None = None,
) -> figures.Network:
    """Gather what is known of a plan's nodes.

    Args:
        plan: A plan with scales.
        statistics: What calibration observed; None where that is not known.
        errors: Of its layers; None where they were not measured.
        findings: Of the diagnosis.
        times: What kernels take, ms, by the node that each is named after.

    Raises:
        MissingExtraError: The package that lays out graphs is not installed.
    """
    points = list(quantization_points(plan))
    rows = inspect_plan(plan).nodes
    inputs = [value for value in plan.graph.inputs if value.consumers()]
    outputs = [value for value in plan.graph.outputs if value.producer() is not None]
    first = len(inputs)
    count = first + len(rows) + len(outputs)
    writers = {str(value.name): index for index, value in enumerate(inputs)}
    writers |= {
        str(value.name): first + index
        for index, node in enumerate(plan.graph.nodes)
        for value in node.outputs
    }
    pairs = sorted(set(_edges(plan.graph, writers, first)))
    pairs += [
        (writers[str(value.name)], first + len(rows) + index) for index, value in enumerate(outputs)
    ]
    layout = layered(count, pairs)
    nodes = _Nodes(plan, points, rows, errors, findings, times or {}, first)
    drawn = [
        *(_terminal(value, "input") for value in inputs),
        *nodes,
        *(_terminal(value, "output") for value in outputs),
    ]
    placed = [_placed(each, *place) for each, place in zip(drawn, layout.nodes, strict=True)]
    return figures.Network(
        layout.width,
        layout.height,
        tuple(placed),
        tuple(
            figures.Edge(source, reader, bends)
            for (source, reader), bends in zip(pairs, layout.bends, strict=True)
        ),
        tuple(_tensors(plan.graph, points, statistics)),
    )


def floats_of(network: figures.Network) -> tuple[figures.FloatNodes, ...]:
    """Group the nodes that are not integer by the reason, those of most nodes first."""
    found: dict[str, list[int]] = {}
    for index, node in enumerate(network.nodes):
        if node.kind in ("float", "stored"):
            found.setdefault(node.reason, []).append(index)
    groups = sorted(found.items(), key=lambda each: -len(each[1]))
    return tuple(figures.FloatNodes(reason, tuple(nodes)) for reason, nodes in groups)


def note_text(note: Note) -> str:
    """Return what a note says, without its place."""
    return f"{note.message}; {note.remedy}" if note.remedy else note.message


def decibels(value: float) -> float | None:
    """Round decibels; None where they are infinite."""
    return round(value, 1) if math.isfinite(value) else None


def _edges(graph: Graph, writers: Mapping[str, int], first: int) -> Iterator[tuple[int, int]]:
    indices = {str(node.name): first + index for index, node in enumerate(graph.nodes)}
    written = (value for node in graph.nodes for value in node.outputs)
    for value in (*graph.inputs, *written):
        for reader, _ in graph.consumers(value):
            if str(value.name) in writers:
                yield writers[str(value.name)], indices[str(reader.name)]


def _terminal(value: ir.Value, kind: str) -> figures.Node:
    end = figures.End(kind, str(value.name), "", _shape(value))
    return figures.Node(str(value.name), kind, 0, 0, kind, ends=(end,))


def _placed(node: figures.Node, x: int, y: int) -> figures.Node:
    return msgspec.structs.replace(node, x=x, y=y)


class _Nodes:
    """The nodes of a plan, in topological order."""

    def __init__(
        self,
        plan: QuantizedGraph,
        points: Sequence[QuantPoint],
        rows: Sequence[NodeReport],
        errors: ModelErrors | None,
        findings: Sequence[figures.Finding],
        times: Mapping[str, float],
        first: int,
    ) -> None:
        self._plan, self._rows, self._findings, self._times = plan, rows, findings, times
        self._weights: dict[tuple[str, int | None], QuantPoint] = {
            (str(node.name), slot): point
            for point in points
            if point.is_constant
            for node, slot in point.readers
        }
        nodes = (plan.graph.node(row.node) for row in rows)
        layers = sum((str(node.name), weight_slot(node)) in self._weights for node in nodes)
        self._most = max(16, min(_MOST_CHANNELS, _ALL_CHANNELS // max(layers, 1)))
        self._index = {row.node: first + index for index, row in enumerate(rows)}
        self._ends = {id(config): str(end) for end, config in plan.configs.items()}
        self._errors: dict[str, LayerErrors] = {}
        for each in () if errors is None else errors.layers:
            self._errors[_last(plan, each)] = each

    def __iter__(self) -> Iterator[figures.Node]:
        return map(self._of, self._rows)

    def _of(self, row: NodeReport) -> figures.Node:
        node = self._plan.graph.node(row.node)
        errors = self._errors.get(row.fused_into or row.node)
        weight = self._weight(node)
        stored = not row.quantized and row.weight_bits is not None
        return figures.Node(
            row.node,
            row.op_type,
            0,
            0,
            "integer" if row.quantized else "stored" if stored else "float",
            bits=row.activation_bits or 0,
            weight_bits=row.weight_bits or 0,
            reason=row.reason,
            layer=None if errors is None else self._index[errors.name],
            errors=_errors(errors, self._most) if errors and errors.name == row.node else None,
            ends=tuple(self._ends_of(node)),
            weight=weight,
            weights=_weights(node),
            notes=tuple(note_text(note) for note in self._plan.notes if note.node == row.node),
            findings=tuple(
                index for index, each in enumerate(self._findings) if each.node == row.node
            ),
            time_ms=_short(self._times.get(row.node)),
        )

    def _weight(self, node: ir.Node) -> figures.Channels | None:
        slot = weight_slot(node)
        point = None if slot is None else self._weights.get((str(node.name), slot))
        if point is None or point.value.const_value is None:
            return None
        values = point.value.const_value.numpy().astype(np.float32, copy=False)
        axis = point.config.grid.axis
        if axis is None:
            axis = output_channel_axis(node)
        quantized = point.config.dequantize(point.constant_codes())
        return channels_of(values, quantized, axis, self._most)

    def _ends_of(self, node: ir.Node) -> Iterator[figures.End]:
        name, weight, bias = str(node.name), weight_slot(node), bias_slot(node)
        for slot, value in enumerate(node.inputs):
            config = self._plan.configs.get(TensorEnd.input(name, slot))
            if value is None or config is None:
                continue
            word = "weight" if slot == weight else "bias" if slot == bias else f"input {slot}"
            if len(node.inputs) == 1:
                word = "input"
            yield self._end(word, value, config)
        for slot, value in enumerate(node.outputs):
            config = self._plan.configs.get(TensorEnd.output(name, slot))
            if config is not None:
                word = "output" if len(node.outputs) == 1 else f"output {slot}"
                yield self._end(word, value, config)

    def _end(self, slot: str, value: ir.Value, config: TensorQuantConfig) -> figures.End:
        root, params = config.dominator, config.params
        if params is None or config.state in _FLOAT_STATES:
            return figures.End(slot, str(value.name), str(config.state), _shape(value))
        scales, zeros = params.scale.reshape(-1), params.zero_point.reshape(-1)
        return figures.End(
            slot,
            str(value.name),
            str(config.state),
            _shape(value),
            bits=root.bits,
            codes=(root.quant_min, root.quant_max),
            scale=tuple(float(str(each)) for each in _extremes(scales)),
            zero_point=tuple(int(each) for each in _extremes(zeros)),
            channels=scales.size,
            axis=config.grid.axis,
            method=config.observer,
            shares="" if root is config else self._ends.get(id(root), ""),
            logarithmic=config.grid.exponential,
        )


_FLOAT_STATES = frozenset(
    {QuantState.FP32, QuantState.SOI, QuantState.DEACTIVATED, QuantState.DEQUANTIZED}
)


def _extremes(array: npt.NDArray[Any]) -> tuple[Any, ...]:
    low, high = array.min(), array.max()
    return (low,) if low == high else (low, high)


def _last(plan: QuantizedGraph, errors: LayerErrors) -> str:
    """Name the last node of a fused chain: that which writes the compared tensor."""
    node = plan.graph.value(errors.tensor).producer()
    return errors.name if node is None else str(node.name)


def _errors(errors: LayerErrors, most: int) -> figures.Errors:
    channels = np.array(errors.channels, np.float64)
    if channels.size:
        channels = np.minimum.reduceat(channels, _starts(channels.size, most))
    return figures.Errors(
        accumulated=decibels(errors.accumulated.sqnr_db),
        own=decibels(errors.own),
        weights=decibels(errors.weights),
        activations=decibels(errors.activations),
        bias=UNSET if errors.bias is None else decibels(errors.bias),
        alone=UNSET if errors.alone is None else decibels(errors.alone),
        cosine=round(errors.accumulated.cosine, 6),
        channels=tuple(decibels(each) for each in channels.tolist()),
    )


def _shape(value: ir.Value) -> tuple[int | str, ...]:
    if value.shape is None:
        return ()
    return tuple(each if isinstance(each, int) else str(each.value or "?") for each in value.shape)


def _weights(node: ir.Node) -> int:
    slot = weight_slot(node)
    value = None if slot is None else node.inputs[slot]
    if value is None or not is_constant(value) or value.const_value is None:
        return 0
    return int(value.const_value.size)


# ---- distributions ---------------------------------------------------------------------------


def _tensors(
    graph: Graph, points: Sequence[QuantPoint], statistics: Statistics | None
) -> Iterator[figures.Tensor]:
    """Yield each activation that is quantized or was observed."""
    observed = {} if statistics is None else statistics.tensors
    ranges: dict[str, tuple[float, float]] = {}
    for point in points:
        if not point.is_constant and point.config.params is not None:
            ranges.setdefault(str(point.value.name), range_of(point.config))
    names = [str(value.name) for value in graph.inputs]
    names += [str(value.name) for node in graph.nodes for value in node.outputs]
    for name in names:
        found, ends = observed.get(name), ranges.get(name)
        histogram = None if found is None else histogram_of(found)
        if ends is None and histogram is None:
            continue
        low, high = ends or (None, None)
        clipped = None
        if found is not None and histogram is not None and ends is not None:
            clipped = clipped_share(found, *ends)
        yield figures.Tensor(name, _short(low), _short(high), clipped, histogram)


def range_of(config: TensorQuantConfig) -> tuple[float, float]:
    """Return the values of the lowest and the highest code, over all channels."""
    grid, params = config.dominator.grid, config.params
    if params is None:
        return 0.0, 0.0
    codes = np.array([grid.quant_min, grid.quant_max])
    if grid.axis is not None:
        codes = np.broadcast_to(codes, (1,) * grid.axis + (params.scale.size, 2))
    values = grid.dequantize(codes, params)
    return float(values.min()), float(values.max())


def histogram_of(tensor: TensorStatistics) -> figures.Histogram | None:
    """Return the observed values in equal bins; None where there are none."""
    if not tensor.minimum <= tensor.maximum:
        return None
    values = tensor.distribution()
    low, high = values.minimum, values.maximum
    if low == high:
        bins = np.array([float(values.total)])
    else:
        edges = np.linspace(low, high, _BINS + 1)
        bins = np.diff(_below(values.low, values.high, values.count, edges))
    counts = np.rint(bins * (_MOST_BIN_VALUES / max(values.total, 1))).astype(np.int64)
    counts[(bins >= 0.5) & (counts == 0)] = 1  # a few values of many are shown
    variance = max(0.0, values.mean_square - values.mean**2)
    return figures.Histogram(
        _number(low),
        _number(high),
        tuple(counts.tolist()),
        values.total,
        _number(values.mean),
        _number(math.sqrt(variance)),
        _number(values.zeros / max(values.total, 1)),
    )


def clipped_share(tensor: TensorStatistics, low: float, high: float) -> float:
    """Return the part of the observed values outside a range."""
    values = tensor.distribution()
    outside = values.total - values.mass_between(low, high)
    return _number(min(1.0, max(0.0, outside / max(values.total, 1))))


def _below(low: Floats, high: Floats, count: npt.NDArray[np.int64], edges: Floats) -> Floats:
    """Count the values below each edge; points count from their place on, the last edge has all."""
    wide = high > low
    knots = np.column_stack([low[wide], high[wide]]).ravel()
    total = np.zeros(len(edges))
    if knots.size:
        after = np.cumsum(count[wide]).astype(np.float64)
        steps = np.column_stack([after - count[wide], after]).ravel()
        total += np.interp(edges, knots, steps, left=0.0)
    at, held = low[~wide], np.concatenate([[0], np.cumsum(count[~wide])])
    total += held[np.searchsorted(at, edges, side="left")]
    total[-1] = float(count.sum())
    return total


def channels_of(
    values: npt.NDArray[np.float32],
    quantized: npt.NDArray[np.float32],
    axis: int | None,
    most: int = _MOST_CHANNELS,
) -> figures.Channels | None:
    """Compare a weight by channel before and after quantization.

    Args:
        values: The weight, any shape.
        quantized: The same, quantized and dequantized.
        axis: The channel axis; None takes the whole weight as one channel.
        most: Entries at most.

    Returns:
        The figures; None for a weight without elements.
    """
    if not values.size:
        return None
    before, after = (_by_channel(each, axis) for each in (values, quantized))
    noise = np.square(before - after).sum(axis=1)
    signal = np.square(before).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 10 * np.log10(signal / noise)
    ratio = np.where(noise == 0, np.inf, ratio)
    starts = _starts(len(before), most)
    ends = (before.min(axis=1), before.max(axis=1), after.min(axis=1), after.max(axis=1))
    joins = (np.minimum, np.maximum, np.minimum, np.maximum)
    grouped = [join.reduceat(each, starts) for join, each in zip(joins, ends, strict=True)]
    largest = max(float(np.abs(each).max()) for each in grouped)
    unit = _number(largest / _UNITS) if largest > 0 and math.isfinite(largest) else 1.0
    low, high, quantized_low, quantized_high = (
        tuple(np.rint(np.nan_to_num(each) / unit).astype(int).tolist()) for each in grouped
    )
    worst = np.nan_to_num(np.minimum.reduceat(ratio, starts), nan=0.0, posinf=_EXACT_DB, neginf=0)
    decibels_of = tuple(None if each == _EXACT_DB else round(each) for each in worst.tolist())
    return figures.Channels(
        len(before), unit, low, high, quantized_low, quantized_high, decibels_of
    )


def _by_channel(values: npt.NDArray[np.float32], axis: int | None) -> Floats:
    wide = values.astype(np.float64)
    return (
        wide.reshape(1, -1)
        if axis is None
        else np.moveaxis(wide, axis, 0).reshape(wide.shape[axis], -1)
    )


def _starts(count: int, most: int) -> npt.NDArray[np.intp]:
    """Return where groups of neighbours begin, at most so many."""
    size = -(-count // most)
    return np.arange(0, count, size, dtype=np.intp)


def _number(value: float) -> float:
    """Round to four digits, which is what is shown."""
    return float(f"{value:.4g}")


def _short(value: float | None) -> float | None:
    return None if value is None else _number(value)
