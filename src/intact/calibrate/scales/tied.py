"""The one range of ends that share a scale, from those of their tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from intact.config import TensorQuantConfig
from intact.plan.rectify import THRESHOLD_RECTIFY, Follows, Range


@dataclass
class TiedRanges:
    """The ranges of one group, gathered in the order of the plan's points.

    Attributes:
        root: The group's dominator.
    """

    root: TensorQuantConfig
    _follows: str = Follows.MASTER
    _bits: list[int] = field(default_factory=list)
    _ranges: list[Range] = field(default_factory=list)

    def add(self, config: TensorQuantConfig, found: Range) -> None:
        """Take in the range of an end of the group."""
        at = len(self._bits)
        if config is self.root:
            at = 0
        else:
            self._follows = str(config.detail["follows"])
        self._bits.insert(at, config.bits)
        self._ranges.insert(at, found)

    def common(self) -> Range:
        """Return the range of the root that holds for all (``threshold_rectify``)."""
        return THRESHOLD_RECTIFY[self._follows](self._bits, self._ranges)[0]
