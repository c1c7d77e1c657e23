"""Decodes, turns and resizes images; the only module that uses Pillow."""

from __future__ import annotations

import io
import logging
import mmap
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from intact._extras import missing
from intact.data.images.steps import (
    LARGEST_IMAGE,
    ImageSteps,
    Resampling,
    SideRounding,
    Size,
)

if TYPE_CHECKING:
    from PIL.Image import Image


_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

_LARGEST_FILE = 1 << 29

_LARGE_IMAGE = 1 << 25

"""Larger images are decoded one at a time, to limit the memory of all threads."""

_one_large_image = threading.Lock()

_ORIENTATION = 0x0112  # the tag in EXIF

_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

"""The inverse of each EXIF orientation (Pillow rotates counterclockwise)."""


class BadImageError(Exception):
    """A file that is not an image or cannot be used; the message has the reason."""


def _pages(path: Path) -> Any:
    with path.open("rb") as file:
        # The map holds the file open by itself.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def is_picture(value: object) -> TypeGuard[Image]:
    """Tell whether a value is an image of Pillow; there is none before Pillow is loaded."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def require_pillow() -> None:
    """Load Pillow and its readers, once and not in several threads.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import (  # noqa: F401
            BmpImagePlugin,
            GifImagePlugin,
            JpegImagePlugin,
            PngImagePlugin,
            PpmImagePlugin,
            TiffImagePlugin,
            WebPImagePlugin,
        )
    except ImportError as error:
        raise missing("an image", ["Pillow"], "image") from error
    log = logging.getLogger("PIL")
    if not log.handlers:  # otherwise its warnings mix with our output
        log.addHandler(logging.NullHandler())


