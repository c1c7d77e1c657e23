"""Boxes with scores and classes: overlap, suppression, average precision and its interval.

Average precision is that of COCO (T.-Y. Lin et al., "Microsoft COCO: common objects in context",
2014, and its evaluation server): detections in the order of their scores take the free object of
their class that they overlap most, for each IoU of 0.5, 0.55 .. 0.95 by itself; precision is read
at 101 recalls from the envelope of what follows; and the mean is over the classes that have
objects, and over the IoUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

IOUS: Doubles = np.linspace(0.5, 0.95, 10)
"""At which detections are matched."""
_RECALLS: Doubles = np.linspace(0, 1, 101)
_MOST = 100
"""Detections of an image that count, as COCO has it."""
_CANDIDATES = 1000
"""Detections of an image that are compared with each other, the best ones."""
RESAMPLES = 200
"""Draws of a bootstrap: the ends of a 95 % interval are its sixth draws from either side."""


class Detections(NamedTuple):
    """What is found, or is, in one image.

    Attributes:
        boxes: x and y of two corners, float64 ``[n, 4]``.
        scores: float64 ``[n]``; ones for what is there.
        classes: int64 ``[n]``.
        ignored: bool ``[n]``: crowds, which neither count nor make a detection in them wrong.
    """

    boxes: Doubles
    scores: Doubles
    classes: npt.NDArray[np.int64]
    ignored: npt.NDArray[np.bool_]

    @staticmethod
    def of(
        boxes: npt.ArrayLike,
        scores: npt.ArrayLike | None,
        classes: npt.ArrayLike,
        ignored: npt.ArrayLike | None = None,
    ) -> Detections:
        """Convert arrays; what has no scores has 1."""
        corners = np.asarray(boxes, np.float64).reshape(-1, 4)
        count = len(corners)
        return Detections(
            corners,
            np.ones(count) if scores is None else np.asarray(scores, np.float64).reshape(count),
            np.asarray(classes, np.int64).reshape(count),
            np.zeros(count, bool) if ignored is None else np.asarray(ignored, bool).reshape(count),
        )

    def at(self, chosen: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Detections:
        """Return some of them."""
        return Detections(
            self.boxes[chosen], self.scores[chosen], self.classes[chosen], self.ignored[chosen]
        )


def iou(one: Doubles, other: Doubles, crowds: npt.NDArray[np.bool_] | None = None) -> Doubles:
    """Intersection over union of each pair of boxes, ``[ones, others]``.

    Args:
        one: Corners, ``[ones, 4]``.
        other: Corners, ``[others, 4]``.
        crowds: Which of the others are crowds: there it is the share of the first box inside.

    >>> iou(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2]])).round(3)
    array([[0.333]])
    """
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    common = np.maximum(high - low, 0).prod(axis=2)
    own, theirs = (np.maximum(b[:, 2:] - b[:, :2], 0).prod(axis=1) for b in (one, other))
    whole = own[:, None] + theirs[None, :] - common
    if crowds is not None:
        whole = np.where(crowds[None, :], own[:, None], whole)
    return np.asarray(common / np.maximum(whole, np.finfo(np.float64).tiny))


def best(found: Detections) -> Detections:
    """Return the 100 detections that count, best first."""
    return found.at(np.argsort(-found.scores, kind="stable")[:_MOST])


def suppress(found: Detections, most: float) -> Detections:
    """Leave out boxes that overlap a better one of their class by more than this IoU.

    The best 1,000 are looked at, and the best 100 are kept, best first.
    """
    if len(found.scores) > _CANDIDATES:  # sorting all takes longer
        least = np.partition(found.scores, -_CANDIDATES)[-_CANDIDATES]
        found = found.at(found.scores >= least)
    found = found.at(np.argsort(-found.scores, kind="stable")[:_CANDIDATES])
    same = found.classes[:, None] == found.classes[None, :]
    rivals = (iou(found.boxes, found.boxes) > most) & same
    free = np.ones(len(found.scores), bool)
    for place in range(len(free)):
        if free[place]:
            free[place + 1 :] &= ~rivals[place, place + 1 :]
    return best(found.at(free))


class Matched(NamedTuple):
    """Detections of all images, with which are right at each IoU.

    Attributes:
        images: Number of the image of each detection, ``[n]``.
        scores: ``[n]``.
        classes: ``[n]``.
        right: bool ``[ious, n]``.
        counts: bool ``[ious, n]``: not in a crowd.
        objects: Number of objects, int64 ``[images, classes]``.
    """

    images: npt.NDArray[np.int64]
    scores: Doubles
    classes: npt.NDArray[np.int64]
    right: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.bool_]
    objects: npt.NDArray[np.int64]


def match(found: Sequence[Detections], truth: Sequence[Detections]) -> Matched:
    """Match detections with what is there, image by image and class by class."""
    highest = max((int(t.classes.max()) for t in truth if len(t.classes)), default=-1)
    objects = np.zeros((len(truth), highest + 1), np.int64)
    parts: list[tuple[int, Detections, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]] = []
    for image, (every, want) in enumerate(zip(found, truth, strict=True)):
        have = every.at(np.argsort(-every.scores, kind="stable")[:_MOST])
        np.add.at(objects[image], want.classes[~want.ignored], 1)
        for kind in np.unique(have.classes):
            mine, theirs = have.at(have.classes == kind), want.at(want.classes == kind)
            parts.append((image, mine, *_match_class(mine, theirs)))
    empty = np.zeros((len(IOUS), 0), bool)
    return Matched(
        np.concatenate([np.zeros(0, np.int64), *(np.full(len(p[1].scores), p[0]) for p in parts)]),
        np.concatenate([np.zeros(0), *(part[1].scores for part in parts)]),
        np.concatenate([np.zeros(0, np.int64), *(part[1].classes for part in parts)]),
        np.concatenate([empty, *(part[2] for part in parts)], axis=1),
        np.concatenate([empty, *(part[3] for part in parts)], axis=1),
        objects,
    )


def _match_class(
    found: Detections, truth: Detections
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which detections are right, and which count, ``[ious, n]``; the best come first."""
    shape = len(IOUS), len(found.scores)
    right, counts = np.zeros(shape, bool), np.ones(shape, bool)
    if not len(truth.scores):
        return right, counts
    overlaps = iou(found.boxes, truth.boxes, truth.ignored)
    free = np.broadcast_to(~truth.ignored, (len(IOUS), len(truth.scores))).copy()
    rows = np.arange(len(IOUS))
    for place, overlap in enumerate(overlaps):
        open_ones = np.where(free, overlap, -1.0)
        best = open_ones.argmax(axis=1)
        right[:, place] = open_ones[rows, best] >= IOUS
        free[rows[right[:, place]], best[right[:, place]]] = False
        crowded = (np.where(truth.ignored, overlap, -1.0).max() >= IOUS) & ~right[:, place]
        counts[:, place] = ~crowded
    return right, counts


