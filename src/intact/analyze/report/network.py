"""Makes the graph of a report: each node of a plan with its place, widths, scales and errors.

The report is the page that a browser shows. It draws the nodes of a `network_figures.Network`, and
lists the figures of the one that is clicked on: bits, scale and method of each input and output (an
`End`), histograms of the weights by channel, decibels. `network_of` gathers all of that;
`outline_of` gives names, places and widths alone, for a page that compares several plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec import UNSET

from intact.analyze.layers import LayerErrors, ModelErrors, errors_of_chains
from intact.analyze.report import figures, network_figures
from intact.analyze.report.distributions import (
    MOST_CHANNELS,
    channels_of,
    groups_of,
    rounded,
    tensors_of,
)
from intact.analyze.report.layout import layered
from intact.calibrate.statistics import Statistics
from intact.config import QuantState, TensorQuantConfig
from intact.graph import Graph, is_constant, weight_slot
from intact.graph.ops import bias_slot, output_channel_axis
from intact.plan import Note, QuantizedGraph, QuantPoint, TensorEnd, quantization_points
from intact.plan.inspection import NodeReport, inspect_plan

_ALL_CHANNELS = 40_000
"""About how many channels of weights a page shows, of all layers together."""


def network_of(
    plan: QuantizedGraph,
    statistics: Statistics | None,
    errors: ModelErrors | None,
    findings: Sequence[figures.Finding] = (),
    times: Mapping[str, float] | None = None,
) -> network_figures.Network:
    """Gather what is known of a plan's nodes.

    Args:
        plan: A plan with scales.
        statistics: What calibration observed; None where that is not known.
        errors: Its layers' errors; None where they were not measured.
        findings: What the diagnosis found.
        times: What kernels take, ms, by the node that each is named after.

    Raises:
        MissingExtraError: The package that lays out graphs is not installed.
    """
    points = list(quantization_points(plan))
    rows = inspect_plan(plan).nodes
    nodes = _Nodes(plan, points, rows, errors, findings, times or {})
    network = _laid_out(plan.graph, list(nodes))
    tensors = tuple(tensors_of(plan.graph, points, statistics))
    return msgspec.structs.replace(network, tensors=tensors)


def outline_of(plan: QuantizedGraph) -> network_figures.Network:
    """Lay out a plan's graph: names, places and widths of its nodes, and nothing else of them.

    Raises:
        MissingExtraError: The package that lays out graphs is not installed.
    """
    return _laid_out(plan.graph, [_outline(row) for row in inspect_plan(plan).nodes])


def _laid_out(graph: Graph, nodes: Sequence[network_figures.Node]) -> network_figures.Network:
    """Give nodes their places, between the model's inputs and outputs."""
    inputs = _inputs(graph)
    # An input that is an output as well has no node that writes it, and so no edge.
    outputs = [value for value in graph.outputs if value.producer() is not None]
    first = len(inputs)
    count = first + len(nodes) + len(outputs)
    writers = {str(value.name): index for index, value in enumerate(inputs)}
    writers |= {
        str(value.name): first + index
        for index, node in enumerate(graph.nodes)
        for value in node.outputs
    }
    # A node may read a tensor twice, and the layout takes each edge once.
    pairs = sorted(set(_edges(graph, writers, first)))
    pairs += [
        (writers[str(value.name)], first + len(nodes) + index)
        for index, value in enumerate(outputs)
    ]
    layout = layered(count, pairs)
    drawn = [
        *(_terminal(value, "input") for value in inputs),
        *nodes,
        *(_terminal(value, "output") for value in outputs),
    ]
    placed = [_placed(each, *place) for each, place in zip(drawn, layout.nodes, strict=True)]
    return network_figures.Network(
        layout.width,
        layout.height,
        tuple(placed),
        tuple(
            network_figures.Edge(source, reader, bends)
            for (source, reader), bends in zip(pairs, layout.bends, strict=True)
        ),
    )


def _inputs(graph: Graph) -> list[ir.Value]:
    """Return the inputs that are drawn: something reads them."""
    return [value for value in graph.inputs if value.consumers()]


def floats_of(network: network_figures.Network) -> tuple[figures.FloatNodes, ...]:
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


def _terminal(value: ir.Value, kind: str) -> network_figures.Node:
    """Return what is drawn of an input or output of the model."""
    end = network_figures.End(kind, str(value.name), "", _shape(value))
    return network_figures.Node(str(value.name), kind, 0, 0, kind, ends=(end,))


