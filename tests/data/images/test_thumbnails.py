"""Small pictures of what a model gets: back from the steps, and as files."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from intact.data.images.fit import image_input
from intact.data.images.steps import ImageSteps
from intact.data.images.thumbnails import PictureInput, Range, data_uri, pixels
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec

FULL = Range(0.0, 255.0, "")


def gradient(rows: int = 16, columns: int = 12) -> npt.NDArray[np.uint8]:
    """A picture of which no two channels, rows or columns are alike: ``[H, W, 3]``."""
    row, column, channel = np.ogrid[:rows, :columns, :3]
    found: npt.NDArray[np.uint8] = (9 * row + 7 * column + 30 * channel).astype(np.uint8)
    return found


@pytest.mark.parametrize("first", [True, False], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("order", ["rgb", "bgr"])
@pytest.mark.parametrize("focus", [False, True], ids=["", "focus"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_what_the_steps_made_becomes_the_same_pixels(
    first: bool, order: str, focus: bool, scaled: bool
) -> None:
    numbers = {"mean": (103.0, 116.0, 123.0), "scale": (0.017, 0.018, 0.02)} if scaled else {}
    steps = Preprocess(image=ImageSteps(order=order, focus=focus), **numbers)
    sides = (8, 6) if focus else (16, 12)
    channels = 12 if focus else 3
    shape: tuple[int | None, ...]
    shape = (None, channels, *sides) if first else (None, *sides, channels)
    if focus:  # rows and columns of the input are half of the picture's
        shape = tuple(None if each in sides else each for each in shape)
        steps = Preprocess(image=ImageSteps(order=order, focus=True, size=(16, 12)), **numbers)
    specs = {"image": InputSpec(np.dtype(np.float32), shape)}
    batch = image_input(specs, steps).finish(gradient()[None])
    place = PictureInput.of(specs, steps)
    assert place is not None
    values = place.values(batch)
    assert place.range(values)[:2] == (0.0, 255.0)
    np.testing.assert_array_equal(pixels(values[0], FULL, 96), gradient())


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [
        (0, 255, (0, 255)),
        (0, 16, (0, 16)),
        (0, 1, (0, 1)),
        (-1, 1, (-1, 1)),
        (-2.1, 2.6, (-2.1, 2.6)),
    ],
)
def test_black_and_white_follow_from_the_values(
    low: float, high: float, ends: tuple[float, float]
) -> None:
    place = PictureInput("image", 1)
    found = place.range(np.linspace(low, high, 300, dtype=np.float32).reshape(1, 10, 10, 3))
    assert found[:2] == pytest.approx(ends)
    assert f"{ends[1]:.3g}" in found.told


def test_a_large_picture_is_averaged() -> None:
    values = np.zeros((300, 200, 1), np.float32)
    values[::3] = 240  # every third row: a third of the light
    found = pixels(values, FULL, 100)
    assert found.shape == (100, 67)
    assert np.all(found == 80)


@pytest.mark.parametrize("side", [16, 80])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("has_pillow", [True, False])
def test_a_browser_reads_what_is_written(
    side: int, channels: int, has_pillow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pillow:
        monkeypatch.setattr("intact.data.images.thumbnails._jpeg", lambda _: b"")
    picture = gradient(side, side) // 4 if channels == 3 else gradient(side, side)[..., 0] // 4
    kind, content = data_uri(picture).split(";base64,")
    is_png = side <= 48 or not has_pillow
    assert kind == f"data:image/{'png' if is_png else 'jpeg'}"
    read = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert read.shape == picture.shape
    error = np.abs(read.astype(int) - picture).mean()  # its edges are harder than a photo's
    assert error <= (0 if is_png else 6)


@pytest.mark.parametrize("shape", [(None, 3), (None, 5, 32, 32), (None, 3, 4, 4), (None, 3, 32)])
def test_other_inputs_are_no_pictures(shape: tuple[int | None, ...]) -> None:
    specs = {"x": InputSpec(np.dtype(np.float32), shape)}
    assert PictureInput.of(specs, Preprocess()) is None
