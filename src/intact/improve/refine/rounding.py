"""Second-order rounding: weights rounded so that the results of layers change little.

Layers are rounded in their order, each on the inputs that the quantized layers before give it: what
those lose is made good as far as this layer can. Weight scales are chosen together with the
rounding, and biases follow in closed form: the mean of each channel's result stays as in float.

Half of the samples decides what is tried, the other half what is kept: of several strengths of
damping, and of rounding to nearest, the one with the least error on samples that it was not made
of. So a layer never gets worse on these.

Source: see `intact.numerics.second_order`; the bias is that of Nagel et al. 2019, "Data-Free
Quantization Through Weight Equalization and Bias Correction", section 4.2, from samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import onnx_ir as ir

from intact.calibrate.scales.bias import rescale_bias
from intact.config import QuantState, TensorQuantConfig
from intact.data.stream import Samples
from intact.errors import Unsupported
from intact.graph import bias_slot, output_channel_axis
from intact.improve.layers import Doubles, Layer
from intact.improve.refine.moments import Moments
from intact.improve.refine.walk import Array, Stop, Walk
from intact.improve.refine.weight_scales import is_free, zoomed
from intact.numerics.affine_params import QuantParams
from intact.numerics.second_order import Levels, descend, round_in_turn, squared_error
from intact.plan import QuantizedGraph, QuantPoint

MOST_SAMPLES = 512
ZOOMS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""Factors of the weight scales that are tried; the first keeps them."""
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
"""What is added to the diagonals of second moments, as shares of their mean."""
_WEIGHT, _DATA = 1, 0


