"""Pixels become what the model takes: order, mean, scale, focus, layout; or it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact.data.images.fit import ImageInput, apply_focus, image_input
from intact.data.images.steps import ImageSteps, Size
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec
from intact.errors import DataError
from tests.data.images.pictures import pixels


def fit(shape: tuple[int | None, ...], dtype: str = "float32", **fields: Any) -> ImageInput:
    mean, scale = fields.pop("mean", ()), fields.pop("scale", ())
    specs = {"x": InputSpec(np.dtype(dtype), shape)}
    return image_input(specs, Preprocess(mean, scale, ImageSteps(**fields)))


@pytest.mark.parametrize(
    ("shape", "channels", "size", "channels_first"),
    [
        ((None, 3, 4, 6), 3, Size(4, 6), True),
        ((1, 1, 4, 6), 1, Size(4, 6), True),
        ((None, 4, 6, 3), 3, Size(4, 6), False),
        ((None, 4, 6, 1), 1, Size(4, 6), False),
        ((None, 3, 5, 3), 3, Size(5, 3), True),  # both would do: axis 1 goes first
    ],
)
def test_channels_and_layout_are_the_models(
    shape: tuple[int | None, ...], channels: int, size: Size, channels_first: bool
) -> None:
    found = fit(shape)
    assert (found.channels, found.size, found.channels_first) == (channels, size, channels_first)
    assert found.spec.shape == shape


@pytest.mark.parametrize("shape", [(None, 12, 4, 6), (None, 5, 6, 12)])
def test_focus_doubles_the_image(shape: tuple[int | None, ...]) -> None:
    found = fit(shape, focus=True)
    assert (found.channels, found.size) == (3, Size(8 if shape[1] == 12 else 10, 12))
    assert found.spec.shape == shape
    assert fit((None, 4, 5, 6), focus=True).channels == 1


def test_a_size_fills_what_the_model_leaves_open() -> None:
    assert fit((None, 3, None, None), size=(4, 6)).spec.shape == (None, 3, 4, 6)
    assert fit((2, None, None, 3), letterbox=(4, 6)).spec.shape == (2, 4, 6, 3)
    assert fit((None, 12, None, None), size=(4, 6), focus=True).spec.shape == (None, 12, 2, 3)
    assert fit((None, 3, 4, None), size=(4, 6)).size == Size(4, 6)


def test_channel_order_then_mean_then_scale_in_float32() -> None:
    images = np.array([[[[10, 20, 30]], [[1, 2, 3]]]], np.uint8)  # two rows of one column
    steps: dict[str, Any] = {"order": "bgr", "mean": (1, 2, 3), "scale": (0.1, 10, 2)}
    found = fit((None, 3, 2, 1), **steps).finish(images)
    assert found.dtype == np.float32
    tenth = np.float32(0.1)
    blue, green, red = [29 * tenth, 2 * tenth], [180, 0], [14, -4]
    assert found[0, :, :, 0].tolist() == [blue, green, red]
    assert np.array_equal(np.moveaxis(fit((None, 2, 1, 3), **steps).finish(images), 3, 1), found)


def test_per_channel_numbers_follow_the_known_axis() -> None:
    square = fit((None, 3, 3, 3), mean=(1, 2, 3)).finish(np.zeros((1, 3, 3, 3), np.uint8))
    assert [float(each) for each in square[0, :, 0, 0]] == [-1, -2, -3]
    # Three rows of an NHWC image: as many as channels, yet not the axis of the channels.
    found = fit((None, 3, 4, 6), mean=(1, 2, 3))
    last = ImageInput("x", found.spec, 3, Size(3, 6), False, found.preprocess)
    assert last.finish(np.zeros((1, 3, 6, 3), np.uint8))[0, 2, 5].tolist() == [-1, -2, -3]


def test_focus_by_explicit_indices() -> None:
    values = pixels(2, 3, 4, 6)  # N, C, H, W
    found = apply_focus(values, 1)
    assert found.shape == (2, 12, 2, 3)
    blocks = [(0, 0), (1, 0), (0, 1), (1, 1)]  # (row, column) modulo 2
    for block, (row, column) in enumerate(blocks):
        for channel in range(3):
            for r, c in np.ndindex(2, 3):
                expected = values[:, channel, 2 * r + row, 2 * c + column]
                assert (found[:, 3 * block + channel, r, c] == expected).all()
    assert np.array_equal(apply_focus(np.moveaxis(values, 1, 3), 3), np.moveaxis(found, 1, 3))


def test_focus_comes_after_mean_and_scale() -> None:
    images = pixels(1, 4, 6, 3)
    found = fit((None, 12, 2, 3), focus=True, mean=(1, 2, 3), order="bgr").finish(images)
    channels = np.moveaxis(images[..., ::-1], 3, 1).astype(np.float32)
    expected = channels - np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1)
    assert np.array_equal(found, apply_focus(expected, 1))


def test_pixels_stay_bytes_without_mean_and_scale() -> None:
    for dtype in ("uint8", "float32"):
        assert fit((None, 3, 4, 6), dtype).finish(pixels(1, 4, 6, 3)).dtype == np.uint8


def test_padding_is_given_in_the_models_order() -> None:
    assert fit((None, 3, 4, 6), letterbox=(4, 6), pad=(1, 2, 3)).padding.tolist() == [1, 2, 3]
    bgr = fit((None, 3, 4, 6), letterbox=(4, 6), pad=(1, 2, 3), order="bgr")
    assert bgr.padding.tolist() == [3, 2, 1]
    assert bgr.padding.dtype == np.uint8
    between = fit((None, 3, 4, 6), letterbox=(4, 6), pad=(1, 2.5, 256), order="bgr").padding
    assert between.tolist() == [256, 2.5, 1]
    assert between.dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "fields", "message"),
    [
        ((None, 10), {}, r"input 'x' is not an image, but float32 of shape \[\?, 10\]; images"),
        ((None, 3, 4), {}, "is not an image"),
        ((None, 2, 4, 6), {}, "images need rank 4 and 1 or 3 channels"),
        ((None, None, None, None), {}, "is not an image"),
        ((None, 12, 4, 6), {}, "give focus for 12 channels"),
        ((None, 3, 4, 6), {"focus": True}, "rank 4 and 4 or 12 channels"),
        ((None, 3, None, None), {}, "takes images of any size; give size rows,columns"),
        ((None, 3, 4, None), {}, "takes images of any size; give size"),
        ((None, 3, 4, 6), {"size": (6, 4)}, "images are made 6x4, input 'x' takes 4x6; remove"),
        ((None, 3, 4, 6), {"letterbox": (4, 8)}, "images are made 4x8, input 'x' takes 4x6"),
        (
            (None, 12, 4, None),
            {"size": (4, 6), "focus": True},
            r"images are made 4x6 before focus, input 'x' takes 8x\? before focus",
        ),
        ((None, 3, 4, 6), {"shorter_side": 3}, "shorter_side 3 is smaller than the crop of 4x6"),
        ((None, 3, 4, 6), {"mean": (1, 2)}, "mean has 2 numbers, input 'x' takes images with 3"),
        ((None, 1, 4, 6), {"scale": (1, 2, 3)}, "scale has 3 numbers.*with 1 channel; give one"),
        ((None, 1, 4, 6), {"letterbox": (4, 6), "pad": (1, 2, 3)}, "pad has 3 numbers"),
        (
            (None, 1, 4, 6),
            {"order": "bgr"},
            "order needs colours, input 'x' takes images with 1",
        ),
        ((None, 12, 4, 6), {"focus": True, "mean": (1.0,) * 12}, "mean has 12 numbers.*with 3"),
        ((None, 3, 20000, 6), {}, "not a pair of pixel counts"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    shape: tuple[int | None, ...], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        fit(shape, **fields)
    assert "\n" not in str(caught.value)


def test_plain_pixels_take_no_mean_or_scale() -> None:
    with pytest.raises(DataError, match="mean and scale need float inputs"):
        fit((None, 3, 4, 6), "uint8", mean=(1,))


def test_plain_pixels_take_no_padding_between_two() -> None:
    assert fit((None, 3, 4, 6), "uint8", letterbox=(4, 6), pad=(9.0,)).padding.dtype == np.uint8
    for pad in (0.5, -1, 256):
        with pytest.raises(DataError, match=f"pad {pad} is no pixel, and input 'x' takes uint8"):
            fit((None, 3, 4, 6), "uint8", letterbox=(4, 6), pad=(pad,))


def test_several_inputs_are_refused() -> None:
    spec = InputSpec(np.dtype(np.float32), (None, 3, 4, 6))
    with pytest.raises(DataError, match=r"needs one input, the model has 2 \(a, b\)"):
        image_input({"a": spec, "b": spec}, Preprocess())
