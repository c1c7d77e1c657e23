"""Finds out why an output loses: by clipping, by rounding, or by weights.

Each activation is quantized alone, with weights in the simulation as they are, on a few samples.
What an output then loses beyond what the weights cost is the noise of that quantizer; noises of
several nearly add. Where most of it comes from one tensor, that tensor's channels tell why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.counterfactuals import (
    Counterfactuals,
    Without,
    any_scale,
    by_channel,
    by_whole_channel,
    whole_range,
    without_mask,
    without_tail,
)
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.noise import (
    CUT_AWAY,
    EXPLAINED,
    HALF,
    MOST_AT,
    NEARLY,
    ActivationNoise,
    Noise,
    narrow_down,
)
from intact.analyze.diagnose.weights import BEST, EQUALIZE, UNLIKE, USUAL_BITS, weight_finding
from intact.calibrate.outputs import Errors, FloatRuns
from intact.calibrate.scales.masked import MASKED_BEYOND
from intact.calibrate.statistics import Statistics
from intact.config import QuantPolicy
from intact.engines.simulate import Simulator
from intact.limits import USUAL_DB
from intact.ops.operators import Concat, Softmax, is_a
from intact.plan import QuantizedGraph, QuantPoint
from intact.plan.stored_weights import is_cached

Doubles = npt.NDArray[np.float64]

_TRIED = 8
"""Tensors that are left in float, one at a time."""
_OFFERED = 3
"""Number of them whose nodes are tried in float."""
_LEAST = 1e-9
"""Part of the noise that is none."""
_USUAL = ("rounding", "clipping")
"""What every quantizer does: above that it is no fault."""
_OF_ONE_TENSOR = ("outlier_channel", "heavy_tail", "unlike_ranges", "attention_mask")
"""What no quantizer does by itself: the values of that tensor are such."""
_MOST = 0.1
"""Part of the values of a joined tensor that its scale cuts off, if it is that of another."""
WIDEN = Remedy(options={"method": "minmax", "method_options": None, "scales": None})
NO_TABLE = Remedy(options={"scales": None})
"""Where scales were given: the samples choose these, by the method that all others have."""
_NO_TAIL = Remedy(
    options={"method": "percentile", "method_options": {"percentile": 99.99}, "scales": None}
)
_FLOAT_HEADS = Remedy(options={"quantize_heads": None})
"""What `quantize` does by itself where a join of unlike ranges leads to the outputs."""
_FOR_ITS_SAKE = "; others are cut off by a method that all have for the sake of "
_STEPS = 2.0
"""Steps that a channel has at least, to be more than rounded away."""

Tensors = Mapping[str, npt.NDArray[Any]]


def quantizer_findings(
    plan: QuantizedGraph,
    simulator: Simulator,
    runs: FloatRuns,
    found: Errors,
    tensors: Tensors,
) -> list[Finding]:
    """Find out what an output is lost by.

    Args:
        plan: A plan with scales.
        simulator: Simulates the plan.
        runs: The samples that quantizers are tried on.
        found: The errors of the plan on them.
        tensors: What the float model computes for the quantized activations on those samples, by
            name, ``[samples, ...]``.

    Returns:
        One finding, at the tensor that costs most, or for the weights; or none where no cause
        explains 40 % of the noise.
    """
    decibels = found.decibels
    if not decibels:
        return []
    output = min(decibels, key=lambda name: decibels[name])
    # Measured with everything quantized, so that parts are parts of what the user sees.
    total = float(found.outputs[output].noise.sum())
    alone = ActivationNoise(simulator, runs, output)
    weights, noises = alone.weights, narrow_down(list(simulator.points.values()), alone.powers)
    level = f"{decibels[output]:.1f} dB on {len(runs)} samples"
    heard = f"of the noise of output {output!r} ({level})"
    activations = sum(each.power for each in noises)
    named: list[Finding] = []
    # Both sides may be named; the worse of them is kept below.
    if weights >= EXPLAINED * total > 0:
        named.append(weight_finding(plan, runs, output, min(1.0, weights / total), heard))
    if activations >= EXPLAINED * total > 0:
        loss = _Loss(plan, runs, output, min(1.0, activations / total), heard)
        named += _findings_of_activations(noises, tensors, loss)
    usual: list[Finding] = []
    if decibels[output] >= USUAL_DB:
        usual = [each for each in named if each.cause in _USUAL]
        named = [each for each in named if each not in usual]
    if not named:
        costliest = _costliest(alone, noises, total, decibels[output], heard)
        same = (each for each in usual if costliest and each.tensor == costliest[0].tensor)
        named = [next(same, costliest[0])] if costliest else []
    # Where both count, a fault of one side tells more than what every quantizer does.
    worst = sorted(named, key=lambda each: (each.cause in _USUAL, -each.severity))[:1]
    return [_with_passes(each) for each in worst]


def _costliest(
    alone: ActivationNoise, noises: Sequence[Noise], total: float, decibels: float, heard: str
) -> list[Finding]:
    """Name the tensor without whose quantizer the output has most, where no cause explains much.

    From 20 dB on, where 8 bits may be all that is wrong, only one that costs half of the noise.

    Args:
        alone: Measures quantizers.
        noises: What quantizers cost alone, the worst first.
        total: The noise power of the output.
        decibels: Its signal to noise.
        heard: Whose noise, for the evidence.
    """
    points = [each.points[0] for each in noises[:_TRIED] if len(each.points) == 1]
    # Never 0, whose logarithm is taken.
    lefts = [max(left, _LEAST * total) for left in alone.left_without(points)]
    gains = sorted(zip(lefts, range(len(points)), strict=True))
    if not gains or not total > 0:
        return []
    left, first = gains[0]
    if decibels >= USUAL_DB and left > total / 2:
        return []
    regained = decibels + 10 * math.log10(total / left)
    name = str(points[first].value.name)
    nodes = dict.fromkeys(points[at].end.node for _, at in gains[:_OFFERED])
    return [
        Finding(
            "rounding",
            f"{100 * (1 - left / total):.0f} % {heard} is gone where tensor {name!r} alone stays "
            f"float: {regained:.1f} dB",
            max(1 - left / total, 0.0),
            node=points[first].end.node,
            tensor=name,
            remedies=tuple(Remedy(options={"keep_float": [node]}) for node in nodes),
        )
    ]


def _with_passes(finding: Finding) -> Finding:
    """Let all improvement passes be tried last."""
    if BEST in finding.remedies:
        return finding
    return msgspec.structs.replace(finding, remedies=(*finding.remedies, BEST))


class _Loss(NamedTuple):
    """What is explained.

    Attributes:
        plan: The plan.
        runs: Samples.
        output: The output that loses most.
        part: The part of its noise that quantized activations make.
        heard: Whose noise, for the evidence.
    """

    plan: QuantizedGraph
    runs: FloatRuns
    output: str
    part: float
    heard: str


def _findings_of_activations(
    noises: Sequence[Noise], tensors: Tensors, loss: _Loss
) -> list[Finding]:
    """Name what is wrong with the activation that costs most.

    Where another costs at least half of that, and has what only single tensors have, that is named:
    what many clip or round is often chosen for its sake, as one method serves all. So where the
    worst are only clipped, the first behind them that has such a cause is named too.
    """
    found: list[Finding] = []
    for noise in noises:
        is_much = noise.power >= HALF * noises[0].power
        if not is_much and any(each.cause != "clipping" for each in found):
            break
        # A group that costs little was not taken apart: its worst quantizer by its own error stands
        # for it.
        point = max(noise.points, key=lambda each: _error(each, tensors))
        values = tensors.get(str(point.value.name))
        if values is None or not values.size:
            continue
        seen = _TensorFigures.of(point, values)
        if not is_much and not any(check(seen) for check in _CHECKS_OF_ONE_TENSOR):
            if seen.cut > CUT_AWAY:
                continue
            break
        found.append(_finding_of_tensor(seen, loss, MOST_AT if is_much else _FOR_ITS_SAKE))
    special = (each for each in found if each.cause in _OF_ONE_TENSOR)
    return [next(special, found[0])] if found else []


def _error(point: QuantPoint, tensors: Tensors) -> float:
    """Return the mean square error of a quantizer against the mean square of its tensor."""
    values = tensors.get(str(point.value.name))
    if values is None or not values.size:
        return 0.0
    wide = values.astype(np.float64)
    lost = float(np.mean((point.config.fake_quantize(values, inplace=False) - wide) ** 2))
    return lost / max(float(np.mean(wide**2)), np.finfo(float).tiny)


class _TensorFigures(msgspec.Struct, frozen=True):
    """The tensor that costs most.

    Attributes:
        point: Its quantizer.
        low: Value of the lowest code.
        high: Value of the highest code.
        step: Distance of two codes.
        channels: The largest magnitude of each channel, ``[channels]``.
        tail: 99 % of the magnitudes are at most this.
        least: The least value.
        most: The largest value.
        outside: Part of the values beyond the codes.
        cut: Mean square of what is cut off, against that of rounding.
    """

    point: QuantPoint
    low: float
    high: float
    step: float
    channels: Doubles
    tail: float
    least: float
    most: float
    outside: float
    cut: float

    @staticmethod
    def of(point: QuantPoint, values: npt.NDArray[Any]) -> _TensorFigures:
        """Measure what is needed."""
        low, high = point.config.value_range()
        step = (high - low) / float(np.ptp(point.config.grid.widest))
        wide = values.astype(np.float64)
        beyond = np.maximum(low - wide, 0) + np.maximum(wide - high, 0)
        return _TensorFigures(
            point,
            low,
            high,
            step,
            _channel_sizes(wide),
            float(np.quantile(np.abs(wide), 0.99)),
            float(wide.min()),
            float(wide.max()),
            float(np.mean(beyond > 0)),
            float(np.mean(beyond**2)) / (step**2 / 12),
        )

    @property
    def reach(self) -> float:
        """The largest magnitude of the values and of the range."""
        return max(abs(self.low), abs(self.high), float(self.channels.max(initial=0)))

    @property
    def starved(self) -> npt.NDArray[np.int64]:
        """Channels that are not zero, and less than two steps."""
        return np.flatnonzero((self.channels > 0) & (self.channels < _STEPS * self.step))

    @property
    def softmax(self) -> str:
        """The Softmax that reads the tensor; "" where none does."""
        readers = (node for value in (self.point.value,) for node in value.consumers())
        return next((str(node.name) for node in readers if is_a(node, Softmax)), "")


def _finding_of_tensor(seen: _TensorFigures, loss: _Loss, at: str) -> Finding:
    """Name what is wrong with an activation that costs much: what explains most of its noise."""
    point = seen.point
    fitting = [found for check in _CHECKS if (found := check(seen)) is not None]
    named, explained = _rounding(seen), 0.0
    if fitting:
        trials = Counterfactuals(loss.plan, loss.runs, loss.output, point)
        # First each cause by itself; only where none explains enough, together with what is clipped
        # for it.
        for ways in ([each.without for each in fitting], [each.beside for each in fitting]):
            parts = [0.0 if way is None else trials.explained_part(way) for way in ways]
            if not max(parts) >= EXPLAINED:  # negative where others lose more, or no number
                continue
            first = next(k for k, part in enumerate(parts) if part >= NEARLY * max(parts))
            if parts[first] >= EXPLAINED:
                named, explained = fitting[first], parts[first]
                break
    name = str(point.value.name)
    why = f"tensor {name!r}: {named.why}"
    if explained:
        why += f"; without that, {100 * explained:.0f} % of what it costs is gone"
    share = f"quantizing activations makes {100 * loss.part:.0f} % {loss.heard}{at}{why}"
    node, remedies = point.end.node, named.remedies
    return Finding(named.cause, share, loss.part, node=node, tensor=name, remedies=remedies)


class _NamedCause(NamedTuple):
    """A cause that fits.

    Attributes:
        cause: Its name.
        why: Its figures.
        remedies: What may mend it.
        without: How the tensor would be quantized without it.
        beside: How it would be without that and without clipping, where nothing alone explains
            enough: what is clipped for its sake is due to it.
    """

    cause: str
    why: str
    remedies: tuple[Remedy, ...]
    without: Without
    beside: Without | None = None


def _powers(seen: _TensorFigures) -> _NamedCause | None:
    if not seen.point.config.policy & QuantPolicy.POWER_OF_2:
        return None
    why = f"its scale is a power of two, {seen.step:.4g}"
    return _NamedCause("power_of_two", why, (BEST,), any_scale)


def _mask(seen: _TensorFigures) -> _NamedCause | None:
    if not seen.softmax or -seen.least <= UNLIKE * max(abs(seen.most), 1.0):
        return None
    producer = seen.point.value.producer()
    nodes = [*([] if producer is None else [str(producer.name)]), seen.softmax]
    why = f"a mask adds {seen.least:.4g} in front of a Softmax, other values reach {seen.most:.4g}"
    return _NamedCause(
        "attention_mask", why, (Remedy(options={"keep_float": nodes}),), without_mask
    )


def _tie(seen: _TensorFigures) -> _NamedCause | None:
    join = next((node for node in seen.point.value.consumers() if is_a(node, Concat)), None)
    is_clipped = seen.cut > CUT_AWAY and seen.outside >= _MOST
    is_coarse = max(abs(seen.low), abs(seen.high)) > UNLIKE * float(seen.channels.max(initial=0))
    # A scale of another tensor either cuts off or is far too wide.
    if join is None or not (is_clipped or is_coarse):
        return None
    why = f"it is joined with others at {str(join.name)!r} and has their scale, whose codes reach "
    behind = [str(node.name) for value in join.outputs for node in value.consumers()]
    keep = Remedy(options={"keep_float": [str(join.name), *behind]})
    remedies = (_FLOAT_HEADS, keep)
    why += f"{seen.high:.4g}, its values {seen.most:.4g}"
    return _NamedCause("unlike_ranges", why, remedies, whole_range)


def _clipping(seen: _TensorFigures) -> _NamedCause | None:
    if seen.cut <= CUT_AWAY:
        return None
    why = (
        f"{100 * seen.outside:.2g} % of its values lie outside of {seen.low:.4g} to {seen.high:.4g}"
    )
    is_fixed = bool(seen.point.config.dominator.detail.get("fixed"))  # no method changes it
    keep = Remedy(options={"keep_float": [seen.point.end.node]})
    return _NamedCause("clipping", why, (keep,) if is_fixed else (NO_TABLE, WIDEN), whole_range)


def _outlier(seen: _TensorFigures) -> _NamedCause | None:
    channels, producer = seen.channels, seen.point.value.producer()
    most, usual = float(channels.max(initial=0)), float(np.median(channels))
    if len(channels) < 2 or not most > UNLIKE * usual > 0:
        return None
    if is_a(producer, Concat):
        why = f"what is joined reaches {most:.4g}, half of its channels {usual:.4g}"
        return _NamedCause(
            "unlike_ranges", why, (_FLOAT_HEADS, EQUALIZE), by_channel, by_whole_channel
        )
    why = f"channel {int(channels.argmax())} reaches {most:.4g}, half of them {usual:.4g}"
    return _NamedCause("outlier_channel", why, (EQUALIZE,), by_channel, by_whole_channel)


def _tail(seen: _TensorFigures) -> _NamedCause | None:
    if not seen.reach > UNLIKE * seen.tail > 0:
        return None
    why = f"its range reaches {seen.reach:.4g}, 99 % of its values {seen.tail:.4g}"
    return _NamedCause("heavy_tail", why, (_NO_TAIL,), without_tail)


def _starved_channels(seen: _TensorFigures) -> _NamedCause | None:
    if len(seen.channels) < 2 or not len(seen.starved):
        return None
    first = int(seen.starved[0])
    why = (
        f"{len(seen.starved)} of {len(seen.channels)} channels are less than {_STEPS:g} steps of "
        f"{seen.step:.3g}, channel {first} {seen.channels[first]:.3g}"
    )
    return _NamedCause("dead_channel", why, (EQUALIZE,), by_channel, by_whole_channel)


def _rounding(seen: _TensorFigures) -> _NamedCause:
    """Name what every quantizer does, where nothing else explains enough."""
    config, most = seen.point.config, float(seen.channels.max(initial=0))
    why = f"a step of {config.bits} bits is {seen.step:.3g}, its values reach {most:.4g}"
    if config.bits >= USUAL_BITS:
        remedy = Remedy(options={"keep_float": [seen.point.end.node]})
    elif is_cached(config):
        remedy = Remedy(options={"bits": {seen.point.end.node: USUAL_BITS}})
    else:
        remedy = Remedy(options={"activation_bits": USUAL_BITS, "bits": None})
    return _NamedCause("rounding", why, (remedy,), whole_range)


_CHECKS_OF_ONE_TENSOR = (_mask, _tie, _outlier, _tail)
_CHECKS = (_powers, _mask, _tie, _clipping, _outlier, _tail, _starved_channels)
"""What a tensor may suffer from. Of what fits, that is named without which most of the noise of its
output is gone, special causes first where they are nearly equal."""


def _channel_sizes(values: npt.NDArray[Any]) -> Doubles:
    """Return the largest magnitude of each channel, along axis 1; one of a vector or a scalar."""
    wide = np.abs(values.astype(np.float64))
    if wide.ndim < 2 or not wide.size:
        return np.array([wide.max(initial=0.0)])
    others: Iterable[int] = (axis for axis in range(wide.ndim) if axis != 1)
    return np.asarray(wide.max(axis=tuple(others)))


class Cut(NamedTuple):
    """What a quantizer cuts off.

    Attributes:
        share: Part of the values beyond the codes.
        noise: Mean square of what is cut off, in times of rounding's.
    """

    share: float
    noise: float


def cut_in_calibration(point: QuantPoint, statistics: Statistics) -> Cut:
    """Return what a quantizer cuts off of the values that calibration saw.

    All, where these are not known. What may be a mask constant is meant to lie there.
    """
    name = str(point.value.name)
    if name not in statistics.tensors:
        return Cut(1.0, math.inf)
    values = statistics[name].distribution()
    low, high = point.config.value_range()
    step = (high - low) / float(np.ptp(point.config.grid.widest))
    middle = (values.low + values.high) / 2
    beyond = np.maximum(low - middle, 0) + np.maximum(middle - high, 0)
    # A mask of -1e9 is meant to be cut off.
    beyond[middle < -MASKED_BEYOND] = 0
    total = max(values.total, 1)
    share = float(values.count[beyond > 0].sum() / total)
    return Cut(share, float((values.count * beyond**2).sum() / total) / (step**2 / 12))
