"""Finds wrong answers of the float model itself that no preprocessing of the samples mends.

`intact diagnose` looks here before it looks at quantizers: a float model that guesses cannot be
quantized well. Each check reads the scores of the float model (an `Outcome`) and the labels, if
there are any, and returns a `Finding`:

* `shifted_labels`: the labels begin at another class; answers are right if 1 is added to each.
* `broken_answers`: the accuracy is that of chance, all samples are of one class, or the
  probabilities are far above the accuracy, say 90 % sure and 40 % right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.trials import KeptSamples, Outcome
from intact.numerics.answers import (
    are_classes,
    is_chance,
    is_one_class,
    label_shift,
    probabilities,
)

_SURE = 0.5
"""Mean probability of the class given above which answers are sure."""
_OVERCONFIDENT = 0.25
"""Mean probability less accuracy above which samples are unlike those of the training."""
USUAL_MISMATCH = 0.25
"""Mismatch of activations with the moments of BatchNormalizations up to which training and test
data usually differ: training augments its samples, and running means forget old ones."""
_DEVIATIONS = 4.0
"""Standard errors by which the mean probability must exceed the accuracy."""

PROVEN, LIKELY, DOUBTFUL = 2.0, 1.5, 0.4
"""Severities of findings, by which they are sorted. PROVEN: other samples or labels were tried and
are better. LIKELY: the present ones give wrong answers, and nothing better was found. DOUBTFUL: the
model may just be so, and the quantizers are looked at as well."""


def class_labels(kept: KeptSamples, outcome: Outcome) -> npt.NDArray[np.int64] | None:
    """Return the labels of the samples that were run; None where they are none of its classes."""
    labels, scores = kept.labels, outcome.scores
    # Labels of another numbering would count every answer as wrong.
    if labels is None or scores is None or labels.min() < 0 or labels.max() >= scores.shape[1]:
        return None
    return labels[: len(scores)]


def may_be_shifted(outcome: Outcome, labels: npt.NDArray[np.int64]) -> bool:
    """Tell whether more answers are those of a neighbouring label than of the label itself."""
    if outcome.scores is None:
        return False
    away = outcome.scores.argmax(axis=1) - labels[: len(outcome.scores)]
    return max(int((away == shift).sum()) for shift in (-1, 1)) >= int((away == 0).sum())


def shifted_labels(outcome: Outcome, kept: KeptSamples) -> list[Finding]:
    """Find labels that are numbered from another class on: the answers are right but for that.

    Some models have a class for the background in front of all others, and some label files
    begin at 1.
    """
    if outcome.scores is None or kept.labels is None:
        return []
    labels, chosen = kept.labels[: len(outcome.scores)], outcome.scores.argmax(axis=1)
    offset = label_shift(chosen, labels)
    if not offset:
        return []
    count, right = len(labels), int((chosen == labels).sum())
    mended = int((chosen == labels + offset).sum())
    evidence = (
        f"the float model is right for {100 * right / count:.1f} % of {count} samples, for "
        f"{100 * mended / count:.1f} % if 1 is "
        f"{'added to' if offset > 0 else 'subtracted from'} each label"
    )
    text = (
        f"give labels that are {'larger' if offset > 0 else 'smaller'} by 1: they are numbered "
        "from another class on than the model's outputs"
    )
    return [Finding("labels", evidence, PROVEN, remedies=(Remedy(text=text),), unit="points")]


def broken_answers(outcome: Outcome, kept: KeptSamples, name: str) -> list[Finding]:
    """Find answers that are wrong whatever is done to the samples.

    Args:
        outcome: What the float model gave.
        kept: The samples with their labels.
        name: Name of the input that the finding is about; "" for none.
    """
    if outcome.scores is None:
        return []
    count, classes = outcome.scores.shape
    labels = class_labels(kept, outcome)
    remedy = Remedy(
        text="check that the samples are those of the model, with its size, order and labels"
        if labels is not None
        else "give samples of several classes; if they are, prepare them as the model wants it"
    )
    if labels is not None:
        right = int(outcome.right(labels).sum())
        # Before sureness: an untrained net is wrong and unsure.
        if is_chance(right, count, classes):
            return [
                wrong_preparation(
                    name,
                    f"the float model is right for {100 * right / count:.1f} % of {count} samples, "
                    f"no more than by chance among {classes} classes",
                    [remedy],
                    "points",
                )
            ]
        return _too_sure(outcome, labels, name)
    if is_one_class(outcome.scores) and are_classes(outcome.scores, labels) and _is_sure(outcome):
        chosen = int(outcome.scores[0].argmax())
        return [
            wrong_preparation(
                name, f"the float model gives class {chosen} for all {count} samples", [remedy]
            )
        ]
    return []


def _too_sure(outcome: Outcome, labels: npt.NDArray[np.int64], name: str) -> list[Finding]:
    """Find answers that are far surer than right: samples unlike those of the training.

    Of trained nets, the mean probability of the answers is near their accuracy, and beyond it by
    0.17 at most in what Guo et al., "On Calibration of Modern Neural Networks", 2017, measured.
    """
    assert outcome.scores is not None  # noqa: S101
    right = outcome.right(labels)
    # In one array, so that its deviation has the correlation of sureness and being right in it.
    beyond = probabilities(outcome.scores).max(axis=1) - right
    error = float(beyond.std()) / math.sqrt(len(beyond))
    if float(beyond.mean()) <= _OVERCONFIDENT or beyond.mean() <= _DEVIATIONS * error:
        return []
    accuracy = 100 * right.mean()
    evidence = (
        f"the float model is right for {accuracy:.1f} % of {len(right)} samples, and as sure as if "
        f"it were for {accuracy + 100 * beyond.mean():.1f} %"
    )
    text = (
        "check that the samples have the size, crop and colours of those that the model was "
        "trained on, and that the labels are theirs"
    )
    remedies = (Remedy(text=text),)
    return [Finding("preprocessing", evidence, DOUBTFUL, "", name, remedies, unit="points")]


def _is_sure(outcome: Outcome) -> bool:
    """Tell whether answers are sure ones, on data unlike what BatchNormalizations remember.

    A net that is not trained may give one class for all too, and is not sure of it.
    """
    assert outcome.scores is not None  # noqa: S101
    if outcome.moments and outcome.mismatch() <= USUAL_MISMATCH:
        return False
    return float(probabilities(outcome.scores).max(axis=1).mean()) > _SURE


def wrong_preparation(
    name: str, evidence: str, remedies: Sequence[Remedy], unit: str = "dB"
) -> Finding:
    """Say that samples are prepared wrongly by themselves."""
    return Finding(
        "preprocessing", evidence, LIKELY, tensor=name, remedies=tuple(remedies), unit=unit
    )
