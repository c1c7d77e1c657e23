"""What a pass gained at one place, measured on samples that it did not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec


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


Report: TypeAlias = Callable[[Gain], None]
"""Takes each gain as it is measured."""


def unreported(gain: Gain) -> None:
    """Ignore a gain."""
