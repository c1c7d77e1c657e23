"""Reads a folder or list of images as batches, decoded ahead in threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from intact.data.images.decode import (
    BadImageError,
    decode,
    is_picture,
    paste,
    place,
    require_pillow,
    resized,
)
from intact.data.images.fit import ImageInput, image_input
from intact.data.images.labels import FolderLabels, csv_labels, folder_labels
from intact.data.images.steps import Resampling, Size
from intact.data.preprocess import Preprocess
from intact.data.signature import LABELS, InputSpec
from intact.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)

"""Suffixes of images, in any case."""

Item = TypeVar("Item")


def is_image(value: object) -> bool:
    """Tell whether a value is an image of Pillow, or the path of a file with such a suffix."""
    is_path = isinstance(value, str | Path) and Path(value).suffix.lower() in SUFFIXES
    return is_path or is_picture(value)


def image_files(folder: Path) -> list[str]:
    """List the images in a folder and all folders below, as sorted relative posix paths.

    Hidden files and folders are ignored. Links to files are followed; links to folders are errors,
    since they may be circular.

    Raises:
        DataError: There is no image, or a folder cannot be read or is a link.
    """
    found: list[tuple[str, ...]] = []
    # Names and not paths, so that sorting compares folder by folder and not `/` with other
    # characters.
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        below, images = _list_folder(folder, parts)
        waiting += below
        found += images
    if not found:
        raise DataError(
            f"{folder}: no image in this folder or below",
            remedy=f"looked for {' '.join(sorted(SUFFIXES))}",
        )
    return ["/".join(parts) for parts in sorted(found)]


def sub_folders(folder: Path) -> list[str]:
    """List the names of direct sub-folders, without hidden ones.

    Raises:
        DataError: The folder cannot be read, or a sub-folder is a link.
    """
    return [name for (name,) in _list_folder(folder, ())[0]]


def evenly_spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Select at most ``limit`` evenly spaced items, in their order.

    >>> evenly_spread("aaabbbccc", 3)
    ['a', 'b', 'c']
    """
    if limit is None or limit >= len(items):
        return list(items)
    # Integers: the same on every machine, and never twice the same item.
    return [items[index * len(items) // limit] for index in range(limit)]


def _list_folder(
    folder: Path, parts: tuple[str, ...]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """List the direct sub-folders and images of a folder."""
    folders, images = [], []
    here = folder.joinpath(*parts)
    try:
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    # Behind `is_dir`, since links to files are fine.
                    if entry.is_symlink():
                        raise DataError(
                            f"{here / entry.name}: a link to a folder is not followed",
                            remedy="put the folder itself there, or remove the link",
                        )
                    folders.append((*parts, entry.name))
                elif PurePosixPath(entry.name).suffix.lower() in SUFFIXES:
                    images.append((*parts, entry.name))
    except OSError as error:
        raise DataError(
            f"{here}: cannot be read ({error.strerror or error})",
            remedy="check its permissions",
        ) from error
    return folders, images


_BATCH = 8

_MOST_THREADS = 16

_AHEAD_BYTES = 1 << 28

"""Memory limit for batches that are decoded ahead, in bytes."""

Batch = dict[str, npt.NDArray[Any]]


class _DecodedBatch(NamedTuple):
    """A decoded batch: pixels, positions of the images, and unreadable files with reasons."""

    values: npt.NDArray[Any]
    positions: list[int]
    bad: list[tuple[int, str, str]]


class ImageFolder:
    """An iterable of batches in the order of the files; each pass decodes again.

    Only a few batches are decoded ahead, so memory does not grow with the number of images. The
    threads end with the iterator.

    Args:
        folder: Folder of the paths, also in messages.
        files: Relative posix paths, or images of Pillow.
        labels: The label of each file, if there are any.
        takes: The model's image input.
        skip_bad: Skip unreadable files instead of raising.
        threads: Number of threads; 0 uses all cores.

    Attributes:
        folder: Folder of the paths.
        files: Relative posix paths, or images of Pillow.
        takes: The model's image input.
        labels: The label of each file, if there are any.
        skip_bad: Whether unreadable files are skipped.
        skipped: One line for each file that the last pass skipped: path and reason.
        bad: The positions of these files.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[str | Path | Image],
        labels: FolderLabels,
        takes: ImageInput,
        *,
        skip_bad: bool = False,
        threads: int = 0,
    ) -> None:
        self.takes = takes
        self.skipped: list[str] = []
        self.bad: list[int] = []
        self.folder = folder
        self.files = files
        self.labels = labels
        self._labels = None if labels.numbers is None else np.array(labels.numbers, np.int64)
        self.skip_bad = skip_bad
        self._threads = threads or min(os.cpu_count() or 1, _MOST_THREADS)
        room = max(1, _AHEAD_BYTES // takes.image_bytes)  # images
        # Of a small folder each thread gets a part, instead of one thread all of it.
        share = -(-len(files) // self._threads)
        # Two batches a thread must fit into the room: the one that is made and the one that waits.
        self._size = max(1, min(_BATCH, share, room // (2 * self._threads)))
        self._ahead = max(1, min(2 * self._threads, room // self._size))

    def __len__(self) -> int:
        """Return the number of files, including unreadable ones."""
        return len(self.files)

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches of a few images with their labels, if any.

        Raises:
            DataError: A file is not an image, damaged or too large (with ``skip_bad``: all are).
        """
        from intact.workers.threads import map_ahead  # arrays are read without it

        # Anew for each pass, which may find other files.
        self.skipped, self.bad = [], []
        starts = range(0, len(self.files), self._size)
        for made in map_ahead(self._make, starts, self._threads, self._ahead):
            yield from self._yield_batch(made)
        self.refuse_all_bad()

    def refuse_all_bad(self) -> None:
        """Refuse a folder of which the last pass skipped all.

        Raises:
            DataError: It did.
        """
        if len(self.skipped) == len(self.files) > 0:
            raise DataError(
                f"{self.folder}: none of {len(self.files)} images can be used; the first: "
                f"{self.skipped[0]}",
                remedy="give other files",
            )

    def _yield_batch(self, made: _DecodedBatch) -> Iterator[Batch]:
        for position, file, reason in made.bad:
            self.bad.append(position)
            self.skipped.append(_line_of_skipped(self.folder, file, reason, self.skip_bad))
        if made.positions:
            batch = {self.takes.name: made.values}
            if self._labels is not None and self.takes.name != LABELS:
                batch[LABELS] = self._labels[made.positions]
            yield batch

    def _make(self, start: int) -> _DecodedBatch:
        """Decode the batch that starts with a file; runs in a thread."""
        files = self.files[start : start + self._size]
        takes = self.takes
        canvas, gray = blank(takes, len(files)), takes.channels == 1
        positions: list[int] = []
        bad: list[tuple[int, str, str]] = []
        for offset, file in enumerate(files):
            try:
                draw(decode(self._source(file), gray=gray), takes, canvas[len(positions)])
                positions.append(start + offset)
            except BadImageError as error:
                name = f"image {start + offset}" if is_picture(file) else str(file)
                bad.append((start + offset, name, str(error)))
                # The pass ends with this error, so the rest need not be decoded.
                if not self.skip_bad:
                    break
        return _DecodedBatch(takes.finish(canvas[: len(positions)]), positions, bad)

    def _source(self, file: str | Path | Image) -> Path | Image | bytes:
        return file if is_picture(file) else self.folder / str(file)


def blank(takes: ImageInput, count: int) -> npt.NDArray[Any]:
    """Make room for some images, ``[N, rows, columns, C]``, with the padding of a letterbox."""
    padding = takes.padding
    # Filled completely by each image, except around a letterbox.
    canvas = np.empty((count, *takes.size, takes.channels), padding.dtype)
    if takes.preprocess.image.letterbox is not None:
        canvas[:] = padding
    return canvas


def draw(image: Image, takes: ImageInput, canvas: npt.NDArray[Any]) -> None:
    """Resize a decoded image into an array, ``[rows, columns, C]`` in RGB order.

    Raises:
        BadImageError: It is too small to be cropped.
    """
    steps = takes.preprocess.image
    try:
        placement = place(Size(image.height, image.width), takes.size, steps)
    except ValueError as error:
        raise BadImageError(str(error)) from error
    paste(resized(image, placement.resized, Resampling(steps.resize)), placement, canvas)


def open_folder(
    folder: Path,
    specs: Mapping[str, InputSpec],
    preprocess: Preprocess,
    *,
    limit: int | None = None,
    labels: Path | None = None,
    skip_bad: bool = False,
) -> ImageFolder:
    """Open a folder of images for a model; nothing is decoded yet.

    Args:
        folder: The folder; images below it are included.
        specs: The model's inputs.
        preprocess: The preprocessing of each image.
        limit: Number of images, evenly spaced over the sorted files, so that a folder sorted by
            class has all classes.
        labels: A CSV file of ``file,label``; None for the names of sub-folders.
        skip_bad: Skip unreadable files and list them in ``skipped``.

    Raises:
        DataError: There is no image, labels do not match, or the images do not fit the model.
        MissingExtraError: Pillow is not installed.
    """
    require_pillow()
    takes = image_input(specs, preprocess)
    files, known = labelled_files(folder, limit=limit, labels=labels)
    return ImageFolder(folder, files, known, takes, skip_bad=skip_bad)


def labelled_files(
    folder: Path, *, limit: int | None = None, labels: Path | None = None
) -> tuple[list[str], FolderLabels]:
    """List the images of a folder that are used, evenly spaced ones, with their labels.

    Raises:
        DataError: There is no image, or labels do not match.
    """
    files = image_files(folder)
    if labels is None:
        known = folder_labels(folder, files, sub_folders(folder))
    else:
        known = FolderLabels(csv_labels(labels, files))
    return spread_with_labels(files, known, limit)


def spread_with_labels(
    files: Sequence[Item], labels: FolderLabels, limit: int | None
) -> tuple[list[Item], FolderLabels]:
    """Select at most ``limit`` evenly spaced images, with their labels."""
    numbers = labels.numbers and evenly_spread(labels.numbers, limit)
    return evenly_spread(files, limit), labels._replace(numbers=numbers)


def open_images(
    images: Sequence[str | Path | Image],
    numbers: list[int] | None,
    specs: Mapping[str, InputSpec],
    preprocess: Preprocess,
    *,
    limit: int | None = None,
    skip_bad: bool = False,
) -> ImageFolder:
    """Open a list of images, or of paths of images, as a folder of them is.

    Args:
        images: The images.
        numbers: Their labels, if there are any.
        specs: The model's inputs.
        preprocess: The preprocessing of each image.
        limit: Number of images, evenly spaced.
        skip_bad: Skip unreadable images.

    Raises:
        DataError: The images do not fit the model.
        MissingExtraError: Pillow is not installed.
    """
    require_pillow()
    takes = image_input(specs, preprocess)
    chosen, labels = spread_with_labels(images, FolderLabels(numbers), limit)
    return ImageFolder(Path(), chosen, labels, takes, skip_bad=skip_bad)


class DecodedFolder:
    """The images of a folder as Pillow has them, upright and in RGB: with their labels, if any.

    Args:
        folder: Folder of the paths, also in messages.
        files: Relative posix paths.
        labels: The label of each file, if there are any.
        skip_bad: Skip unreadable files instead of raising.

    Attributes:
        labels: The label of each file, if there are any.
        skipped: One line for each file that the last pass skipped: path and reason.
    """

    def __init__(
        self, folder: Path, files: Sequence[str], labels: FolderLabels, *, skip_bad: bool
    ) -> None:
        self.labels, self.skipped = labels, list[str]()
        self._folder, self._files, self._skip_bad = folder, files, skip_bad

    def __iter__(self) -> Iterator[Image | tuple[Image, int]]:
        """Decode one image after the other.

        Raises:
            DataError: A file is not an image, damaged or too large.
        """
        self.skipped = []
        for position, file in enumerate(self._files):
            try:
                image = decode(self._folder / file, gray=False)
            except BadImageError as error:
                self.skipped.append(
                    _line_of_skipped(self._folder, file, str(error), self._skip_bad)
                )
                continue
            numbers = self.labels.numbers
            yield image if numbers is None else (image, numbers[position])


def _line_of_skipped(folder: Path, file: str, reason: str, skip_bad: bool) -> str:
    """Return the line for a file that is skipped; raise where none are."""
    if not skip_bad:
        raise DataError(
            f"{folder / file}: {reason}",
            remedy="repair or remove it, or skip such files with --skip-bad",
        )
    return str(DataError(f"{file}: {reason}"))  # DataError makes it printable
