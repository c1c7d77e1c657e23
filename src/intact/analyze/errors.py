"""How far each layer of the quantised model is from the float model's: computed here only.

Both models run on the same samples, each from its own activations, so that an error is what has
come together up to that layer. Sums are kept, no activations.

Source of the figures by channel: Tengine's ``assess_quant_loss`` (at most 50 images; the cosine of
each channel for Conv and fully connected layers, of the whole tensor for others).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from intact.analyze.figures import (
    EdgeStatistic,
    GraphStatistic,
    LayerError,
    QuantLoss,
    TensorMoments,
)
from intact.analyze.side_by_side import Place, SideBySide
from intact.graph import weight_slot
from intact.numerics.channel_errors import ChannelErrorSums
from intact.numerics.moments import Moments
from intact.plan import QuantizedGraph, TensorEnd, quantization_points, quantizes
from intact.plan.inference import EdgeTypes, infer_edges
from intact.program.lowering.chains import Points, chains
from intact.samples.stream import Samples
from intact.targets import DType

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
_CHANNEL_AXES = {"Conv": 1, "ConvTranspose": 1, "Gemm": -1, "MatMul": -1}


def quant_loss(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    integers: bool = False,
) -> QuantLoss:
    """Compare every quantised layer with the float model's.

    Memory holds the activations of one batch of at most ten samples.

    Args:
        plan: With scales.
        samples: The data; its first ``most`` samples are run.
        most: How many.
        threads: Threads inside one operator; 0 lets the runtime choose.
        integers: Run the integer engine, not the simulation in float32.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    both = SideBySide(plan, _results(plan), threads=threads, integers=integers)
    sums = [ChannelErrorSums(place.axis) for place in both.places]
    for arrays in both.run(samples, most):
        for total, (reference, actual) in zip(sums, arrays, strict=True):
            total.add(reference, actual)
    layers = tuple(map(_layer, both.places, sums))
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
    """Compare every quantised edge before and after quantising, layer by layer.

    The types in which each arrives and leaves are those of `infer_edges`. Source: the TVM
    document (HAGO), "Debug". Edges behind operators that only move codes are left
    out: they hold what is in front of these.

    Args:
        plan: With scales.
        samples: The data; its first ``most`` samples are run.
        most: How many.
        threads: Threads inside one operator; 0 lets the runtime choose.
        integers: Run the integer engine, not the simulation in float32.
        topological: Leave the edges in the order of the graph; otherwise the most damaged
            comes first: what is no number, then the lowest SQNR, of equal ones the first in the
            graph.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    both = SideBySide(plan, _edges(plan), threads=threads, integers=integers)
    sums = [(Moments(), Moments(), ChannelErrorSums()) for _ in both.places]
    for arrays in both.run(samples, most):
        for (before, after, errors), (reference, actual) in zip(sums, arrays, strict=True):
            before.add(reference)
            after.add(actual)
            errors.add(reference, actual)
    groups = {id(config): str(end) for end, config in reversed(plan.configs.items())}
    types = infer_edges(plan)
    edges = [
        _edge(plan, position, place, each, groups, types)
        for position, (place, each) in enumerate(zip(both.places, sums, strict=True))
    ]
    if not topological:
        edges.sort(key=lambda edge: (not math.isnan(edge.sqnr_db), edge.sqnr_db))
    return GraphStatistic(both.samples, both.executor, tuple(edges))


def _results(plan: QuantizedGraph) -> Iterator[Place]:
    """Yield the results of quantised layers; those that only move codes are none."""
    points = Points.of(plan)
    for chain in chains(plan, points):
        value, head = chain[-1].outputs[0], chain[0]
        if not plan.is_quantized(head):
            continue
        point = points.at_output.get(value)
        if (point is None and not value.is_graph_output()) or (point and point.is_passed_on):
            continue
        axis = _CHANNEL_AXES.get(head.op_type) if weight_slot(head) is not None else None
        yield Place(head, str(value.name), point.end if point else None, axis)


def _edges(plan: QuantizedGraph) -> Iterator[Place]:
    """Yield every place where an activation is quantised, and then the model's float outputs."""
    for point in quantization_points(plan):
        if not point.is_constant and not point.is_passed_on:
            yield Place(plan.graph.node(point.end.node), str(point.value.name), point.end)
    for value in plan.graph.outputs:
        node, config = value.producer(), plan.producer_config(value)
        if node is not None and plan.graph.is_float(value) and not (config and quantizes(config)):
            yield Place(node, str(value.name), None)


def _edge(
    plan: QuantizedGraph,
    position: int,
    place: Place,
    sums: tuple[Moments, Moments, ChannelErrorSums],
    groups: dict[int, str],
    types: dict[TensorEnd, EdgeTypes],
) -> EdgeStatistic:
    before, after, errors = sums
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
        TensorMoments.of(before),
        TensorMoments.of(after),
        errors.sqnr_db,
        errors.cosine,
    )


def _float_end(place: Place) -> TensorEnd:
    slots = [str(value.name) for value in place.node.outputs]
    return TensorEnd.output(str(place.node.name), slots.index(place.tensor))


def _layer(place: Place, sums: ChannelErrorSums) -> LayerError:
    cosines = () if place.axis is None else tuple(sums.cosines.tolist())
    ends = (str(place.node.name), place.node.op_type, place.tensor)
    return LayerError(*ends, sums.cosine, cosines, sums.sqnr_db, sums.mse)
