"""Every kind of image becomes upright bytes, grey or RGB; what is damaged is refused."""

from __future__ import annotations

import builtins
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from intact.data.images.decode import BadImageError, decode, require_pillow, resized
from intact.data.images.steps import Resampling, Size
from intact.errors import MissingExtraError
from tests.data.images.pictures import Pixels, pixels, save


def colour(path: Path) -> Pixels:
    return np.asarray(decode(path, gray=False))


def gray(path: Path) -> Pixels:
    return np.asarray(decode(path, gray=True))


def bt601(rgb: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return rgb.astype(np.float64) @ [0.299, 0.587, 0.114]


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm"])
def test_colours_are_kept_and_become_grey_by_bt601(tmp_path: Path, suffix: str) -> None:
    values = pixels(5, 7, 3)
    path = save(tmp_path / f"a.{suffix}", values)
    assert np.array_equal(colour(path), values)
    assert gray(path).shape == (5, 7)
    assert np.abs(gray(path) - bt601(values)).max() <= 0.51


@pytest.mark.parametrize(("suffix", "options"), [("jpg", {"quality": 95}), ("webp", {})])
def test_lossy_formats_come_close(tmp_path: Path, suffix: str, options: dict[str, int]) -> None:
    rows, columns = np.mgrid[:32, :48]
    smooth = np.stack([rows * 8, columns * 5, 255 - rows * 4], axis=-1).astype(np.uint8)
    found = colour(save(tmp_path / f"a.{suffix}", smooth, **options))
    assert np.abs(found.astype(int) - smooth).mean() < 3


def test_grey_palettes_and_bits(tmp_path: Path) -> None:
    values = pixels(4, 6)
    path = save(tmp_path / "gray.png", values)
    assert np.array_equal(gray(path), values)
    assert np.array_equal(colour(path), np.repeat(values[..., None], 3, axis=-1))

    palette = Image.fromarray(values % 3).convert("P")
    palette.putpalette([10, 20, 30, 200, 100, 50, 0, 0, 255])
    palette.save(tmp_path / "palette.gif")
    palette.save(tmp_path / "palette.png", transparency=b"\x00\x80\xff")
    colours = np.array([[10, 20, 30], [200, 100, 50], [0, 0, 255]], np.uint8)
    for name in ("palette.gif", "palette.png"):
        assert np.array_equal(colour(tmp_path / name), colours[values % 3])
        assert np.abs(gray(tmp_path / name) - bt601(colours[values % 3])).max() <= 0.51

    Image.fromarray(values > 127).save(tmp_path / "bits.png")
    assert np.array_equal(gray(tmp_path / "bits.png"), np.where(values > 127, 255, 0))


def test_transparency_is_dropped(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", pixels(4, 6, 4))
    assert np.array_equal(colour(path), pixels(4, 6, 4)[..., :3])
    two = pixels(4, 6, 2)
    Image.fromarray(two, "LA").save(tmp_path / "la.png")
    assert np.array_equal(gray(tmp_path / "la.png"), two[..., 0])


def test_cmyk_is_converted(tmp_path: Path) -> None:
    inks = np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 0, 0], [0, 0, 0, 255]]], np.uint8)
    Image.fromarray(inks, "CMYK").save(tmp_path / "a.tif")
    expected = [[[255, 255, 255], [0, 255, 255], [255, 0, 255], [0, 0, 0]]]
    assert colour(tmp_path / "a.tif").tolist() == expected
    assert gray(tmp_path / "a.tif").tolist() == [[255, 179, 105, 0]]


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_keep_their_upper_byte(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 255, 256, 0x1234], [0x8000, 0xFF00, 0xFFFE, 0xFFFF]], np.uint16)
    path = save(tmp_path / f"a.{suffix}", values)
    assert gray(path).tolist() == [[0, 0, 1, 0x12], [0x80, 0xFF, 0xFF, 0xFF]]
    assert np.array_equal(colour(path)[..., 1], gray(path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0.5, 1]], np.float32), "has float pixels"),
        (np.array([[0, 65536]], np.int32), "has pixels of more than 16 bits"),
        (np.array([[-1, 0]], np.int32), "has pixels of more than 16 bits"),
    ],
)
def test_pixels_of_unknown_range_are_refused(
    tmp_path: Path, values: npt.NDArray[Any], message: str
) -> None:
    with pytest.raises(BadImageError, match=message):
        colour(save(tmp_path / "a.tif", values))


