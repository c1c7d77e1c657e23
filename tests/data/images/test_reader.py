"""Folders of images arrive in order, decoded ahead within bounds, each with its label."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from PIL import Image

from intact.data.images import reader as reader_module
from intact.data.images.decode import decode
from intact.data.images.fit import image_input
from intact.data.images.labels import FolderLabels
from intact.data.images.reader import ImageFolder
from intact.data.images.steps import ImageSteps
from intact.data.preprocess import Preprocess
from intact.data.signature import input_specs
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import DataError, MissingExtraError
from intact.graph import Graph
from tests.data.images.pictures import flat, graph_of, pixels, save

GRAPH = graph_of("n", 3, 2, 2)


def read(samples: Samples, size: int = 4) -> npt.NDArray[np.float32]:
    return np.concatenate([batch["x"][:count] for batch, count in samples.batches(size)])


def values(samples: Samples) -> list[int]:
    """The value of each image of one colour."""
    return [int(each) for each in read(samples)[:, 0, 0, 0]]


def folder_of(folder: Path, graph: Graph = GRAPH, **options: Any) -> ImageFolder:
    files = sorted(path.name for path in folder.iterdir())
    return ImageFolder(
        folder, files, FolderLabels(None), image_input(input_specs(graph), Preprocess()), **options
    )


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("intact-map")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert own_threads() == []


def test_a_folder_in_one_call(tmp_path: Path) -> None:
    images = [pixels(2, 2, 3, seed=seed) for seed in range(5)]
    for index, image in enumerate(images):
        save(tmp_path / f"{index}.png", image)
    samples = open_samples(str(tmp_path), GRAPH)
    assert samples.count == 5
    assert np.array_equal(read(samples), np.moveaxis(np.stack(images), 3, 1))
    assert samples.labels() is None
    assert samples.skipped == ()


def test_every_step_at_once_by_hand(tmp_path: Path) -> None:
    # 2x4 letterboxed into 8x8: rows 2..5 hold the image, each pixel four times.
    image = pixels(2, 4, 3)
    save(tmp_path / "a.bmp", image)
    steps = ImageSteps(letterbox=(8, 8), pad=(1, 2, 3), resize="nearest", order="bgr", focus=True)
    preprocess = Preprocess((10, 20, 30), (2, 3, 4), steps)
    found = read(open_samples(tmp_path, graph_of(1, 12, 4, 4), preprocess=preprocess), 1)[0]
    canvas = np.empty((8, 8, 3))
    canvas[:] = [1, 2, 3]
    canvas[2:6] = image[..., ::-1].repeat(2, axis=0).repeat(2, axis=1)
    scaled = (canvas - [10, 20, 30]) * [2, 3, 4]
    for block, (row, column) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        expected = np.moveaxis(scaled[row::2, column::2], 2, 0)
        assert np.array_equal(found[3 * block : 3 * block + 3], expected)


@pytest.mark.parametrize("shape", [("n", 1, 2, 4), ("n", 2, 4, 1)])
def test_a_grey_model_in_either_layout(tmp_path: Path, shape: tuple[int | str, ...]) -> None:
    image = pixels(2, 4)
    save(tmp_path / "a.png", image)
    preprocess = Preprocess(mean=(100,), scale=(0.5,))
    found = read(open_samples(tmp_path, graph_of(*shape), preprocess=preprocess))
    assert np.array_equal(found.reshape(2, 4), (image.astype(np.float32) - 100) * 0.5)


def test_crops_take_the_centre(tmp_path: Path) -> None:
    image = pixels(5, 9, 3)
    save(tmp_path / "a.png", image)
    crop = Preprocess(image=ImageSteps(center_crop=True))
    found = read(open_samples(tmp_path, graph_of("n", 3, 2, 2), preprocess=crop))
    assert np.array_equal(found[0], np.moveaxis(image[1:3, 3:5], 2, 0))
    shorter = Preprocess(image=ImageSteps(shorter_side=10, resize="nearest"))
    found = read(open_samples(tmp_path, graph_of("n", 3, 8, 8), preprocess=shorter))
    twice = image.repeat(2, axis=0).repeat(2, axis=1)
    assert np.array_equal(found[0], np.moveaxis(twice[1:9, 5:13], 2, 0))


def test_a_model_of_bytes_gets_plain_pixels(tmp_path: Path) -> None:
    save(tmp_path / "a.png", pixels(2, 2, 3))
    found = read(open_samples(tmp_path, graph_of("n", 2, 2, 3, dtype=onnx.TensorProto.UINT8)))
    assert found.dtype == np.uint8
    assert np.array_equal(found[0], pixels(2, 2, 3))


def test_jpegs_of_all_sizes_go_through(tmp_path: Path) -> None:
    for index, (rows, columns) in enumerate([(40, 60), (60, 40), (33, 32), (300, 20)]):
        save(tmp_path / f"{index}.JPG", np.full((rows, columns, 3), 40 * index, np.uint8))
    steps = ImageSteps(shorter_side=20)
    samples = open_samples(tmp_path, graph_of("n", 3, 16, 16), preprocess=Preprocess(image=steps))
    found = read(samples)
    assert np.abs(found - 40 * np.arange(4).reshape(4, 1, 1, 1)).max() <= 2


def test_mean_and_scale_are_applied_once(tmp_path: Path) -> None:
    flat(tmp_path, 3)
    samples = open_samples(tmp_path, GRAPH, preprocess=Preprocess((1,), (10,)))
    assert values(samples) == [-10, 0, 10]


def test_a_free_size_is_fixed_so_that_batches_stay_whole(tmp_path: Path) -> None:
    flat(tmp_path, 3)
    preprocess = Preprocess(image=ImageSteps(size=(2, 2)))
    samples = open_samples(tmp_path, graph_of("n", 3, "h", "w"), preprocess=preprocess)
    assert samples.batch_size(3) == 3


def test_order_is_kept_whatever_takes_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat(tmp_path, 100)
    delays = random.Random(0)

    def slow(path: Path, *, gray: bool) -> Image.Image:
        time.sleep(delays.random() / 500)
        return decode(path, gray=gray)

    monkeypatch.setattr(reader_module, "decode", slow)
    found = [int(v) for batch in folder_of(tmp_path, threads=4) for v in batch["x"][:, 0, 0, 0]]
    assert found == list(range(100))


def test_files_are_decoded_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat(tmp_path, 3)
    together = threading.Barrier(3)

    def meeting(path: Path, *, gray: bool) -> Image.Image:
        together.wait(timeout=20)
        return decode(path, gray=gray)

    monkeypatch.setattr(reader_module, "decode", meeting)
    assert sum(len(batch["x"]) for batch in folder_of(tmp_path, threads=3)) == 3


class Counted:
    """Counts the files that were opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self._lock = threading.Lock()
        monkeypatch.setattr(reader_module, "decode", self)

    def __call__(self, path: Path, *, gray: bool) -> Image.Image:
        with self._lock:
            self.opened += 1
        return decode(path, gray=gray)

    def settled(self, more_than: int = -1) -> int:
        """Return the count when it no longer grows; a busy machine is waited for until it does."""
        before, end = -1, time.monotonic() + 20
        while before != self.opened or (before <= more_than and time.monotonic() < end):
            before = self.opened
            time.sleep(0.03)
        return self.opened


