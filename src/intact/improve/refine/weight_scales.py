"""Searches the weight scale of each output channel with the best cosine of its result.

Source: Tengine's EQ (``tools/quantize/algorithm/quant_eq.cpp``): the min-max scale of each channel
is multiplied by ``1.3 / 200 * (s + 1)`` for s = 0, 20 ... 180, and the one with the best cosine
between the float and the quantized result over at most 50 images is kept. Layers are processed in
order, on the activations of the earlier layers with their new scales. Tengine does not try the
original scale; here it is the first candidate, so that no channel gets worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.scales.bias import rescale_bias
from intact.calibrate.scales.roles import is_fixed
from intact.config import TensorQuantConfig
from intact.data.stream import Samples
from intact.errors import Unsupported
from intact.graph import bias_slot, facts, output_channel_axis, weight_slot
from intact.improve.refine.walk import Array, Stop, Walk
from intact.numerics.affine_params import QuantParams
from intact.numerics.error_sums import ChannelErrorSums
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd
from intact.plan.gains import Report, unreported
from intact.plan.given_scales import GIVEN
from intact.plan.stored_weights import is_stored
from intact.program.lower.attributes import bounds_of, clamp_twice
from intact.program.lower.chains import chains
from intact.program.operations import Bounds

MOST_SAMPLES = 50
ZOOMS = (1.0, *(1.3 / 200 * (step + 1) for step in range(0, 200, 20)))
"""Factors of the scale; the first keeps the scale."""


def refine_weight_scales(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> QuantizedGraph:
    """Set the weight scales to those with the best cosine.

    A weight with one scale for all channels keeps one scale. Weights with given scales or codes,
    and logarithmic ones, are not changed. Bias scales follow.

    Args:
        plan: A plan with scales; it is not changed.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples. Their activations are kept while needed, for both models.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    del report  # cosines of channels, not errors of blocks
    plan = plan.copy()
    walk = Walk(plan, samples, most=most, threads=threads)
    found = {layer.node: layer for layer in _layers(plan, walk)}
    for stop in walk:
        layer = found.get(stop.node)
        if layer is not None:
            layer.weight.config.set_params(*_best(layer, stop))
            layer.weight.config.observer = "cosine"
            rescale_bias(plan, layer.node)
    return plan


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer whose weight scale is searched.

    Attributes:
        node: The node.
        weight: The quantization point of its weight.
        axis: Channel axis of its result; None if the weight has one scale.
        bounds: Bounds of the fused activation.
        output: Quantization of its result; None if another operator is fused before it.
    """

    node: ir.Node
    weight: QuantPoint
    axis: int | None
    bounds: Bounds
    output: TensorQuantConfig | None

    def result(self, array: Array, *, quantized: bool) -> Array:
        """Compute the layer's result after its activation."""
        clipped = array
        if self.bounds != Bounds():
            clipped = np.clip(array, np.float32(self.bounds.low), np.float32(self.bounds.high))
        if not quantized or self.output is None:
            return clipped
        return self.output.fake_quantize(clipped, inplace=False)


def _layers(plan: QuantizedGraph, walk: Walk) -> Iterator[_Layer]:
    for chain in chains(plan, walk.points):
        node = chain[0]
        slot = weight_slot(node)
        point = None if slot is None else walk.points.at_input.get((str(node.name), slot))
        if point is None or slot is None or not is_free(plan, node, slot, point):
            continue
        axis = point.config.granularity.axis
        # A scale along another axis than that of the results has no cosine of its own.
        if axis is not None and axis != output_channel_axis(node):
            continue
        bounds = _fused_bounds(chain)
        last = chain[-1].outputs[0] if bounds is not None else None
        output = None if last is None else walk.points.at_output.get(last)
        yield _Layer(
            node,
            point,
            None if axis is None else facts(node).channel_axis,
            bounds or Bounds(),
            None if output is None else output.config,
        )


def is_free(plan: QuantizedGraph, node: ir.Node, slot: int, point: QuantPoint) -> bool:
    """Tell whether the scale of a weight may be changed for this layer alone."""
    config = point.config
    ends = [TensorEnd.input(str(node.name), each) for each in (slot, bias_slot(node) or slot)]
    return (
        (plan.is_quantized(node) or is_stored(config))
        and facts(node).channel_axis is not None
        and slot == 1
        and point.is_constant
        and len(point.readers) == 1
        # A scale that others share is not this layer's to change.
        and len(config.group()) == 1
        and config.observer != GIVEN
        and not is_fixed(config)
        and not config.grid.exponential
        and not any(end in plan.baked for end in ends)
    )


def _fused_bounds(chain: tuple[ir.Node, ...]) -> Bounds | None:
    """Return the bounds of the nodes fused behind the first one; None if they compute more than
    bounds.
    """
    bounds = Bounds()
    try:
        for node in chain[1:]:
            own = bounds_of(node)
            if own is None:
                return None
            bounds = clamp_twice(own, bounds)
    except Unsupported:
        return None
    return bounds


def _best(layer: _Layer, stop: Stop) -> QuantParams:
    """Find the best factor of each channel; of equal ones the first."""
    config, value = layer.weight.config, layer.weight.value
    params, tensor = config.params, value.const_value
    if params is None or tensor is None:
        return QuantParams(np.ones((), np.float32), np.zeros((), np.int64))
    weight = tensor.numpy().astype(np.float32, copy=False)
    references = [layer.result(results[0], quantized=False) for results in stop.results]
    best, scales = np.full(params.scale.shape, -np.inf), params.scale.copy()
    for zoom in ZOOMS:
        scale = zoom_scale(config, params.scale, zoom)
        tried = QuantParams(scale, params.zero_point)
        codes = config.grid.quantize(weight, tried)
        cosines = _cosines(layer, stop, references, config.grid.dequantize(codes, tried))
        is_better = cosines > best
        best = np.where(is_better, cosines, best)
        scales = np.where(is_better, scale, scales)
    return QuantParams(scales.astype(np.float32), params.zero_point)


def zoom_scale(
    config: TensorQuantConfig, scale: npt.NDArray[np.float32], zoom: float
) -> npt.NDArray[np.float32]:
    """Return a scale times a factor, as a power of two where it has to be one."""
    # A scale stays above 0, also where it is the smallest there is.
    found = np.maximum(scale * np.float32(zoom), np.finfo(np.float32).tiny)
    if config.grid.power_of_two:
        found = np.exp2(np.rint(np.log2(found)))
    return np.asarray(found, np.float32)


def _cosines(
    layer: _Layer, stop: Stop, references: list[Array], weight: Array
) -> npt.NDArray[np.float64]:
    """Compute the cosine of each channel, or of the tensor as a 0-d array."""
    sums = ChannelErrorSums(layer.axis)
    for arrays, reference in zip(stop.quantized, references, strict=True):
        (result, *_) = stop.run({**arrays, layer.weight.value: weight})
        sums.add(reference, layer.result(result, quantized=True))
    return sums.cosines if layer.axis is not None else np.asarray(sums.cosine)
