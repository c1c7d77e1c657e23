"""Sizes and offsets in whole pixels, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.data.images.decode import Placement, fit_into, paste, place, with_shorter_side
from intact.data.images.steps import ImageSteps, Size

SIZES = st.builds(Size, st.integers(1, 5000), st.integers(1, 5000))


def test_stretching_ignores_the_proportions() -> None:
    assert place(Size(7, 3), Size(4, 5), ImageSteps()) == Placement(Size(4, 5), 0, 0)


@pytest.mark.parametrize(
    ("image", "resized", "top", "left"),
    [
        (Size(100, 100), Size(9, 9), 0, 2),  # 14 - 9 = 5 columns of padding: 2 left, 3 right
        (Size(100, 200), Size(7, 14), 1, 0),  # 2 rows: 1 above, 1 below
        (Size(50, 125), Size(6, 14), 1, 0),  # 5.6 rows become 6; 3 rows: 1 above, 2 below
        (Size(1, 1000), Size(1, 14), 4, 0),  # never less than a pixel
        (Size(1000, 1), Size(9, 1), 0, 6),
        (Size(9, 14), Size(9, 14), 0, 0),
    ],
)
def test_a_letterboxed_image_is_centred(image: Size, resized: Size, top: int, left: int) -> None:
    steps = ImageSteps(letterbox=(9, 14))
    assert place(image, Size(9, 14), steps) == Placement(resized, top, left)


@pytest.mark.parametrize(
    ("image", "resized", "top", "left"),
    [
        (Size(20, 30), Size(10, 15), -1, -3),  # 15 - 8 = 7 columns too many: 3 left, 4 right
        (Size(30, 20), Size(15, 10), -3, -1),
        (Size(20, 27), Size(10, 13), -1, -2),  # 13.5 columns become 13
        (Size(5, 5), Size(10, 10), -1, -1),
    ],
)
def test_the_shorter_side_then_the_centre(image: Size, resized: Size, top: int, left: int) -> None:
    steps = ImageSteps(shorter_side=10)
    assert place(image, Size(8, 8), steps) == Placement(resized, top, left)


def test_a_crop_alone_does_not_resize() -> None:
    steps = ImageSteps(center_crop=True)
    assert place(Size(11, 8), Size(8, 8), steps) == Placement(Size(11, 8), -1, 0)
    with pytest.raises(ValueError, match="has 11x7 pixels, too few to crop 8x8"):
        place(Size(11, 7), Size(8, 8), steps)
    with pytest.raises(ValueError, match="has 20x40 pixels, 8x16 after resizing, too few to crop"):
        place(Size(20, 40), Size(9, 9), ImageSteps(shorter_side=8))


@given(SIZES, SIZES)
def test_what_is_fitted_touches_its_frame_and_keeps_its_proportions(
    image: Size, frame: Size
) -> None:
    found = fit_into(image, frame)
    assert found.rows <= frame.rows
    assert found.columns <= frame.columns
    assert found.rows == frame.rows or found.columns == frame.columns
    scale = min(frame.rows / image.rows, frame.columns / image.columns)
    assert abs(found.rows - max(1, image.rows * scale)) <= 0.5 + 1e-9
    assert abs(found.columns - max(1, image.columns * scale)) <= 0.5 + 1e-9


@given(SIZES, st.integers(1, 5000))
def test_the_shorter_side_is_exact_and_the_other_rounded_down(image: Size, pixels: int) -> None:
    found = with_shorter_side(image, pixels)
    assert min(found) == pixels
    longer = max(image) * pixels / min(image)
    assert longer - 1 < max(found) <= longer
    assert (found.rows < found.columns) <= (image.rows < image.columns)
    assert (found.rows > found.columns) <= (image.rows > image.columns)


def test_pixels_are_laid_where_they_belong() -> None:
    pixels = np.arange(1, 16, dtype=np.uint8).reshape(3, 5, 1)
    canvas = np.full((4, 3, 1), 99, np.uint8)
    paste(pixels, Placement(Size(3, 5), 1, -1), canvas)
    assert canvas[..., 0].tolist() == [[99, 99, 99], [2, 3, 4], [7, 8, 9], [12, 13, 14]]
