"""Reads what a detector finds out of its outputs: boxes, scores and classes, in whatever form.

Boxes of ``[images, places, 4]`` with scores of ``[images, places, classes]`` are one such form,
rows of ``[x, y, x, y, score, class]`` in one output another. The float model's numbers tell which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.data.metric import DETECTIONS, Outputs
from intact.errors import DataError
from intact.numerics.detections import Detections, best, suppress

_LEAST = 0.001
"""Scores below count for nothing in a mean average precision."""
_OVERLAP = 0.7
"""IoU from which on a place's box is left out beside a better one of its class."""
_SURE = 0.99
"""Share of boxes whose numbers are corners in order, if they are corners."""

_CHOSEN = 6
"""Numbers of a box that was chosen: two corners, score and class."""

_BOX, _REST = slice(4), slice(4, None)


class DetectorEnds(NamedTuple):
    """Names of outputs; none of scores where boxes and scores are joined."""

    boxes: str
    scores: str
    classes: str


def are_boxes_with_scores(output: npt.NDArray[Any] | list[npt.NDArray[Any]]) -> bool:
    """Tell whether the numbers of one output are boxes in pixels, and scores of 0 to 1.

    Other lists of numbers have other ranges in their first four places.
    """
    rows = _lists(_by_image(output))
    if _are_turned(rows):
        rows = [each.T for each in rows]
    if any(each.shape[1] < 5 for each in rows) or not any(map(len, rows)):
        return False
    boxes, scores = (np.concatenate([r[:, part] for r in rows]) for part in (_BOX, _REST))
    is_whole = scores.shape[1] == 2  # a class number beside the score
    ranked = scores[:, :1] if is_whole else scores
    return bool(ranked.min() >= 0 and ranked.max() <= 1.001 and np.abs(boxes).max() > 2)


