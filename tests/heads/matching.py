"""Boxes of a quantized detector against the float model's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.heads.nets import Family

Floats = npt.NDArray[np.float64]

CONFIDENT = 0.4
"""Score from which on a float box has to be found again."""
LEAST_IOU = 0.9
MOST_APART = 0.1
"""How far scores may differ."""


class Boxes(NamedTuple):
    """Boxes of one image; each place has one for each class, if none is chosen.

    Attributes:
        corners: ``[boxes, 4]``, x and y of two corners in pixels.
        scores: ``[boxes]``.
        classes: ``[boxes]``.
    """

    corners: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]


class Matched(NamedTuple):
    """How many boxes were found again.

    Attributes:
        boxes: Confident boxes of the float model.
        found: Those with a box of the same class and IoU 0.9 whose score is within 0.1.
    """

    boxes: int
    found: int

    @property
    def share(self) -> float:
        """Part that was found."""
        return self.found / max(self.boxes, 1)


def boxes_of(family: Family, output: npt.NDArray[Any]) -> list[Boxes]:
    """Read the output of a detector, one item an image."""
    rows = np.asarray(output, np.float64)
    rows = rows.swapaxes(1, 2) if family.layout == "channels" else rows
    found = []
    for each in rows:
        corners = each[:, :4]
        if not family.corners:
            half = corners[:, 2:] / 2
            corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], axis=1)
        if family.layout == "chosen":
            found.append(Boxes(corners, each[:, 4], np.rint(each[:, 5]).astype(np.int64)))
            continue
        start = 5 if family.objectness else 4
        scores = each[:, start : start + family.classes] * (
            each[:, 4:5] if family.objectness else 1
        )
        classes = np.tile(np.arange(family.classes), len(each))
        found.append(Boxes(np.repeat(corners, family.classes, axis=0), scores.ravel(), classes))
    return found


def matched(family: Family, wanted: npt.NDArray[Any], found: npt.NDArray[Any]) -> Matched:
    """Count the confident boxes of the float model that the quantized one has too."""
    boxes = again = 0
    for reference, actual in zip(boxes_of(family, wanted), boxes_of(family, found), strict=True):
        chosen = np.flatnonzero(reference.scores > CONFIDENT)
        overlap = iou(reference.corners[chosen], actual.corners)
        same = reference.classes[chosen][:, None] == actual.classes
        near = np.abs(reference.scores[chosen][:, None] - actual.scores) < MOST_APART
        boxes += len(chosen)
        again += int(((overlap >= LEAST_IOU) & same & near).any(1).sum())
    return Matched(boxes, again)


def iou(one: Floats, other: Floats) -> Floats:
    """Intersection over union of each pair of boxes, ``[ones, others]``."""
    first = np.maximum(one[:, None, :2], other[None, :, :2])
    last = np.minimum(one[:, None, 2:], other[None, :, 2:])
    common = np.prod(np.maximum(last - first, 0), axis=2)
    areas = [np.prod(np.maximum(each[:, 2:] - each[:, :2], 0), axis=1) for each in (one, other)]
    return np.asarray(common / np.maximum(areas[0][:, None] + areas[1] - common, 1e-9))
