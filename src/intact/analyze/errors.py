"""Measures the error of each layer and edge of the quantized against the float model.

Both models run on the same samples, each on its own activations, so an error is accumulated up to
its layer. Only sums are kept, no activations.

Source of the per-channel figures: Tengine's ``assess_quant_loss`` (at most 50 images; the cosine of
each channel for Conv and fully connected layers, of the whole tensor for others).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from intact._text import finite
from intact.analyze.side_by_side import Array, ComparedPoint, SideBySide
from intact.data.stream import Samples
from intact.graph import facts, weight_slot
from intact.numerics.error_sums import ChannelErrorSums, Moments
from intact.plan import QuantizedGraph, TensorEnd, quantization_points, quantizes
from intact.plan.dynamic import is_dynamic
from intact.plan.inference import EdgeTypes, infer_edges
from intact.program.lower.chains import Points, chains
from intact.targets import DType


@dataclass(frozen=True)
class LayerError:
    """The error of one layer.

    Attributes:
        name: Name of its (first) node.
        op_type: Operator type of that node.
        tensor: The compared tensor: the layer's result after its fused activation.
        cosine: Cosine of the whole tensors.
        channel_cosines: Cosine of each output channel of a layer with weights; empty for others.
        sqnr_db: Signal to quantization noise, dB.
        mse: Mean squared difference.
    """

    name: str
    op_type: str
    tensor: str
    cosine: float
    channel_cosines: tuple[float, ...]
    sqnr_db: float
    mse: float

    @property
    def mean_cosine(self) -> float:
        """The mean over the channels; the cosine of the tensor if there are none."""
        cosines = self.channel_cosines
        return sum(cosines) / len(cosines) if cosines else self.cosine

    @property
    def worst_channel(self) -> tuple[int, float] | None:
        """The channel with the lowest cosine, and that cosine; None if there are no channels."""
        cosines = self.channel_cosines
        if not cosines:
            return None
        worst = int(np.argmin(cosines))
        return worst, cosines[worst]

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        return {
            "name": self.name,
            "op_type": self.op_type,
            "tensor": self.tensor,
            "cosine": finite(self.cosine),
            "mean_cosine": finite(self.mean_cosine),
            "channel_cosines": [finite(each) for each in self.channel_cosines],
            "sqnr_db": finite(self.sqnr_db),
            "mse": finite(self.mse),
        }


@dataclass(frozen=True)
class QuantLoss:
    """The errors of all layers of a plan.

    Attributes:
        samples: Number of samples.
        executor: What computed the quantized model: ``"simulate"`` or ``"integer"``.
        layers: The layers that compute with integers, in topological order.
    """

    samples: int
    executor: str
    layers: tuple[LayerError, ...]

    def __repr__(self) -> str:
        """Name the layer that loses most."""
        worst = min(self.layers, key=lambda layer: layer.cosine, default=None)
        shown = "" if worst is None else f", worst {worst.name} (cosine {worst.cosine:.6f})"
        return f"QuantLoss({len(self.layers)} layers, {self.samples} samples{shown})"

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        layers = [layer.to_json() for layer in self.layers]
        return {"samples": self.samples, "executor": self.executor, "layers": layers}


@dataclass(frozen=True)
class TensorMoments:
    """Moments and extremes of a tensor over all samples."""

    mean: float
    std: float
    min: float
    max: float

    @staticmethod
    def of(moments: Moments) -> TensorMoments:
        """Make the figures from accumulated moments."""
        return TensorMoments(moments.mean, moments.std, moments.minimum, moments.maximum)

    def to_json(self) -> dict[str, float | None]:
        """Convert to JSON values; numbers that are not finite become None."""
        named = {"mean": self.mean, "std": self.std, "min": self.min, "max": self.max}
        return {name: finite(number) for name, number in named.items()}


@dataclass(frozen=True)
class EdgeStatistic:
    """The statistics of one edge, before and after quantization.

    Attributes:
        edge: The tensor end at which it is quantized, ``NODE.output[K]`` or ``NODE.input[K]``.
        op_type: Operator type of that node.
        tensor: The tensor in the float model.
        group: The edge whose scale applies: edges of one group share a scale. Empty for a float
            output of the model.
        bits: Width of its integers; 32 for a float output.
        in_scale: Scale of the integers before requantization, for each channel; empty for floats
            (`intact.plan.inference.EdgeTypes`).
        in_dtype: Type before requantization: of an accumulator, of moved codes, or float32.
        out_dtype: Type of its integers; float32 for a float output.
        position: Position in topological order, from 0.
        before: Figures of the float model.
        after: Figures of the quantized model.
        sqnr_db: Signal to quantization noise, dB, accumulated up to this edge.
        cosine: Cosine of both.
    """

    edge: str
    op_type: str
    tensor: str
    group: str
    bits: int
    in_scale: tuple[float, ...]
    in_dtype: DType
    out_dtype: DType
    position: int
    before: TensorMoments
    after: TensorMoments
    sqnr_db: float
    cosine: float

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        return {
            "edge": self.edge,
            "op_type": self.op_type,
            "tensor": self.tensor,
            "group": self.group,
            "bits": self.bits,
            "in_scale": list(self.in_scale),
            "in_dtype": self.in_dtype.value,
            "out_dtype": self.out_dtype.value,
            "position": self.position,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "sqnr_db": finite(self.sqnr_db),
            "cosine": finite(self.cosine),
        }


@dataclass(frozen=True)
class GraphStatistic:
    """The statistics of all edges of a plan.

    Attributes:
        samples: Number of samples.
        executor: What computed the quantized model: ``"simulate"`` or ``"integer"``.
        edges: By rising SQNR, or in topological order.
    """

    samples: int
    executor: str
    edges: tuple[EdgeStatistic, ...]

    def __repr__(self) -> str:
        """Count the edges."""
        return f"GraphStatistic({len(self.edges)} edges, {self.samples} samples)"

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        edges = [edge.to_json() for edge in self.edges]
        return {"samples": self.samples, "executor": self.executor, "edges": edges}


__all__ = [
    "MOST_SAMPLES",
    "EdgeStatistic",
    "GraphStatistic",
    "LayerError",
    "QuantLoss",
    "TensorMoments",
    "inspect_graph_statistic",
    "quant_loss",
]

MOST_SAMPLES = 50

_FLOAT_EDGE = EdgeTypes(None, DType.FLOAT32, DType.FLOAT32)


def quant_loss(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    integers: bool = False,
) -> QuantLoss:
    """Compare every quantized layer with the float model's.

    Only the activations of a few batches of eight samples are in memory.

    Args:
        plan: A plan with scales.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples.
        threads: Batches that run side by side; 0 takes all cores, four at most.
        integers: Run the integer engine, not the simulation in float32.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    both = SideBySide(plan, layer_results(plan), threads=threads, integers=integers)
    total = both.summed(samples, most, lambda place: ChannelErrorSums(place.axis))
    layers = tuple(map(_layer, both.places, total))
    return QuantLoss(both.samples, both.executor, layers)


