"""Pictures of the data in a report: which samples are shown, and what is said of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import intact
from intact.analyze.report.pictures import Answers
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec
from intact.data.stream import Samples
from tests.reports import evil_model, samples

LEFT_OUT = ["errors", "diagnosis", "verification"]


def answered(want: Sequence[int], have: Sequence[int], labels: Sequence[int] | None) -> Answers:
    """Watch two batches, the last padded, of a model of three classes."""
    specs = {"image": InputSpec(np.dtype(np.float32), (None, 3, 8, 8))}
    answers = Answers(Samples("data", specs, []), Preprocess())
    images = np.linspace(0, 255, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    scores = np.eye(3, dtype=np.float32)
    for start in range(0, len(want), 4):
        count = min(4, len(want) - start)
        rows = [*range(start, start + count), *[start] * (4 - count)]
        first, second = (scores[[each[row] for row in rows]] for each in (want, have))
        answers.watch({"image": images.repeat(4, 0)}, {"out": first}, {"out": second}, count)
    if labels is not None:
        answers.labels = np.array(labels)
    return answers


def test_answers_that_become_wrong_are_shown_first() -> None:
    answers = answered([0, 1, 2, 0, 1, 2], [1, 1, 0, 0, 0, 0], [2, 1, 0, 0, 1, 2])
    assert answers.changed() == [4, 5, 0, 2]
    shown = list(answers.pictures())
    assert [each.sample for each in shown] == [4, 5, 0, 2]
    assert [each.is_lost for each in shown] == [True, True, False, False]
    assert (shown[0].label, shown[0].before, shown[0].after) == ("1", "1", "0")
    assert all(each.source.startswith("data:image/png;base64,") for each in shown)


def test_classes_that_lose_most_are_listed_by_labels() -> None:
    answers = answered([0, 1, 2, 0, 1, 2], [1, 1, 0, 0, 0, 0], [2, 1, 0, 0, 1, 2])
    rows = [(each.name, each.samples, each.before, each.after) for each in answers.classes()]
    assert rows == [("1", 2, 2, 1), ("2", 2, 1, 0)]


def test_without_labels_classes_are_the_float_models() -> None:
    answers = answered([0, 1, 2, 0], [1, 1, 0, 0], None)
    rows = [(each.name, each.samples, each.before, each.after) for each in answers.classes()]
    assert rows == [("0", 2, 2, 1), ("2", 1, 1, 0)]
    assert next(answers.pictures()).label is None


def test_outputs_without_classes_have_no_answers() -> None:
    answers = answered([0], [1], None)
    boxes = {"out": np.zeros((4, 5, 6), np.float32)}
    answers.watch({"image": np.zeros((4, 3, 8, 8), np.float32)}, boxes, boxes, 4)
    assert list(answers.classes()) == []
    assert answers.changed() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result whose recipe names a file of samples."""
    place = tmp_path_factory.mktemp("pictures")
    np.savez(place / "calib.npz", image=samples())
    intact.quantize(
        evil_model(), place / "calib.npz", weight_bits=2, preset="fast", output=place / "out"
    )
    return place


def test_a_report_shows_the_data_of_its_call_and_no_other(folder: Path) -> None:
    found = intact.report(folder / "out", folder / "calib.npz", leave_out=LEFT_OUT)
    assert found.pictures is not None
    (sheet,) = found.pictures.sheets
    assert len(sheet.pictures) == len(samples())
    assert "8x8, values from" in sheet.told
    assert found.pictures.sheets[0].title == "Calibration samples"
    assert intact.report(folder / "out", leave_out=LEFT_OUT).pictures is None
    left_out = [*LEFT_OUT, "pictures"]
    assert intact.report(folder / "out", samples(), leave_out=left_out).pictures is None


def test_a_folder_of_images_is_brought_back_from_its_steps(tmp_path: Path) -> None:
    colours = {"blue": (0, 0, 255), "green": (0, 128, 0), "red": (255, 0, 0)}
    (tmp_path / "images").mkdir()
    for name, colour in colours.items():
        Image.new("RGB", (20, 16), colour).save(tmp_path / "images" / f"{name}.png")
    data = tmp_path / "images"
    steps = "imagenet-caffe"  # blue first, without a scale
    made = intact.quantize(evil_model(), data, normalize=steps, preset="fast")
    found = made.report(data, leave_out=LEFT_OUT).figures.pictures
    assert found is not None
    (sheet,) = found.sheets
    assert "pixels from 0 to 255, brought back from mean and scale" in sheet.told
    for picture, colour in zip(sheet.pictures, colours.values(), strict=True):
        content = base64.b64decode(picture.source.partition(",")[2])
        shown = np.asarray(Image.open(io.BytesIO(content)))
        np.testing.assert_array_equal(shown, np.full((8, 8, 3), colour))


def test_pictures_have_a_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 2_000
    monkeypatch.setattr("intact.analyze.report.pictures.PICTURE_BYTES", room)
    found = intact.report(folder / "out", samples(), leave_out=LEFT_OUT).pictures
    assert found is not None
    shown = [*found.examples, *(each for sheet in found.sheets for each in sheet.pictures)]
    assert 0 < sum(len(each.source) for each in shown) <= room
    assert len(shown) < len(samples())
