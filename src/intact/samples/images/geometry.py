"""Where an image's pixels go: sizes and offsets in whole pixels, no pixels touched."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.samples.images.steps import ImageSteps, Size


class Placement(NamedTuple):
    """An image is resized to ``resized``, then laid on the canvas at row ``top``, column ``left``.

    Offsets below zero cut the image, those above leave room for padding.
    """

    resized: Size
    top: int = 0
    left: int = 0


def place(image: Size, canvas: Size, steps: ImageSteps) -> Placement:
    """Return where an image goes.

    What cannot be centred evenly lies half a pixel towards the top and the left.

    Raises:
        ValueError: The image is smaller than what is to be cropped.
    """
    if steps.letterbox is not None:
        resized = fitted(image, canvas)
    elif steps.shorter_side is not None:
        resized = with_shorter_side(image, steps.shorter_side)
    elif steps.center_crop:
        resized = image
    else:
        return Placement(canvas)
    if steps.crops and (resized.rows < canvas.rows or resized.columns < canvas.columns):
        after = "" if resized == image else f", {resized} after resizing"
        raise ValueError(f"has {image} pixels{after}, too few to crop {canvas}")
    top, left = (canvas.rows - resized.rows), (canvas.columns - resized.columns)
    if steps.crops:
        return Placement(resized, -(-top // 2), -(-left // 2))
    return Placement(resized, top // 2, left // 2)


def fitted(image: Size, frame: Size) -> Size:
    """Return the largest size of the image's proportions inside a frame, to the nearest pixel.

    >>> fitted(Size(480, 640), Size(640, 640))
    Size(rows=480, columns=640)
    """
    if image.rows * frame.columns >= image.columns * frame.rows:  # the rows decide
        return Size(frame.rows, max(1, _nearest(image.columns * frame.rows, image.rows)))
    return Size(max(1, _nearest(image.rows * frame.columns, image.columns)), frame.columns)


def with_shorter_side(image: Size, pixels: int) -> Size:
    """Return the size of the image's proportions whose shorter side has so many pixels.

    The longer side is rounded down, as in torchvision and in Tengine's tool.

    >>> with_shorter_side(Size(333, 500), 256)
    Size(rows=256, columns=384)
    """
    if image.rows <= image.columns:
        return Size(pixels, image.columns * pixels // image.rows)
    return Size(image.rows * pixels // image.columns, pixels)


def laid(
    pixels: npt.NDArray[np.uint8], placement: Placement, canvas: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Copy the resized image, [rows, columns, C], to its place and return the canvas."""
    here, there = zip(
        _overlap(placement.top, placement.resized.rows, canvas.shape[0]),
        _overlap(placement.left, placement.resized.columns, canvas.shape[1]),
        strict=True,
    )
    canvas[there] = pixels[here]
    return canvas


def _overlap(offset: int, length: int, room: int) -> tuple[slice, slice]:
    """Return which part of the image is seen along an axis, and where on the canvas."""
    seen = min(length, room)
    return (
        slice(max(-offset, 0), max(-offset, 0) + seen),
        slice(max(offset, 0), max(offset, 0) + seen),
    )


def _nearest(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
