"""Mean and scale meet the channels, and only the inputs they are for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from intact.data.images.steps import ImageSteps, Size
from intact.data.preprocess import (
    NORMALIZATIONS,
    Preprocess,
    preprocess_from_toml,
    preprocess_to_toml,
    preprocess_with,
)
from intact.data.signature import InputSpec
from intact.errors import DataError
from intact.recipe.declare import options_of
from intact.recipe.samples import ArrayStepOptions


def spec(dtype: str, rank: int) -> InputSpec:
    return InputSpec(np.dtype(dtype), (None,) * rank)


def test_mean_first_then_scale_by_channel() -> None:
    image = np.full((2, 3, 4, 5), 10, np.uint8)
    ready = Preprocess((10, 20, 30), (1, 2, 0.5))("image", image)
    assert ready.dtype == np.float32
    for channel, value in enumerate((0, -20, -10)):
        assert (ready[:, channel] == value).all()
    assert (image == 10).all()


def test_channels_may_be_last_where_only_that_fits() -> None:
    ready = Preprocess((1, 2, 3))("image", np.zeros((2, 4, 5, 3), np.float32))
    assert (ready == [-1, -2, -3]).all()
    square = Preprocess((1, 2, 3))("image", np.zeros((1, 3, 5, 3), np.float32))
    assert (square[:, 1] == -2).all()  # axis 1 goes first


def test_one_number_is_for_all_and_none_changes_nothing() -> None:
    values = np.ones((2, 7), np.float64)
    assert (Preprocess((3,))("x", values) == -2).all()
    assert Preprocess()("x", values) is values


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ({"image": ("float32", 4), "ids": ("int64", 2), "vector": ("float32", 2)}, {"image"}),
        ({"image": ("float32", 4), "depth": ("float32", 3)}, {"image", "depth"}),
        ({"vector": ("float32", 2), "ids": ("int64", 4), "flag": ("float32", 1)}, {"vector"}),
    ],
)
def test_it_is_for_float_inputs_that_have_channels(
    specs: dict[str, tuple[str, int]], expected: set[str]
) -> None:
    found = Preprocess((1,)).inputs({name: spec(*each) for name, each in specs.items()})
    assert found == expected


def test_no_input_for_it_is_an_error_only_where_there_is_something_to_do() -> None:
    ids = {"ids": spec("int64", 2)}
    assert Preprocess().inputs(ids) == frozenset()
    with pytest.raises(DataError, match="the model has none"):
        Preprocess(scale=(2,)).inputs(ids)


@pytest.mark.parametrize("numbers", [(np.nan,), (1, np.inf), (1e39,)])
def test_numbers_that_float32_cannot_hold_are_refused(numbers: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match="not finite"):
        Preprocess(mean=numbers)
    with pytest.raises(DataError, match="not finite"):
        Preprocess(scale=numbers)


def test_a_scale_of_zero_and_a_wrong_count_are_refused() -> None:
    with pytest.raises(DataError, match="scale contains 0"):
        Preprocess(scale=(1, 0))
    with pytest.raises(DataError, match="mean has 2 numbers, input 'x' has 3 channels"):
        Preprocess((1, 2))("x", np.zeros((1, 3, 4)))


@pytest.mark.parametrize("numbers", [3, "12", ("1",), (True,), (None,), ((1, 2),), {1: 2}])
def test_what_is_no_list_of_numbers_is_refused(numbers: Any) -> None:
    with pytest.raises(DataError, match="mean is not a list of numbers; give one, or one per"):
        Preprocess(mean=numbers)


def test_any_numbers_become_floats() -> None:
    found = Preprocess([1, np.float32(0.5)], (np.int64(2),))  # type: ignore[arg-type]
    assert repr((found.mean, found.scale)) == "((1.0, 0.5), (2.0,))"
    assert hash(found) == hash(Preprocess((1, 0.5), (2,)))
    with pytest.raises(DataError, match="not finite"):
        Preprocess(mean=(10**400,))


def test_steps_for_images_leave_arrays_alone() -> None:
    steps = ImageSteps(size=(8, 8), order="bgr", focus=True)
    values = np.ones((2, 3, 4, 4), np.uint8)
    assert Preprocess(image=steps)("x", values) is values
    assert (Preprocess((1,), (2,), steps)("x", values) == 0).all()


def test_options_win_over_a_base() -> None:
    base = Preprocess((1,), (2,), ImageSteps(size=(4, 6), order="bgr"))
    changes = {"mean": (3.0,), "scale": None, "size": [8, 8], "order": None, "focus": True}
    steps = ImageSteps(size=Size(8, 8), order="bgr", focus=True)
    assert preprocess_with(base, changes) == Preprocess((3,), (2,), steps)
    assert preprocess_with(base, {}) == base
    with pytest.raises(DataError, match="letterbox and size are both given"):
        preprocess_with(base, {"letterbox": (4, 4), "size": (4, 4)})
    with pytest.raises(DataError, match=r"no preprocessing step 'focuss'; did you mean 'focus'\?"):
        preprocess_with(base, {"focuss": True})


def test_a_geometry_that_is_given_replaces_the_other_kind() -> None:
    framed = Preprocess(image=ImageSteps(letterbox=(8, 8), pad=(0,), order="bgr"))
    cropped = Preprocess(image=ImageSteps(size=(8, 8), shorter_side=16))
    found = preprocess_with(framed, {"shorter_side": 16}).image
    assert found == ImageSteps(shorter_side=16, order="bgr")
    assert preprocess_with(cropped, {"letterbox": (4, 4)}).image == ImageSteps(letterbox=(4, 4))
    kept = preprocess_with(framed, {"mean": (1.0,)}).image
    assert kept == framed.image


def test_a_rounding_of_sides_goes_with_the_proportions() -> None:
    rounded = Preprocess(image=ImageSteps(letterbox=(8, 8), side_rounding="truncated"))
    assert preprocess_with(rounded, {"size": (8, 8)}).image == ImageSteps(size=(8, 8))
    kept = preprocess_with(rounded, {"letterbox": (4, 4)}).image
    assert kept == ImageSteps(letterbox=(4, 4), side_rounding="truncated")


PIXELS = np.array([0, 51, 102, 153, 204, 255], np.uint8).reshape(2, 3, 1, 1)


@pytest.mark.parametrize(
    ("name", "want", "order"),
    [
        ("imagenet", [-0.485 / 0.229, (0.2 - 0.456) / 0.224, (0.4 - 0.406) / 0.225], "rgb"),
        ("imagenet-caffe", [-103.939, 51 - 116.779, 102 - 123.68], "bgr"),
        ("0..1", [0.0, 0.2, 0.4], "rgb"),
        ("-1..1", [-1.0, -0.6, -0.2], "rgb"),
    ],
)  # fmt: skip
def test_preprocessings_by_name(name: str, want: list[float], order: str) -> None:
    steps = preprocess_with(Preprocess(), {"normalize": name})
    assert steps("x", PIXELS)[0].ravel() == pytest.approx(want, abs=1e-5)
    assert steps.image.order == order


def test_what_is_given_beside_a_name_wins() -> None:
    base = Preprocess((1.0,), (2.0,), ImageSteps(order="bgr"))
    named = preprocess_with(base, {"normalize": "imagenet"})
    assert named.image.order == "rgb"
    changed = preprocess_with(base, {"normalize": "imagenet", "mean": (7.0,), "order": "bgr"})
    assert (changed.mean, changed.scale) == ((7.0,), named.scale)
    assert changed.image.order == "bgr"
    scaled = preprocess_with(base, {"normalize": "imagenet", "scale": (0.5,)})
    assert (scaled.mean, scaled.scale) == (named.mean, (0.5,))
    halved = preprocess_with(base, {"normalize": "imagenet-caffe", "std": (2.0, 4.0, 8.0)})
    assert halved.scale == (0.5, 0.25, 0.125)
    assert preprocess_with(base, {"normalize": "0..1"}) == replace(base, mean=(), scale=(1 / 255,))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"std": (2.0,), "scale": (0.5,)}, "std and scale are both given"),
        ({"std": (1.0, 0.0, 1.0)}, "std contains 0"),
        ({"std": (np.inf,)}, "std has a number that is not finite"),
        ({"normalize": "imagnet"}, "did you mean 'imagenet'"),
        ({"normalize": 3}, "normalize is not a name"),
    ],
)
def test_impossible_preprocessings_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        preprocess_with(Preprocess(), changes)


def test_a_file_may_name_a_preprocessing_and_give_deviations() -> None:
    content = b"format = 1\nnormalize = 'imagenet'\nstd = [2, 4, 8]\n[image]\nshorter_side = 40\n"
    steps = preprocess_from_toml(content, "steps.toml")
    assert (steps.mean, steps.scale) == ((123.675, 116.28, 103.53), (0.5, 0.25, 0.125))
    assert steps.image == ImageSteps(shorter_side=40)
    assert preprocess_from_toml(preprocess_to_toml(steps), "again.toml") == steps


def test_the_help_lists_every_name() -> None:
    help_text = options_of(ArrayStepOptions)["normalize"].help
    assert all(f"{name}" in help_text for name in NORMALIZATIONS)
