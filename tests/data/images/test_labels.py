"""Labels come from sub-folders or a CSV file, one for each image, or are refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.data.images.labels import csv_labels, folder_labels
from intact.errors import DataError

HERE = Path("data")


def test_names_that_are_numbers_are_the_labels() -> None:
    assert folder_labels(HERE, ["10/a.png", "2/b.png", "2/x/c.png", "007/d.png"]).numbers == [
        10,
        2,
        2,
        7,
    ]
    assert folder_labels(HERE, ["3/a.png"]).numbers == [3]


def test_other_names_count_by_their_sorted_position() -> None:
    files = ["cat/a.png", "cat/b.png", "dog/a.png", "10/a.png"]
    assert folder_labels(HERE, files).numbers == [1, 1, 2, 0]


@pytest.mark.parametrize(
    "files", [["a.png"], ["cat/a.png", "dog/b.png", "c.png"], ["images/a.png", "images/b/c.png"]]
)
def test_images_outside_of_classes_have_no_labels(files: list[str]) -> None:
    found = folder_labels(HERE, files)
    assert found.numbers is None
    assert "sub-folder" in found.reason


def test_two_names_of_one_number_are_refused() -> None:
    with pytest.raises(DataError, match="data: sub-folders '01' and '1' are the same class"):
        folder_labels(HERE, ["01/a.png", "1/b.png", "2/c.png"])


FILES = ["a.png", "b/c d.png", "b/e.png"]


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "a.png,3\nb/c d.png,0\nb/e.png,12\n",
        "file,label\nb/e.png,12\n\na.png, 3\nb/c d.png,0",
        "filename,class\r\n./a.png,3\r\nb/c d.png,0\r\nb//e.png,12\r\n",
        '\ufeff"a.png","3"\n"b/c d.png",0\nb/e.png,12\n',
    ],
)
def test_a_csv_with_or_without_a_header_in_any_order(tmp_path: Path, text: str) -> None:
    assert csv_labels(written(tmp_path, text), FILES) == [3, 0, 12]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png,3\nb/e.png,1\n", "labels.csv: no row for image 'b/c d.png'; add one"),
        ("a.png,3\n", "no row for image 'b/c d.png' and 1 more"),
        ("", "no row for image 'a.png' and 2 more"),
        ("file,label\nf.png,1\n", "labels.csv: line 2: the folder has no image 'f.png'"),
        ("a.png,1\nf.png,one\n", "line 2: label 'one' is not a class number"),
        ("a.png,one\n", "line 1: label 'one' is not a class number"),
        ("a.png,-1\n", "line 1: label '-1' is not a class number"),
        ("a.png,1.0\n", "line 1: label '1.0' is not a class number"),
        ("a.png,٣\n", "line 1: label '٣' is not a class number"),
        (f"a.png,{'9' * 5000}\n", "line 1: label '999"),
        ("a.png,1\n\na.png,1\n", "line 3: 'a.png' is listed twice"),
        ("a.png,1\nb//e.png,1\nb/e.png,2\n", "line 3: 'b/e.png' is listed twice"),
        ("../a.png,1\n", "line 1: '../a.png' is not a path inside the folder"),
        ("b/../a.png,1\n", "line 1: 'b/../a.png' is not a path inside"),
        ("/a.png,1\n", "line 1: '/a.png' is not a path inside"),
        ("b\\e.png,1\n", "is not a path inside the folder; write it relative"),
        ("a.png;1\n", "line 1: columns are separated by ';'; write file,label, by commas"),
        ("a.png,1,x\n", "line 1 has 3 columns"),
        ('"a.png,1\n', "not CSV"),
        (f"{'a' * 200_000},1\n", "not CSV"),
        (b"\xff\xfe,1\n", "not UTF-8 text"),
    ],
)
def test_what_does_not_match_is_named_by_line(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        csv_labels(written(tmp_path, text), FILES)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        csv_labels(tmp_path / "none.csv", FILES)
    with pytest.raises(DataError, match="cannot be read"):
        csv_labels(tmp_path, FILES)
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate((1 << 26) + 1)
    with pytest.raises(DataError, match="larger than 64 MiB"):
        csv_labels(tmp_path / "large.csv", FILES)