def test_of_several_frames_the_first_is_taken(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((3, 4), value, np.uint8)) for value in (10, 200)]
    for suffix in ("gif", "tif"):
        path = tmp_path / f"a.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:])
        assert (gray(path) == 10).all()


LAST_ROW, LAST_COLUMN = 2, 3  # of the stored image, 3x4
# Orientation -> where the pixel at (row, column) of the upright image is stored: the meaning of
# the EXIF tag (which visual side the stored 0th row and 0th column are).
STORED_AT: dict[int, Callable[[int, int], tuple[int, int]]] = {
    1: lambda r, c: (r, c),  # row 0 at the top, column 0 at the left
    2: lambda r, c: (r, LAST_COLUMN - c),  # top, right
    3: lambda r, c: (LAST_ROW - r, LAST_COLUMN - c),  # bottom, right
    4: lambda r, c: (LAST_ROW - r, c),  # bottom, left
    5: lambda r, c: (c, r),  # row 0 at the left, column 0 at the top
    6: lambda r, c: (LAST_ROW - c, r),  # right, top
    7: lambda r, c: (LAST_ROW - c, LAST_COLUMN - r),  # right, bottom
    8: lambda r, c: (c, LAST_COLUMN - r),  # left, bottom
}


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("orientation", STORED_AT)
def test_images_are_turned_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    stored = pixels(LAST_ROW + 1, LAST_COLUMN + 1, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = colour(save(tmp_path / f"a.{suffix}", stored, exif=exif))
    assert found.shape[:2] == ((3, 4) if orientation < 5 else (4, 3))
    for row, column in np.ndindex(found.shape[:2]):
        assert (found[row, column] == stored[STORED_AT[orientation](row, column)]).all()


def test_orientation_of_a_jpeg_and_damaged_exif(tmp_path: Path) -> None:
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[:, 16:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise: what is right goes down
    found = colour(save(tmp_path / "a.jpg", stored, exif=exif))
    assert found.shape == (32, 16, 3)
    assert found[:16].mean() < 5
    assert found[16:].mean() > 250
    broken = save(tmp_path / "b.jpg", stored, exif=b"Exif\x00\x00nonsense")
    assert colour(broken).shape == (16, 32, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "gif", "webp", "tif", "ppm"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a.{suffix}", pixels(40, 60, 3))
    data = path.read_bytes()
    for kept in (len(data) // 2, len(data) // 4, 20, 3, 0):
        path.write_bytes(data[:kept])
        with pytest.raises(BadImageError):
            colour(path)


def test_what_is_no_image_says_so(tmp_path: Path) -> None:
    text = tmp_path / "a.jpg"
    text.write_text("hello")
    with pytest.raises(BadImageError, match="not an image that can be read"):
        colour(text)
    with pytest.raises(BadImageError, match=r"cannot be read \(No such file"):
        colour(tmp_path / "none.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    for name in ("pipe.jpg", "."):
        with pytest.raises(BadImageError, match="not a file"):
            colour(tmp_path / name)
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate((1 << 29) + 1)
    with pytest.raises(BadImageError, match="larger than 512 MiB"):
        colour(tmp_path / "large.jpg")
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(BadImageError, match="not an image"):
        colour(tmp_path / "a.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [11_600, 13_000, 1 << 20])  # ours, Pillow's warning, its error
def test_decompression_bombs_are_refused_before_decoding(tmp_path: Path, side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    with pytest.raises(BadImageError, match="pixels, the limit is 134217728"):
        colour(path)


def weights(method: str, source: int, target: int) -> npt.NDArray[np.float64]:
    """Weights [target, source] of a separable filter, written from its definition.

    Pixel centres lie at half integers; the kernel widens by the factor of shrinking; weights are
    normalized, which also mends the borders.
    """
    kernels: dict[str, tuple[float, Callable[[Any], Any]]] = {
        "box": (0.5, lambda x: ((x > -0.5) & (x <= 0.5)) * 1.0),
        "bilinear": (1, lambda x: np.maximum(0, 1 - np.abs(x))),
        "bicubic": (
            2,
            lambda x: np.where(
                np.abs(x) < 1,
                1.5 * np.abs(x) ** 3 - 2.5 * x**2 + 1,
                -0.5 * np.abs(x) ** 3 + 2.5 * x**2 - 4 * np.abs(x) + 2,
            ),
        ),
        "lanczos": (3, lambda x: np.sinc(x) * np.sinc(x / 3)),
    }
    support, kernel = kernels[method]
    scale = source / target
    widened = max(scale, 1.0)
    centres = (np.arange(target)[:, None] + 0.5) * scale
    x = (np.arange(source)[None, :] + 0.5 - centres) / widened
    raw = np.where(np.abs(x) <= support, kernel(x), 0.0)
    normalized: npt.NDArray[np.float64] = raw / raw.sum(axis=1, keepdims=True)
    return normalized


@pytest.mark.parametrize("size", [(8, 8), (3, 4), (5, 12), (2, 2)])
@pytest.mark.parametrize("method", ["box", "bilinear", "bicubic", "lanczos"])
def test_resizing_follows_the_filters_definition(method: str, size: tuple[int, int]) -> None:
    values = pixels(4, 6, 3)
    found = resized(Image.fromarray(values), Size(*size), Resampling(method))
    rows, columns = weights(method, 4, size[0]), weights(method, 6, size[1])
    exact = np.einsum("ri,ijc,kj->rkc", rows, values.astype(np.float64), columns)
    # Pillow rounds to bytes after the columns and after the rows, and cuts off overshoot both
    # times: what is cut after the columns is missing in the rows' sums.
    after_columns = np.clip(np.einsum("ijc,kj->ikc", values.astype(np.float64), columns), 0, 255)
    expected = np.clip(np.einsum("ri,ikc->rkc", rows, after_columns), 0, 255)
    assert np.abs(found - expected).max() <= 1.3
    assert method in {"bicubic", "lanczos"} or np.abs(expected - exact).max() < 1e-9


def test_bilinear_by_hand() -> None:
    found = resized(
        Image.fromarray(np.array([[0, 64], [128, 192]], np.uint8)), Size(4, 4), Resampling.BILINEAR
    )
    # A quarter and three quarters of the neighbours; the border repeats the outermost pixel.
    expected = [[0, 16, 48, 64], [32, 48, 80, 96], [96, 112, 144, 160], [128, 144, 176, 192]]
    assert found[..., 0].tolist() == expected


def test_nearest_repeats_and_picks_pixels() -> None:
    values = pixels(2, 3, 3)
    image = Image.fromarray(values)
    twice = resized(image, Size(4, 6), Resampling.NEAREST)
    assert np.array_equal(twice, values.repeat(2, axis=0).repeat(2, axis=1))
    assert np.array_equal(resized(image, Size(2, 1), Resampling.NEAREST), values[:, 1:2])


def test_the_same_size_changes_nothing_and_a_huge_one_is_refused() -> None:
    image = Image.fromarray(pixels(2, 3, 3))
    for method in Resampling:
        assert np.array_equal(resized(image, Size(2, 3), method), pixels(2, 3, 3))
    with pytest.raises(BadImageError, match="has 16384x16384 after resizing pixels"):
        resized(image, Size(1 << 14, 1 << 14), Resampling.BOX)


def test_large_images_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intact.data.images.decode._LARGE_IMAGE", 10)
    path = save(tmp_path / "a.png", pixels(4, 4, 3))
    inside, most = 0, 0
    load = PngImageFile.load

    def counted(image: PngImageFile) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.02)
        inside -= 1
        return load(image)

    monkeypatch.setattr(PngImageFile, "load", counted)
    threads = [threading.Thread(target=colour, args=(path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_pillow()
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "PIL":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[image\]"'):
        require_pillow()
