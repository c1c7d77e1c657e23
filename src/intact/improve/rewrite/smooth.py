"""Moves magnitude from channels of activations into the weights behind them (SmoothQuant).

Where one channel of an activation is much larger than the others, a scale for all of them is too
coarse for those. Divided by a factor for each channel, and the weights that read it multiplied by
the same, the result stays and the range becomes even. The division costs nothing where constants in
front take it: scale and bias of a LayerNormalization (also as Mul and Add), or weight and bias of a
layer, directly or through one operand of a Mul.

Weights in blocks have a rule of their own (`smooth_blocks.py`). Of others the factors of a channel
are ``max|x|^alpha / max|w|^(1 - alpha)``. Several alphas are tried; the error of the results, with
weights and activations rounded, decides: on one half of the samples which is best, on the other
half whether it is kept.

Source: [smoothquant], equation 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from intact.data.batching import within
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.graph import Graph, weight_slot
from intact.improve.layers import Doubles
from intact.improve.refine.moments import unfold_inputs
from intact.improve.rewrite.pairs import Floats, Pair, pairs_of
from intact.improve.rewrite.smooth_blocks import smooth_blocks
from intact.limits import HELD_AT_ONCE
from intact.numerics.affine import fake_quantize
from intact.numerics.affine_params import params_from_range
from intact.numerics.metrics import decibels
from intact.plan import QuantizedGraph, TensorEnd
from intact.plan.gains import Gain, Report, unreported


@dataclass(frozen=True)
class Widths:
    """How errors are measured: as a target with such a grid would round.

    Attributes:
        weight_bits: Bits of a weight's symmetric codes.
        activation_bits: Bits of asymmetric codes, with one scale for the tensor.
        per_channel: Whether each output channel of a weight has a scale.
    """

    weight_bits: int = 8
    activation_bits: int = 8
    per_channel: bool = True

    @staticmethod
    def of(plan: QuantizedGraph) -> Widths:
        """Return the fewest bits of a plan's weights and activations."""
        weights, activations = [], []
        for node in plan.graph.nodes:
            slot = weight_slot(node)
            if slot is None or not plan.is_quantized(node):
                continue
            ends = (TensorEnd.input(str(node.name), each) for each in (slot, 0))
            weight, data = (plan.configs.get(end) for end in ends)
            weights += [] if weight is None else [weight]
            activations += [] if data is None else [data]
        return Widths(
            min((each.bits for each in weights), default=8),
            min((each.bits for each in activations), default=8),
            any(each.granularity.axis is not None for each in weights),
        )


ALPHAS = (0.25, 0.4, 0.5, 0.6, 0.75)
MOST_SAMPLES = 64
_ROWS = 1024
"""Products of a batch that errors are measured on."""
_LARGEST = 2.0**10
"""Factors are limited to this and its inverse."""


