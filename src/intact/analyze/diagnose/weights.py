"""Finds what is wrong with the weights that cost an output most.

Each is quantized alone in the float model, in groups that are narrowed down. Of the causes that fit
the one that costs most, that is named without which most of its noise is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.counterfactuals import (
    Constant,
    ConstantTrials,
    WithoutInConstant,
    constant_by_input,
    constant_by_output,
    constant_on_any_scale,
    constant_on_whole_range,
    constant_with_bits,
)
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.noise import CUT_AWAY, EXPLAINED, MOST_AT, NEARLY, narrow_down
from intact.calibrate.outputs import FloatRuns
from intact.config import PerChannel, QuantPolicy, QuantState
from intact.graph.ops import constant_array, facts, output_channel_axis
from intact.plan import QuantizedGraph, QuantPoint, quantization_points
from intact.targets.advice import described_from
from intact.targets.schema import Target
from intact.targets.scheme import Granularity

USUAL_BITS = 8
BEST = Remedy(options={"preset": "best", "improve": None})
EQUALIZE = Remedy(options={"improve": ["equalize"]})
OF_WEIGHTS = frozenset(["per_tensor_weights", "bias_overflow"])
"""Causes that lie in weights alone: what BatchNormalizations do to activations is not them."""
_FOLLOWS = (QuantState.PASSIVE, QuantState.PASSIVE_BAKED)
"""States of biases: their scale follows from those of input and weight."""
_CLOSE = Remedy(options={"weight_method": "minmax", "scales": None})
UNLIKE = 8.0
"""How many times as large as the middle channel, or as 99 % of the values, is an outlier."""
_NEARLY = 0.9
"""Part of the noise power that a remedy is to mend."""
_ROOM = 2.0
"""How many times as wide as its weights need a scale is, if it makes room for the bias."""


class _NamedCause(NamedTuple):
    """What a check found.

    Attributes:
        cause: Its name.
        why: Its figures.
        remedies: What may mend it.
        without: How the weight would be quantized without it.
    """

    cause: str
    why: str
    remedies: tuple[Remedy, ...]
    without: WithoutInConstant = constant_on_whole_range


_Points = Sequence[QuantPoint]


def weight_finding(
    plan: QuantizedGraph, runs: FloatRuns, output: str, part: float, heard: str
) -> Finding:
    """Name what is wrong with the weight or bias that costs most, and where it is.

    Args:
        plan: A plan with scales.
        runs: The samples that are tried.
        output: The output that loses.
        part: The part of the noise that weights and biases make, 0 to 1.
        heard: Whose noise, for the evidence.
    """
    points, weights = _constants(plan), _weight_points(plan)
    share = f"rounding weights makes {100 * part:.0f} % {heard}"
    trials = ConstantTrials(plan, runs, output, points)
    noises = narrow_down(points, trials.powers)
    if not noises or not noises[0].power > 0:
        return Finding("rounding", share, part, remedies=(BEST,))
    constant = _constant(noises[0].points[0])
    checks = _OF_WEIGHTS if _is_weight(constant.point) else _OF_BIASES
    fits = [each for check in checks if (each := check(constant, weights, plan.target))]
    explained = trials.explained_part(constant, [each.without for each in fits])
    named, gone = _rounding(constant), 0.0
    # The first that is nearly as good as the best: checks are listed from special to general.
    if max(explained, default=0.0) >= EXPLAINED:  # no number where no way gives one
        best = NEARLY * max(explained)
        named, gone = next(p for p in zip(fits, explained, strict=True) if p[1] >= best)
    name = _name(constant.point)
    why = f"{share}{MOST_AT}{name!r}: {named.why}"
    if gone:
        why += f"; without that, {100 * gone:.0f} % of what it costs is gone"
    node, remedies = constant.point.end.node, named.remedies
    return Finding(named.cause, why, part, node=node, tensor=name, remedies=remedies)


def bias_finding(plan: QuantizedGraph) -> Finding | None:
    """Find weights that give up half of their codes or more to make room for a bias.

    The severity is the part of the weights that do.
    """
    points = _weight_points(plan)
    # The widest speaks for all that make room.
    wide = max(points, key=_room, default=None)
    named = None if wide is None else _bias(_constant(wide), points, plan.target)
    if wide is None or named is None:
        return None
    part = sum(_room(point) > _ROOM for point in points) / len(points)
    node, tensor, remedies = wide.end.node, _name(wide), named.remedies
    why = f"{tensor!r}: {named.why}"
    return Finding(named.cause, why, part, node=node, tensor=tensor, remedies=remedies)


def _constants(plan: QuantizedGraph) -> list[QuantPoint]:
    """List the constants that round: a bias that a pass has corrected is meant to differ."""
    points = [point for point in quantization_points(plan) if point.is_constant]
    return [point for point in points if _is_weight(point) or point.baked is None]


def _weight_points(plan: QuantizedGraph) -> list[QuantPoint]:
    points = quantization_points(plan)
    return [point for point in points if point.is_constant and _is_weight(point)]


def _is_weight(point: QuantPoint) -> bool:
    return point.config.state not in _FOLLOWS


def _constant(point: QuantPoint) -> Constant:
    array = constant_array(point.value)
    values = np.zeros(0, np.float32) if array is None else array.astype(np.float32)
    outputs, inputs = _axes(point, values.ndim)
    return Constant(point, values, outputs, inputs)


def _axes(point: QuantPoint, rank: int) -> tuple[int | None, int | None]:
    """Return the axes of output and input channels of a weight; None where there are none."""
    node = point.readers[0][0]
    outputs = output_channel_axis(node) if _is_weight(point) else None
    if outputs is None or rank < 2:
        return None, None
    of_matrix = facts(node).channel_axis == -1
    # The other one of the last two axes of a matrix, or of the first two of a convolution's weight.
    inputs = 2 * rank - 3 - outputs if of_matrix else 1 - outputs
    return outputs, inputs if 0 <= inputs < rank else None


def _powers(weight: Constant, _: _Points, __: Target) -> _NamedCause | None:
    if not weight.point.config.policy & QuantPolicy.POWER_OF_2:
        return None
    return _NamedCause(
        "power_of_two", "its scales are powers of two", (BEST,), constant_on_any_scale
    )


def _bias(weight: Constant, points: _Points, target: Target) -> _NamedCause | None:
    room = _room(weight.point)
    if room <= _ROOM:
        return None
    why = f"its scale is {room:.3g} times what it needs, to make room for the bias"
    _, most = target.bias.range()
    remedies = _spare_weights(
        {point.end.node: _room(point) for point in points},
        _ROOM,
        target,
        lambda other: other.bias.range()[1] > most,
        "whose biases have more bits",
    )
    return _NamedCause("bias_overflow", why, remedies)


def _clipping(weight: Constant, _: _Points, __: Target) -> _NamedCause | None:
    if weight.point.config.grid.exponential or not weight.array.size:
        return None
    steps = np.asarray(weight.point.config.scale, np.float64)
    # Means over all values and all steps: channels are of one size, and blocks nearly.
    lost = float(np.mean(np.square(weight.array.astype(np.float64) - weight.now)))
    if not lost > CUT_AWAY * float(np.mean(steps**2)) / 12:
        return None
    low, high = weight.point.config.value_range()
    sizes = f"{weight.array.min():.4g} to {weight.array.max():.4g}"
    why = f"its values of {sizes} are cut off: the codes reach {low:.4g} to {high:.4g}"
    return _NamedCause("clipping", why, (_CLOSE,))


def _per_tensor(weight: Constant, points: _Points, target: Target) -> _NamedCause | None:
    unlike = _unlikeness(weight.point)
    if unlike <= UNLIKE:
        return None
    why = f"its largest channel is {unlike:.3g} times the middle one, and they share a scale"
    remedies = _spare_weights(
        {point.end.node: _unlikeness(point) for point in points},
        UNLIKE,
        target,
        lambda other: other.weight.granularity is Granularity.PER_CHANNEL,
        "with a weight scale for each channel",
    )
    return _NamedCause("per_tensor_weights", why, remedies, constant_by_output)


def _spare_weights(
    wider: Mapping[str, float],
    most: float,
    target: Target,
    fits: Callable[[Target], bool],
    which: str,
) -> tuple[Remedy, ...]:
    """Return what spares weights a target's rule.

    The few that make nearly all of the noise stay float. Where they are many, the model is
    quantized for the target that this one is described from, if that has not the rule.

    Args:
        wider: How many times as wide as it needs the step of each node's weight is.
        most: What is usual.
        target: The target.
        fits: Whether another target spares weights its rule.
        which: Such a target, in words.
    """
    advice = Remedy(text=f"quantize for a target {which}")
    given = [name for name, times in wider.items() if times > most]
    power = sum(times**2 for times in wider.values())
    # Noise power grows with the square of the step.
    if 2 * len(given) < len(wider) and sum(wider[name] ** 2 for name in given) > _NEARLY * power:
        return Remedy(options={"keep_float": given}), advice
    other = described_from(target, fits)
    return (Remedy(options={"target": other}), advice) if other else (advice,)


def _starved_channels(weight: Constant, _: _Points, __: Target) -> _NamedCause | None:
    times = _spread(weight.array, weight.inputs)
    if times <= UNLIKE:
        return None
    why = (
        f"some input channels are so small that their weights are {times:.3g} times those of the "
        "middle one"
    )
    return _NamedCause("dead_channel", why, (EQUALIZE,), constant_by_input)


def _few_bits(weight: Constant, _: _Points, __: Target) -> _NamedCause | None:
    if weight.point.config.bits >= USUAL_BITS:
        return None
    rounding = _rounding(weight)
    return rounding._replace(without=partial(constant_with_bits, bits=USUAL_BITS))


def _rounding(constant: Constant) -> _NamedCause:
    """Name what every quantizer does, where nothing else explains enough."""
    bits, node = constant.point.config.bits, constant.point.end.node
    if not _is_weight(constant.point):
        keep = Remedy(options={"keep_float": [node]})
        return _NamedCause("rounding", f"a bias of {bits} bits, whose step is too wide", (keep,))
    wider = Remedy(options={"weight_bits": USUAL_BITS, "bits": None})
    return _NamedCause("rounding", f"it has {bits} bits", (wider if bits < USUAL_BITS else BEST,))


def _short(bias: Constant, _: _Points, __: Target) -> _NamedCause | None:
    clipped = _clipping(bias, _, __)
    if clipped is None:
        return None
    keep = Remedy(options={"keep_float": [bias.point.end.node]})
    return _NamedCause("bias_overflow", clipped.why, (keep,))


_OF_WEIGHTS = (_powers, _bias, _clipping, _per_tensor, _starved_channels, _few_bits)
"""What a weight may suffer from. Of what fits, that is named without which most of its noise is
gone, special causes first where they are nearly equal."""
_OF_BIASES = (_short,)
"""What a bias may suffer from."""


def _name(point: QuantPoint) -> str:
    return str(point.value.name)


def _room(point: QuantPoint) -> float:
    """Return the width of a weight's codes against the largest code that a channel has.

    Of several scales that of the middle channel counts: one that is almost dead, with a bias
    beside its small weights, has much room and costs nothing.
    """
    array, config = constant_array(point.value), point.config
    if array is None or array.ndim < 2 or not array.any():
        return 0.0
    codes = np.abs(point.constant_codes().astype(np.int64))
    if not codes.any():
        return 0.0
    granularity = config.granularity
    if isinstance(granularity, PerChannel):
        codes = np.moveaxis(codes, granularity.axis, 0).reshape(codes.shape[granularity.axis], -1)
        codes = codes.max(axis=1)
    # `ndim` is 1 where each channel has a scale.
    most = codes.max() if codes.ndim > 1 else np.median(codes[codes > 0])
    return float(config.grid.quant_max / max(float(most), 1.0))


def _unlikeness(point: QuantPoint) -> float:
    """Return by how much the largest channel of a weight with one scale exceeds the middle one."""
    if not point.config.policy & QuantPolicy.PER_TENSOR:
        return 0.0
    weight = _constant(point)
    return _spread(weight.array, weight.outputs)


def _spread(array: npt.NDArray[np.float32], axis: int | None) -> float:
    """Return by how much the largest magnitude along an axis exceeds the middle one."""
    if axis is None or array.shape[axis] < 2 or not array.size:
        return 0.0
    sizes = np.abs(array).max(axis=tuple(other for other in range(array.ndim) if other != axis))
    sizes = sizes[sizes > 0].astype(np.float64)
    return float(sizes.max() / np.median(sizes)) if sizes.size else 0.0