def test_only_a_few_batches_are_made_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat(tmp_path, 200)
    counted = Counted(monkeypatch)
    taken = 0
    batches = iter(folder_of(tmp_path, threads=2))
    for batch in batches:
        taken += len(batch["x"])
        ahead = counted.settled(more_than=taken) - taken
        assert ahead <= 4 * 8  # two batches of eight for each thread
        if taken >= 64:
            break
        assert ahead > 0
    batches.close()  # type: ignore[attr-defined]
    assert counted.settled() < 200


def test_large_images_are_made_ahead_within_a_memory_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat(tmp_path, 40)
    image_bytes = 2 * 2 * 3 * 4
    counted = Counted(monkeypatch)
    for images in (3, 1):
        monkeypatch.setattr(reader_module, "_AHEAD_BYTES", images * image_bytes)
        counted.opened = 0
        batches = iter(folder_of(tmp_path, threads=2))
        assert len(next(batches)["x"]) == 1
        assert counted.settled() <= images
        batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["exhausted", "closed", "forgotten", "failed"])
def test_threads_end_with_the_iterator(tmp_path: Path, how: str) -> None:
    flat(tmp_path, 60)
    if how == "failed":
        (tmp_path / "0005.png").write_bytes(b"broken")
    batches = iter(folder_of(tmp_path, threads=3))
    if how == "exhausted":
        assert sum(len(batch["x"]) for batch in batches) == 60
    elif how == "failed":
        with pytest.raises(DataError, match=r"0005\.png"):
            next(batches)
    else:
        next(batches)
        assert own_threads()
        if how == "closed":
            batches.close()  # type: ignore[attr-defined]
        del batches
    assert own_threads() == []


