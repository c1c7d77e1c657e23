"""Finds signs that a float model does not get the data that it was trained on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.numerics.answers import are_classes, is_chance, is_one_class, label_shift

PREPROCESSED = (
    "is the data preprocessed as the model wants it (--normalize, --mean with --std, --preprocess)?"
)


def doubts_of(
    scores: npt.NDArray[np.float32], labels: npt.NDArray[np.int64] | None
) -> tuple[str, ...]:
    """Return a line for each sign that a float model does not get what it wants.

    Args:
        scores: Its outputs, ``[samples, classes]``.
        labels: The classes of the samples, ``[samples]``; None where they are not known.
    """
    count, classes = scores.shape
    chosen = scores.argmax(axis=1)
    # Asked first: with labels numbered otherwise a good model looks like chance.
    shift = 0 if labels is None else label_shift(chosen, labels)
    if labels is not None and shift:
        share, mended = (100 * float((chosen == labels + each).mean()) for each in (0, shift))
        return (
            f"the float model is right for {share:.2f} % of {count} samples, and for "
            f"{mended:.2f} % if 1 is {'added to' if shift > 0 else 'subtracted from'} each label: "
            "are labels numbered as the model's classes are?",
        )
    if labels is not None and is_chance(int((chosen == labels).sum()), count, classes):
        share = 100 * float((chosen == labels).mean())
        return (
            f"the float model is right for {share:.2f} % of {count} samples, no more than by "
            f"chance among {classes} classes: {PREPROCESSED}",
        )
    if is_one_class(scores) and are_classes(scores, labels):
        return (f"the float model gives class {chosen[0]} for all {count} samples: {PREPROCESSED}",)
    return ()