def inspect_graph_statistic(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    integers: bool = False,
    topological: bool = False,
) -> GraphStatistic:
    """Compare every quantized edge before and after quantization, layer by layer.

    Data types are inferred by `infer_edges`. Edges behind operators that only move codes are left
    out: they hold the same codes as the edge before. Source: [tvm], "Debug".

    Args:
        plan: A plan with scales.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples.
        threads: Batches that run side by side; 0 takes all cores, four at most.
        integers: Run the integer engine, not the simulation in float32.
        topological: Keep the order of the graph; otherwise sort by SQNR, NaN first, then rising.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    both = SideBySide(plan, _edges(plan), threads=threads, integers=integers)
    total = both.summed(samples, most, lambda _: _EdgeSums())
    # Reversed, so that of the ends with one configuration the first gives its name.
    groups = {id(config): str(end) for end, config in reversed(plan.configs.items())}
    types = infer_edges(plan)
    edges = [
        _edge(plan, position, place, each, groups, types)
        for position, (place, each) in enumerate(zip(both.places, total, strict=True))
    ]
    if not topological:
        # NaN compares with nothing: a key of its own keeps the order of the others.
        edges.sort(key=lambda edge: (not math.isnan(edge.sqnr_db), edge.sqnr_db))
    return GraphStatistic(both.samples, both.executor, tuple(edges))


class _EdgeSums:
    """Sums over the values of an edge in both models."""

    def __init__(self) -> None:
        self.before, self.after, self.errors = Moments(), Moments(), ChannelErrorSums()

    def add(self, reference: Array, actual: Array) -> None:
        self.before.add(reference)
        self.after.add(actual)
        self.errors.add(reference, actual)

    def join(self, more: _EdgeSums) -> None:
        self.before.join(more.before)
        self.after.join(more.after)
        self.errors.join(more.errors)


def layer_results(plan: QuantizedGraph) -> Iterator[ComparedPoint]:
    """Yield the results of quantized layers; operators that only move codes are left out."""
    points = Points.of(plan)
    for chain in chains(plan, points):
        value, head = chain[-1].outputs[0], chain[0]
        if not plan.is_quantized(head):
            continue
        point = points.at_output.get(value)
        # Inside of a fused chain no executor shows the tensor.
        is_seen = point is not None or is_dynamic(plan, head, 0) or _is_float(plan, points, value)
        if not is_seen or (point and point.is_passed_on):
            continue
        axis = facts(head).channel_axis if weight_slot(head) is not None else None
        yield ComparedPoint(head, str(value.name), point.end if point else None, axis)


def _is_float(plan: QuantizedGraph, points: Points, value: ir.Value) -> bool:
    """Tell whether a layer hands its result out in float, as those of ncnn do."""
    return all(
        not plan.is_quantized(node) or (str(node.name), slot) in points.at_input
        for node, slot in plan.graph.consumers(value)
    )


def _edges(plan: QuantizedGraph) -> Iterator[ComparedPoint]:
    """Yield every quantization point of an activation, then the model's float outputs."""
    for point in quantization_points(plan):
        if not point.is_constant and not point.is_passed_on:
            yield ComparedPoint(plan.graph.node(point.end.node), str(point.value.name), point.end)
    for value in plan.graph.outputs:
        node, config = value.producer(), plan.producer_config(value)
        # An output that is quantized is among the points above already.
        if node is not None and plan.graph.is_float(value) and not (config and quantizes(config)):
            yield ComparedPoint(node, str(value.name), None)


