"""Makes small pictures of what a model gets, as files that a page holds.

Arrays are brought back to pixels: by the steps that made them, as far as these are known, and else
by their range. What is shown is therefore what the model sees, with its crop, its borders and its
mistakes, and not the file that it was made from.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.data.images.steps import ChannelOrder
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec

Pixels = npt.NDArray[np.uint8]
"""``[H, W]`` or ``[H, W, 3]``."""

_CHANNELS = (1, 3)
_FOCUS = 4
"""Blocks of channels that YOLOv5's focus makes of one."""
_LEAST = 8
"""Rows and columns from which on an array of rank 4 is taken for a picture."""
_SMALL = 48
"""Pixels of a side up to which a PNG is as small as a JPEG."""
_QUALITY = 82
_TOLERANCE = 0.51
"""By how much pixels may leave 0 to 255: rounding, and the overshoot of resampling."""
_DARK = 48
"""Brightest value of a batch up to which nobody could see pictures on the scale of 0 to 255."""


class Range(NamedTuple):
    """Which values are black and white, and what is said of them."""

    low: float
    high: float
    told: str


@dataclass(frozen=True)
class PictureInput:
    """The input of a model that takes pictures.

    Attributes:
        name: Its name.
        axis: Of the channels, 1 or 3.
        mean: Subtracted from pixels, by channel; empty for none.
        scale: Multiplied with next; empty for none.
        is_bgr: Whether channels are in the order blue, green, red.
        is_focused: Whether blocks of channels are rows and columns in turn.
    """

    name: str
    axis: int
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    is_bgr: bool = False
    is_focused: bool = False

    @staticmethod
    def of(specs: Mapping[str, InputSpec], preprocess: Preprocess) -> PictureInput | None:
        """Find the first input that takes pictures; None where there is none."""
        steps = preprocess.image
        counts = [each * _FOCUS for each in _CHANNELS] if steps.focus else list(_CHANNELS)
        scaled = preprocess.inputs(specs)
        for name, spec in specs.items():
            axis = _channel_axis(spec.shape, counts)
            if axis is not None:
                return PictureInput(
                    name,
                    axis,
                    preprocess.mean if name in scaled else (),
                    preprocess.scale if name in scaled else (),
                    steps.order is ChannelOrder.BGR,
                    steps.focus,
                )
        return None

    def values(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Undo what the steps did to the pixels of a batch: ``[N, H, W, C]``."""
        found = np.moveaxis(batch, self.axis, 3).astype(np.float32)
        if self.is_focused:
            found = _unfocused(found)
        if self.scale:
            found /= np.asarray(self.scale, np.float32)
        if self.mean:
            found += np.asarray(self.mean, np.float32)
        return found[..., ::-1] if self.is_bgr and found.shape[3] == 3 else found

    def range(self, values: npt.NDArray[np.float32]) -> Range:
        """Tell which values of a first batch are black and white.

        Args:
            values: As ``values`` gives them.
        """
        low, high = float(values.min()), float(values.max())
        undone = "brought back from mean and scale" if self.mean or self.scale else "as they are"
        if low >= -_TOLERANCE and _DARK < high <= 255 + _TOLERANCE:
            return Range(0.0, 255.0, f"pixels from 0 to 255, {undone}")
        if low >= -1e-3 and high <= 1 + 1e-3:
            return Range(0.0, 1.0, f"values from 0 to 1, {undone}")
        if low >= -1 - 1e-3 and high <= 1 + 1e-3:
            return Range(-1.0, 1.0, f"values from -1 to 1, {undone}")
        told = f"values from {low:.3g} to {high:.3g}, {undone}, shown from black to white"
        return Range(low, high, told)


def pixels(values: npt.NDArray[np.float32], span: Range, side: int) -> Pixels:
    """Make a small picture of a sample.

    Args:
        values: ``[H, W, C]``, as `PictureInput.values` gives them.
        span: Which of them are black and white.
        side: Pixels of its longer side at most.
    """
    rows, columns, _ = values.shape
    factor = min(1.0, side / max(rows, columns))
    for axis, count in enumerate((rows, columns)):
        wanted = max(1, round(count * factor))
        if wanted < count:
            starts = np.arange(wanted) * count // wanted
            sizes = np.diff(np.append(starts, count)).astype(np.float32)
            values = np.add.reduceat(values, starts, axis=axis)
            values /= sizes.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    height = max(span.high - span.low, 1e-12)
    shown = np.clip((values - span.low) * (255 / height), 0, 255)
    found: Pixels = np.rint(np.nan_to_num(shown)).astype(np.uint8)
    return found[..., 0] if found.shape[2] == 1 else found


def data_uri(picture: Pixels) -> str:
    """Write a picture as a ``data:`` address: JPEG where Pillow is there, and else PNG."""
    kind, content = "png", b""
    if max(picture.shape[:2]) > _SMALL:
        kind, content = "jpeg", _jpeg(picture)
    if not content:
        kind, content = "png", _png(picture)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _channel_axis(shape: tuple[int | None, ...], counts: list[int]) -> int | None:
    """Return the axis of the channels of a batch of pictures; None where it is something else."""
    if len(shape) != 4:
        return None
    for axis in (1, 3):
        sides = [each for at, each in enumerate(shape) if at not in (0, axis)]
        if shape[axis] in counts and all(each is None or each >= _LEAST for each in sides):
            return axis
    return None


def _unfocused(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Undo `intact.data.images.fit.focused` of ``[N, H, W, 4C]``."""
    count, rows, columns, channels = values.shape
    parts = channels // _FOCUS
    found = np.empty((count, 2 * rows, 2 * columns, parts), np.float32)
    for block in range(_FOCUS):
        column, row = divmod(block, 2)
        found[:, row::2, column::2] = values[..., block * parts : (block + 1) * parts]
    return found


def _jpeg(picture: Pixels) -> bytes:
    """Write a JPEG; nothing where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        return b""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _png(picture: Pixels) -> bytes:
    """Write a PNG of 8 bits, gray or RGB (W3C, Portable Network Graphics, third edition)."""
    rows, columns = picture.shape[:2]
    colour = 0 if picture.ndim == 2 else 2
    header = struct.pack(">IIBBBBB", columns, rows, 8, colour, 0, 0, 0)
    lines = np.ascontiguousarray(picture).reshape(rows, -1)
    # Each line says how it is filtered: 0 is not at all.
    body = np.concatenate([np.zeros((rows, 1), np.uint8), lines], axis=1).tobytes()
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(body, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in parts)


def _chunk(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check
