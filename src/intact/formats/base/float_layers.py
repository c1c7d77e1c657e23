"""Compares layers that give floats with the engine, each from the runtime's own inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError

_ROUNDING = 1e-6
"""Differences of float sums up to here, relative to the largest result, or to the largest sum of
what is added without signs, are of their order alone: 4e-7 was measured at most, for thousands."""


@dataclass
class FloatComparison:
    """The floats of one layer, compared between what was deployed and the plan.

    Attributes:
        end: Where they are: an end of the plan.
        operation: What made them.
        values: How many were compared.
        largest: The largest difference.
        relative: The same, relative to the largest magnitude of a value that the plan expects.
        differs: Whether they differ by more than the order of sums explains.
    """

    end: str
    operation: str
    values: int = 0
    largest: float = 0.0
    relative: float = 0.0
    differs: bool = False

    def __post_init__(self) -> None:
        """Begin with no magnitude; it is no field, which would be shown."""
        self._reach = 0.0

    def add(
        self,
        deployed: npt.NDArray[Any],
        expected: npt.NDArray[Any],
        terms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Compare one batch; NaN equals NaN.

        Args:
            deployed: What the runtime gave.
            expected: What the plan gives.
            terms: Returns the largest sum of the magnitudes of what one value is added from, which
                is asked for where the results alone do not explain a difference: large numbers
                may cancel.

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
        # One infinity would make every other difference small beside it.
        finite = np.isfinite(expected)
        reach = np.abs(expected[finite]).max(initial=0.0)
        same = (deployed == expected) | (np.isnan(deployed) & np.isnan(expected))
        difference = 0.0
        if not same.all():
            # Only of what differs: equal infinities have no difference.
            apart = np.abs(deployed.astype(np.float64) - expected)[~same].max()
            difference = float(apart) if np.isfinite(apart) else math.inf
        self._join(difference, float(reach))
        # Written with `not`, so that a difference that is NaN counts; the terms cost a
        # product, and are asked for last.
        if not difference <= _ROUNDING * reach and not difference <= _ROUNDING * terms():
            self.differs = True

    def join(self, more: FloatComparison) -> None:
        """Add what was compared of further samples."""
        self.values += more.values
        self.differs = self.differs or more.differs
        self._join(more.largest, more._reach)

    def _join(self, largest: float, reach: float) -> None:
        self.largest, self._reach = max(self.largest, largest), max(self._reach, reach)
        self.relative = self.largest / self._reach if self._reach else self.largest