def test_a_limit_takes_some_of_each_class(tmp_path: Path) -> None:
    for label in range(5):
        for index in range(10):
            save(
                tmp_path / str(label) / f"{index}.png", np.full((2, 2, 3), 10 * label + index, "u1")
            )
    samples = open_samples(tmp_path, GRAPH, limit=10)
    assert samples.count == 10
    assert values(samples) == list(range(0, 50, 5))
    labels = samples.labels()
    assert labels is not None
    assert labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert labels.dtype == np.int64


def test_labels_from_a_csv_and_from_names(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        for index, path in enumerate(flat(tmp_path / name, 3)):
            path.rename(path.with_name(f"{index}.png"))
    by_name = open_samples(tmp_path, GRAPH).labels()
    assert by_name is not None
    assert by_name.tolist() == [0, 0, 0, 1, 1, 1]
    table = tmp_path / "labels.csv"
    rows = [
        f"{name}/{index}.png,{index + 5 * (name == 'dog')}"
        for name in ("dog", "cat")
        for index in range(3)
    ]
    table.write_text("file,label\n" + "\n".join(rows))
    by_table = open_samples(tmp_path, GRAPH, labels=str(table), limit=3).labels()
    assert by_table is not None
    assert by_table.tolist() == [0, 2, 6]
    table.write_text("\n".join(rows[1:]))
    with pytest.raises(DataError, match=r"labels\.csv: no row for image 'dog/0\.png'"):
        open_samples(tmp_path, GRAPH, labels=table)


def test_a_bad_file_is_named_and_skipped_only_when_asked(tmp_path: Path) -> None:
    for label in (0, 1):
        for path in flat(tmp_path / str(label), 10):
            path.rename(path.with_name(f"{path.stem}-{label}.png"))
    (tmp_path / "0" / "0003-0.png").write_bytes(b"hello")
    good = (tmp_path / "1" / "0004-1.png").read_bytes()
    (tmp_path / "1" / "0004-1.png").write_bytes(good[:-30])
    with pytest.raises(DataError, match=r"0/0003-0\.png: not an image.*skip_bad") as caught:
        read(open_samples(tmp_path, GRAPH))
    assert "\n" not in str(caught.value)

    samples = open_samples(tmp_path, GRAPH, skip_bad=True)
    for _ in range(2):  # each pass tells anew
        assert values(samples) == [0, 1, 2, *range(4, 10), 0, 1, 2, 3, *range(5, 10)]
        labels = samples.labels()
        assert labels is not None
        assert labels.tolist() == [0] * 9 + [1] * 9
        assert len(samples.skipped) == 2
        assert samples.skipped[0] == "0/0003-0.png: not an image that can be read"
        assert samples.skipped[1].startswith("1/0004-1.png: damaged or truncated (")


def test_a_whole_batch_of_bad_files_is_skipped(tmp_path: Path) -> None:
    for path in flat(tmp_path, 40)[:25]:
        path.write_bytes(b"")
    samples = open_samples(tmp_path, GRAPH, skip_bad=True)
    assert values(samples) == list(range(25, 40))
    assert all(len(batch["x"]) for batch in samples.reader)
    assert len(samples.skipped) == 25


def test_images_too_small_to_crop_are_bad_ones(tmp_path: Path) -> None:
    save(tmp_path / "a.png", pixels(4, 1, 3))
    save(tmp_path / "b.png", pixels(2, 2, 3))
    crop = Preprocess(image=ImageSteps(center_crop=True))
    with pytest.raises(DataError, match=r"a\.png: has 4x1 pixels, too few to crop 2x2"):
        read(open_samples(tmp_path, GRAPH, preprocess=crop))
    samples = open_samples(tmp_path, GRAPH, preprocess=crop, skip_bad=True)
    assert np.array_equal(read(samples)[0], np.moveaxis(pixels(2, 2, 3), 2, 0))


def test_skipped_images_leave_no_traces_in_the_padding(tmp_path: Path) -> None:
    for index in range(8):
        save(tmp_path / f"{index}.png", np.full((1, 2, 3), 100 + index, np.uint8))
    (tmp_path / "3.png").write_bytes(b"broken")
    letterbox = Preprocess(image=ImageSteps(letterbox=(4, 2), pad=(7,)))
    samples = open_samples(tmp_path, graph_of("n", 3, 4, 2), preprocess=letterbox, skip_bad=True)
    found = read(samples)[:, 0, :, 0]
    expected = [[7, 100 + index, 7, 7] for index in range(8) if index != 3]
    assert found.tolist() == expected


@pytest.mark.parametrize("name", [b"two\nlines.png", b"\xff.png", b"\x1b[31m.png"])
def test_names_stay_printable_and_on_one_line(tmp_path: Path, name: bytes) -> None:
    flat(tmp_path, 1)
    (tmp_path / os.fsdecode(name)).write_bytes(b"")
    samples = open_samples(tmp_path, GRAPH, skip_bad=True)
    assert values(samples) == [0]
    (line,) = samples.skipped
    assert line.isprintable()
    with pytest.raises(DataError, match="not an image") as caught:
        read(open_samples(tmp_path, GRAPH))
    assert str(caught.value).isprintable()


def test_nothing_but_bad_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"none of 2 images can be used; the first: a\.png: not an"):
        read(open_samples(tmp_path, GRAPH, skip_bad=True))


