"""Matches the image steps to a model's input: size, channels and layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.images.steps import ChannelOrder, ImageSteps, Size
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec
from intact.errors import DataError

_COLOURS = (1, 3)
_FOCUS = 4  # blocks


class ImageInput(msgspec.Struct, frozen=True):
    """A model's input for images.

    Attributes:
        name: Its name.
        spec: Its dtype and shape, with the rows and columns of the images.
        channels: 1 (grey) or 3, before focus.
        size: Rows and columns of an image before focus.
        channels_first: Whether the layout is NCHW; else NHWC.
        preprocess: The steps, checked for this input.
    """

    name: str
    spec: InputSpec
    channels: int
    size: Size
    channels_first: bool
    preprocess: Preprocess

    @property
    def image_bytes(self) -> int:
        """Memory of one image in the model's input type."""
        each = 1 if self.spec.dtype.kind in "iu" else 4
        return self.size.rows * self.size.columns * self.channels * each

    @property
    def padding(self) -> npt.NDArray[Any]:
        """The padding value of a letterboxed image, in RGB order: ``[1]`` or ``[C]``.

        uint8, or float32 where that cannot hold it.
        """
        steps = self.preprocess.image
        return np.array(self._in_order(steps.pad), np.uint8 if steps.pads_bytes else np.float32)

    def finish(self, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert images to the model's input.

        They are [N, rows, columns, C] in RGB order, of the dtype of ``padding``. Channel order,
        mean and scale (float32, if there are any), focus and layout follow, in this order.
        """
        steps = self.preprocess.image
        if steps.order is ChannelOrder.BGR:
            images = images[..., ::-1]
        axis = 1 if self.channels_first else 3
        # Brought into layout before mean and scale: the smaller type is moved, and the result is
        # contiguous.
        values = np.ascontiguousarray(np.moveaxis(images, 3, axis))
        scaled = self.preprocess.normalize(self.name, values, axis)
        return apply_focus(scaled, axis) if steps.focus else scaled

    def _in_order(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        return numbers[::-1] if self.preprocess.image.order is ChannelOrder.BGR else numbers


def apply_focus(values: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Apply YOLOv5's focus to ``[N, C, H, W]`` (axis 1) or ``[N, H, W, C]`` (axis 3).

    C becomes 4C, and H and W are halved. Blocks are in the order of the Focus layer of YOLOv5
    (Ultralytics): (even row, even column), (odd, even), (even, odd), (odd, odd).
    """
    blocks = []
    for column in (0, 1):
        for row in (0, 1):
            rows, columns = slice(row, None, 2), slice(column, None, 2)
            blocks.append(values[:, :, rows, columns] if axis == 1 else values[:, rows, columns, :])
    return np.concatenate(blocks, axis=axis)


def image_input(specs: Mapping[str, InputSpec], preprocess: Preprocess) -> ImageInput:
    """Match the image steps to the model's input.

    Args:
        specs: The model's inputs; one, of rank 4, with 1 or 3 channels (4 or 12 with focus) in
            axis 1 or in the last one.
        preprocess: The user's preprocessing.

    Raises:
        DataError: The model has no image input, or one that does not match the steps; its size is
            free and none is given; mean, scale, pad or order do not match the channels.
    """
    if len(specs) != 1:
        raise DataError(
            f"an image needs one input, the model has {len(specs)} ({', '.join(specs)})",
            remedy="give an .npz with an array for each",
        )
    steps = preprocess.image
    (name, spec), factor = next(iter(specs.items())), _FOCUS if steps.focus else 1
    axis, outputs = _channels(name, spec, steps)
    channels = outputs // factor
    rows, columns = (dim for each, dim in enumerate(spec.shape) if each not in (0, axis))
    size = _image_size(name, (rows, columns), steps)
    preprocess.inputs(specs)  # raises if mean or scale is given and no input is float
    _check_channels(name, channels, preprocess)
    if spec.dtype.kind in "iu" and not steps.pads_bytes:
        raise DataError(
            f"--pad {steps.pad[0]} is no pixel, and input {name!r} takes {spec.dtype}",
            remedy="give whole numbers from 0 to 255",
        )
    seen = size if not steps.focus else Size(size.rows // 2, size.columns // 2)
    shape = (outputs, *seen) if axis == 1 else (*seen, outputs)
    exact = InputSpec(spec.dtype, (spec.shape[0], *shape))
    return ImageInput(name, exact, channels, size, axis == 1, preprocess)


def _channels(name: str, spec: InputSpec, steps: ImageSteps) -> tuple[int, int]:
    """Return the channel axis and the number of channels, including focus."""
    wanted = [colours * (_FOCUS if steps.focus else 1) for colours in _COLOURS]
    if len(spec.shape) == 4 and spec.dtype.kind in "fiu":
        for axis in (1, 3):
            found = spec.shape[axis]
            if found in wanted:
                return axis, found
    shape = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
    unfocused = not steps.focus and len(spec.shape) == 4 and 12 in (spec.shape[1], spec.shape[3])
    raise DataError(
        f"input {name!r} is not an image, but {spec.dtype} of shape [{shape}]",
        remedy="give --focus for 12 channels"
        if unfocused
        else f"images need rank 4 and {wanted[0]} or {wanted[1]} channels; give arrays (.npz)",
    )


def _check_channels(name: str, channels: int, preprocess: Preprocess) -> None:
    """Check that per-channel values match the number of channels before focus."""
    takes = f"input {name!r} takes images with {channels} channel{'s' * (channels > 1)}"
    steps = preprocess.image
    per_channel = {"mean": preprocess.mean, "scale": preprocess.scale, "pad": steps.pad}
    for option, numbers in per_channel.items():
        if len(numbers) not in (0, 1, channels):
            raise DataError(
                f"--{option} has {len(numbers)} numbers, {takes}",
                remedy="give one number, or one a channel",
            )
    if channels == 1 and "order" in steps.given:
        raise DataError(f"--order needs colours, {takes}", remedy="remove it")


def _image_size(name: str, model: tuple[int | None, int | None], steps: ImageSteps) -> Size:
    """Return the size of an image before focus: the given one, or the model's."""
    factor = 2 if steps.focus else 1
    size = steps.image_size
    if size is None:
        rows, columns = model
        if rows is None or columns is None:
            raise DataError(
                f"input {name!r} takes images of any size",
                remedy="give --size rows,columns (or --letterbox)",
            )
        size = Size(rows * factor, columns * factor)
        replace(steps, size=size)  # raises if other steps contradict it
        return size
    for have, want in zip(size, model, strict=True):
        if want is not None and have != want * factor:
            takes = "x".join("?" if dim is None else str(dim * factor) for dim in model)
            after = " before focus" if steps.focus else ""
            raise DataError(
                f"images are made {size}{after}, input {name!r} takes {takes}{after}",
                remedy="remove --size to use the model's" if steps.size else "change it",
            )
    return size
