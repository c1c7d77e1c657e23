"""What happens to an array before the model sees it: ``(values - mean) * scale``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.samples.signature import InputSpec


@dataclass(frozen=True)
class Preprocess:
    """Mean and scale, per channel or one for all.

    Applied to the float inputs of rank 3 or more; in a model that has none, to those of rank 2.

    Attributes:
        mean: Subtracted first, in the units of the data; empty for none. One number, or one
            for each channel: axis 1, or the last axis where only that has so many.
        scale: Multiplied next; empty for none.

    Raises:
        DataError: A number is not finite, or a scale is 0.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for what, numbers in (("mean", self.mean), ("scale", self.scale)):
            if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
                raise DataError(
                    f"--{what} has a number that is not finite", remedy="give finite numbers"
                )
        if 0 in self.scale:
            raise DataError(
                "--scale 0 makes every sample the same", remedy="leave it out for no scale"
            )

    def inputs(self, specs: Mapping[str, InputSpec]) -> frozenset[str]:
        """Return the names of the inputs that it is for.

        Raises:
            DataError: There is something to do, and no input for it.
        """
        if not (self.mean or self.scale):
            return frozenset()
        ranks = {n: len(spec.shape) for n, spec in specs.items() if spec.dtype.kind == "f"}
        largest = max(ranks.values(), default=0)
        if largest < 2:
            raise DataError(
                "--mean and --scale are for float inputs of rank 2 or more, the model has none",
                remedy="leave them out",
            )
        return frozenset(name for name, rank in ranks.items() if rank >= min(largest, 3))

    def __call__(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the preprocessed batch (a new float32 array where there is anything to do).

        Raises:
            DataError: The number of channels is not that of ``mean`` or ``scale``.
        """
        if not (self.mean or self.scale) or values.dtype.kind not in "buif" or values.ndim < 2:
            return values
        with np.errstate(over="ignore"):  # what becomes infinite is named when it is checked
            result = values.astype(np.float32)
            if self.mean:
                result -= _shaped(name, "mean", self.mean, result)
            if self.scale:
                result *= _shaped(name, "scale", self.scale, result)
        return result


def _shaped(
    name: str, what: str, numbers: tuple[float, ...], values: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Return the numbers so that they broadcast along the channels."""
    array = np.asarray(numbers, np.float32)
    if len(array) == 1:
        return array.reshape(())
    if len(array) == values.shape[1]:
        return array.reshape(1, -1, *[1] * (values.ndim - 2))
    if len(array) == values.shape[-1]:
        return array
    raise DataError(
        f"--{what} has {len(array)} numbers, input {name!r} has {values.shape[1]} channels",
        remedy="give one number, or one a channel",
    )
