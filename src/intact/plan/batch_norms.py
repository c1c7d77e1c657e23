"""Finds BatchNormalizations whose scales make quantization errors large.

``scale = gamma / sqrt(variance + epsilon)`` is huge where the variance is almost 0: the tensor in
front is constant there, often because a Relu has died. What follows depends on where the
BatchNormalization went:

- It stands by itself, or became Mul and Add: the rounding of the tensor in front is multiplied by
  the scale, and the scales are the numbers of a constant that the largest of them gives its step.
- It was folded into the layer behind: the same, in the columns of that layer's weight.
- It was folded into the layer in front: the rows of that layer's weight. With a scale for each
  channel that costs nothing.

All is computed from the parameters, which a graph remembers of those that were folded
(`intact.graph.batch_norm`): no data are needed, and a result is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import Graph, constant_array, facts, output_channel_axis, weight_slot
from intact.graph.batch_norm import STILL, BatchNorm
from intact.graph.passes.fold_linear import parameters_of
from intact.ops.operators import Add, Conv, Gemm, Mul, is_a
from intact.plan.quantized_graph import QuantizedGraph

Doubles = npt.NDArray[np.float64]

_REACH = 3.0
"""Standard deviations from the mean within which values are reckoned with."""
_CODES = 255
"""Steps of an activation's range, of 8 bits."""
_LEVELS = 127
"""Steps of a weight to one side, of 8 bits."""


class Place(StrEnum):
    """Where a BatchNormalization went."""

    APART = "by itself"
    IN_FRONT = "in the layer in front"
    BEHIND = "in the layer behind"


class BatchNormScale(msgspec.Struct, frozen=True):
    """The figures of one BatchNormalization.

    Attributes:
        node: The node that it is, or was folded into.
        place: Which of the two.
        channels: How many.
        least: Smallest scale ``gamma / sqrt(variance + epsilon)``.
        largest: Largest scale.
        index: The channel of the largest by magnitude.
        scale: There.
        gamma: There.
        variance: There.
        mean: There.
        least_bias: Smallest ``beta - mean * scale``.
        largest_bias: Largest one.
        dead: Channels whose variance is almost 0.
        after: The activation in front that may have made them so; "" if there is none.
        cost: How many times the power of the rounding noise is what it would be, were all channels
            alike; 1 where it costs nothing.
    """

    node: str
    place: Place
    channels: int
    least: float
    largest: float
    index: int
    scale: float
    gamma: float
    variance: float
    mean: float
    least_bias: float
    largest_bias: float
    dead: tuple[int, ...]
    after: str
    cost: float


def batch_norm_scales(graph: Graph, plan: QuantizedGraph | None = None) -> list[BatchNormScale]:
    """List the BatchNormalizations of a graph that stand in it or were folded, in its order.

    Args:
        graph: Normalized.
        plan: Its plan; without it weights are reckoned to have a scale for each channel.

    Returns:
        Those whose parameters are finite numbers.
    """
    found = []
    for node, norm, place in _norms(graph):
        if norm.gamma.size and _is_finite(norm):
            found.append(_figures(node, norm, place, plan))
    return found


def _is_finite(norm: BatchNorm) -> bool:
    given = (norm.gamma, norm.beta, norm.mean, norm.variance, norm.ratio, norm.offset)
    return all(bool(np.isfinite(each).all()) for each in given)


def _norms(graph: Graph) -> Iterator[tuple[ir.Node, BatchNorm, Place]]:
    for node in graph.nodes:
        name = str(node.name)
        behind, own = graph.input_batch_norms.get(name), graph.batch_norms.get(name)
        if behind is not None:
            yield node, behind, Place.BEHIND
        if own is not None:
            yield node, own, Place.APART if weight_slot(node) is None else Place.IN_FRONT
        standing = parameters_of(node)
        if standing is not None:
            yield node, standing, Place.APART


def _figures(
    node: ir.Node, norm: BatchNorm, place: Place, plan: QuantizedGraph | None
) -> BatchNormScale:
    scale, offset = norm.ratio, norm.offset
    index = int(np.abs(scale).argmax())
    data = normalized_data(node, place)
    producer = None if data is None else data.producer()
    clipped = producer is not None and facts(producer).clamps
    return BatchNormScale(
        node=str(node.name),
        place=place,
        channels=scale.size,
        least=float(scale.min()),
        largest=float(scale.max()),
        index=index,
        scale=float(scale[index]),
        gamma=float(norm.gamma[index]),
        variance=float(norm.variance[index]),
        mean=float(norm.mean[index]),
        least_bias=float(offset.min()),
        largest_bias=float(offset.max()),
        dead=tuple(np.flatnonzero(_is_dead(norm)).tolist()),
        after=str(producer.op_type) if clipped and producer is not None else "",
        cost=max(1.0, _cost(node, norm, place, plan)),
    )