def refine_rounding(
    plan: QuantizedGraph, samples: Samples, *, most: int = MOST_SAMPLES, threads: int = 0
) -> QuantizedGraph:
    """Round the weights of Conv, Gemm and MatMul by second moments of their inputs.

    The plan then holds the integers of weights and biases. Weights with given scales or codes, and
    logarithmic ones, are not changed.

    Args:
        plan: With scales; not changed.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples. Their activations are kept while needed, for both models.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    plan = plan.copy()
    walk = Walk(plan, samples, most=most, threads=threads)
    for stop in walk:
        rounding = _Rounding.of(plan, walk, stop)
        if rounding is not None:
            rounding.apply()
    return plan


@dataclass
class _Rounding:
    """The rounding of one layer.

    Attributes:
        plan: Changed by it.
        walk: Goes on with what was changed.
        layer: The layer.
        weight: Where its weight is quantized.
        bias: Where its bias is, if in integers that may be changed.
        stop: Its inputs.
    """

    plan: QuantizedGraph
    walk: Walk
    layer: Layer
    weight: QuantPoint
    bias: QuantPoint | None
    stop: Stop

    @staticmethod
    def of(plan: QuantizedGraph, walk: Walk, stop: Stop) -> _Rounding | None:
        """Return the rounding of a node; None where its weight is not to be changed."""
        node = stop.node
        name = str(node.name)
        weight = walk.points.at_input.get((name, _WEIGHT))
        layer = Layer.of(plan.graph, node)
        if layer is None or weight is None or not is_free(plan, node, _WEIGHT, weight):
            return None
        axis = weight.config.granularity.axis
        if axis is not None and axis != output_channel_axis(node):
            return None
        slot = bias_slot(node)
        bias = None if slot is None else walk.points.at_input.get((name, slot))
        is_own = bias is not None and bias.config.state is QuantState.PASSIVE
        return _Rounding(plan, walk, layer, weight, bias if is_own else None, stop)

    def apply(self) -> None:
        """Choose scales and integers, and write them into the plan if they are better."""
        try:
            fit, held_out = self._moments()
        except Unsupported:
            return
        trial = _Trial.of(self.layer, self.weight.config, fit, held_out, self.bias is not None)
        best = trial.best()
        if best is None:
            return
        scale, rounded = best
        config = self.weight.config
        config.set_params(scale, config.offset)
        config.observer = "second-order"
        rescale_bias(self.plan, self.layer.node)
        self._bake(self.weight, QuantState.BAKED, self.layer.stored(trial.unfolded(rounded)))
        if self.bias is not None and self.layer.bias is not None:
            both = fit + held_out
            shift = trial.shift(rounded, both).reshape(-1)
            bias = self.layer.bias.astype(np.float64) + shift
            self._bake(self.bias, QuantState.PASSIVE_BAKED, bias)

    def _moments(self) -> tuple[Moments, Moments]:
        value = self.layer.node.inputs[_DATA]
        pairs = [
            (a[value], b[value])
            for a, b in zip(self.stop.in_float, self.stop.quantized, strict=True)
        ]
        return Moments.of(self.layer, pairs[::2]), Moments.of(self.layer, pairs[1::2])

    def _bake(self, point: QuantPoint, state: QuantState, values: Array) -> None:
        """Keep the integers of values in the plan."""
        config = point.config
        codes = config.quantize(values.astype(np.float64))
        config.transition(state)
        self.plan.baked[point.end] = codes
        baked = msgspec.structs.replace(point, baked=codes)
        for node, slot in point.readers:
            self.walk.points.at_input[str(node.name), slot] = baked


@dataclass(frozen=True)
class _Trial:
    """What is tried for one layer.

    Attributes:
        weight: In float, ``[groups, outputs, inputs * taps]``.
        config: Of the weight.
        fit: Means of the samples that decide what is tried: x by x, x by z, z by z.
        held_out: Those of the samples that decide what is kept.
    """

    layer: Layer
    weight: Doubles
    config: TensorQuantConfig
    fit: tuple[Doubles, Doubles, Doubles]
    held_out: tuple[Doubles, Doubles, Doubles]

    @staticmethod
    def of(
        layer: Layer, config: TensorQuantConfig, fit: Moments, held_out: Moments, centred: bool
    ) -> _Trial:
        wide = layer.view(layer.weight.astype(np.float64))
        weight = wide.reshape(*wide.shape[:2], -1)
        means = (fit.means(centred=centred), held_out.means(centred=centred))
        return _Trial(layer, weight, config, *means)

    def best(self) -> tuple[np.ndarray, Doubles] | None:
        """Return the scale and the levels with the least error on held-out samples.

        None where rounding to nearest with the plan's scale is not worse.
        """
        params = self.config.params
        if params is None:
            return None
        least = self._held_out_error(self._levels(params.scale).nearest(self.weight))
        found = None
        for damping in DAMPINGS:
            scale, rounded = self._tried(damping, params)
            error = self._held_out_error(rounded)
            if error < least:
                least, found = error, (scale, rounded)
        return found

    def _tried(self, damping: float, params: QuantParams) -> tuple[np.ndarray, Doubles]:
        """Choose scales and levels with one strength of damping."""
        _, cross, moments = self.fit
        mean = np.trace(moments, axis1=1, axis2=2)[:, None, None] / moments.shape[1]
        ridge = np.where(mean > 0, damping * mean, 1.0) * np.eye(moments.shape[1])
        damped = moments + ridge
        wanted = self.weight @ (cross + ridge)
        aim = np.linalg.solve(damped, wanted.transpose(0, 2, 1)).transpose(0, 2, 1)
        best = np.full(params.scale.shape, np.inf)
        scale, rounded = params.scale, self.weight
        for zoom in ZOOMS:
            tried = zoomed(self.config, params.scale, zoom)
            found = round_in_turn(aim, damped, self._levels(tried), 0.0)
            off = found - aim
            errors = np.einsum("goi,goi->go", off @ damped, off)
            own = errors.reshape(-1) if params.scale.ndim else np.asarray(errors.sum())
            is_better = own < best
            best = np.where(is_better, own, best)
            scale = np.where(is_better, tried, scale)
            where = is_better.reshape(*errors.shape, 1) if params.scale.ndim else is_better
            rounded = np.where(where, found, rounded)
        scale = np.asarray(scale, np.float32)
        return scale, descend(rounded, wanted, damped, self._levels(scale))

    def _levels(self, scale: np.ndarray) -> Levels:
        config, params = self.config, self.config.params
        zero = np.zeros(()) if params is None else params.zero_point
        groups, outputs, _ = self.weight.shape
        shape = (groups, outputs, 1) if scale.ndim else (1, 1, 1)
        wide = (np.asarray(each, np.float64).reshape(shape) for each in (scale, zero))
        return Levels(*wide, config.quant_min, config.quant_max)

    def _held_out_error(self, rounded: Doubles) -> float:
        return float(squared_error(self.weight, rounded, *self.held_out).sum())

    def unfolded(self, rounded: Doubles) -> Doubles:
        """Return levels as ``[groups, outputs, inputs, taps]``."""
        return rounded.reshape(self.layer.view(self.layer.weight).shape)

    def shift(self, rounded: Doubles, seen: Moments) -> Doubles:
        """Return what a bias is moved by so that the mean of each channel's result stays."""
        x, z = (each / max(seen.count, 1) for each in (seen.x, seen.z))
        return np.einsum("goi,gi->go", self.weight, x) - np.einsum("goi,gi->go", rounded, z)
