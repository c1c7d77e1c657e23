"""The parts of a grid as attributes of whatever lies on it."""

from __future__ import annotations

from intact.config.granularity import Granularity
from intact.config.grid import Grid
from intact.config.policy import QuantPolicy
from intact.numerics.levels import Levels, Scheme
from intact.numerics.rounding import Rounding


class OnGrid:
    """Something whose integers lie on a grid."""

    __slots__ = ("grid",)

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    @property
    def policy(self) -> QuantPolicy:
        """The kind of quantisation."""
        return self.grid.policy

    @property
    def rounding(self) -> Rounding:
        """How a quotient becomes an integer."""
        return self.grid.rounding

    @property
    def bits(self) -> int:
        """Width in bits, 2 to 32."""
        return self.grid.bits

    @property
    def quant_min(self) -> int:
        """Smallest integer used."""
        return self.grid.quant_min

    @property
    def quant_max(self) -> int:
        """Largest integer used."""
        return self.grid.quant_max

    @property
    def granularity(self) -> Granularity:
        """``PerTensor()`` or ``PerChannel(axis)``."""
        return self.grid.granularity

    @property
    def scheme(self) -> Scheme:
        """How the levels lie around zero."""
        return self.grid.scheme

    @property
    def levels(self) -> Levels:
        """What a threshold method takes."""
        return self.grid.levels

    def same_grid(self, other: OnGrid) -> bool:
        """Whether equal integers mean equal values on both, given equal scales."""
        return self.grid == other.grid