def _edge(
    plan: QuantizedGraph,
    position: int,
    place: ComparedPoint,
    sums: _EdgeSums,
    groups: dict[int, str],
    types: dict[TensorEnd, EdgeTypes],
) -> EdgeStatistic:
    if place.end is None:
        end, group, bits, carried = _float_end(place), "", 32, _FLOAT_EDGE
    else:
        end, config = place.end, plan.configs[place.end]
        group, bits, carried = groups[id(config.dominator)], config.bits, types[end]
    scale = carried.in_scale
    return EdgeStatistic(
        str(end),
        place.node.op_type,
        place.tensor,
        group,
        bits,
        () if scale is None else tuple(scale.reshape(-1).tolist()),
        carried.in_dtype,
        carried.out_dtype,
        position,
        TensorMoments.of(sums.before),
        TensorMoments.of(sums.after),
        sums.errors.sqnr_db,
        sums.errors.cosine,
    )


def _float_end(place: ComparedPoint) -> TensorEnd:
    slots = [str(value.name) for value in place.node.outputs]
    return TensorEnd.output(str(place.node.name), slots.index(place.tensor))


def _layer(place: ComparedPoint, sums: ChannelErrorSums) -> LayerError:
    cosines = () if place.axis is None else tuple(sums.cosines.tolist())
    ends = (str(place.node.name), place.node.op_type, place.tensor)
    return LayerError(*ends, sums.cosine, cosines, sums.sqnr_db, sums.mse)
