"""Second-order rounding: weights rounded so that the results of layers change little.

Layers are rounded in their order, each on the inputs that the quantized layers before give it: what
those lose is made good as far as this layer can. Weight scales are chosen together with the
rounding, and biases follow in closed form: the mean of each channel's result stays as in float.

Half of the samples decides what is tried, the other half what is kept: of several strengths of
damping, and of rounding to nearest, the one with the least error on samples that it was not made
of. So a layer's result never gets worse on these.

Source: `intact.numerics.second_order`. The bias: [dfq], section 4.2, with means of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from intact.calibrate.scales.bias import rescale_bias
from intact.config import QuantState, TensorQuantConfig
from intact.data.stream import Samples
from intact.errors import Unsupported
from intact.graph import bias_slot, output_channel_axis
from intact.improve.gains import Report, unreported
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
OBSERVER = "second-order"
"""What chose the scale, as the plan calls it."""
_DATA, _WEIGHT = 0, 1

Scales = npt.NDArray[np.float32]


def refine_rounding(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> QuantizedGraph:
    """Round the weights of Conv, Gemm and MatMul by second moments of their inputs.

    The plan then holds the integers of these weights, and of their biases where the target has
    integer ones. Weights with given scales or codes, and logarithmic ones, are not changed.

    Args:
        plan: With scales; not changed.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples. Their activations are kept while needed, for both models.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    del report
    plan = plan.copy()
    walk = Walk(plan, samples, most=most, threads=threads)
    for stop in walk:
        rounding = _Rounding.of(plan, walk, stop)
        if rounding is not None:
            rounding.apply()
    return plan


