"""What is wrong with weights that cost an output most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.config import PerChannel, QuantPolicy, QuantState
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
UNLIKE = 8.0
"""How many times as large as the middle channel, or as 99 % of the values, is an outlier."""
_NEARLY = 0.9
"""Part of the noise power that a remedy is to mend."""
_ROOM = 2.0
"""How many times as wide as its weights need a scale is, if it makes room for the bias."""


class _Named(NamedTuple):
    """What a check found: a cause, its figures, its remedies, and the weight if it is one."""

    cause: str
    why: str
    remedies: tuple[Remedy, ...]
    point: QuantPoint | None = None


_Points = Sequence[QuantPoint]


def weight_finding(plan: QuantizedGraph, part: float, heard: str) -> Finding:
    """Name what is wrong with weights that cost most.

    Args:
        plan: A plan with scales.
        part: The part of the noise that they make, 0 to 1.
        heard: Whose noise, for the evidence.
    """
    points = _weight_points(plan)
    named = next(found for check in _CHECKS if (found := check(points, plan.target)) is not None)
    return _finding(named, f"rounding weights makes {100 * part:.0f} % {heard}; ", part)


def bias_finding(plan: QuantizedGraph) -> Finding | None:
    """Find weights that give up half of their codes or more to make room for a bias.

    The severity is the part of the weights that do.
    """
    points = _weight_points(plan)
    named = _bias(points, plan.target)
    if named is None:
        return None
    return _finding(named, "", sum(_room(point) > _ROOM for point in points) / len(points))


def _finding(named: _Named, heard: str, part: float) -> Finding:
    node, tensor = "", ""
    if named.point is not None:
        node, tensor = named.point.end.node, _name(named.point)
    evidence = (heard + named.why).removesuffix("; ")
    return Finding(named.cause, evidence, part, node=node, tensor=tensor, remedies=named.remedies)


def _weight_points(plan: QuantizedGraph) -> list[QuantPoint]:
    return [
        point
        for point in quantization_points(plan)
        if point.is_constant and point.config.state not in _FOLLOWS
    ]


def _powers(points: _Points, _: Target) -> _Named | None:
    if not any(point.config.policy & QuantPolicy.POWER_OF_2 for point in points):
        return None
    return _Named("power_of_two", "", (BEST,))


def _bias(points: _Points, target: Target) -> _Named | None:
    wide = max(points, key=_room, default=None)
    if wide is None or _room(wide) <= _ROOM:
        return None
    why = (
        f"the scale of {_name(wide)!r} is {_room(wide):.3g} times what it needs, to make room for "
        "its bias"
    )
    _, most = target.bias.range()
    remedies = _without(
        {point.end.node: _room(point) for point in points},
        _ROOM,
        target,
        lambda other: other.bias.range()[1] > most,
        "whose biases have more bits",
    )
    return _Named("bias_overflow", why, remedies, wide)


def _per_tensor(points: _Points, target: Target) -> _Named | None:
    unlike = max(points, key=_unlikeness, default=None)
    if unlike is None or _unlikeness(unlike) <= UNLIKE:
        return None
    why = (
        f"the largest channel of {_name(unlike)!r} is {_unlikeness(unlike):.3g} times the middle "
        "one, and they share a scale"
    )
    remedies = _without(
        {point.end.node: _unlikeness(point) for point in points},
        UNLIKE,
        target,
        lambda other: other.weight.granularity is Granularity.PER_CHANNEL,
        "with a weight scale for each channel",
    )
    return _Named("per_tensor_weights", why, remedies, unlike)


def _without(
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
    if 2 * len(given) < len(wider) and sum(wider[name] ** 2 for name in given) > _NEARLY * power:
        return Remedy(options={"keep_float": given}), advice
    other = described_from(target, fits)
    return (Remedy(options={"target": other}), advice) if other else (advice,)


def _starved(points: _Points, _: Target) -> _Named | None:
    fed = max(points, key=_starvation, default=None)
    if fed is None or _starvation(fed) <= UNLIKE:
        return None
    why = (
        f"some input channels of {_name(fed)!r} are so small that their weights are "
        f"{_starvation(fed):.3g} times those of the middle one"
    )
    return _Named("dead_channel", why, (EQUALIZE,), fed)


def _rounding(points: _Points, _: Target) -> _Named | None:
    few = min(points, key=lambda point: point.config.bits, default=None)
    if few is None:  # a plan without weights, asked for nevertheless
        return _Named("rounding", "", (BEST,))
    bits = few.config.bits
    wider = Remedy(options={"weight_bits": USUAL_BITS, "bits": None})
    remedy = wider if bits < USUAL_BITS else BEST
    return _Named("rounding", f"those of {few.end.node!r} have {bits} bits", (remedy,), few)


_CHECKS = (_powers, _bias, _per_tensor, _starved, _rounding)
"""What weights may suffer from; the first that fits is named, special causes first."""


def _name(point: QuantPoint) -> str:
    return str(point.value.name)


def _weights(point: QuantPoint) -> npt.NDArray[np.float64] | None:
    """Return the magnitudes of a weight, ``[outputs, inputs, ...]``; None if it is none."""
    value = point.value.const_value
    if value is None or len(value.shape) < 2 or not value.size:
        return None
    return np.abs(value.numpy().astype(np.float64))


def _room(point: QuantPoint) -> float:
    """Return the width of a weight's codes against the largest code that a channel has.

    Of several scales that of the middle channel counts: one that is almost dead, with a bias
    beside its small weights, has much room and costs nothing.
    """
    array, config = _weights(point), point.config
    if array is None or not array.any():
        return 0.0
    codes = np.abs(point.constant_codes().astype(np.int64))
    if not codes.any():
        return 0.0
    granularity = config.granularity
    if isinstance(granularity, PerChannel):
        codes = np.moveaxis(codes, granularity.axis, 0).reshape(codes.shape[granularity.axis], -1)
        codes = codes.max(axis=1)
    most = codes.max() if codes.ndim > 1 else np.median(codes[codes > 0])
    return float(config.grid.quant_max / max(float(most), 1.0))


def _unlikeness(point: QuantPoint) -> float:
    """Return by how much the largest channel of a weight with one scale exceeds the middle one."""
    array = _weights(point)
    if array is None or not point.config.policy & QuantPolicy.PER_TENSOR:
        return 0.0
    return _spread(array.reshape(len(array), -1).max(axis=1))


def _starvation(point: QuantPoint) -> float:
    """Return by how much the weights of one input exceed those of the middle one."""
    array = _weights(point)
    if array is None or array.shape[1] < 2:
        return 0.0
    return _spread(array.max(axis=tuple(axis for axis in range(array.ndim) if axis != 1)))


def _spread(sizes: npt.NDArray[np.float64]) -> float:
    sizes = sizes[sizes > 0]
    return float(sizes.max() / np.median(sizes)) if sizes.size else 0.0
