"""Which files of a folder are its images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from intact.errors import DataError

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
"""Suffixes of images, in any case."""

Item = TypeVar("Item")


def image_files(folder: Path) -> list[str]:
    """Return the images of a folder and of all below it, as sorted relative posix paths.

    Hidden files and folders are passed over. Links to files count; links to folders do not, since
    they may lead anywhere or in a circle.

    Raises:
        DataError: There is no image, a folder cannot be read, or is a link.
    """
    found: list[tuple[str, ...]] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        below, images = _listed(folder, parts)
        waiting += below
        found += images
    if not found:
        raise DataError(
            f"{folder}: no image in this folder or below it",
            remedy=f"looked for {' '.join(sorted(SUFFIXES))}",
        )
    return ["/".join(parts) for parts in sorted(found)]


def sub_folders(folder: Path) -> list[str]:
    """Return the names of the folders that lie directly in one, hidden ones left out.

    Raises:
        DataError: The folder cannot be read, or one in it is a link.
    """
    return [name for (name,) in _listed(folder, ())[0]]


def evenly_spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Return at most ``limit`` items, at even distances and in their order.

    >>> evenly_spread("aaabbbccc", 3)
    ['a', 'b', 'c']
    """
    if limit is None or limit >= len(items):
        return list(items)
    return [items[index * len(items) // limit] for index in range(limit)]


def _listed(
    folder: Path, parts: tuple[str, ...]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the folders and the images that lie directly in one folder."""
    folders, images = [], []
    here = folder.joinpath(*parts)
    try:
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
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