def average_precisions(matched: Matched, weights: Doubles | None = None) -> Doubles:
    """Average precision at each IoU, over the classes that have objects.

    Args:
        matched: The detections.
        weights: How often each image counts, ``[draws, images]``; None for once.

    Returns:
        ``[draws, ious]``; NaN where there is no object.
    """
    once = np.ones((1, len(matched.objects)))
    times = once if weights is None else np.asarray(weights, np.float64)
    totals = times @ matched.objects
    sums, classes = np.zeros((len(times), len(IOUS))), (totals > 0).sum(axis=1)
    order = np.argsort(-matched.scores, kind="stable")
    for kind in np.flatnonzero(matched.objects.any(axis=0)):
        chosen = order[matched.classes[order] == kind]
        if not len(chosen):
            continue
        each = times[:, matched.images[chosen]]
        for level in range(len(IOUS)):
            hits = np.cumsum(each * matched.right[level, chosen], axis=1)
            seen = np.cumsum(each * matched.counts[level, chosen], axis=1)
            sums[:, level] += _area(hits, seen, totals[:, kind])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(classes[:, None] > 0, sums / classes[:, None], np.nan))


def _area(hits: Doubles, seen: Doubles, totals: Doubles) -> Doubles:
    """Return the mean precision at 101 recalls, ``[draws]``; 0 where there is no object."""
    precision = hits / np.maximum(seen, np.finfo(np.float64).tiny)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = hits / np.maximum(totals, 1e-9)[:, None]
    found = np.zeros(len(hits))
    for draw, total in enumerate(totals):
        if total > 0:
            # As numbers of objects: a recall of 1 must not be missed by rounding.
            at = np.searchsorted(recall[draw] + 1e-12, _RECALLS)
            found[draw] = envelope[draw, at[at < envelope.shape[1]]].sum() / len(_RECALLS)
    return found


def kept(
    found: Sequence[Detections], wanted: Sequence[Detections], least: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Count the detections of one model that another has too, by image.

    Each is taken once: it has the same class, an IoU of 0.5 or more, and half of the score or more.

    Args:
        found: Of the model that is judged.
        wanted: Of the other.
        least: Score from which on they have to be there.

    Returns:
        How many there are, and how many are found, int64 ``[images]`` each.
    """
    counts, hits = (np.zeros(len(wanted), np.int64) for _ in range(2))
    for image, (have, every) in enumerate(zip(found, wanted, strict=True)):
        order = np.argsort(-every.scores, kind="stable")
        want = every.at(order[every.scores[order] >= least])
        counts[image] = len(want.scores)
        fits = want.classes[:, None] == have.classes[None, :]
        fits &= have.scores[None, :] >= want.scores[:, None] / 2
        overlaps = np.where(fits, iou(want.boxes, have.boxes), 0.0)
        for place in range(len(want.scores)):
            best = int(overlaps[place].argmax()) if overlaps.shape[1] else 0
            if overlaps.shape[1] and overlaps[place, best] >= IOUS[0]:
                hits[image] += 1
                overlaps[:, best] = 0.0
    return counts, hits


def draws(images: int) -> Doubles:
    """How often each image is drawn in each of 200 resamples, ``[200, images]``; always the same.

    The bootstrap over images: B. Efron, Annals of Statistics 7, 1979.
    """
    random = np.random.default_rng(0)
    picks = random.integers(images, size=(RESAMPLES, images))
    return np.stack([np.bincount(each, minlength=images) for each in picks]).astype(np.float64)


def interval(values: Doubles) -> tuple[float, float]:
    """Return the ends of the 95 % interval of drawn values; NaN where none is a number."""
    values = values[~np.isnan(values)]
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
