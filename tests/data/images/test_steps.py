"""Image steps are what they say, or are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from intact.data.images.steps import ChannelOrder, ImageSteps, Resampling, Size
from intact.errors import DataError


def test_values_become_what_the_code_reads() -> None:
    steps = ImageSteps(size=(4, 6), order="bgr", resize="box")
    assert steps.size == Size(4, 6)
    assert (steps.order, steps.resize) == (ChannelOrder.BGR, Resampling.BOX)
    assert steps == ImageSteps(size=Size(4, 6), order=ChannelOrder.BGR, resize=Resampling.BOX)
    assert hash(steps) == hash(ImageSteps(size=[4, 6], order="bgr", resize="box"))  # type: ignore[arg-type]


def test_what_is_given_is_what_differs_from_the_defaults() -> None:
    assert ImageSteps().given == ()
    assert ImageSteps(letterbox=(4, 4), pad=(0,), order="rgb").given == ("letterbox", "pad")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 224}, "size is not a pair of numbers; give rows,columns"),
        ({"size": (1, 2, 3)}, "size is not a pair"),
        ({"size": (0, 2)}, "size is not a pair of pixel counts; give two whole numbers"),
        ({"size": (2.0, 2)}, "size is not a pair of pixel counts"),
        ({"size": (True, 2)}, "size is not a pair of pixel counts"),
        ({"letterbox": (2, 1 << 60)}, "letterbox is not a pair of pixel counts"),
        ({"size": (16384, 16384)}, "images of 16384x16384 pixels are too large"),
        ({"order": "grb"}, "order is 'grb'; did you mean"),
        ({"order": 3}, "order is not a string; give one of rgb, bgr"),
        ({"resize": "bilinar"}, "resize is 'bilinar'; did you mean 'bilinear'?"),
        ({"shorter_side": 0}, "shorter_side is not a number of pixels; give whole numbers"),
        ({"shorter_side": "256"}, "shorter_side is not a number of pixels"),
        ({"center_crop": 1}, "center_crop is neither true nor false"),
        ({"focus": "yes"}, "focus is neither true nor false"),
        ({"letterbox": (4, 4), "pad": 114}, "pad is not a pixel value; give one number"),
        ({"letterbox": (4, 4), "pad": (1, 2)}, "pad is not a pixel value"),
        ({"letterbox": (4, 4), "pad": (float("nan"),)}, "pad is not a pixel value"),
        ({"letterbox": (4, 4), "pad": ("1",)}, "pad is not a pixel value"),
        ({"letterbox": (4, 4), "side_rounding": "floor"}, "side_rounding is 'floor'"),
    ],
)
def test_impossible_values_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        ImageSteps(**fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"letterbox": (4, 4), "size": (4, 4)}, "letterbox and size are both given"),
        ({"letterbox": (4, 4), "shorter_side": 4}, "letterbox and shorter_side are both"),
        ({"letterbox": (4, 4), "center_crop": True}, "letterbox and center_crop are both"),
        ({"pad": (0,)}, "pad is given without letterbox"),
        ({"side_rounding": "truncated"}, "side_rounding is given, and no side follows"),
        ({"center_crop": True, "resize": "box"}, "a centre crop alone does not resize"),
        ({"size": (6, 5), "focus": True}, "focus halves the image, and 6x5 is odd"),
        ({"letterbox": (5, 6), "focus": True}, "focus halves the image, and 5x6 is odd"),
        ({"size": (8, 9), "shorter_side": 7}, "shorter_side 7 is smaller than the crop of 8x9"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageSteps(**fields)


def test_a_crop_may_be_said_beside_the_shorter_side() -> None:
    assert ImageSteps(shorter_side=4, center_crop=True, resize="box").crops
    assert ImageSteps(shorter_side=4).crops
    assert not ImageSteps(size=(4, 4)).crops
