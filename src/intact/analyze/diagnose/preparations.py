"""Lists other ways to prepare the same data, one of which a user may have meant.

Pixels in 0..1 instead of 0..255, for example, BGR instead of RGB, or channels last.

All are affine for each channel, with the channels perhaps in the other order, or in another layout.
They start from the data before the given steps, which are undone: data in a file may be pixels,
pixels in another range, or pixels that were normalized before. Only what gives pixels of 0 to 255
can be undone so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.preprocess import NORMALIZATIONS, Preprocess, preprocess_with

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

_COLOURS = 3
_BRIGHTEST = 255.0
_SLACK = 0.5
"""By how much undone pixels may lie outside 0 to 255: half a pixel's step, for rounding."""
_DARKEST = 2.0
"""Undone pixels that are no larger were in a smaller unit."""


class Steps(msgspec.Struct, frozen=True, eq=False):
    """``(values - mean) * scale``, with the values' channels in the other order if ``swaps``.

    Attributes:
        mean: ``[channels]``, or ``[1]`` for all.
        scale: ``[channels]``, or ``[1]`` for all.
        swaps: Whether the channels are reversed first.
        rearranges: Whether the values of a sample are read in the other layout first.
    """

    mean: Doubles
    scale: Doubles
    swaps: bool = False
    rearranges: bool = False

    @staticmethod
    def of(preprocess: Preprocess) -> Steps:
        """Make the steps of a preprocessing, in the order of channels that the data has."""
        return Steps(_row(preprocess.mean, 0.0), _row(preprocess.scale, 1.0))

    def after(self, first: Steps) -> Steps:
        """Join these steps with those before them."""
        # Steps that come first have their channels in the order before the swap.
        mean, scale = (each[::-1] if self.swaps else each for each in (first.mean, first.scale))
        return Steps(
            mean + self.mean / scale,
            scale * self.scale,
            self.swaps != first.swaps,
            self.rearranges != first.rearranges,
        )

    @property
    def inverse(self) -> Steps:
        """The steps that undo mean and scale."""
        return Steps(-self.mean * self.scale, 1 / self.scale)

    def apply(self, values: npt.NDArray[Any], axis: int) -> Floats:
        """Map an array whose channels are along ``axis``."""
        wide = values.astype(np.float64)
        if self.rearranges:
            wide = rearrange(wide, axis)
        if self.swaps:
            wide = np.flip(wide, axis)
        shape = (-1, *(1,) * (values.ndim - 1 - axis))
        return ((wide - self.mean.reshape(shape)) * self.scale.reshape(shape)).astype(np.float32)

    def equals(self, other: Steps) -> bool:
        """Tell whether both do the same, but for rounding."""
        same = self.swaps == other.swaps and self.rearranges == other.rearranges
        pairs = (self.mean, other.mean), (self.scale, other.scale)
        return same and all(np.allclose(one, two, rtol=1e-4, atol=1e-6) for one, two in pairs)


_NOTHING = Steps(np.zeros(1), np.ones(1))


class Preparation(msgspec.Struct, frozen=True, eq=False):
    """A way to prepare the data.

    Attributes:
        steps: What leads from the data before the given steps to the model's input.
        normalization: Its name in `NORMALIZATIONS`; "" if it has none.
    """

    steps: Steps
    normalization: str = ""

    @property
    def name(self) -> str:
        """What it is called in evidence: ``--normalize imagenet``."""
        steps = self.steps
        if self.normalization:
            return f"--normalize {self.normalization}"
        parts = ["the channels in the other order"] * steps.swaps
        parts += ["the numbers in the other layout"] * steps.rearranges
        if steps.mean.any():
            parts.append(f"--mean {_join_numbers(steps.mean)}")
        if (steps.scale != 1).any():
            deviations = 1 / steps.scale
            is_std = bool((np.abs(deviations) >= 1).all())
            parts.append(
                f"--std {_join_numbers(deviations)}"
                if is_std
                else f"--scale {_join_numbers(steps.scale)}"
            )
        return " and ".join(parts) if parts else "no mean and no scale"


def swap_channels(preparation: Preparation) -> Preparation:
    """Return the same with the channels in the other order first."""
    steps = preparation.steps
    return Preparation(msgspec.structs.replace(steps, swaps=not steps.swaps))


def rearrange(values: Doubles, axis: int) -> Doubles:
    """Read the numbers of each sample in the other layout, ``[H, W, C]`` for ``[C, H, W]``."""
    count, *sizes = values.shape
    if axis == 1:
        channels, *rest = sizes
        return np.moveaxis(values.reshape(count, *rest, channels), -1, 1)
    *rest, channels = sizes
    return np.moveaxis(values.reshape(count, channels, *rest), 1, -1)


