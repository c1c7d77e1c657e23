"""Corrects biases for the shift that rounding weights and activations gives results.

Empirical, on samples: the shift of each channel is the mean difference between the float and the
quantized result. Layers are corrected in their order, each on the inputs that the corrected layers
before it give. Half of the samples says by how much, the other half which channels gain.

Without samples: the shift follows from the rounding errors of the weights and the means of the
layer's input, which folded BatchNormalizations tell. Pads count as if they had this mean too.

Source: [dfq], section 4.2 and appendix C, D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import QuantState
from intact.data.stream import Samples
from intact.graph import Graph, bias_slot
from intact.graph.ops import clamp_bounds, function_options
from intact.improve.layers import Doubles, Layer
from intact.improve.refine.walk import Stop, Walk, bake
from intact.limits import MOST_DB
from intact.ops.operators import CLAMPS, Concat, Gemm
from intact.plan import QuantizedGraph, QuantPoint
from intact.plan.gains import Gain, Report, unreported
from intact.program.lower.chains import Points

MOST_SAMPLES = 512


def refine_bias(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> QuantizedGraph:
    """Correct integer biases by the means of results.

    The plan then holds the integers of the biases that change. What is in the plan already, given
    or rounded, is not changed. One sample changes nothing.

    Args:
        plan: A plan with scales; it is not changed.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples. Their activations are kept while needed, for both models.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes what each layer gains.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    plan = plan.copy()
    walk = Walk(plan, samples, most=most, threads=threads)
    for stop in walk:
        found = _Bias.of(plan, walk.points, stop.node)
        if found is None:
            continue
        fit, held_out = (_Differences.of(found.layer, stop, start) for start in (0, 1))
        if not (fit.count and held_out.count and fit.is_finite() and held_out.is_finite()):
            continue
        # Which channels move, the second half decides; by how much, all samples say best.
        shift = np.where(held_out.gains(fit.mean), (fit + held_out).mean, 0.0)
        before, after = held_out.decibels(np.zeros_like(shift)), held_out.decibels(shift)
        kept = bool(shift.any()) and after > before
        report(Gain(str(stop.node.name), before, after, kept))
        if kept:
            found.move(plan, walk.points, shift)
    return plan


def correct_expected_bias(
    plan: QuantizedGraph,
    samples: Samples | None = None,
    *,
    threads: int = 0,
    report: Report = unreported,
) -> QuantizedGraph:
    """Correct integer biases by what folded BatchNormalizations say of the layers' inputs.

    Args:
        plan: A plan with scales; it is not changed.
        samples: Not read: the arguments are those of every pass.
        threads: Not used.
        report: Not called: nothing is measured here.
    """
    # The table of passes calls every refinement alike.
    del samples, threads, report
    plan = plan.copy()
    points, known = Points.of(plan), expected_moments(plan.graph)
    for node in plan.graph.nodes:
        found = _Bias.of(plan, points, node)
        data = node.inputs[0] if node.inputs else None
        weight = points.at_input.get((str(node.name), 1))
        moments = None if data is None else known.get(data)
        if found is None or moments is None or weight is None or not weight.is_constant:
            continue
        layer = found.layer
        if moments[0].size != layer.inputs:
            continue
        rounded = weight.config.dequantize(weight.constant_codes()).astype(np.float64)
        error = layer.view(layer.weight.astype(np.float64) - rounded).sum(axis=3)
        shift = np.einsum("goi,gi->go", error, moments[0].reshape(layer.groups, -1)).reshape(-1)
        if np.isfinite(shift).all():
            # The errors are of the weight alone; a Gemm multiplies the product.
            found.move(plan, points, shift * Gemm.of(node).alpha)
    return plan


@dataclass(frozen=True)
class _Bias:
    """A layer whose integer bias may be changed.

    Attributes:
        layer: The layer; its bias has one number a channel.
        values: Its bias in float.
        point: Where it is quantized.
    """

    layer: Layer
    values: Doubles
    point: QuantPoint

    @staticmethod
    def of(plan: QuantizedGraph, points: Points, node: ir.Node) -> _Bias | None:
        if not plan.is_quantized(node):
            return None
        slot, layer = bias_slot(node), Layer.of(plan.graph, node)
        point = None if slot is None else points.at_input.get((str(node.name), slot))
        if layer is None or layer.bias is None or point is None:
            return None
        is_own = point.config.state is QuantState.PASSIVE and point.end not in plan.baked
        is_whole = layer.bias.size == layer.outputs and len(point.readers) == 1
        is_added = Gemm.of(node).beta != 0
        if not (is_own and is_whole and is_added):
            return None
        return _Bias(layer, layer.bias.astype(np.float64), point)

    def move(self, plan: QuantizedGraph, points: Points, shift: Doubles) -> None:
        """Add to the result of each channel."""
        beta = Gemm.of(self.layer.node).beta
        values = self.values + (shift / beta).reshape(self.values.shape)
        bake(plan, points, self.point, QuantState.PASSIVE_BAKED, values)


