"""What happens to data before the model sees it: image steps, then ``(values - mean) * scale``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError, nearest
from intact.samples.images.steps import ImageSteps
from intact.samples.signature import InputSpec


@dataclass(frozen=True)
class Preprocess:
    """Mean and scale, per channel or one for all, and what is done to images before.

    Mean and scale are applied to the float inputs of rank 3 or more; in a model that has none, to
    those of rank 2.

    Attributes:
        mean: Subtracted first, in the units of the data; empty for none. One number, or one
            for each channel: axis 1, or the last axis where only that has so many.
        scale: Multiplied next; empty for none.
        image: The steps for folders of images; arrays come as the model takes them.

    Raises:
        DataError: A number is not finite, or a scale is 0.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    image: ImageSteps = field(default_factory=ImageSteps)

    def __post_init__(self) -> None:
        for what, given in (("mean", self.mean), ("scale", self.scale)):
            object.__setattr__(self, what, _finite(what, given))
        if 0 in self.scale:
            raise DataError(
                "--scale 0 makes every sample the same", remedy="leave it out for no scale"
            )

    def inputs(self, specs: Mapping[str, InputSpec]) -> frozenset[str]:
        """Return the names of the inputs that mean and scale are for.

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
        """Return the batch after mean and scale (a new float32 array where there are any).

        Raises:
            DataError: The number of channels is not that of ``mean`` or ``scale``.
        """
        if values.dtype.kind not in "buif" or values.ndim < 2:
            return values
        return self.scaled(name, values)

    def scaled(
        self, name: str, values: npt.NDArray[Any], axis: int | None = None
    ) -> npt.NDArray[Any]:
        """Return what calling it returns, with the axis of the channels where that is known.

        Raises:
            DataError: The number of channels is not that of ``mean`` or ``scale``.
        """
        if not (self.mean or self.scale):
            return values
        with np.errstate(over="ignore"):  # what becomes infinite is named when it is checked
            result = values.astype(np.float32)
            if self.mean:
                result -= _shaped(name, "mean", self.mean, result, axis)
            if self.scale:
                result *= _shaped(name, "scale", self.scale, result, axis)
        return result


def preprocess_with(base: Preprocess, changes: Mapping[str, object]) -> Preprocess:
    """Return ``base`` with other values; what is None there stays as it was.

    Args:
        base: For instance what a file says.
        changes: By name of a field of :class:`Preprocess` or of :class:`ImageSteps`.

    Raises:
        DataError: There is no such field, or the whole does not fit together.
    """
    changed = {name: value for name, value in changes.items() if value is not None}
    of_images = {each.name for each in fields(ImageSteps)}
    of_arrays = {"mean", "scale"}
    for name in changed:
        if name not in of_images | of_arrays:
            raise DataError(
                f"there is no preprocessing step {name!r}",
                remedy=nearest(name, of_images | of_arrays),
            )
    image: dict[str, Any] = {name: changed[name] for name in changed if name in of_images}
    arrays: dict[str, Any] = {name: changed[name] for name in changed if name in of_arrays}
    return replace(base, **arrays, image=replace(base.image, **image))


def _finite(what: str, given: Any) -> tuple[float, ...]:
    if not isinstance(given, list | tuple) or not all(
        isinstance(number, Real) and not isinstance(number, bool) for number in given
    ):
        raise DataError(f"--{what} is no list of numbers", remedy="give one, or one a channel")
    try:
        numbers = tuple(float(number) for number in given)
    except OverflowError:
        numbers = (np.inf,)
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise DataError(f"--{what} has a number that is not finite", remedy="give finite numbers")
    return numbers


def _shaped(
    name: str, what: str, numbers: tuple[float, ...], values: npt.NDArray[Any], axis: int | None
) -> npt.NDArray[np.float32]:
    """Return the numbers so that they broadcast along the channels."""
    array = np.asarray(numbers, np.float32)
    if len(array) == 1:
        return array.reshape(())
    if axis is None and len(array) != values.shape[1] and len(array) == values.shape[-1]:
        axis = values.ndim - 1
    axis = 1 if axis is None else axis
    if len(array) == values.shape[axis]:
        return array.reshape(-1, *[1] * (values.ndim - 1 - axis))
    raise DataError(
        f"--{what} has {len(array)} numbers, input {name!r} has {values.shape[axis]} channels",
        remedy="give one number, or one a channel",
    )