def _placed(node: network_figures.Node, x: int, y: int) -> network_figures.Node:
    return msgspec.structs.replace(node, x=x, y=y)


def _outline(row: NodeReport) -> network_figures.Node:
    """Return what is drawn of a node, before it has a place."""
    return network_figures.Node(
        row.node,
        row.op_type,
        0,
        0,
        row.computes,
        bits=row.activation_bits or 0,
        weight_bits=row.weight_bits or 0,
        half=row.is_float16,
    )


class _Nodes:
    """The nodes of a plan with their figures, in topological order, not placed yet.

    Iterating yields a `network_figures.Node` for each row; arguments are those of `network_of`, and
    ``rows`` what `inspect_plan` says of each node.
    """

    def __init__(
        self,
        plan: QuantizedGraph,
        points: Sequence[QuantPoint],
        rows: Sequence[NodeReport],
        errors: ModelErrors | None,
        findings: Sequence[figures.Finding],
        times: Mapping[str, float],
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
        # The page stays small for nets of many layers: channels share a bound.
        self._most = max(16, min(MOST_CHANNELS, _ALL_CHANNELS // max(layers, 1)))
        first = len(_inputs(plan.graph))
        self._index = {row.node: first + index for index, row in enumerate(rows)}
        # By identity: ends that share a scale have one config as their dominator.
        self._ends = {id(config): str(end) for end, config in plan.configs.items()}
        self._errors = errors_of_chains(plan, errors)
        self._given: dict[str, list[str]] = {}
        for name, given in plan.graph.given_nodes.items():
            for part in given.nodes:
                self._given.setdefault(part, []).append(f"{name} ({given.op_type})")

    def __iter__(self) -> Iterator[network_figures.Node]:
        return map(self._figures_of, self._rows)

    def _figures_of(self, row: NodeReport) -> network_figures.Node:
        node = self._plan.graph.node(row.node)
        errors = self._errors.get(row.fused_into or row.node)
        weight = self._weight(node)
        time = self._times.get(row.node)
        return msgspec.structs.replace(
            _outline(row),
            reason=row.reason,
            given=tuple(self._given.get(row.node, ())),
            # A fused node shows the errors of the layer that it is part of.
            layer=None if errors is None else self._index[errors.name],
            errors=_errors(errors, self._most) if errors and errors.name == row.node else None,
            ends=tuple(self._ends_of(node)),
            weight=weight,
            weights=_weight_count(node),
            notes=tuple(note_text(note) for note in self._plan.notes if note.node == row.node),
            findings=tuple(
                index for index, each in enumerate(self._findings) if each.node == row.node
            ),
            time_ms=None if time is None else rounded(time),
        )

    def _weight(self, node: ir.Node) -> network_figures.Channels | None:
        """Return a quantized weight by channel, before and after; None where there is none."""
        slot = weight_slot(node)
        point = None if slot is None else self._weights.get((str(node.name), slot))
        if point is None or point.value.const_value is None:
            return None
        values = point.value.const_value.numpy().astype(np.float32, copy=False)
        axis = point.config.grid.axis
        if axis is None:
            # One scale for the tensor has no axis; channels are still what weights are looked at
            # by.
            axis = output_channel_axis(node)
        quantized = point.config.dequantize(point.constant_codes())
        return channels_of(values, quantized, axis, self._most)

    def _ends_of(self, node: ir.Node) -> Iterator[network_figures.End]:
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

    def _end(self, slot: str, value: ir.Value, config: TensorQuantConfig) -> network_figures.End:
        root, params = config.dominator, config.params
        if params is None or config.state in _FLOAT_STATES:
            return network_figures.End(slot, str(value.name), str(config.state), _shape(value))
        scales, zeros = params.scale.reshape(-1), params.zero_point.reshape(-1)
        return network_figures.End(
            slot,
            str(value.name),
            str(config.state),
            _shape(value),
            bits=root.bits,
            codes=root.grid.widest,
            # The shortest decimals of float32, as in plan.json: as float64 they would have digits
            # of no meaning.
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


def _errors(errors: LayerErrors, most: int) -> network_figures.Errors:
    channels = np.array(errors.channels, np.float64)
    if channels.size:
        channels = np.minimum.reduceat(channels, groups_of(channels.size, most))
    return network_figures.Errors(
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


def _weight_count(node: ir.Node) -> int:
    """Return how many numbers the weight of a node has; 0 where it has no constant one."""
    slot = weight_slot(node)
    value = None if slot is None else node.inputs[slot]
    if value is None or not is_constant(value) or value.const_value is None:
        return 0
    return int(value.const_value.size)