@dataclass(frozen=True)
class _Rounding:
    """The rounding of one layer.

    Attributes:
        plan: Changed by it.
        walk: Goes on with what was changed.
        layer: The layer.
        weight: Where its weight is quantized.
        bias: Where its bias is, if that is in integers and may be changed.
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
        if weight is None or not is_free(plan, node, _WEIGHT, weight):
            return None
        layer = Layer.of(plan.graph, node)
        axis = weight.config.granularity.axis
        if layer is None or axis not in (None, output_channel_axis(node)):
            return None
        slot = bias_slot(node)
        bias = None if slot is None else walk.points.at_input.get((name, slot))
        is_own = bias is not None and bias.config.state is QuantState.PASSIVE
        is_whole = layer.bias is not None and layer.bias.size == layer.outputs
        is_added = node.attributes.get_float("beta", 1.0) != 0
        return _Rounding(
            plan, walk, layer, weight, bias if is_own and is_whole and is_added else None, stop
        )

    def apply(self) -> None:
        """Choose scale and integers, and write them into the plan if they are better."""
        try:
            fit, held_out = self._moments()
        except Unsupported:
            return
        if not (fit.count and held_out.count and fit.is_finite() and held_out.is_finite()):
            return
        config = self.weight.config
        trial = _Trial.of(self.layer, config, fit, held_out, centred=self.bias is not None)
        best = trial.best()
        if best is None:
            return
        config.set_params(best.scale, config.offset)
        config.observer = OBSERVER
        rescale_bias(self.plan, self.layer.node)
        if not np.array_equal(np.asarray(config.scale), best.scale):
            return  # raised for the bias: nearest at that scale
        self._bake(self.weight, QuantState.BAKED, self.layer.stored(trial.unfolded(best.rounded)))
        if self.bias is not None and self.layer.bias is not None:
            shift = trial.shift(best.rounded, fit + held_out).reshape(self.layer.bias.shape)
            bias = self.layer.bias.astype(np.float64) + shift
            self._bake(self.bias, QuantState.PASSIVE_BAKED, bias)

    def _moments(self) -> tuple[Moments, Moments]:
        value = self.layer.node.inputs[_DATA]
        if value is None:
            raise Unsupported("it has no input")
        stops = zip(self.stop.in_float, self.stop.quantized, strict=True)
        pairs = [(a[value], b[value]) for a, b in stops if value in a]
        return Moments.of(self.layer, pairs[::2]), Moments.of(self.layer, pairs[1::2])

    def _bake(self, point: QuantPoint, state: QuantState, values: Array) -> None:
        """Keep the integers of values in the plan."""
        codes = point.config.quantize(values.astype(np.float64))
        point.config.transition(state)
        self.plan.baked[point.end] = codes
        baked = msgspec.structs.replace(point, baked=codes)
        for node, slot in point.readers:
            self.walk.points.at_input[str(node.name), slot] = baked


class _Found(msgspec.Struct, frozen=True):
    scale: Scales
    rounded: Doubles


@dataclass(frozen=True)
class _Trial:
    """What is tried for one layer.

    Attributes:
        layer: The layer.
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
        layer: Layer, config: TensorQuantConfig, fit: Moments, held_out: Moments, *, centred: bool
    ) -> _Trial:
        wide = layer.view(layer.weight.astype(np.float64))
        weight = wide.reshape(*wide.shape[:2], -1)
        means = (fit.means(centred=centred), held_out.means(centred=centred))
        return _Trial(layer, weight, config, *means)

    def best(self) -> _Found | None:
        """Return the scale and the levels with the least error on held-out samples.

        None where rounding to nearest with the plan's scale is as good.
        """
        params = self.config.params
        if params is None:
            return None
        least = self._held_out_error(self._levels(params.scale).nearest(self.weight))
        found = None
        for damping in DAMPINGS:
            try:
                tried = self._tried(damping, params)
            except np.linalg.LinAlgError:  # inputs that hardly vary leave rounding errors alone
                continue
            error = self._held_out_error(tried.rounded)
            if error < least:
                least, found = error, tried
        return found

    def _tried(self, damping: float, params: QuantParams) -> _Found:
        """Choose scale and levels with one strength of damping.

        What is rounded is the weight that is best in real numbers on the quantized inputs.
        """
        _, cross, moments = self.fit
        count = moments.shape[1]
        mean = np.trace(moments, axis1=1, axis2=2)[:, None, None] / count
        ridge = np.where(mean > 0, damping * mean, 1.0) * np.eye(count)
        damped = moments + ridge
        wanted = self.weight @ (cross + ridge)
        solved = np.linalg.solve(damped, wanted.transpose(0, 2, 1))
        aim = np.asarray(solved.transpose(0, 2, 1), np.float64)
        per_channel = params.scale.ndim > 0
        scale, rounded = params.scale, self.weight
        least = np.full(params.scale.shape, np.inf)
        for zoom in ZOOMS:
            tried = zoomed(self.config, params.scale, zoom)
            found = round_in_turn(aim, damped, self._levels(tried), 0.0)
            off = found - aim
            errors = np.einsum("goi,goi->go", off @ damped, off)
            own = errors.reshape(least.shape) if per_channel else errors.sum()
            is_better = own < least
            least, scale = np.where(is_better, own, least), np.where(is_better, tried, scale)
            where = is_better.reshape(*errors.shape, 1) if per_channel else is_better
            rounded = np.where(where, found, rounded)
        scale = np.asarray(scale, np.float32)
        return _Found(scale, descend(rounded, wanted, damped, self._levels(scale)))

    def _levels(self, scale: Scales) -> Levels:
        config, params = self.config, self.config.params
        zero = np.zeros(scale.shape) if params is None else params.zero_point
        groups, outputs, _ = self.weight.shape
        shape = (groups, outputs, 1) if scale.ndim else (1, 1, 1)
        scales, zeros = (np.asarray(each, np.float64).reshape(shape) for each in (scale, zero))
        return Levels(scales, zeros, config.quant_min, config.quant_max)

    def _held_out_error(self, rounded: Doubles) -> float:
        return float(squared_error(self.weight, rounded, *self.held_out).sum())

    def unfolded(self, rounded: Doubles) -> Doubles:
        """Return levels as ``[groups, outputs, inputs, taps]``."""
        return rounded.reshape(self.layer.view(self.layer.weight).shape)

    def shift(self, rounded: Doubles, seen: Moments) -> Doubles:
        """Return by what a bias moves so that the mean of each channel's result stays."""
        x, z = seen.x / seen.count, seen.z / seen.count
        lost = np.einsum("goi,gi->go", self.weight, x) - np.einsum("goi,gi->go", rounded, z)
        attributes = self.layer.node.attributes
        factor = attributes.get_float("alpha", 1.0) / attributes.get_float("beta", 1.0)
        return np.asarray(lost * factor)