@dataclass
class _Differences:
    """Differences between the float and the quantized result, ``[channels]`` each.

    Attributes:
        count: Numbers of each channel.
        total: Their sum.
        squares: Sum of their squares.
        signal: Sum of the squares of the float result.
    """

    count: int
    total: Doubles
    squares: Doubles
    signal: Doubles

    @staticmethod
    def of(layer: Layer, stop: Stop, start: int) -> _Differences:
        """Count every second batch, from the first or from the second on."""
        axis = -1 if layer.is_dense else 1
        found = _Differences(0, *(np.zeros(layer.outputs) for _ in range(3)))
        pairs = list(zip(stop.results, stop.quantized, strict=True))
        # Alternating batches: samples that are sorted by class fall into both halves.
        for results, arrays in pairs[start::2]:
            wanted, actual = results[0], stop.run(arrays)[0]
            rows = np.moveaxis(wanted, axis, 0).reshape(layer.outputs, -1).astype(np.float64)
            others = np.moveaxis(actual, axis, 0).reshape(layer.outputs, -1)
            difference = rows - others
            own = _Differences(
                rows.shape[1],
                difference.sum(axis=1),
                np.square(difference).sum(axis=1),
                np.square(rows).sum(axis=1),
            )
            found = found + own
        return found

    def __add__(self, other: _Differences) -> _Differences:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Differences(*(a + b for a, b in pairs))

    def is_finite(self) -> bool:
        """Tell whether nothing is infinite or NaN."""
        return bool(np.isfinite(self.squares).all() and np.isfinite(self.signal).all())

    @property
    def mean(self) -> Doubles:
        """By what results fall short."""
        return self.total / self.count

    def gains(self, shift: Doubles) -> npt.NDArray[np.bool_]:
        """Tell for each channel whether it gains by a shift."""
        return np.asarray(self._errors(shift) < self.squares)

    def decibels(self, shift: Doubles) -> float:
        """Return signal to noise with a shift, dB, at most 100."""
        signal, lost = float(self.signal.sum()), float(self._errors(shift).sum())
        if signal <= 0 or lost <= 0:
            return MOST_DB if lost <= 0 else -MOST_DB
        return float(np.clip(10 * np.log10(signal / lost), -MOST_DB, MOST_DB))

    def _errors(self, shift: Doubles) -> Doubles:
        errors = self.squares - 2 * shift * self.total + self.count * shift**2
        # Rounding may leave a difference of large sums below 0.
        return np.asarray(np.maximum(errors, 0.0))


Moments = tuple[Doubles, Doubles]
"""Mean and variance of each channel, ``[channels]``."""


def expected_moments(graph: Graph) -> Mapping[ir.Value, Moments]:
    """Return what is known of tensors.

    A layer's result is normal, with mean ``beta`` and deviation ``|gamma|``. Operators behind it
    take their input as normal, and the operands of sums as independent.

    Source: [dfq], section 4.2.1.
    """
    found: dict[ir.Value, Moments] = {}
    for node in graph.nodes:
        norm = graph.batch_norms.get(str(node.name))
        if norm is not None:
            gamma = norm.gamma.astype(np.float64)
            found[node.outputs[0]] = norm.beta.astype(np.float64), gamma**2
            continue
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        moments = None if rule is None else rule(graph, node, found)
        if moments is not None:
            found[node.outputs[0]] = moments
    return found


Found = Mapping[ir.Value, Moments]


def _first(node: ir.Node, found: Found) -> Moments | None:
    value = node.inputs[0]
    return None if value is None else found.get(value)


