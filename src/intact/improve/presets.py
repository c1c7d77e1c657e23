"""Chooses the improvement passes that run where the user names none.

Plain calibration is as good as float where weights have 8 bits and a scale a channel. What makes
it lose is listed in `Weakness`; the table says what is done about each. A target's file may say
which preset is its default (``[calibration] preset``): those that stand for another tool's bytes
take ``fast``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact._extras import install_hint
from intact.graph import output_channel_axis, weight_slot
from intact.improve.passes import EXPECTED_BIAS, PASSES, Request, requests_of
from intact.plan import Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.stored_weights import is_stored

FEW_BITS = 6
"""Up to so many bits rounding to nearest is felt."""
_LOST_BITS = 1.0
"""What half of a weight's channels lose of their bits by a scale for all, to be felt."""

_LARGE = 1 << 22
"""Elements of weights that are not looked at: that would read them all into memory."""


class Weakness(StrEnum):
    """A property of a plan that makes plain calibration lose."""

    NONE = "nothing"
    FEW_WEIGHT_BITS = f"weights of {FEW_BITS} bits or fewer"
    FEW_CACHE_BITS = f"caches of {FEW_BITS} bits or fewer"
    FEW_ACTIVATION_BITS = f"activations of {FEW_BITS} bits or fewer"
    ONE_SCALE = "one scale for channels of unlike size"
    POWER_OF_TWO = "scales that are powers of two"


class Preset(StrEnum):
    """A level of effort, as ``--preset`` names it."""

    FAST = "fast"
    BALANCED = "balanced"
    BEST = "best"


PRESETS: Mapping[Preset, Mapping[Weakness, tuple[str, ...]]] = MappingProxyType(
    {
        Preset.FAST: {},
        Preset.BALANCED: {
            Weakness.FEW_WEIGHT_BITS: ("rounding",),
            Weakness.FEW_CACHE_BITS: ("rotate",),
            Weakness.FEW_ACTIVATION_BITS: ("smooth", "ranges", "rounding"),
            Weakness.ONE_SCALE: ("rounding",),
            Weakness.POWER_OF_TWO: ("rounding",),
        },
        Preset.BEST: {
            Weakness.NONE: ("equalize", "smooth", "ranges", "rounding"),
        },
    }
)
"""The passes by preset and weakness; where there are several weaknesses, those of all."""

_NOT_IN_BLOCKS = ("smooth",)
"""Left out where weights are in blocks: of scaled ones `rounding`, which runs too, makes good less
(SmolLM2: 0.2 to 0.8 dB in each layer, docs/blocks.md)."""


def passes_of(preset: Preset, weaknesses: Iterable[Weakness]) -> tuple[str, ...]:
    """Return the passes of a preset, in the order in which they run."""
    table = PRESETS[preset]
    wanted = {name for each in weaknesses for name in table.get(each, ())}
    wanted.update(table.get(Weakness.NONE, ()))
    return tuple(name for name in PASSES if name in wanted)


def weaknesses_of(plan: QuantizedGraph) -> tuple[Weakness, ...]:
    """List what makes plain calibration of a plan lose, without `Weakness.NONE`."""
    found = set(_weaknesses(plan))
    return tuple(each for each in Weakness if each in found)


def _weaknesses(plan: QuantizedGraph) -> Iterator[Weakness]:
    if plan.target.cache is not None and plan.target.cache.scheme is not None:
        from intact.plan.caches import cache_points  # which few plans need

        if any(point.config.bits <= FEW_BITS for point in cache_points(plan)):
            yield Weakness.FEW_CACHE_BITS
    for node in plan.graph.nodes:
        slot = weight_slot(node)
        value = None if slot is None else node.inputs[slot]
        weight = plan.configs.get(TensorEnd.input(str(node.name), slot or 0))
        if slot is None or value is None or weight is None:
            continue
        if not plan.is_quantized(node) and not is_stored(weight):
            continue
        array = plan.graph.constant(value)
        if array is None or not array.size:
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
    # Channels without weights lose nothing and would pull the median down.
    middle = float(np.median(reach[reach > 0])) if reach.any() else 0.0
    return middle > 0 and bool(np.log2(reach.max() / middle) >= _LOST_BITS)


class Choice(NamedTuple):
    """The passes for a plan.

    Attributes:
        requests: The requests, in the order in which they run.
        notes: What the user should know of that.
        unasked: What is said where they run though nobody asked for them; None if somebody did.
        adds: Whether further ones may run, where much is lost: nobody said which.
    """

    requests: tuple[Request, ...]
    notes: tuple[Note, ...] = ()
    unasked: Note | None = None
    adds: bool = False


def choose_passes(
    plan: QuantizedGraph,
    improve: Sequence[str],
    preset: str | None,
    *,
    readable: bool,
    drawn: bool = False,
) -> Choice:
    """Choose the passes: those that are named, or else those of the preset.

    Args:
        plan: Without scales.
        improve: The passes that the user names.
        preset: The preset that the user names.
        readable: Whether samples can be read several times.
        drawn: Whether they are drawn from BatchNormalizations, which tell means better than they.

    Raises:
        UsageError: A name is wrong.
    """
    if improve:
        return Choice(requests_of(improve))
    default = plan.target.calibration.preset
    level = Preset(preset or default)
    weaknesses = weaknesses_of(plan)
    names = passes_of(level, weaknesses)
    if any(config.grid.block is not None for config in plan.configs.values()):
        names = tuple(name for name in names if name not in _NOT_IN_BLOCKS)
    missing = [name for name in names if not PASSES[name].is_installed]
    names = tuple(name for name in names if name not in missing)
    if drawn and not names and level is not Preset.FAST:
        return Choice(requests_of([EXPECTED_BIAS]))
    # Nobody asked for a pass, and samples that come only once went into the statistics.
    if preset is None and not readable:
        return Choice(())
    notes = []
    unasked = _said(level, names, weaknesses) if preset is None and names else None
    if missing:
        notes.append(
            Note(
                NoteKind.CALIBRATION,
                "",
                f"preset {level} ran without {', '.join(missing)}: "
                f"{PASSES[missing[0]].needs} is not installed",
                remedy=install_hint("train"),
            )
        )
    adds = preset is None and level is not Preset.FAST and not drawn
    return Choice(requests_of(names), tuple(notes), unasked, adds)


def _said(level: Preset, names: Sequence[str], weaknesses: Sequence[Weakness]) -> Note:
    """Say in one line what is done that nobody asked for."""
    why = " and ".join(weaknesses)
    message = f"preset {level}: {', '.join(names)}, because of {why}"
    return Note(NoteKind.CALIBRATION, "", message, remedy="--preset fast leaves it out")
