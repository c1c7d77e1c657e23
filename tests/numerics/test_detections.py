"""Overlap, matching and average precision of boxes."""

from __future__ import annotations

import numpy as np
import pytest

from intact.numerics.detections import (
    IOUS,
    Detections,
    average_precisions,
    draws,
    kept,
    match,
    suppress,
)


def _at(*lefts: float, scores: list[float] | None = None, classes: int = 0) -> Detections:
    """Boxes of 10 by 10 pixels at these places."""
    boxes = [[left, 0, left + 10, 10] for left in lefts]
    return Detections.of(boxes, scores, [classes] * len(lefts))


def test_average_precision_follows_a_worked_example() -> None:
    # Three objects. By score: right (IoU 1), wrong, right (9 pixels of 11: IoU 0.818), and the
    # third object is missed. Precision and recall: (1, 1/3), (1/2, 1/3), (2/3, 2/3).
    truth = [_at(0, 100, 200)]
    found = [_at(0, 50, 101, scores=[0.9, 0.8, 0.7])]
    precisions = average_precisions(match(found, truth))[0]
    # 101 recalls: 34 up to 1/3 read 1, 33 up to 2/3 read 2/3, the rest 0.
    loose, strict = (34 + 33 * 2 / 3) / 101, 34 / 101
    wanted = np.where(IOUS <= 9 / 11, loose, strict)
    np.testing.assert_allclose(precisions, wanted, atol=1e-12)


def test_an_object_is_found_once_and_a_class_without_detections_counts_as_0() -> None:
    found = [_at(0, 1, scores=[0.9, 0.8])]
    assert average_precisions(match(found, [_at(0)]))[0, 0] == pytest.approx(1)
    other = Detections.of([[0, 0, 5, 5]], None, [3])
    both = Detections(*(np.concatenate(each) for each in zip(_at(0), other, strict=True)))
    assert average_precisions(match(found, [both]))[0, 0] == pytest.approx(0.5)


def test_what_lies_in_a_crowd_is_neither_right_nor_wrong() -> None:
    boxes, classes = [[0, 0, 10, 10], [50, 0, 100, 50]], [0, 0]
    crowd = [Detections.of(boxes, None, classes, [False, True])]
    found = [_at(60, 0, scores=[0.9, 0.8])]
    assert average_precisions(match(found, crowd))[0].mean() == pytest.approx(1)
    plain = [Detections.of(boxes, None, classes)]
    assert average_precisions(match(found, plain))[0].mean() < 0.5


@pytest.mark.parametrize("images", [1, 2])
def test_images_without_objects_cost_precision_alone(images: int) -> None:
    nothing = Detections.of([], None, [])
    found = [_at(0, scores=[0.5]), *[_at(0, scores=[0.9])] * (images - 1)]
    truth = [_at(0), *[nothing] * (images - 1)]
    assert average_precisions(match(found, truth))[0, 0] == pytest.approx(1 / images)
    assert np.isnan(average_precisions(match([nothing], [nothing]))).all()


def test_weights_of_images_are_those_of_repeated_images() -> None:
    random = np.random.default_rng(0)
    truth = [_at(*random.uniform(0, 90, 3)) for _ in range(4)]
    found = [
        _at(*t.boxes[:, 0] + random.normal(0, 2, 3), scores=[*random.random(3)]) for t in truth
    ]
    weights = np.array([[2.0, 0, 1, 1]])
    order = [0, 0, 2, 3]
    repeated = match([found[at] for at in order], [truth[at] for at in order])
    np.testing.assert_allclose(
        average_precisions(match(found, truth), weights), average_precisions(repeated), atol=1e-9
    )
    assert (draws(5).sum(axis=1) == 5).all()


def test_suppression_keeps_the_best_of_each_class() -> None:
    found = _at(0, 1, 50, scores=[0.5, 0.9, 0.1])
    assert suppress(found, 0.7).boxes[:, 0].tolist() == [1, 50]
    apart = found._replace(classes=np.array([0, 1, 0]))
    assert len(suppress(apart, 0.7).scores) == 3


def test_kept_wants_the_class_the_place_and_half_of_the_score() -> None:
    wanted = [_at(0, 50, 90, 140, scores=[0.9, 0.9, 0.9, 0.1])]
    found = [_at(1, 50, 98, scores=[0.5, 0.4, 0.9])]  # near; too low a score; too far
    counts, hits = kept(found, wanted, 0.25)
    assert (counts.tolist(), hits.tolist()) == ([3], [1])
    assert kept([_at(1, scores=[0.9], classes=2)], wanted, 0.25)[1].tolist() == [0]
