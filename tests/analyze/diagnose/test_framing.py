"""Pictures that show another part than a model knows are found, and those that fit are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from intact.analyze.diagnose.framing import Run, better_framing
from intact.analyze.diagnose.trials import Floats, Outcome

SIDE, CLASSES, COUNT = 24, 10, 256


def scenes(seed: int) -> Floats:
    """Make smooth pictures, ``[classes, 1, side, side]``: one is the middle of each class."""
    coarse = np.random.default_rng(seed).normal(0, 60, (CLASSES, 1, 6, 6))
    fine = np.repeat(np.repeat(coarse, SIDE // 6, 2), SIDE // 6, 3)
    return np.asarray(fine, np.float32)


def pictures(middles: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    source = np.random.default_rng(7)
    labels = np.arange(COUNT) % CLASSES
    noise = source.normal(0, 60, (COUNT, 1, SIDE, SIDE))
    return np.asarray(middles[labels] + noise, np.float32), labels


def nearest(middles: Floats) -> Run:
    """Return a model that is sure of the middle that is nearest."""

    def run(images: Floats) -> Outcome:
        away = ((images[:, None] - middles[None]) ** 2).mean(axis=(2, 3, 4))
        return Outcome(np.asarray(-away / 60, np.float32), (), ())

    return run


def whole(images: Floats) -> Floats:
    return images


def squeezed(images: Floats) -> Floats:
    """Keep every second column, at the left, and leave the rest black."""
    narrow = np.zeros_like(images)
    narrow[..., : SIDE // 2] = images[..., ::2]
    return narrow


def cut(images: Floats) -> Floats:
    """Enlarge the middle by 8 / 5."""
    at = (np.arange(SIDE) * 15 // SIDE) + 4
    return images[:, :, at][..., at]


def framed(images: Floats) -> Floats:
    """Leave a black border as wide as a quarter of the picture."""
    made = np.zeros_like(images)
    inner = slice(SIDE // 4, SIDE - SIDE // 4)
    made[..., inner, inner] = images[..., inner, inner]
    return made


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize(
    ("change", "labelled", "wanted"),
    [
        (squeezed, True, "without one"),
        (squeezed, False, "without one"),
        (cut, True, "cut less away"),
        (cut, False, ""),  # nothing tells
        (whole, True, ""),
        (whole, False, ""),
    ],
)
def test_another_part_is_found(
    change: Callable[[Floats], Floats], labelled: bool, wanted: str, layout: str
) -> None:
    middles = scenes(3)
    images, labels = pictures(middles)
    axis, run = 1, nearest(middles)
    shown = np.asarray(change(images))
    if layout == "last":
        axis, shown = 3, shown.transpose(0, 2, 3, 1)

    def model(given: Floats) -> Outcome:
        return run(given if axis == 1 else given.transpose(0, 3, 1, 2))

    found = better_framing(shown, axis, model, labels if labelled else None)
    assert (found is not None) == bool(wanted), found
    assert found is None or wanted in found[0].remedy


@pytest.mark.parametrize("labelled", [True, False])
def test_a_border_that_the_model_was_trained_with_is_right(labelled: bool) -> None:
    middles = scenes(4)
    images, labels = pictures(middles)
    run = nearest(framed(middles))
    assert better_framing(framed(images), 1, run, labels if labelled else None) is None