def decode(source: Path | bytes | Image, *, gray: bool) -> Image:
    """Decode a file, its content or an image of Pillow to mode L or RGB, upright by its EXIF.

    Colours are converted to grey by ITU-R BT.601 (0.299 R + 0.587 G + 0.114 B). Transparency is
    dropped, 16 bits keep their upper byte, CMYK is converted without a colour profile, and only the
    first frame is used, as ``Image.convert`` and most training pipelines do.

    Raises:
        BadImageError: It cannot be read or decoded completely, or has more pixels than
            ``LARGEST_IMAGE``.
    """
    from PIL import Image, UnidentifiedImageError

    opened: AbstractContextManager[Image.Image]
    try:
        # An image of the caller's stays open.
        # Pillow reads the size from the header here; pixels are not allocated before the check
        # below.
        opened = _open_image(source) if isinstance(source, Path | bytes) else nullcontext(source)
        with opened as image:
            pixels = image.width * image.height
            if pixels > LARGEST_IMAGE:
                raise _too_large(str(pixels))
            with _one_large_image if pixels > _LARGE_IMAGE else nullcontext():
                image.load()
                return _upright(_convert(image, gray=gray), _orientation(image))
    except (BadImageError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadImageError("not an image that can be read") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large("too many") from None
    except OSError as error:
        if error.errno is not None:  # errors of the file system; others are Pillow's
            raise BadImageError(f"cannot be read ({error.strerror})") from error
        raise BadImageError(f"damaged or truncated ({error})") from error
    except Exception as error:  # Pillow's readers raise a dozen unrelated classes
        raise BadImageError(f"cannot be decoded ({str(error) or type(error).__name__})") from error


@contextmanager
def _open_image(source: Path | bytes) -> Iterator[Image]:
    """Open a file, or its content; nothing is decoded yet."""
    from PIL import Image

    if isinstance(source, bytes):
        size = len(source)
    else:
        about = source.stat()
        if not stat.S_ISREG(about.st_mode):
            raise BadImageError("not a file")
        size = about.st_size
    if not size:
        raise BadImageError("not an image: the file is empty")
    if size > _LARGEST_FILE:
        raise BadImageError(f"larger than {_LARGEST_FILE >> 20} MiB")
    # Memory-mapped: otherwise Pillow would allocate as much as a false size in the file.
    held = io.BytesIO(source) if isinstance(source, bytes) else _pages(source)
    # These formats alone: Pillow's reader of EPS starts a program.
    with held as pages, Image.open(pages, formats=_FORMATS) as image:
        yield image


def resized(image: Image, size: Size, method: Resampling) -> npt.NDArray[np.uint8]:
    """Resize an image of mode L or RGB; return its pixels, ``[rows, columns, C]``.

    Raises:
        BadImageError: The size has more than ``LARGEST_IMAGE`` pixels.
    """
    from PIL import Image

    if size.rows * size.columns > LARGEST_IMAGE:
        raise _too_large(f"{size} after resizing")
    if (image.height, image.width) != size:
        filters = Image.Resampling
        # Resized as 8 bits, as the training pipelines of models do.
        image = image.resize((size.columns, size.rows), filters[method.name])
    pixels = np.asarray(image)
    return pixels.reshape(*size, -1)


def _too_large(pixels: str) -> BadImageError:
    return BadImageError(f"has {pixels} pixels, the limit is {LARGEST_IMAGE}")


def _convert(image: Image, *, gray: bool) -> Image:
    image = _eight_bit(image)
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # the same colours; Pillow warns for a direct conversion
    if not gray:
        return image.convert("RGB")
    # By way of RGB, so that palettes and CMYK become grey by the same formula.
    return (image if image.mode in {"1", "L", "LA"} else image.convert("RGB")).convert("L")


def _eight_bit(image: Image) -> Image:
    """Convert an image to 8 bits; of 16 bits the upper byte is kept."""
    from PIL import Image as Images

    if image.mode == "F":
        raise BadImageError("has float pixels of unknown range")
    if not image.mode.startswith("I"):
        return image
    values: npt.NDArray[Any] = np.asarray(image)
    if values.dtype.itemsize > 2 and (values.min() < 0 or values.max() > 0xFFFF):
        raise BadImageError("has pixels of more than 16 bits and unknown range")
    return Images.fromarray((values >> 8).astype(np.uint8))


def _orientation(image: Image) -> int:
    """Return the EXIF orientation of a loaded image (Pillow rotates TIFF itself and removes the
    tag).
    """
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF does not affect the pixels
        return 1


def _upright(image: Image, orientation: int) -> Image:
    from PIL import Image as Images

    method = _UPRIGHT.get(orientation)
    return image if method is None else image.transpose(Images.Transpose[method])


class Placement(NamedTuple):
    """An image is resized to ``resized`` and copied to row ``top``, column ``left`` of the result.

    Negative offsets crop the image, positive ones leave padding.
    """

    resized: Size
    top: int = 0
    left: int = 0


def place(image: Size, canvas: Size, steps: ImageSteps) -> Placement:
    """Compute size and position of an image.

    An image that cannot be centred exactly is placed half a pixel towards the top left.

    Raises:
        ValueError: The image is smaller than the crop.
    """
    is_cut = steps.side_rounding is SideRounding.TRUNCATED
    if steps.letterbox is not None:
        resized = (
            truncated_fit(image, canvas, fills=not steps.focus)
            if is_cut
            else fit_into(image, canvas)
        )
    elif steps.shorter_side is not None:
        shorter = truncated_with_shorter_side if is_cut else with_shorter_side
        resized = shorter(image, steps.shorter_side)
    elif steps.center_crop:
        resized = image
    else:
        return Placement(canvas)
    if steps.crops and (resized.rows < canvas.rows or resized.columns < canvas.columns):
        after = "" if resized == image else f", {resized} after resizing"
        raise ValueError(f"has {image} pixels{after}, too few to crop {canvas}")
    top, left = (canvas.rows - resized.rows), (canvas.columns - resized.columns)
    if steps.crops:
        return Placement(resized, -(-top // 2), -(-left // 2))
    return Placement(resized, top // 2, left // 2)


def fit_into(image: Size, frame: Size) -> Size:
    """Compute the largest size with the image's proportions inside a frame, to the nearest pixel.

    >>> fit_into(Size(480, 640), Size(640, 640))
    Size(rows=480, columns=640)
    """
    if image.rows * frame.columns >= image.columns * frame.rows:  # limited by rows
        return Size(frame.rows, max(1, _nearest(image.columns * frame.rows, image.rows)))
    return Size(max(1, _nearest(image.rows * frame.columns, image.columns)), frame.columns)


def truncated_fit(image: Size, frame: Size, *, fills: bool) -> Size:
    """Compute the same as Tengine's tool does: ``side * (room / limiting side)`` cut off, in
    float32.

    Args:
        image: The size of the image.
        frame: The size of the frame.
        fills: Whether the limiting side is that of the frame; else it is computed like the other,
            as the tool does with focus.

    >>> truncated_fit(Size(360, 640), Size(416, 416), fills=True)
    Size(rows=233, columns=416)
    """
    by_rows = image.rows * frame.columns > image.columns * frame.rows
    room, side = (frame.rows, image.rows) if by_rows else (frame.columns, image.columns)
    factor = np.float32(room) / np.float32(side)
    rows, columns = (max(1, int(np.float32(each) * factor)) for each in image)
    if fills:
        return Size(room, columns) if by_rows else Size(rows, room)
    return Size(rows, columns)


def with_shorter_side(image: Size, pixels: int) -> Size:
    """Compute the size with the image's proportions and a given shorter side.

    The longer side is rounded down, as in torchvision.

    >>> with_shorter_side(Size(333, 500), 256)
    Size(rows=256, columns=384)
    """
    if image.rows <= image.columns:
        return Size(pixels, image.columns * pixels // image.rows)
    return Size(image.rows * pixels // image.columns, pixels)


def truncated_with_shorter_side(image: Size, pixels: int) -> Size:
    """Compute the same as Tengine's tool does: ``side * (pixels / shorter side)`` cut off, in
    float64; of a square image that may be less than ``pixels``.

    >>> truncated_with_shorter_side(Size(206, 206), 256)
    Size(rows=255, columns=256)
    """
    if image.rows < image.columns:
        return Size(pixels, int(image.columns * (pixels / image.rows)))
    return Size(int(image.rows * (pixels / image.columns)), pixels)


def paste(
    pixels: npt.NDArray[np.uint8], placement: Placement, canvas: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Copy the resized image, ``[rows, columns, C]``, to its position in the result."""
    here, there = zip(
        _overlap(placement.top, placement.resized.rows, canvas.shape[0]),
        _overlap(placement.left, placement.resized.columns, canvas.shape[1]),
        strict=True,
    )
    canvas[there] = pixels[here]
    return canvas


def _overlap(offset: int, length: int, room: int) -> tuple[slice, slice]:
    """Compute the visible part of the image along an axis, and its position in the result."""
    seen = min(length, room)
    return (
        slice(max(-offset, 0), max(-offset, 0) + seen),
        slice(max(offset, 0), max(offset, 0) + seen),
    )


def _nearest(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
