"""Layers that give floats, each computed from the runtime's own inputs and compared with those."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError

ROUNDING = 1e-5
"""Differences of float sums up to here, relative to the largest result, are of their order alone:
4e-7 was measured at most, for sums of thousands."""


@dataclass
class FloatComparison:
    """The floats of one layer, compared between what was deployed and the plan.

    Attributes:
        end: Where they are: an end of the plan.
        operation: What made them.
        values: How many were compared.
        largest: The largest difference.
        relative: The same, relative to the largest magnitude of a value that the plan expects.
    """

    end: str
    operation: str
    values: int = 0
    largest: float = 0.0
    relative: float = 0.0

    def __post_init__(self) -> None:
        """Begin with no magnitude; it is no field, which would be shown."""
        self._reach = 0.0

    @property
    def differs(self) -> bool:
        """Whether they differ by more than the order of sums explains."""
        return not self.relative <= ROUNDING

    def add(self, deployed: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
        """Compare one batch; NaN equals NaN.

        Raises:
            DataError: The two have different shapes.
        """
        if deployed.shape != expected.shape:
            raise DataError(
                f"{self.end}: the deployed model gives {list(deployed.shape)}, "
                f"its plan {list(expected.shape)}",
                remedy="compare a model with the plan that it was written from",
            )
        self.values += expected.size
        finite = np.isfinite(expected)
        reach = np.abs(expected[finite]).max(initial=0.0)
        same = (deployed == expected) | (np.isnan(deployed) & np.isnan(expected))
        difference = 0.0
        if not same.all():
            apart = np.abs(deployed.astype(np.float64) - expected)[~same].max()
            difference = float(apart) if np.isfinite(apart) else math.inf
        self._join(difference, float(reach))

    def join(self, more: FloatComparison) -> None:
        """Add what was compared of further samples."""
        self.values += more.values
        self._join(more.largest, more._reach)

    def _join(self, largest: float, reach: float) -> None:
        self.largest, self._reach = max(self.largest, largest), max(self._reach, reach)
        self.relative = self.largest / self._reach if self._reach else self.largest