def smooth_plan(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> Graph:
    """Smooth the graph of a plan, with its widths; see `smooth`, and of blocks `smooth_blocks`."""
    if any(config.grid.block is not None for config in plan.configs.values()):
        return smooth_blocks(plan, samples, most=most, threads=threads, report=report)
    widths = Widths.of(plan)
    return smooth(plan.graph, samples, widths, most=most, threads=threads, report=report)


def smooth(
    graph: Graph,
    samples: Samples,
    widths: Widths,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> Graph:
    """Move magnitude from channels of activations into the weights that read them.

    Shapes, names and order of the nodes do not change. Results differ only by float32 rounding.

    Args:
        graph: The graph; not changed.
        samples: The data; with fewer than two nothing changes.
        widths: What the target rounds to.
        most: Maximum number of samples.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes what each tensor gained.

    Raises:
        DataError: A sample does not fit the model.
    """
    twin = graph.clone()
    pairs = list(pairs_of(twin))
    if not pairs:
        return twin
    halves = _observe(twin, [pair.value for pair in pairs], samples, most, threads)
    if len(halves) < 2:
        return twin
    for pair in pairs:
        seen = [batch[str(pair.value.name)] for batch in halves]
        now = pair.renewed(twin)
        if now is not None and all(np.isfinite(array).all() for array in seen):
            _smooth_one(twin, now, seen, widths, report)
        # Viewed anew, because constants were replaced.
        twin = Graph(twin.model)
    return twin


def _observe(
    graph: Graph, values: Sequence[ir.Value], samples: Samples, most: int, threads: int
) -> list[dict[str, Floats]]:
    """Run the model; return the values for each batch."""
    names = list(dict.fromkeys(str(value.name) for value in values))
    shown = graph.clone().model
    by_name = {str(v.name): v for node in shown.graph for v in node.outputs}
    shown.graph.outputs.extend(by_name[name] for name in names)
    model = FloatModel(Graph(shown), threads=threads)
    limited = samples.first(most)
    # Two batches at least: one decides, the other checks.
    size = limited.batch_size(within(HELD_AT_ONCE, limited.count or most, 2))
    found = []
    for feeds, _ in limited.batches(size):
        results = model.run(feeds)
        found.append({name: np.asarray(results[name], np.float32) for name in names})
    return found


def _smooth_one(
    graph: Graph, pair: Pair, seen: Sequence[Floats], widths: Widths, report: Report
) -> None:
    """Try the alphas for one tensor, and divide it by the factors of the best one."""
    axis = -1 if pair.readers[0].is_dense else 1
    largest = np.max([_largest(array, axis) for array in seen[::2]], axis=0)
    ones = [np.ones(layer.outputs) for layer in pair.readers]
    reaches = [
        layer.reach_of_inputs(np.ones(layer.inputs), out)
        for layer, out in zip(pair.readers, ones, strict=True)
    ]
    factors = [np.ones(pair.channels)]
    factors += [_factors(largest, np.max(reaches, axis=0), alpha) for alpha in ALPHAS]
    noise = partial(_noise, pair, widths=widths, axis=axis)
    errors = [noise(seen[::2], each) for each in factors]
    # Without factors comes first: of equal errors it wins.
    best = int(np.argmin(errors))
    if not best:
        return
    before, after = (noise(seen[1::2], factors[at]) for at in (0, best))
    name = str(pair.readers[-1].node.name)
    report(Gain(name, decibels(1.0, before), decibels(1.0, after), after < before))
    if after < before:
        pair.divide(graph, factors[best])


def _largest(array: Floats, axis: int) -> Doubles:
    others = tuple(k for k in range(array.ndim) if k != axis % array.ndim)
    return np.asarray(np.abs(array).max(axis=others, initial=0.0), np.float64)


def _factors(values: Doubles, weights: Doubles, alpha: float) -> Doubles:
    """Return by what each channel is divided; 1 where there are no values or no weights."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = values**alpha / weights ** (1 - alpha)
    is_used = (values > 0) & (weights > 0) & np.isfinite(found)
    if not is_used.any():
        return np.ones_like(values)
    found = found / np.exp(np.log(found[is_used]).mean())  # the tensor as a whole keeps its size
    return np.where(is_used, np.clip(found, 1 / _LARGEST, _LARGEST), 1.0)


def _noise(
    pair: Pair, seen: Sequence[Floats], factors: Doubles, *, widths: Widths, axis: int
) -> float:
    """Return noise by signal of what the readers compute, summed over the readers."""
    shape = [1] * seen[0].ndim
    shape[axis] = -1
    divided = [(array / factors.reshape(shape)).astype(np.float32) for array in seen]
    ends = min(float(a.min()) for a in divided), max(float(a.max()) for a in divided)
    codes = 0, 2**widths.activation_bits - 1
    params = params_from_range(*ends, *codes, symmetric=False)
    total = 0.0
    for layer in pair.readers:
        weight = layer.view(layer.weight)
        scaled = layer.view(layer.scale_weight(factors, np.ones(layer.outputs)))
        rounded = _round(scaled, widths)
        signal = noise = 0.0
        for array, own in zip(seen, divided, strict=True):
            quantized = fake_quantize(own, *params, *codes)
            wanted = _product(weight, unfold_inputs(layer, array, _ROWS))
            got = _product(rounded, unfold_inputs(layer, quantized, _ROWS))
            signal += float(np.square(wanted, dtype=np.float64).sum())
            noise += float(np.square(got - wanted, dtype=np.float64).sum())
        total += noise / signal if signal > 0 else 0.0
    return total


def _product(weight: Floats, array: Floats) -> Floats:
    return np.asarray(weight.reshape(*weight.shape[:2], -1) @ array)


def _round(weight: Floats, widths: Widths) -> Floats:
    """Round ``[groups, outputs, inputs, taps]`` to nearest, symmetrically."""
    most = 2 ** (widths.weight_bits - 1) - 1
    axes = (2, 3) if widths.per_channel else None
    reach = np.abs(weight).max(axis=axes, keepdims=True)
    step = np.where(reach > 0, reach / most, 1.0)
    return np.asarray(np.rint(weight / step) * step, np.float32)
