"""Checks whether an array's shape fits what a model takes, and says how to mend it."""

from __future__ import annotations

import itertools
import math
from shlex import quote

Shape = tuple[int | None, ...]

_COLOURS = (1, 3, 4)
# All orders of six axes are 720; of ten they would be millions.
_MOST_AXES = 6
"""Most axes of samples that are tried in every order."""


def fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Tell whether a shape is one of those expected; None stands for any size."""
    return len(shape) == len(expected) and all(
        want in (None, have) for have, want in zip(shape, expected, strict=True)
    )


def shape_remedy(shape: tuple[int, ...], expected: Shape, name: str) -> str:
    """Say how to make an array fit.

    Args:
        shape: Shape of the array, with samples along axis 0.
        expected: Shape of the model's input, with the same axis.
        name: Name of the input.

    >>> shape_remedy((9, 1, 32, 32), (None, 3, 32, 32), "x")
    'repeat its one channel: numpy.repeat(array, 3, axis=1)'
    """
    is_free = expected[:1] in ((None,), (1,)) and shape[1:2] == (1,)
    if fits(shape[1:], expected) and not is_free:
        return f"the model takes one sample without an axis for samples: --no-batch {quote(name)}"
    return sample_remedy(shape[1:], expected[1:], 1)


def sample_remedy(shape: tuple[int, ...], expected: Shape, first: int) -> str:
    """Say how to make a sample fit.

    Args:
        shape: Shape of the sample.
        expected: What the model takes.
        first: How many axes of the array stand before those of the sample.
    """
    # Asked first: an order of axes loses nothing, while each other remedy changes the data.
    axes = _fitting_order(shape, expected)
    if axes is not None:
        return _transposition(axes, first)
    known = [size for size in expected if size is not None]
    if len(shape) != len(expected):
        if len(known) == len(expected) and math.prod(known) == math.prod(shape):
            sizes = ", ".join(map(str, (-1,) * first + tuple(known)))
            return f"reshape it: array.reshape({sizes})"
        return f"give each sample {len(expected)} axes, behind the one for samples"
    colours = _colour_axis(expected)
    # Only images are advised on colours and sides; of other data nobody knows what an axis means.
    own = _colour_axis(shape)
    if len(shape) == 3 and colours is not None:
        steps = []
        if own is not None and own != colours:
            axes = (2, 0, 1) if colours == 0 else (1, 2, 0)
            steps.append(_transposition(axes, first))
            shape = tuple(shape[axis] for axis in axes)
        return ", then ".join([*steps, *_image_steps(shape, expected, colours, first)])
    wrong = [
        f"axis {axis + first} {want} long instead of {have}"
        for axis, (have, want) in enumerate(zip(shape, expected, strict=True))
        if want not in (None, have)
    ]
    return f"make {' and '.join(wrong)}"


def _image_steps(shape: tuple[int, ...], expected: Shape, colours: int, first: int) -> list[str]:
    steps = []
    have, want = shape[colours], expected[colours]
    axis = colours + first
    if have != want and want == 1:
        steps.append(f"make its images grey: array.mean(axis={axis}, keepdims=True)")
    elif have != want and have == 1:
        steps.append(f"repeat its one channel: numpy.repeat(array, {want}, axis={axis})")
    elif have != want:
        steps.append(f"give {want} channels along axis {axis} instead of {have}")
    sides = [axis for axis in range(3) if axis != colours]
    if any(expected[side] not in (None, shape[side]) for side in sides):
        size = " x ".join("any" if (n := expected[side]) is None else str(n) for side in sides)
        steps.append(f"resize its images to {size} (those of a folder are resized)")
    return steps or ["check its layout"]


def _colour_axis(shape: Shape) -> int | None:
    """Return which axis of an image, ``[C, H, W]`` or ``[H, W, C]``, holds its channels."""
    if len(shape) != 3:
        return None
    return next((axis for axis in (0, 2) if shape[axis] in _COLOURS), None)


def _transposition(axes: tuple[int, ...], first: int) -> str:
    return f"transpose the axes to {(*range(first), *(axis + first for axis in axes))}"


def _fitting_order(shape: tuple[int, ...], expected: Shape) -> tuple[int, ...] | None:
    """Return the order of the axes in which a sample fits; None if there is none."""
    if len(shape) != len(expected) or len(shape) > _MOST_AXES:
        return None
    orders = itertools.permutations(range(len(shape)))
    return next((axes for axes in orders if fits(tuple(shape[a] for a in axes), expected)), None)
