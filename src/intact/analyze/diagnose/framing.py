"""Finds pictures that show another part of a scene than the model was trained on, or are squeezed.

The same pictures are shown otherwise: without a border that all of them have, smaller with their
edges continued, larger, narrower or wider. Labels tell whether the float model finds more then, and
for a border its answers, too. What was cut away does not come back: this finds the mistake, and the
user mends it where the pictures are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.trials import Doubles, Floats, Outcome
from intact.numerics.answers import chance_of, probabilities

_FEW, _MANY = 32, 256
"""Samples on which all ways are tried, and the best two of them."""
_LEADERS = 2
_DEVIATIONS = 4.0
"""Standard errors by which one way of ten must be better than the present one."""
_UNLIKELY = 0.01
"""Probability by chance under which more samples are right, where that is not all that is asked."""
_LEAST_SHARE = 2.0**-10
"""Probability below which an answer is as wrong as can be: no single sample decides."""
_SURER = 0.05
"""How much surer than right answers are where pictures of another size are worth trying: enlarged
ones are judged by what is left of them, and no less surely."""
_SAME = 0.02
"""Part of the range by which a border may vary, as by what JPEG does to it."""
_LEAST_BORDER, _LEAST_CONTENT = 1 / 16, 1 / 4
"""Of a side: narrower ones are frames of pictures, and of less nothing can be told."""
_SIZES = (8 / 7, 4 / 3, 8 / 5, 7 / 8, 3 / 4)
"""What is shown, in times of the picture; 7/8 is the usual centre of a resized one."""
_ASPECTS = (3 / 4, 4 / 3)
"""Width that is shown, in times of the picture's: photos are 4 by 3."""

Run = Callable[[Floats], Outcome]


class Framing(msgspec.Struct, frozen=True):
    """The part of a picture that is shown, enlarged to the whole.

    Attributes:
        name: In evidence.
        remedy: What is to be done with the pictures.
        rows: The first and the last row that are shown; outside the picture its edge continues.
        columns: The same of columns.
    """

    name: str
    remedy: str
    rows: tuple[float, float]
    columns: tuple[float, float]

    def apply(self, images: Floats, axis: int) -> Floats:
        """Show this part of images ``[samples, ...]`` whose channels are along ``axis``."""
        first = 2 if axis == 1 else 1
        return _along(_along(images, first, self.rows), first + 1, self.columns)


def better_framing(
    data: Floats, axis: int, run: Run, labels: npt.NDArray[np.int64] | None
) -> tuple[Framing, Outcome, Outcome] | None:
    """Return a way of showing pictures with which the float model finds more, beyond chance.

    Args:
        data: The pictures, ``[samples, ...]``, before mean and scale.
        axis: Axis of their channels.
        run: Runs the float model on such pictures.
        labels: Classes of the samples; None where there are none.

    Returns:
        The way, and what the model does without and with it; None where none is better.
    """
    few, many = data[:_FEW], data[:_MANY]
    if len(few) < _FEW:
        return None
    border = _without_border(many, axis)
    present = run(few)
    if present.scores is None:
        return None
    ways = [border] if border else []
    if labels is not None and _is_too_sure(present, labels):
        ways += _other_sizes(data.shape[2 if axis == 1 else 1 :][:2])
    if not ways:
        return None
    tried = [(way, run(way.apply(few, axis))) for way in ways]
    best = sorted(tried, key=lambda each: -_figure(each[1], labels))[:_LEADERS]
    whole = run(many)
    for way, _ in best:
        shown = run(way.apply(many, axis))
        if shown.scores is not None and _is_better(whole, shown, labels, is_border=way is border):
            return way, whole, shown
    return None


def _is_too_sure(outcome: Outcome, labels: npt.NDArray[np.int64]) -> bool:
    assert outcome.scores is not None  # noqa: S101
    sure = float(probabilities(outcome.scores).max(axis=1).mean())
    return sure - float(outcome.right(labels).mean()) > _SURER


def _figure(outcome: Outcome, labels: npt.NDArray[np.int64] | None) -> float:
    if outcome.scores is None:
        return -1.0
    telling = float(outcome.information.mean())
    return telling if labels is None else float(outcome.right(labels).mean()) + telling / 1e3