def _pass_on(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    return _first(node, found)


def _clamp(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    known, bounds = _first(node, found), clamp_bounds(node)
    return None if known is None or bounds is None else clipped_moments(*known, *bounds)


def _leaky(graph: Graph, node: ir.Node, found: Found) -> Moments | None:
    known = _first(node, found)
    slope: Doubles | float
    if node.op_type == "PRelu":
        array = graph.constant(node.inputs[1])
        if array is None or known is None or array.size not in (1, known[0].size):
            return None
        slope = array.astype(np.float64).reshape(-1)
    else:
        slope = float(function_options(node)[0])
    if known is None:
        return None
    mean, variance = known
    above, spread = clipped_moments(mean, variance, 0.0)
    first = above + slope * (mean - above)
    squares = spread + above**2
    second = squares + slope**2 * (variance + mean**2 - squares)
    # The difference of two near numbers may come out below 0.
    return first, np.maximum(second - first**2, 0.0)


def _average(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    known = _first(node, found)
    # A mean over positions hardly varies: how much is not known, and taken as nothing.
    return None if known is None else (known[0], np.zeros_like(known[1]))


def _flatten(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    known, shape = _first(node, found), node.outputs[0].shape
    # Where other axes than the batch are left, elements and no longer channels have the moments.
    is_plain = known is not None and shape is not None and tuple(shape)[1:] == (known[0].size,)
    return known if is_plain else None


def _add(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    parts = [found.get(value) for value in node.inputs if value is not None]
    known = [each for each in parts if each is not None]
    if len(known) != len(parts) or len({each[0].size for each in known}) != 1:
        return None
    return np.sum([mean for mean, _ in known], axis=0), np.sum([v for _, v in known], axis=0)


def _concatenate(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    parts = [found.get(value) for value in node.inputs if value is not None]
    known = [each for each in parts if each is not None]
    # Channels follow one another only where they are what is joined.
    if len(known) != len(parts) or Concat.of(node).axis != 1:
        return None
    return np.concatenate([mean for mean, _ in known]), np.concatenate([v for _, v in known])


_RULES: Mapping[str, Callable[[Graph, ir.Node, Found], Moments | None]] = {
    "Identity": _pass_on,
    **dict.fromkeys(CLAMPS, _clamp),
    "LeakyRelu": _leaky,
    "PRelu": _leaky,
    "AveragePool": _average,
    "GlobalAveragePool": _average,
    "Flatten": _flatten,
    "Reshape": _flatten,
    "Squeeze": _flatten,
    "Add": _add,
    "Sum": _add,
    "Concat": _concatenate,
}


# Moments of a normal variable between bounds.
#
# Source: [dfq], appendix C: the mean of a normal variable after Relu and Clip. The second moment
# follows in the same way, by parts.


_ERF = np.frompyfunc(math.erf, 1, 1)


def clipped_moments(
    mean: Doubles, variance: Doubles, low: float = -math.inf, high: float = math.inf
) -> tuple[Doubles, Doubles]:
    """Return mean and variance of ``clip(x, low, high)`` for normal x.

    Args:
        mean: The mean of x, any shape.
        variance: The variance of x, at least 0.
        low: Lower bound, or minus infinity.
        high: Upper bound, or infinity; at least ``low``.
    """
    mean, variance = (np.asarray(each, np.float64) for each in (mean, variance))
    deviation = np.sqrt(variance)
    # A channel of constant value has no density: its moments are those of one point, set at the
    # end.
    certain = deviation == 0
    divisor = np.where(certain, 1.0, deviation)
    below, above = ((bound - mean) / divisor for bound in (low, high))
    under, over = _cumulative(below), _cumulative(-above)
    inside = 1.0 - under - over
    left, right = _density(below), _density(above)
    first = mean * inside + deviation * (left - right)
    second = (mean**2 + variance) * inside + deviation * (
        _times(low + mean, left) - _times(high + mean, right)
    )
    for bound, share in ((low, under), (high, over)):
        if math.isfinite(bound):
            first = first + bound * share
            second = second + bound**2 * share
    settled = np.clip(mean, low, high)
    first = np.where(certain, settled, first)
    # The difference of two near numbers may come out below 0, and its root is taken by the caller.
    spread = np.where(certain, 0.0, np.maximum(second - first**2, 0.0))
    return first, spread


def _cumulative(x: Doubles) -> Doubles:
    return np.asarray(0.5 * (1.0 + np.asarray(_ERF(x / math.sqrt(2.0)), np.float64)), np.float64)


def _density(x: Doubles) -> Doubles:
    return np.asarray(np.exp(-np.square(x) / 2.0) / math.sqrt(2.0 * math.pi), np.float64)


def _times(factor: Doubles, density: Doubles) -> Doubles:
    """Return a product that is 0 where the density is, also for infinite factors."""
    return np.where(density > 0, np.where(np.isfinite(factor), factor, 0.0) * density, 0.0)