def channel_axis(shape: tuple[int | None, ...]) -> int | None:
    """Return the axis of an image's channels; None of what is no image."""
    if len(shape) != 4:
        return None
    return next((axis for axis in (1, 3) if shape[axis] in (1, _COLOURS)), None)


def preparations(data: Floats, axis: int, given: Preprocess) -> list[Preparation]:
    """List other ways to prepare some data than the given one.

    Args:
        data: Samples before the given steps; images, or others.
        axis: Axis of their channels.
        given: The steps that they were given.
    """
    current = Steps.of(given)
    found: list[Preparation] = []
    seen = [current]
    for each in _all(data, axis, current):
        steps = each.steps
        is_finite = np.isfinite([*steps.mean, *steps.scale]).all()
        fits = all(row.size in (1, data.shape[axis]) for row in (steps.mean, steps.scale))
        if is_finite and fits and not any(steps.equals(other) for other in seen):
            seen.append(steps)
            found.append(each)
    return found


def _all(data: Floats, axis: int, given: Steps) -> Iterator[Preparation]:
    is_image = channel_axis(data.shape) == axis
    if is_image:
        # Before all others: of ways that are equally good the first is named.
        yield _preparation(msgspec.structs.replace(given, rearranges=True))
    if is_image and data.shape[axis] == _COLOURS:
        yield _preparation(msgspec.structs.replace(given, swaps=True))
    for undo in _undoing_steps(data) if is_image else [_NOTHING]:
        # Joined with what undoes other steps, a normalization is no longer the named one.
        is_plain = undo.equals(_NOTHING)
        for name, steps in _wanted_steps(undo.apply(data, axis), axis, given, of_images=is_image):
            yield _preparation(steps.after(undo), name if is_plain else "")


def _undoing_steps(data: Floats) -> list[Steps]:
    """Return what may bring data back to pixels; those first that use most of the range.

    At most two: a normalized image may also be taken for a pale one in another range.
    """
    flat = data.reshape(-1)
    low, high = float(flat.min()), float(flat.max())
    found: list[tuple[float, Steps]] = []
    for steps in _normalizations().values():
        undo = steps.inverse
        ends = np.array([(low - undo.mean) * undo.scale, (high - undo.mean) * undo.scale])
        # Only what would give possible pixels may have been done.
        inside = ends.min() >= -_SLACK and ends.max() <= _BRIGHTEST + _SLACK
        if inside and ends.max() > _DARKEST:
            found.append((float(np.ptp(ends)), undo))
    return [undo for _, undo in sorted(found, key=lambda each: -each[0])[:2]]


def _normalizations() -> dict[str, Steps]:
    """Return the named ways to bring pixels of 0 to 255 to a model, with "" for pixels."""
    named = {
        name: Steps.of(preprocess_with(Preprocess(), {"normalize": name}))
        for name in NORMALIZATIONS
    }
    return {"": _NOTHING, **named}


def _wanted_steps(
    pixels: Floats, axis: int, given: Steps, *, of_images: bool
) -> Iterator[tuple[str, Steps]]:
    """Yield what data may be wanted as, with names where they have one.

    Beside the named ones, which are for pixels: the given steps, their scale for a deviation, both
    on values a 255th of these; and the data's own mean and deviation, to which many models are
    trained.
    """
    for name, steps in _normalizations().items():
        swaps = NORMALIZATIONS.get(name, {}).get("order", "rgb") != "rgb"
        if of_images or not name:
            yield name, Steps(steps.mean, steps.scale, swaps)
    turned = Steps(given.mean, 1 / given.scale)
    small = Steps(np.zeros(1), np.full(1, 1 / _BRIGHTEST))
    for steps in (given, turned, given.after(small), turned.after(small)):
        yield "", steps
    axes = tuple(each for each in range(pixels.ndim) if each != axis)
    deviation = pixels.std(axis=axes, dtype=np.float64)
    # A constant channel has no deviation to divide by.
    if deviation.all():
        yield "", Steps(pixels.mean(axis=axes, dtype=np.float64), 1 / deviation)


def _preparation(steps: Steps, normalization: str = "") -> Preparation:
    short = msgspec.structs.replace(steps, mean=_short(steps.mean), scale=_short(steps.scale))
    return Preparation(short, normalization)


def _join_numbers(numbers: Doubles) -> str:
    return ",".join(f"{number:.4g}" for number in numbers)


def _short(numbers: Doubles) -> Doubles:
    """Round to six digits, as options are written; one number where all are the same."""
    # Adding 0 makes 0 of -0, which would be written with its sign.
    rounded = np.array([float(f"{number:.6g}") for number in numbers]) + 0.0
    return rounded[:1] if (rounded == rounded[0]).all() else rounded


def _row(numbers: tuple[float, ...], default: float) -> Doubles:
    return np.array(numbers or (default,), np.float64)