def _is_better(
    before: Outcome, after: Outcome, labels: npt.NDArray[np.int64] | None, *, is_border: bool
) -> bool:
    """Tell whether a way is better, beyond chance.

    With labels, by how probable the right class is held, which tells more of each sample than
    whether it is the best one; and more samples must be right, as unsure answers are no better by
    themselves. A border is better away where the answers tell more, and no fewer are right.
    """
    if is_border and _deviations(after.information - before.information) > _DEVIATIONS:
        return labels is None or _more_right(after, before, labels) > _UNLIKELY
    if labels is None:
        return False
    gained = _deviations(_surprise(before, labels) - _surprise(after, labels))
    return gained > _DEVIATIONS and _more_right(before, after, labels) <= _UNLIKELY


def _more_right(before: Outcome, after: Outcome, labels: npt.NDArray[np.int64]) -> float:
    """Return the probability by chance of as many more samples right."""
    had, has = before.right(labels), after.right(labels)
    gained, lost = int((has & ~had).sum()), int((had & ~has).sum())
    return chance_of(gained, gained + lost)


def _surprise(outcome: Outcome, labels: npt.NDArray[np.int64]) -> Doubles:
    """Return the bits that the right classes are unexpected by, ``[samples]``."""
    assert outcome.scores is not None  # noqa: S101
    shares = probabilities(outcome.scores)
    rows = np.arange(len(shares))
    return np.asarray(-np.log2(np.maximum(shares[rows, labels[: len(shares)]], _LEAST_SHARE)))


def _deviations(differences: Doubles) -> float:
    """Return the mean in its standard errors."""
    error = float(differences.std()) / math.sqrt(len(differences))
    return float(differences.mean()) / error if error else 0.0


def _without_border(images: Floats, axis: int) -> Framing | None:
    """Show what is inside a border that all pictures have; None where there is none."""
    rows, columns = (2, 3) if axis == 1 else (1, 2)
    spread = _SAME * float(np.ptp(images))
    ends = []
    for along in (rows, columns):
        # Each line of all pictures: one number a channel, or content.
        kept = (along, axis)
        others = tuple(each for each in range(4) if each not in kept)
        moves = np.ptp(images, axis=others)
        moves = moves if along < axis else moves.T
        filled = np.flatnonzero(moves.max(axis=1) > spread)
        size = images.shape[along]
        if len(filled) < _LEAST_CONTENT * size:
            return None
        ends.append((int(filled[0]), int(filled[-1]), size))
    if all(last - first + 1 > (1 - _LEAST_BORDER) * size for first, last, size in ends):
        return None
    (top, bottom, high), (left, right, wide) = ends
    name = (
        f"what lies in rows {top}..{bottom} of {high} and columns {left}..{right} of {wide} "
        "enlarged to the whole picture"
    )
    remedy = (
        "the rest of every sample is a border: resize the pictures to the size of the input, "
        "without one"
    )
    return Framing(name, remedy, (top, bottom), (left, right))


def _other_sizes(size: Sequence[int]) -> Iterator[Framing]:
    """Yield the picture with more or less around it, and narrower or wider."""
    for shown in _SIZES:
        if shown > 1:
            name = f"the pictures {1 / shown:.0%} as large and their edges continued"
            remedy = (
                "they show a part of what the model was trained on, enlarged: cut less away when "
                "they are made (a smaller --shorter-side for photos)"
            )
        else:
            name = f"the middle {shown:.0%} of the pictures enlarged"
            remedy = (
                "they show more around their subject than the model was trained on: cut the middle "
                "out when they are made (a larger --shorter-side for photos)"
            )
        yield Framing(name, remedy, _middle(size[0], shown), _middle(size[1], shown))
    for shown in _ASPECTS:
        how = "wider" if shown < 1 else "narrower"
        name = f"the pictures {how} by {max(shown, 1 / shown):.2f}"
        remedy = (
            "they were squeezed when they were resized: keep the proportions, and cut the middle "
            "out (--shorter-side for photos)"
        )
        yield Framing(name, remedy, (0, size[0] - 1), _middle(size[1], shown))


def _middle(size: int, part: float) -> tuple[float, float]:
    centre = (size - 1) / 2
    return centre * (1 - part), centre * (1 + part)


def _along(images: Floats, axis: int, ends: tuple[float, float]) -> Floats:
    """Resample one axis between two positions, linearly; beyond the ends the edge continues."""
    size = images.shape[axis]
    at = np.clip(np.linspace(*ends, size), 0, size - 1)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    part = (at - low).astype(np.float32).reshape([-1, *(1,) * (images.ndim - 1 - axis)])
    one, other = np.take(images, low, axis), np.take(images, high, axis)
    return np.asarray(one * (1 - part) + other * part, np.float32)
