"""Mean and scale meet the channels, and only the inputs they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact.data.images.steps import ImageSteps, Size
from intact.data.preprocess import Preprocess, preprocess_with
from intact.data.signature import InputSpec
from intact.errors import DataError


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
        preprocess_with(base, {"letterbox": (4, 4)})
    with pytest.raises(DataError, match=r"no preprocessing step 'focuss'; did you mean 'focus'\?"):
        preprocess_with(base, {"focuss": True})
