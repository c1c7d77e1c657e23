"""Declares what improvement passes did and gained: measured, and kept in the plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

_DECIMALS = 1
"""Digits of decibels in a plan: those of machines differ a little."""

_MOST = 999.9
"""Stands for infinitely many: more than floats can have."""


class Gain(msgspec.Struct, frozen=True):
    """What a pass did to a layer or to a block of layers.

    Attributes:
        node: The node whose result was compared with the float model's: the last of the block.
        before: Its signal to quantization noise, dB, on held-out samples.
        after: The same with what the pass tried.
        kept: Whether the pass kept it. What did not help is rolled back.
    """

    node: str
    before: float
    after: float
    kept: bool

    @property
    def stored(self) -> Gain:
        """The value as a plan keeps it."""
        return _round(self)


class Improvement(msgspec.Struct, frozen=True):
    """What a pass did to a plan.

    Attributes:
        name: The pass, with the options that were given.
        before: Signal to quantization noise of the model's outputs, dB, their mean.
        after: The same with the pass.
        kept: Whether it was kept. A pass after which an output loses is rolled back.
        gains: What the layers or blocks that it tried gained.
    """

    name: str
    before: float
    after: float
    kept: bool
    gains: tuple[Gain, ...] = ()

    @property
    def stored(self) -> Improvement:
        """The value as a plan keeps it."""
        # Of a layer that gives zeros alone nothing can be said.
        told = (each for each in self.gains if not math.isnan(each.before + each.after))
        gains = tuple(each.stored for each in told)
        return msgspec.structs.replace(_round(self), gains=gains)


Report: TypeAlias = Callable[[Gain], None]
"""Takes each gain as it is measured."""


def unreported(gain: Gain) -> None:
    """Ignore a gain."""


_Measured = TypeVar("_Measured", Gain, Improvement)


def _round(measured: _Measured) -> _Measured:
    # A file of JSON holds no infinity, and no NaN, which is the least here.
    ends = (min(max(-_MOST, each), _MOST) for each in (measured.before, measured.after))
    before, after = (round(each, _DECIMALS) for each in ends)
    return msgspec.structs.replace(measured, before=before, after=after)