def test_what_a_folder_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image in this folder"):
        open_samples(tmp_path, GRAPH)
    flat(tmp_path, 1)
    with pytest.raises(DataError, match="is not an image"):
        open_samples(tmp_path, graph_of("n", 7))
    with pytest.raises(DataError, match="mean has 2 numbers, input 'x' takes images with 3"):
        open_samples(tmp_path, GRAPH, preprocess=Preprocess(mean=(1, 2)))
    with pytest.raises(DataError, match="has no mask"):
        open_samples(tmp_path, GRAPH, mask="mask")
    arrays = {"x": np.zeros((1, 3, 2, 2))}
    options: tuple[dict[str, Any], ...] = ({"labels": tmp_path / "a.csv"}, {"skip_bad": True})
    for option in options:
        with pytest.raises(DataError, match="needs a folder of images"):
            open_samples(arrays, GRAPH, **option)


def test_an_input_called_labels_gets_no_labels(tmp_path: Path) -> None:
    flat(tmp_path / "0", 2)
    samples = open_samples(tmp_path, graph_of("n", 3, 2, 2, name="labels"))
    assert next(iter(samples.batches(2)))[0].keys() == {"labels"}
    assert samples.labels() is None


def test_without_pillow_a_folder_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat(tmp_path, 1)
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install"):
        open_samples(tmp_path, GRAPH)


def test_a_sub_folder_without_images_keeps_its_class_number(tmp_path: Path) -> None:
    for name in ("ant", "cat"):
        save(tmp_path / name / "0.png", np.zeros((2, 2), np.uint8))
    for name in ("bee", ".hidden"):
        (tmp_path / name).mkdir()
    labels = open_samples(tmp_path, GRAPH).labels()
    assert labels is not None
    assert labels.tolist() == [0, 2]
