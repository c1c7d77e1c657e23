"""Reads class numbers of images from the names of sub-folders, or from a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from intact.data.images.boxes import FolderBoxes, read_label_file
from intact.errors import DataError

_LARGEST_FILE = 1 << 26
_MOST_DIGITS = 9
"""Class numbers stay below 10**9."""


class FolderLabels(NamedTuple):
    """The labels of a folder.

    Attributes:
        numbers: The label of each file; None if there are none.
        classes: The class names in order; empty if the names are numbers.
        reason: Why there are no labels.
        boxes: The objects of each file, where the labels are boxes.
    """

    numbers: list[int] | None
    classes: tuple[str, ...] = ()
    reason: str = ""
    boxes: FolderBoxes | None = None


def folder_labels(
    folder: Path, files: Sequence[str], sub_folders: Iterable[str] = ()
) -> FolderLabels:
    """Make the label of each file from the names of direct sub-folders.

    If all names are numbers, they are the labels. Otherwise a label is the position of the name in
    sorted order, counting sub-folders without images too, so that a class keeps its number in a
    part of the data. There are no labels if an image is outside of sub-folders, or if all are in
    one whose name is not a number.

    Args:
        folder: What the data is called in messages.
        files: Relative posix paths.
        sub_folders: Names of all direct sub-folders.

    Raises:
        DataError: Two sub-folders have the same number as name.
    """
    paths = [file.split("/") for file in files]
    outside = next((file for file, parts in zip(files, paths, strict=True) if not parts[1:]), None)
    if outside is not None:
        return FolderLabels(None, reason=f"{outside!r} is not in a sub-folder")
    # Sorted by code points, as torchvision's ImageFolder does: both give a class the same number.
    names = sorted({parts[0] for parts in paths})
    classes: tuple[str, ...] = ()
    if all(_is_number(name) for name in names):
        numbers = {name: int(name) for name in names}
        # ``01`` and ``1`` are two folders.
        if len(set(numbers.values())) < len(names):
            raise DataError(
                f"{folder}: sub-folders {_same_number(names)} are the same class number",
                remedy="join or rename them",
            )
    elif len(names) == 1:
        return FolderLabels(None, reason=f"all images are in one sub-folder, {names[0]!r}")
    else:
        classes = tuple(sorted({*names, *sub_folders}))
        numbers = {name: position for position, name in enumerate(classes)}
    return FolderLabels([numbers[parts[0]] for parts in paths], classes)


def csv_labels(path: Path, files: Sequence[str]) -> list[int]:
    """Read the label of each file from a CSV file of ``file,label`` rows.

    A first row that does not name an image and whose label is not a number is a header. Empty lines
    are ignored.

    Args:
        path: The CSV file, UTF-8; its paths are relative to the folder, with forward slashes.
        files: Relative posix paths.

    Raises:
        DataError: A row has no image, an image has no row, a row is duplicated, a path leads
            outside the folder, a number is wrong, or the file cannot be read.
    """
    label = str(path)
    known, found = set(files), dict[str, int]()
    rows = csv.reader(io.StringIO(_text(path, label), newline=""), strict=True)
    try:
        for row in rows:
            where = f"{label}: line {rows.line_num}"
            if not row or _is_header(row, first=rows.line_num == 1, known=known):
                continue
            file, number = _entry(row, where)
            if file in found:
                raise DataError(f"{where}: {file!r} is listed twice", remedy="keep one row")
            if file not in known:
                raise DataError(
                    f"{where}: the folder has no image {file!r}", remedy="remove the row"
                )
            found[file] = number
    except csv.Error as error:
        raise DataError(
            f"{label}: line {rows.line_num}: not CSV ({error})", remedy="correct the line"
        ) from error
    missing = [file for file in files if file not in found]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"{label}: no row for image {missing[0]!r}{others}",
            remedy="add one for each image, file,label",
        )
    return [found[file] for file in files]


def _text(path: Path, label: str) -> str:
    data = read_label_file(path, _LARGEST_FILE)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 text", remedy="give a CSV of file,label") from error


def _entry(row: list[str], where: str) -> tuple[str, int]:
    if len(row) != 2:
        other = next((mark for mark in (";", "\t", "|") if len(row) == 1 and mark in row[0]), "")
        if other:
            raise DataError(
                f"{where}: columns are separated by {other!r}", remedy="write file,label, by commas"
            )
        plural = "s" * (len(row) != 1)
        raise DataError(f"{where} has {len(row)} column{plural}", remedy="write file,label")
    text, number = row[0], row[1].strip()
    path = PurePosixPath(text)
    # Such a path is in no list of the folder's files; the message says why, and not "no such
    # image".
    if path.is_absolute() or ".." in path.parts or "\\" in text:
        raise DataError(
            f"{where}: {text!r} is not a path inside the folder",
            remedy="write it relative to the folder, with forward slashes",
        )
    if not _is_number(number):
        raise DataError(
            f"{where}: label {number!r} is not a class number",
            remedy=f"give a whole number of at most {_MOST_DIGITS} digits",
        )
    return str(path), int(number)


def _is_header(row: list[str], *, first: bool, known: set[str]) -> bool:
    return (
        first
        and len(row) == 2
        and not _is_number(row[1].strip())
        and str(PurePosixPath(row[0])) not in known
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _same_number(names: Iterable[str]) -> str:
    seen: dict[int, str] = {}
    for name in names:
        if int(name) in seen:
            return f"{seen[int(name)]!r} and {name!r}"
        seen[int(name)] = name
    return ""
