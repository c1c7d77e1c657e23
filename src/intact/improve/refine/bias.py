"""Corrects biases for the shift that rounding weights and activations gives results.

Empirical, on samples: the shift of each channel is the mean difference between the float and the
quantized result. Layers are corrected in their order, each on the inputs that the corrected layers
before it give. Half of the samples says by how much, the other half which channels gain.

Without samples: the shift follows from the rounding errors of the weights and the means of the
layer's input, which folded BatchNormalizations tell. Pads count as if they had this mean too.

Source: [dfq], section 4.2 and appendix C, D.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import QuantState
from intact.data.stream import Samples
from intact.graph import bias_slot
from intact.improve.layers import Doubles, Layer
from intact.improve.refine.expected import expected_moments
from intact.improve.refine.walk import Stop, Walk, bake
from intact.limits import MOST_DB
from intact.ops.operators import Gemm
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