class DetectionReader(NamedTuple):
    """How outputs are read, which the float model's tell.

    Attributes:
        ends: Names.
        form: Of boxes.
        is_chosen: Whether joined rows are box, score and class.
        is_logit: Whether scores become probabilities by Sigmoid.
        factor: Of x and y, to pixels.
        classes: Number of classes; None where class numbers are given.
        is_turned: Whether joined rows have the places along their second axis.
    """

    ends: DetectorEnds
    form: str
    is_chosen: bool
    is_logit: bool
    factor: tuple[float, float]
    classes: int | None
    is_turned: bool = False

    @staticmethod
    def of(
        ends: DetectorEnds, form: str, size: tuple[int, int] | None, outputs: Outputs
    ) -> DetectionReader:
        """Find out how outputs are read.

        Args:
            ends: Names of the outputs.
            form: Of boxes; "" where their numbers tell.
            size: Rows and columns of the model's input; None where it has no image.
            outputs: Of the float model.

        Raises:
            DataError: There is no such output, or it holds something else.
        """
        name = ends.boxes
        reader = DetectionReader(ends, form, False, False, (1.0, 1.0), None)
        for each in filter(None, reader.ends):
            if each not in outputs:
                raise DataError(f"metric {DETECTIONS}: the model has no output {each!r}")
        if not ends.scores:
            rows = _lists(_by_image(outputs[name]))
            reader = reader._replace(is_turned=_are_turned(rows))
            rows = [each.T for each in rows] if reader.is_turned else rows
            if any(each.shape[1] < 5 for each in rows):
                raise DataError(
                    f"metric {DETECTIONS}: rows of {name!r} have {rows[0].shape[1]} numbers, too "
                    "few for a box and scores",
                    remedy="name the outputs with --boxes and --scores",
                )
            width = rows[0].shape[1]
            whole = all(
                np.allclose(each[:, 5], np.rint(each[:, 5])) for each in rows if width == _CHOSEN
            )
            reader = reader._replace(is_chosen=width == _CHOSEN and whole)
        raw = [reader._raw(outputs, at) for at in range(len(_by_image(outputs[name])))]
        everything = np.concatenate([scores.ravel() for _, scores, _ in raw])
        widths = {scores.shape[1] for _, scores, kinds in raw if kinds is None}
        boxes = np.concatenate([box for box, _, _ in raw])
        is_logit = bool(everything.size) and bool(everything.min() < 0 or everything.max() > 1.001)
        reader = reader._replace(classes=widths.pop() if widths else None, is_logit=is_logit)
        if not form and len(boxes):
            ordered = (boxes[:, 2:] >= boxes[:, :2]).all(axis=1).mean()
            reader = reader._replace(form="corners" if ordered >= _SURE else "centres")
        # Parts of the image: no box of pixels is that small.
        if size is not None and len(boxes) and np.quantile(np.abs(boxes), 0.99) <= 2:
            rows_, columns = size
            reader = reader._replace(factor=(float(columns), float(rows_)))
        return reader

    def read(self, outputs: Outputs) -> list[Detections]:
        """Read the detections of all images."""
        return [self._one(outputs, at) for at in range(len(_by_image(outputs[self.ends.boxes])))]

    def _raw(
        self, outputs: Outputs, at: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Return boxes ``[n, 4]``, scores ``[n, classes]``, and classes ``[n]`` if they are given.

        Where they are, scores are ``[n, 1]``.
        """
        boxes = _image(outputs[self.ends.boxes], at)
        if not self.ends.scores:
            (rows,) = _lists([boxes])
            rows = rows.T if self.is_turned else rows
            if self.is_chosen:
                return rows[:, :4], rows[:, 4:5], rows[:, 5]
            return rows[:, :4], rows[:, 4:], None
        if boxes.size % 4:
            raise DataError(
                f"output {self.ends.boxes!r} has shape {list(boxes.shape)} an image: no boxes",
                remedy="name the output with --boxes",
            )
        boxes = boxes.T if boxes.ndim == 2 and boxes.shape[1] != 4 == boxes.shape[0] else boxes
        boxes = boxes.reshape(-1, 4)
        scores = _image(outputs[self.ends.scores], at)
        count = len(boxes)
        scores = scores.reshape(-1, 1) if scores.ndim < 2 else scores.reshape(scores.shape[-2:])
        scores = scores if len(scores) == count else scores.T
        self._check_count(count, len(scores), self.ends.scores, "scores")
        if not self.ends.classes:
            return boxes, scores, None
        kinds = _image(outputs[self.ends.classes], at)
        # Rows of NonMaxSuppression: image, class, place.
        kinds = kinds.reshape(-1, 1) if kinds.ndim < 2 else kinds.reshape(-1, kinds.shape[-1])
        kinds = kinds if len(kinds) == count else kinds.reshape(-1, 1)
        self._check_count(count, len(kinds), self.ends.classes, "classes")
        return boxes, scores[:, :1], kinds[:, 1] if kinds.shape[1] == 3 else kinds[:, 0]

    def _check_count(self, boxes: int, found: int, output: str, what: str) -> None:
        if boxes != found:
            raise DataError(
                f"outputs {self.ends.boxes!r} and {output!r} have {boxes} boxes and {found} {what}",
                remedy="name the outputs with --boxes, --scores and --classes",
            )

    def _one(self, outputs: Outputs, at: int) -> Detections:
        boxes, scores, kinds = self._raw(outputs, at)
        boxes, scores = (np.nan_to_num(np.asarray(e, np.float64)) for e in (boxes, scores))
        if self.is_logit:
            scores = 1 / (1 + np.exp(-np.clip(scores, -50, 50)))
        boxes = _corners(boxes, self.form) * np.tile(self.factor, 2)
        if kinds is not None:
            found = Detections.of(boxes, scores[:, 0], np.rint(kinds))
            return best(found.at(found.scores >= _LEAST))
        place, kind = np.nonzero(scores >= _LEAST)
        found = Detections.of(boxes[place], scores[place, kind], kind)
        return suppress(found, _OVERLAP)


def _corners(boxes: npt.NDArray[Any], form: str) -> npt.NDArray[Any]:
    if form == "corners_yx":
        return boxes[:, [1, 0, 3, 2]]
    if form == "corner_size":
        return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    if form == "centres":
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return boxes


def _by_image(outputs: npt.NDArray[Any] | list[npt.NDArray[Any]]) -> Sequence[npt.NDArray[Any]]:
    return outputs if isinstance(outputs, list) else [*outputs]


def _image(outputs: npt.NDArray[Any] | list[npt.NDArray[Any]], at: int) -> npt.NDArray[Any]:
    """Return an output of one image, without leading axes of 1."""
    array = np.asarray(outputs[at])
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    return array


def _lists(images: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return the outputs of images without leading axes of 1, of two axes each."""
    lists = [_image([each], 0) for each in images]
    for each in lists:
        if each.ndim != 2:
            raise DataError(
                f"an output of shape {list(each.shape)} an image is no list of boxes with scores",
                remedy="name the outputs with --boxes and --scores",
            )
    return lists


def _are_turned(lists: Sequence[npt.NDArray[Any]]) -> bool:
    """Tell whether the places are along the second axis.

    That is the longer one, or the only one whose length is not the same in all images: a net that
    chooses its boxes may find few, or none.
    """
    firsts, seconds = ({each.shape[axis] for each in lists} for axis in (0, 1))
    if len(firsts) != len(seconds):
        return len(firsts) < len(seconds)
    return all(each.shape[0] < each.shape[1] > _CHOSEN for each in lists)
