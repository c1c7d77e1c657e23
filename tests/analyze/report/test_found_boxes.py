"""Pictures of a report with what both models of a detector find."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from intact.analyze.report import found_boxes
from intact.analyze.report.found_boxes import FoundBoxes
from intact.data.detections import DetectionMetric
from intact.data.images.thumbnails import PictureInput
from intact.graph import Graph, normalize
from tests.models import ModelBuilder

SIDE = 40
Floats = npt.NDArray[np.float32]


def detector(outputs: tuple[tuple[str, int], ...] = (("boxes", 4), ("scores", 2))) -> Graph:
    b = ModelBuilder()
    x = b.node("Flatten", b.input("image", ["N", 3, SIDE, SIDE]))
    for name, width in outputs:
        y = b.node("Gemm", x, b.weight(3 * SIDE * SIDE, 3 * width))
        b.output(b.node("Reshape", y, b.ints(-1, 3, width), out=name), ["N", 3, width])
    return normalize(b.build())


def watched(*pictures: tuple[list[list[float]], list[list[float]]]) -> FoundBoxes:
    """Watch one batch: for each picture the boxes of the float and of the quantized model."""
    metric = DetectionMetric.of_model(detector())
    assert metric is not None
    found = FoundBoxes(metric, PictureInput("image", 1))
    count = len(pictures)

    def outputs(which: int) -> dict[str, Floats]:
        boxes, scores = np.zeros((count, 3, 4), "f"), np.zeros((count, 3, 2), "f")
        for at, each in enumerate(pictures):
            for place, (*ends, score) in enumerate(each[which]):
                boxes[at, place], scores[at, place, 1] = ends, score
        return {"boxes": boxes, "scores": scores}

    images = np.random.default_rng(0).uniform(0, 255, (count, 3, SIDE, SIDE)).astype("f")
    found.watch({"image": images}, outputs(0), outputs(1), count)
    return found


ONE, OTHER = [0.0, 4.0, 10.0, 20.0, 0.9], [20.0, 20.0, 60.0, 30.0, 0.8]


def test_pictures_on_which_the_models_differ_come_first() -> None:
    shown = list(watched(([ONE], [ONE]), ([], []), ([ONE], []), ([ONE], [ONE, OTHER])).pictures())
    assert [each.sample for each in shown] == [2, 3, 0]  # of 1 nothing is to be drawn
    assert [(each.lost, each.added) for each in shown] == [(1, 0), (0, 1), (0, 0)]


def test_boxes_are_shares_of_the_picture() -> None:
    (shown,) = watched(([ONE], [OTHER])).pictures()
    first, second = shown.boxes
    assert (first.is_float, first.kind, first.score) == (True, 1, 0.9)
    assert (first.left, first.top, first.right, first.bottom) == (0, 0.1, 0.25, 0.5)
    assert not second.is_float
    assert second.right == 1  # what leaves the picture is cut


def test_boxes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_boxes, "_BOXES", 1)
    monkeypatch.setattr(found_boxes, "_SHOWN", 2)
    shown = list(watched(*[([ONE, OTHER], [OTHER])] * 5).pictures())
    assert len(shown) == 2
    assert [len(each.boxes) for each in shown] == [2, 2]


def test_other_outputs_are_none() -> None:
    place = PictureInput("image", 1)
    assert FoundBoxes.of(detector(), None) is None
    found = FoundBoxes.of(detector((("features", 6),)), place)
    assert found is not None  # by its shape it may be boxes and scores
    images = np.zeros((2, 3, SIDE, SIDE), "f")
    features = {"features": np.random.default_rng(0).normal(size=(2, 3, 6)).astype("f")}
    found.watch({"image": images}, features, features, 2)
    assert list(found.pictures()) == []
