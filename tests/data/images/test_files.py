"""Which files count as images, in which order, and which are taken of many."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.data.images.reader import evenly_spread, image_files
from intact.errors import DataError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_images_of_all_folders_sorted_by_folder_then_name(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.PNG", "b/1.jpeg", "a/z/9.tif", "a/c.webp", "0.bmp", "a-b/1.gif")
    touch(tmp_path, "10.jpg", "9.ppm", "8.pgm", "7.tiff")
    expected = ["0.bmp", "10.jpg", "7.tiff", "8.pgm", "9.ppm"]
    expected += ["a/c.webp", "a/z/9.tif", "a-b/1.gif", "b/1.jpeg", "b/2.PNG"]
    assert image_files(tmp_path) == expected


def test_hidden_files_and_those_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", ".b.png", ".c/d.png", "labels.csv", "x/readme.txt", "png", "e.png.bak")
    assert image_files(tmp_path) == ["a.png"]


def test_a_folder_without_images_is_named_with_what_was_looked_for(tmp_path: Path) -> None:
    touch(tmp_path, "readme.txt", ".hidden.png")
    with pytest.raises(DataError) as caught:
        image_files(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: no image in this folder or below")
    assert ".jpg" in str(caught.value)


def test_links_to_images_count_and_links_to_folders_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.png")
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "b.png").symlink_to(tmp_path / "real" / "a.png")
    assert image_files(folder) == ["b.png"]
    (folder / "round").symlink_to(folder)
    with pytest.raises(DataError, match="round: a link to a folder is not followed"):
        image_files(folder)


def test_names_with_line_ends_stay_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "two\nlines").mkdir()
    with pytest.raises(DataError, match="no image") as caught:
        image_files(tmp_path / "two\nlines")
    assert "\n" not in str(caught.value)


@given(st.integers(1, 500), st.integers(1, 600))
def test_the_chosen_are_spread_evenly(count: int, limit: int) -> None:
    chosen = evenly_spread(range(count), limit)
    assert len(chosen) == min(count, limit)
    assert chosen[0] == 0
    steps = {after - before for before, after in itertools.pairwise(chosen)}
    assert not steps or (min(steps) >= 1 and max(steps) - min(steps) <= 1)
    assert count - chosen[-1] <= -(-count // len(chosen))
    assert evenly_spread(range(count), None) == list(range(count))
