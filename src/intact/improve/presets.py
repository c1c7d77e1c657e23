"""Presets: which improvement passes run where nobody names them.

Plain calibration is as good as float where weights have 8 bits and a scale a channel. What makes
it lose is listed in `Weakness`; the table says what is done about each. A target's file may say
which preset is its default (``[calibration] preset``): those that stand for another tool's bytes
take ``fast``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.graph import output_channel_axis, weight_slot
from intact.improve.passes import PASSES
from intact.plan import QuantizedGraph, TensorEnd

FEW_BITS = 6
"""Up to so many bits rounding to nearest is felt."""
_LOST_BITS = 1.0
"""What half of a weight's channels lose of their bits by a scale for all, to be felt."""

_LARGE = 1 << 22
"""Elements of weights that are not looked at: that would read them all into memory."""


class Weakness(StrEnum):
    """What makes plain calibration lose."""

    NONE = "nothing"
    FEW_WEIGHT_BITS = f"weights of {FEW_BITS} bits or fewer"
    FEW_ACTIVATION_BITS = f"activations of {FEW_BITS} bits or fewer"
    ONE_SCALE = "one scale for channels of unlike size"
    POWER_OF_TWO = "scales that are powers of two"


class Preset(StrEnum):
    """How much is done."""

    FAST = "fast"
    BALANCED = "balanced"
    BEST = "best"


PRESETS: Mapping[Preset, Mapping[Weakness, tuple[str, ...]]] = MappingProxyType(
    {
        Preset.FAST: {},
        Preset.BALANCED: {
            Weakness.FEW_WEIGHT_BITS: ("rounding",),
            Weakness.FEW_ACTIVATION_BITS: ("smooth", "ranges", "rounding"),
            Weakness.ONE_SCALE: ("rounding",),
            Weakness.POWER_OF_TWO: ("rounding",),
        },
        Preset.BEST: {
            Weakness.NONE: ("smooth", "ranges", "rounding"),
            Weakness.ONE_SCALE: ("equalize",),
        },
    }
)
"""The passes by preset and weakness; where there are several weaknesses, those of all."""


def passes_of(preset: Preset, weaknesses: Iterable[Weakness]) -> tuple[str, ...]:
    """Return the passes of a preset, in the order in which they run."""
    table = PRESETS[preset]
    chosen = {name for each in weaknesses for name in table.get(each, ())}
    chosen.update(table.get(Weakness.NONE, ()))
    return tuple(name for name in PASSES if name in chosen)


def weaknesses_of(plan: QuantizedGraph) -> tuple[Weakness, ...]:
    """List what makes plain calibration of a plan lose, without `Weakness.NONE`."""
    found = set(_weaknesses(plan))
    return tuple(each for each in Weakness if each in found)


def _weaknesses(plan: QuantizedGraph) -> Iterator[Weakness]:
    for node in plan.graph.nodes:
        slot = weight_slot(node)
        value = None if slot is None else node.inputs[slot]
        if slot is None or value is None or not plan.is_quantized(node):
            continue
        weight = plan.configs.get(TensorEnd.input(str(node.name), slot))
        array = plan.graph.constant(value)
        if weight is None or array is None or not array.size:
            continue
        if weight.bits <= FEW_BITS:
            yield Weakness.FEW_WEIGHT_BITS
        if weight.grid.power_of_two:
            yield Weakness.POWER_OF_TWO
        if weight.granularity.axis is None and _are_unlike(array, output_channel_axis(node)):
            yield Weakness.ONE_SCALE
        data = plan.configs.get(TensorEnd.input(str(node.name), 0))
        if data is not None and data.bits <= FEW_BITS:
            yield Weakness.FEW_ACTIVATION_BITS


def _are_unlike(weight: npt.NDArray[Any], axis: int | None) -> bool:
    """Tell whether one scale is too coarse for half of the channels."""
    if axis is None or weight.shape[axis] < 2 or weight.size > _LARGE:
        return False
    others = tuple(each for each in range(weight.ndim) if each != axis)
    # without a copy of the weight
    reach = np.maximum(weight.max(axis=others), -weight.min(axis=others))
    middle = float(np.median(reach[reach > 0])) if reach.any() else 0.0
    return middle > 0 and bool(np.log2(reach.max() / middle) >= _LOST_BITS)
