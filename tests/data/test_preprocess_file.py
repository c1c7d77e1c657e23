"""A preprocessing file reads back to the same value, or is refused by file and key."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.data.images.steps import ChannelOrder, ImageSteps, Resampling, SideRounding
from intact.data.preprocess import Preprocess, preprocess_to_toml, read_preprocess
from intact.errors import DataError

FLOAT32 = st.floats(-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
EVEN = st.integers(1, 300).map(lambda half: 2 * half)
SIZES = st.tuples(EVEN, EVEN)
GEOMETRIES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"size": st.none() | SIZES}),
    st.fixed_dictionaries({"size": SIZES, "shorter_side": st.integers(600, 16384)}),
    st.fixed_dictionaries(
        {
            "shorter_side": st.integers(1, 16384),
            "center_crop": st.booleans(),
            "side_rounding": st.sampled_from(SideRounding),
        }
    ),
    st.fixed_dictionaries(
        {
            "letterbox": SIZES,
            "pad": st.lists(st.integers(0, 255) | st.floats(-500, 500), min_size=1, max_size=3)
            .filter(lambda pad: len(pad) != 2)
            .map(tuple),
        }
    ),
)
PREPROCESSES = st.builds(
    lambda mean, scale, geometry, more: Preprocess(
        tuple(mean), tuple(scale), ImageSteps(**geometry, **more)
    ),
    st.lists(FLOAT32, max_size=4),
    st.lists(FLOAT32.filter(bool), max_size=4),
    GEOMETRIES,
    st.fixed_dictionaries(
        {
            "order": st.sampled_from(ChannelOrder),
            "resize": st.sampled_from(Resampling),
            "focus": st.booleans(),
        }
    ),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("preprocess") / "p.toml"


@given(PREPROCESSES)
def test_writing_and_reading_gives_the_same_value(path: Path, preprocess: Preprocess) -> None:
    written = preprocess_to_toml(preprocess)
    path.write_bytes(written)
    found = read_preprocess(path)
    assert found == preprocess
    assert [repr(number) for number in found.mean] == [repr(float(m)) for m in preprocess.mean]
    assert preprocess_to_toml(found) == written


def test_the_file_is_plain_and_small(path: Path) -> None:
    assert preprocess_to_toml(Preprocess()) == b"format = 1\n"
    steps = ImageSteps(letterbox=(640, 640), pad=(114, 0, 0), order="bgr", focus=True)
    text = preprocess_to_toml(Preprocess((0, 1.5), (1e-05,), steps)).decode()
    assert text == (
        "format = 1\nmean = [0.0, 1.5]\nscale = [1e-05]\n\n[image]\n"
        'order = "bgr"\nletterbox = [640, 640]\npad = [114, 0, 0]\nfocus = true\n'
    )
    assert tomllib.loads(text)["image"]["focus"] is True


def test_whole_numbers_and_any_order_are_read(path: Path) -> None:
    path.write_text("[image]\nshorter_side = 256\n")
    with pytest.raises(DataError, match=r"p\.toml: key 'format' is missing; add format = 1"):
        read_preprocess(str(path))
    path.write_text("# mine\nscale = [2]\nmean = [10, 20.5, 30]\nformat = 1\n[image]\nsize=[4, 6]")
    assert read_preprocess(path) == Preprocess((10, 20.5, 30), (2,), ImageSteps(size=(4, 6)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 2", "format is not 1; write format = 1"),
        ("format = true", "format is not 1"),
        ("format = 1.0", "format is not 1"),
        ("means = [1]", "unknown key 'means'; did you mean 'mean'?"),
        ("size = [2, 2]", "unknown key 'size'; put it below [image]"),
        ("[image]\nmean = [1]", "unknown key 'mean' in [image]; put it above [image]"),
        (
            "[image]\nleterbox = [2, 2]",
            "unknown key 'leterbox' in [image]; did you mean 'letterbox'",
        ),
        ("[images]\nsize = [2, 2]", "unknown key 'images'; did you mean 'image'?"),
        ("image = 3", "image is not a table"),
        ("[[image]]\nsize = [2, 2]", "image is not a table"),
        ("mean = 1", "mean is not a list of numbers; give one, or one per channel"),
        ('mean = ["1"]', "mean is not a list of numbers"),
        ("mean = [true]", "mean is not a list of numbers"),
        ("mean = [nan]", "mean has a number that is not finite"),
        ("scale = [1, 0]", "scale contains 0, which makes all samples equal"),
        (f"mean = [0x{'f' * 9000}]", "mean has a number that is not finite"),
        ("[image]\nsize = 224", "size is not a pair of numbers; give rows,columns"),
        ("[image]\nsize = [224]", "size is not a pair of numbers"),
        ("[image]\nsize = [224, 2.5]", "size is not a pair of pixel counts"),
        (f"[image]\nsize = [2, 0x{'f' * 9000}]", "size is not a pair of pixel counts"),
        ("[image]\nshorter_side = 1979-05-27", "shorter_side is not a number of pixels"),
        ('[image]\nresize = "linear"', "resize is 'linear'; did you mean 'bilinear'?"),
        ('[image]\nfocus = "yes"', "focus is neither true nor false"),
        ("[image]\npad = [1]", "pad is given without letterbox; give letterbox rows"),
        (
            "[image]\nletterbox = [4, 4]\ncenter_crop = true",
            "letterbox and center_crop are both given",
        ),
        ("mean = [1", "not TOML: "),
        ("format = 1", "not TOML: "),
        (f"x = {'[' * 5000}", "nested too deeply"),
        (f"mean = [{'9' * 5000}]", "p.toml"),
        ("mean = [1] \x00", "not TOML"),
    ],
)
def test_mistakes_are_named_by_file_and_key(path: Path, text: str, message: str) -> None:
    with_format = (
        text if text in {"format = 2", "format = true", "format = 1.0"} else f"format = 1\n{text}"
    )
    path.write_text(with_format)
    with pytest.raises(DataError) as caught:
        read_preprocess(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for missing in (tmp_path / "none.toml", tmp_path, tmp_path / "nu\0ll"):
        with pytest.raises(DataError, match=r"no such file|cannot be read"):
            read_preprocess(missing)
    with pytest.raises(DataError, match="it is a device, not a file"):
        read_preprocess("/dev/zero")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_preprocess(tmp_path / "latin.toml")
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="larger than 16 KiB"):
        read_preprocess(tmp_path / "large.toml")


def test_the_slowest_file_is_read_in_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "dots.toml"
    path.write_text("a" + ".a" * 8000 + " = 1\n")
    before = time.process_time()
    with pytest.raises(DataError):
        read_preprocess(path)
    assert time.process_time() - before < 5


def test_a_mark_of_utf_8_before_the_text_is_passed_over(path: Path) -> None:
    path.write_text("format = 1\nmean = [2.0]\n", encoding="utf-8-sig")
    assert read_preprocess(path).mean == (2.0,)
