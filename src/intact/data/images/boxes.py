"""Boxes of objects in images: COCO's json, and folders of YOLO's text files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.images.decode import Placement
from intact.data.images.steps import Size
from intact.errors import DataError, nearest
from intact.graph.files.regular import open_file

BOXES, CLASSES, IDS, CROWDS, LISTED = (
    f"labels.{each}" for each in ("boxes", "classes", "ids", "crowds", "listed")
)
"""Keys of references: corners in pixels of the model's input, ``[n, 4]``; places of classes in
their list, ``[n]``; their numbers in the file, ``[n]``; which are crowds, ``[n]``; and the number
of classes of the list, one an image, 0 where that is not known."""

_LARGEST_FILE = 1 << 29
_LARGEST_TEXT = 1 << 22
_MOST_CLASS = 10**9


class Objects(NamedTuple):
    """The objects of one image.

    Attributes:
        boxes: Corners, float64 ``[n, 4]``: pixels, or parts of the image where `is_relative`.
        classes: int64 ``[n]``.
        ids: int64 ``[n]``.
        crowds: bool ``[n]``.
    """

    boxes: npt.NDArray[np.float64]
    classes: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    crowds: npt.NDArray[np.bool_]


class FolderBoxes(msgspec.Struct, frozen=True):
    """The objects of the images of a folder.

    Attributes:
        objects: Of each file.
        listed: Number of classes; 0 where the labels do not say.
        is_relative: Whether boxes are parts of the image.
    """

    objects: Sequence[Objects]
    listed: int
    is_relative: bool

    def at(self, positions: Iterable[int]) -> FolderBoxes:
        """Return those of some files."""
        return FolderBoxes([self.objects[at] for at in positions], self.listed, self.is_relative)

    def references(self, made: Sequence[tuple[int, Size, Placement]]) -> dict[str, Any]:
        """Return the references of some images, as they lie in the model's input.

        Args:
            made: The position of each file, the size of its image, and where that was put.
        """
        found: dict[str, Any] = {key: [] for key in (BOXES, CLASSES, IDS, CROWDS)}
        for position, size, placement in made:
            each = self.objects[position]
            old = np.array([1, 1] if self.is_relative else [size.columns, size.rows], np.float64)
            new = np.array([placement.resized.columns, placement.resized.rows], np.float64)
            shift = np.array([placement.left, placement.top], np.float64)
            found[BOXES].append(each.boxes * np.tile(new / old, 2) + np.tile(shift, 2))
            found[CLASSES].append(each.classes)
            found[IDS].append(each.ids)
            found[CROWDS].append(each.crowds)
        found[LISTED] = np.full(len(made), self.listed, np.int64)
        return found


def are_boxes(labels: Path) -> bool:
    """Tell whether labels are boxes: a json, or a folder of text files."""
    return labels.suffix.lower() == ".json" or labels.is_dir()


def read_boxes(labels: Path, files: Sequence[str]) -> FolderBoxes:
    """Read the objects of each file.

    Args:
        labels: COCO's json, or a folder with a text file for each image, below the same path.
        files: Relative posix paths.

    Raises:
        DataError: Labels cannot be read, or are of other images.
    """
    return _read_yolo(labels, files) if labels.is_dir() else _read_coco(labels, files)


class _Image(msgspec.Struct):
    id: int
    file_name: str


class _Category(msgspec.Struct):
    id: int


class _Annotation(msgspec.Struct):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int = 0


class _Coco(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def _read_coco(path: Path, files: Sequence[str]) -> FolderBoxes:
    """Read COCO's json: boxes are left, top, width and height in pixels."""
    try:
        coco = msgspec.json.decode(read_label_file(path, _LARGEST_FILE), type=_Coco)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(
            f"{path}: is no COCO annotations of boxes ({error})",
            remedy="it needs images (id, file_name), annotations (image_id, category_id, bbox) "
            "and categories (id)",
        ) from error
    place = {number: at for at, number in enumerate(sorted({c.id for c in coco.categories}))}
    by_image: dict[int, list[_Annotation]] = {}
    for each in coco.annotations:
        if each.category_id not in place:
            raise DataError(
                f"{path}: an annotation has category {each.category_id}, which is not listed",
                remedy="add it to the categories",
            )
        _refuse_odd(str(path), each.bbox)
        by_image.setdefault(each.image_id, []).append(each)
    # A folder may hold the images of a part, at another depth than the file says.
    numbers = {each.file_name: each.id for each in coco.images}
    names = {PurePosixPath(each.file_name).name: each.id for each in coco.images}
    found = []
    for file in files:
        number = numbers.get(file, names.get(PurePosixPath(file).name))
        if number is None:
            raise DataError(
                f"{path}: has no image {file!r}", remedy=nearest(file, list(numbers)[:1000])
            )
        rows = by_image.get(number, [])
        corners = np.array([row.bbox for row in rows], np.float64).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        ids = np.array([row.category_id for row in rows], np.int64)
        classes = np.array([place[row.category_id] for row in rows], np.int64)
        crowds = np.array([row.iscrowd != 0 for row in rows], bool)
        found.append(Objects(corners, classes, ids, crowds))
    return FolderBoxes(found, len(place), is_relative=False)


def _read_yolo(folder: Path, files: Sequence[str]) -> FolderBoxes:
    """Read YOLO's text: lines of class, centre and size, as parts of the image.

    An image without a file, or with an empty one, has no objects.
    """
    found, missing = [], 0
    for file in files:
        relative = PurePosixPath(file).with_suffix(".txt")
        path = next((p for p in (folder / relative, folder / relative.name) if p.is_file()), None)
        missing += path is None
        found.append(_yolo_objects(path))
    if missing == len(files):
        raise DataError(
            f"{folder}: has no file for any image; the first would be "
            f"{PurePosixPath(files[0]).with_suffix('.txt')}",
            remedy="give the folder of the text files, or a COCO .json",
        )
    return FolderBoxes(found, 0, is_relative=True)


def _yolo_objects(path: Path | None) -> Objects:
    rows: list[tuple[float, ...]] = []
    text = "" if path is None else read_label_file(path, _LARGEST_TEXT).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        try:
            row = tuple(map(float, parts))
        except ValueError:
            row = ()
        if len(row) != 5 or not row[0].is_integer() or not 0 <= row[0] < _MOST_CLASS:
            raise DataError(
                f"{path}: line {number}: {line[:60]!r} is not class, x, y, width, height",
                remedy="write five numbers, the last four as parts of the image",
            )
        _refuse_odd(f"{path}: line {number}", row[1:])
        rows.append(row)
    numbers = np.array(rows, np.float64).reshape(-1, 5)
    half = numbers[:, 3:] / 2
    corners = np.concatenate([numbers[:, 1:3] - half, numbers[:, 1:3] + half], axis=1)
    classes = numbers[:, 0].astype(np.int64)
    return Objects(corners, classes, classes, np.zeros(len(classes), bool))


def _refuse_odd(where: str, box: Sequence[float]) -> None:
    if not all(map(math.isfinite, box)) or box[2] < 0 or box[3] < 0:
        raise DataError(
            f"{where}: box {[*box]} has no size", remedy="widths and heights are numbers from 0 on"
        )


def read_label_file(path: Path, most: int) -> bytes:
    """Read a whole file of labels.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        DataError: It cannot be read, or is larger.
    """
    try:
        with open_file(path) as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})", remedy="check --labels") from error
    if len(data) > most:
        raise DataError(
            f"{path}: larger than {most >> 20} MiB", remedy="give the labels of these images alone"
        )
    return data
