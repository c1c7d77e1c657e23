"""What happens to an array before the model sees it: ``(values - mean) * scale``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError


@dataclass(frozen=True)
class Preprocess:
    """Mean and scale, per channel or one for all, applied to float32 inputs of rank 3 or more.

    Attributes:
        mean: Subtracted first, in the units of the data; empty for none. One number, or one
            for each channel (axis 1).
        scale: Multiplied next; empty for none.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def __call__(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the preprocessed batch (a new float32 array where there is anything to do).

        Raises:
            DataError: The number of channels is not that of ``mean`` or ``scale``.
        """
        if not (self.mean or self.scale) or values.dtype.kind not in "uif" or values.ndim < 2:
            return values
        result = values.astype(np.float32)
        if self.mean:
            result -= self._shaped(name, "mean", self.mean, result)
        if self.scale:
            result *= self._shaped(name, "scale", self.scale, result)
        return result

    def _shaped(
        self, name: str, what: str, numbers: tuple[float, ...], values: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]:
        array = np.asarray(numbers, np.float32)
        if not np.all(np.isfinite(array)):
            raise DataError(
                f"--{what} has a number that is not finite", remedy="give finite numbers"
            )
        if len(array) == 1:
            return array.reshape(())
        if len(array) != values.shape[1]:
            raise DataError(
                f"--{what} has {len(array)} numbers, input {name!r} has {values.shape[1]} channels",
                remedy="give one number, or one a channel",
            )
        return array.reshape(1, -1, *[1] * (values.ndim - 2))
