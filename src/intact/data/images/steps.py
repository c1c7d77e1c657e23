"""Declares the preprocessing steps of images: size, crop, channel order, layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from intact.errors import DataError, nearest

LARGEST_IMAGE = 1 << 27
"""Limit for the pixels of an image, before and after resizing: 400 MB as bytes of three colours."""

_LONGEST_SIDE = 1 << 14
_LARGEST_PAD = 1 << 24
"""Whole numbers up to here are float32 numbers."""
_WHOLE = f"whole numbers from 1 to {_LONGEST_SIDE}"

Choice = TypeVar("Choice", bound=StrEnum)


class Size(NamedTuple):
    """Rows and columns, in pixels."""

    rows: int
    columns: int

    def __str__(self) -> str:
        """Format for messages: ``480x640``."""
        return f"{self.rows}x{self.columns}"


class ChannelOrder(StrEnum):
    """The order of an image's three channels."""

    RGB = "rgb"
    BGR = "bgr"


class Resampling(StrEnum):
    """Resampling filters of Pillow.

    When shrinking, all but NEAREST average over every source pixel (in OpenCV only "area" does).
    """

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"
    BOX = "box"


class SideRounding(StrEnum):
    """How the sides of an image that keeps its proportions become whole pixels.

    EXACT is the nearest pixel in a letterbox, and rounded down beside a shorter side. TRUNCATED is
    what Tengine's tool computes: floats are cut off, float32 in a letterbox and float64 beside a
    shorter side, so that some sizes are a pixel less.
    """

    EXACT = "exact"
    TRUNCATED = "truncated"


@dataclass(frozen=True)
class ImageSteps:
    """The steps from a decoded image to the model's size and layout.

    One geometry applies: ``letterbox``; or ``shorter_side`` and a centre crop; or a centre crop
    alone (``center_crop``); or, if none of these is given, stretching to the size.

    Attributes:
        size: Rows and columns of the image; None for those of the model's input (doubled with
            ``focus``).
        order: Order of three channels, also for per-channel values (``pad``, mean, scale).
        resize: Resampling filter; a string of :class:`Resampling` is allowed.
        shorter_side: Resize the shorter side to this number of pixels, the other side in
            proportion, then crop the centre.
        center_crop: Crop the centre; without ``shorter_side`` nothing is resized.
        letterbox: Rows and columns of a frame: the image is resized in proportion to fit into it
            and centred, with ``pad`` around it.
        side_rounding: How sides become whole pixels with ``letterbox`` or ``shorter_side``; a
            string of :class:`SideRounding` is allowed.
        pad: Value around a letterboxed image, on the scale of pixels; one, or one per channel.
            Whole numbers from 0 to 255 for inputs of integers.
        focus: YOLOv5's space to depth after mean and scale: [C, H, W] becomes [4C, H/2, W/2], in
            blocks of C channels: even rows and columns, odd rows, odd columns, both odd.

    Raises:
        DataError: A value is impossible, or two contradict each other.
    """

    size: Size | tuple[int, int] | None = None
    order: ChannelOrder | str = ChannelOrder.RGB
    resize: Resampling | str = Resampling.BILINEAR
    shorter_side: int | None = None
    center_crop: bool = False
    letterbox: Size | tuple[int, int] | None = None
    side_rounding: SideRounding | str = SideRounding.EXACT
    pad: tuple[float, ...] = (114,)
    focus: bool = False

    def __post_init__(self) -> None:
        self._set("size", _size("--size", self.size))
        self._set("order", _choice("--order", self.order, ChannelOrder))
        self._set("resize", _choice("--resize", self.resize, Resampling))
        self._set("letterbox", _size("--letterbox", self.letterbox))
        self._set("side_rounding", _choice("--side-rounding", self.side_rounding, SideRounding))
        self._set("pad", _pad(self.pad))
        if self.shorter_side is not None and not _is_whole(self.shorter_side, 1, _LONGEST_SIDE):
            raise DataError("--shorter-side is not a number of pixels", remedy=f"give {_WHOLE}")
        for option, flag in (("center-crop", self.center_crop), ("focus", self.focus)):
            if not isinstance(flag, bool):
                raise DataError(f"--{option} is neither true nor false", remedy="give one of them")
        # After all types are checked, since these compare the values.
        for contradiction, remedy in self._contradictions():
            raise DataError(contradiction, remedy=remedy)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the fields that differ from their defaults."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)

    @property
    def crops(self) -> bool:
        """Whether the centre is cropped."""
        return self.center_crop or self.shorter_side is not None

    @property
    def pads_bytes(self) -> bool:
        """Whether pixels of 8 bits can hold ``pad``."""
        return all(isinstance(value, int) and 0 <= value <= 255 for value in self.pad)

    @property
    def image_size(self) -> Size | None:
        """Rows and columns of the image before ``focus``, if given."""
        size = self.letterbox or self.size
        return None if size is None else Size(*size)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        for option, also in (
            ("--size", self.size is not None),
            ("--shorter-side", self.shorter_side is not None),
            ("--center-crop", self.center_crop),
        ):
            if self.letterbox is not None and also:
                yield f"--letterbox and {option} are both given", "remove one of them"
        if self.letterbox is None and "pad" in self.given:
            yield "--pad is given without --letterbox", "give --letterbox rows,columns, or no --pad"
        if not (self.letterbox or self.shorter_side) and "side_rounding" in self.given:
            yield (
                "--side-rounding is given, and no side follows from the proportions",
                "add --letterbox or --shorter-side, or leave it out",
            )
        if self.center_crop and self.shorter_side is None and "resize" in self.given:
            yield "--resize is given, and a centre crop alone does not resize", "add --shorter-side"
        size = self.image_size
        if size is None:
            return
        if size.rows * size.columns > LARGEST_IMAGE:
            yield f"images of {size} pixels are too large", f"at most {LARGEST_IMAGE} in all"
        if self.focus and (size.rows % 2 or size.columns % 2):
            yield f"--focus halves the image, and {size} is odd", "give even rows and columns"
        if self.shorter_side is not None and self.shorter_side < min(size):
            yield (
                f"--shorter-side {self.shorter_side} is smaller than the crop of {size}",
                f"give {max(size)} or more",
            )


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _size(option: str, value: Any) -> Size | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise DataError(f"{option} is not a pair of numbers", remedy="give rows,columns")
    if not all(_is_whole(each, 1, _LONGEST_SIDE) for each in value):
        raise DataError(f"{option} is not a pair of pixel counts", remedy=f"give two {_WHOLE}")
    return Size(*value)


def _pad(values: Any) -> tuple[float, ...]:
    if (
        not isinstance(values, list | tuple)
        or len(values) not in (1, 3)
        or not all(_is_number(value) for value in values)
    ):
        raise DataError("--pad is not a pixel value", remedy="give one number, or one per channel")
    return tuple(int(value) if float(value).is_integer() else float(value) for value in values)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= _LARGEST_PAD


def _choice(option: str, value: Any, kind: type[Choice]) -> Choice:
    names = [member.value for member in kind]
    if isinstance(value, str) and value in names:
        return kind(value)
    if not isinstance(value, str):
        raise DataError(f"{option} is not a string", remedy=f"give one of {', '.join(names)}")
    raise DataError(f"{option} is {value!r}", remedy=nearest(value[:60], names))