def _is_dead(norm: BatchNorm) -> npt.NDArray[np.bool_]:
    deviation = np.sqrt(np.maximum(norm.variance.astype(np.float64), 0))
    # Relative to the liveliest: tensors have no unit in which a deviation is small.
    return np.asarray(deviation <= STILL * deviation.max())


def normalized_data(node: ir.Node, place: Place) -> ir.Value | None:
    """Return what the BatchNormalization reads; None if it was folded into what makes that."""
    if place is Place.IN_FRONT:
        return None
    data = node.inputs[0]
    if place is Place.APART and is_a(node, Add) and data is not None:  # of Mul and Add
        product = data.producer()
        return product.inputs[0] if is_a(product, Mul) else data
    return data


def _cost(node: ir.Node, norm: BatchNorm, place: Place, plan: QuantizedGraph | None) -> float:
    """Return by what factor the scales' unlikeness increases the noise of a product with them."""
    if place is Place.IN_FRONT:
        return _row_cost(node, norm, plan)
    if place is Place.BEHIND:
        return max(_input_cost(norm), _column_cost(node, norm))
    return max(_input_cost(norm), _factor_cost(norm))


def _input_cost(norm: BatchNorm) -> float:
    """Compare the rounding in front, multiplied by the scales, with that of the result."""
    live = ~_is_dead(norm)  # a constant that is 0 has no rounding
    before = _step(norm.mean, np.sqrt(np.maximum(norm.variance.astype(np.float64), 0)))
    after = _step(norm.beta, np.abs(norm.gamma).astype(np.float64))
    if not after or not live.any():
        return 1.0
    return float((norm.ratio[live] ** 2).mean()) * before**2 / after**2


def _factor_cost(norm: BatchNorm) -> float:
    """Compare what rounding the scales as one constant does with the rounding of the result."""
    step = float(np.abs(norm.ratio).max()) / _LEVELS
    after = _step(norm.beta, np.abs(norm.gamma).astype(np.float64))
    return step**2 * float(_powers(norm).mean()) / after**2 if after else 1.0


def _column_cost(node: ir.Node, norm: BatchNorm) -> float:
    """Compare what rounding a weight does that took the scales in with one that did not."""
    weight = _matrix(node, norm.ratio.size)
    if weight is None:
        return 1.0
    # Channels that are multiplied by 0 stay in the sums, and are not divided by it.
    scales = np.maximum(np.abs(norm.ratio), np.finfo(np.float64).tiny)
    powers = _powers(norm)
    steps = np.abs(weight).max(axis=0)
    own = np.abs(weight / scales[:, None]).max(axis=0)
    apart = float((own**2).sum()) * float((scales**2 * powers).sum())
    return float((steps**2).sum()) * float(powers.sum()) / apart if apart else 1.0


def _row_cost(node: ir.Node, norm: BatchNorm, plan: QuantizedGraph | None) -> float:
    """Compare the rounding of a weight that has one scale with and without the scales in it."""
    slot, axis = weight_slot(node), output_channel_axis(node)
    weight = None if slot is None else constant_array(node.inputs[slot])
    if plan is None or slot is None or axis is None or weight is None:
        return 1.0
    if plan.input_config(node, slot).granularity.axis is not None:
        return 1.0
    others = tuple(each for each in range(weight.ndim) if each != axis)
    rows = np.abs(weight.astype(np.float64)).max(axis=others)
    scales = np.abs(norm.ratio)
    # A scale of 0 made its row 0: what the row was cannot be told from it.
    if rows.shape != scales.shape or not rows.any() or not (scales > 0).all():
        return 1.0
    # By channel, relative to the step it would have with its own scale; the median, as one dead
    # channel has a ratio without bound.
    return float(np.median((rows.max() / ((rows / scales).max() * scales)) ** 2))


def _matrix(node: ir.Node, channels: int) -> Doubles | None:
    """Return the weight of a layer as ``[input channels, others]``; None if it cannot be told."""
    weight = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    if weight is None or weight.ndim < 2:
        return None
    # Conv and a transposed Gemm have their inputs along axis 1 of the weight, MatMul along axis 0.
    turned = is_a(node, Conv) or bool(Gemm.of(node).transB)
    axis = 1 if turned else 0
    if weight.shape[axis] != channels:
        return None  # in groups
    moved = np.moveaxis(weight.astype(np.float64), axis, 0).reshape(channels, -1)
    if not is_a(node, Conv):
        return moved
    return np.asarray(np.abs(moved.reshape(channels, weight.shape[0], -1)).max(axis=2))


def _step(mean: npt.NDArray[np.floating], deviation: Doubles) -> float:
    """Return the step of a tensor by its moments."""
    wide = mean.astype(np.float64)
    low, high = (wide - _REACH * deviation).min(), (wide + _REACH * deviation).max()
    return float(max(high, 0) - min(low, 0)) / _CODES


def _powers(norm: BatchNorm) -> Doubles:
    """Return the mean squares of what the BatchNormalization reads."""
    wide = norm.mean.astype(np.float64) ** 2 + np.maximum(norm.variance.astype(np.float64), 0)
    return np.asarray(wide)
