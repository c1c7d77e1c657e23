"""What a search scores: one number for a candidate, higher is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.data.labels import Reference
from intact.data.metric import Metric, OutputRecord
from intact.errors import DataError, UsageError, nearest
from intact.numerics.metrics import in_top_k

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

Rows: TypeAlias = npt.NDArray[np.float64]

_LEAST_PROBABILITY = 1e-12

"""Probabilities below this count as this: a divergence stays finite, at most 27.6 nats."""


@dataclass(frozen=True)
class Seen:
    """What a model gave for some samples, beside what the float model gave.

    Attributes:
        want: The float model's outputs by name, only real samples.
        have: The quantized model's.
        count: Samples.
        labels: Class numbers, ``[samples]``; None where there are none.
        is_probability: Whether the first output is probabilities already.
    """

    want: Arrays
    have: Arrays
    count: int
    labels: npt.NDArray[np.int64] | None
    is_probability: bool = False

    @property
    def first(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The first output of both."""
        name = next(iter(self.want))
        return self.want[name], self.have[name]


@dataclass(frozen=True)
class ObjectiveKind:
    """A way to score.

    Attributes:
        name: As a user gives it.
        unit: Of the score.
        digits: Behind the decimal point when it is shown.
        summary: One line for a user who has to choose.
        rows: What each sample contributes, float64 ``[samples]``; the score is their mean. None
            where it is no mean.
        highest: What a sample contributes at most.
        is_count: Whether samples contribute either 0 or ``highest``.
    """

    name: str
    unit: str
    digits: int
    summary: str
    rows: Callable[[Seen], Rows] | None = None
    highest: float = 0.0
    is_count: bool = False


def _correct(seen: Seen) -> Rows:
    if seen.labels is None:
        raise DataError("there are no labels", remedy="give labels, or another objective")
    return np.where(in_top_k(seen.first[1], seen.labels), 100.0, 0.0)


def _same_class(seen: Seen) -> Rows:
    want, have = seen.first
    return np.where(want.argmax(axis=1) == have.argmax(axis=1), 100.0, 0.0)


def _divergence(seen: Seen) -> Rows:
    """Return ``-sum(p log(p / q))`` over the last axis, in nats; the mean of what lies before it.

    Source: S. Kullback, R. Leibler, Annals of Mathematical Statistics 22, 1951.
    """
    want, have = (
        _log_probabilities(array, seen.is_probability).reshape(len(array), -1, array.shape[-1])
        for array in seen.first
    )
    each = (np.exp(want) * (want - have)).sum(axis=-1)
    return np.asarray(-np.maximum(each.mean(axis=1), 0.0))


def _log_probabilities(array: npt.NDArray[Any], is_probability: bool) -> Rows:
    scores = np.asarray(array, np.float64)
    if is_probability:
        scores = np.log(np.maximum(scores, _LEAST_PROBABILITY))
    else:
        scores = scores - scores.max(axis=-1, keepdims=True)
        scores = np.maximum(scores, math.log(_LEAST_PROBABILITY))
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True)))


def _cosines(seen: Seen) -> Rows:
    found = [_row_cosine(*pair) for pair in float_pairs(seen)]
    return np.asarray(np.mean(found, axis=0))


def _row_cosine(want: Rows, have: Rows) -> Rows:
    """Return the cosine of each pair of rows as `intact.numerics.metrics.cosine` has it."""
    largest = np.abs(want).max(axis=1, initial=0.0), np.abs(have).max(axis=1, initial=0.0)
    empty = (largest[0] == 0.0) | (largest[1] == 0.0)
    first, second = (
        rows / np.where(scale == 0.0, 1.0, scale)[:, None]
        for rows, scale in zip((want, have), largest, strict=True)
    )
    lengths = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    cosines = (first * second).sum(axis=1) / np.where(lengths == 0.0, 1.0, lengths)
    both = (largest[0] == largest[1]).astype(np.float64)
    return np.asarray(np.where(empty, both, cosines.clip(-1.0, 1.0)))


KINDS: Mapping[str, ObjectiveKind] = {
    kind.name: kind
    for kind in (
        ObjectiveKind(
            "accuracy", "%", 2, "top-1 accuracy on the labels", _correct, 100.0, is_count=True
        ),
        ObjectiveKind("metric", "", 4, "the user's metric (--metric)"),
        ObjectiveKind(
            "agreement",
            "%",
            2,
            "samples with the same best class as the float model",
            _same_class,
            100.0,
            is_count=True,
        ),
        ObjectiveKind(
            "kl", "nats", 5, "minus the divergence from the float softmax", _divergence, 0.0
        ),
        ObjectiveKind("sqnr", "dB", 2, "signal to quantization noise of all outputs"),
        ObjectiveKind(
            "cosine", "", 6, "cosine with the float outputs, mean of the samples", _cosines, 1.0
        ),
    )
}

"""Every kind by name."""


def float_pairs(seen: Seen) -> list[tuple[Rows, Rows]]:
    """Return the float outputs of both models as float64 rows, one row a sample.

    Outputs of other types are class numbers, positions and the like: they have no power. Only
    where a model has nothing else they are taken for numbers.

    Raises:
        DataError: An output of the quantized model has another shape.
    """
    want, have = seen.want, seen.have
    names = [name for name, array in want.items() if array.dtype.kind == "f"] or [
        name for name, array in want.items() if array.dtype.kind in "biu"
    ]
    for name in names:
        if want[name].shape != have[name].shape:
            raise DataError(
                f"output {name!r} has shape {list(have[name].shape)}, the float model's "
                f"{list(want[name].shape)}",
                remedy="give a metric that can compare them",
            )
    return [(_as_rows(want[n], seen.count), _as_rows(have[n], seen.count)) for n in names]


def _as_rows(array: npt.NDArray[Any], samples: int) -> Rows:
    """Return one row a sample; what has no sample axis counts for each of them."""
    numbers = np.asarray(array, np.float64)
    if numbers.ndim and len(numbers) == samples:
        return numbers.reshape(samples, -1)
    return np.broadcast_to(numbers.reshape(1, -1), (samples, numbers.size))


@dataclass(frozen=True)
class Objective:
    """A kind, with the user's metric where it is that.

    Attributes:
        kind: Name in ``KINDS``.
        metric: Of kind ``metric``.
        figure: Which of the metric's figures; empty for the first.
        lower_is_better: The metric counts mistakes: its negative is the score.
    """

    kind: str
    metric: Metric | None = None
    figure: str = ""
    lower_is_better: bool = False

    @staticmethod
    def of(
        kind: str = "metric",
        metric: Metric | None = None,
        *,
        figure: str = "",
        lower_is_better: bool = False,
    ) -> Objective:
        """Return an objective; kind ``metric`` without a metric is the accuracy.

        Raises:
            UsageError: There is no such kind, or a metric is missing or not wanted.
        """
        if kind not in KINDS:
            raise UsageError(f"objective {kind!r}", remedy=nearest(kind, KINDS))
        if metric is None and kind == "metric":
            kind = "accuracy"
        if metric is not None and kind != "metric":
            raise UsageError(
                f"objective {kind!r} and metric {metric.name}", remedy="give one of the two"
            )
        if metric is None and (figure or lower_is_better):
            raise UsageError(
                f"objective {kind!r} has no figures by name, and higher is better",
                remedy="leave that to a metric of yours",
            )
        return Objective(kind, metric, figure, lower_is_better)

    @property
    def row(self) -> ObjectiveKind:
        """What the table says of the kind."""
        return KINDS[self.kind]

    @property
    def unit(self) -> str:
        """Of the score; may be empty."""
        return self.row.unit

    @property
    def name(self) -> str:
        """The kind, or what the user's metric is called."""
        return self.kind if self.metric is None else self.figure or self.metric.name

    @property
    def needs_outputs(self) -> bool:
        """Whether the outputs of all samples are needed together."""
        return self.metric is not None

    def shown(self, score: float) -> float:
        """Return the score as a user knows it: what was turned around is turned back."""
        return -score if self.lower_is_better else score

    def format(self, score: float) -> str:
        """Return a score as text with its unit."""
        text = f"{self.shown(score):.{self.row.digits}f}"
        return f"{text} {self.unit}" if self.unit else text

    def of_metric(self, record: OutputRecord, references: Mapping[str, Reference]) -> float:
        """Return the user's figure as a score.

        Raises:
            DataError: The metric raises, gives no number or NaN, or has no such figure.
        """
        if self.metric is None:
            raise UsageError(f"objective {self.kind!r} has no metric")
        figures = self.metric(record.outputs(), references)
        name = self.figure or next(iter(figures))
        if name not in figures:
            raise DataError(
                f"metric {self.metric.name}: has no figure {name!r}", remedy=nearest(name, figures)
            )
        if math.isnan(figures[name]):
            raise DataError(f"metric {self.metric.name}: {name!r} is NaN")
        return -figures[name] if self.lower_is_better else figures[name]


def default_kind(first: npt.NDArray[Any], size: int, *, has_labels: bool) -> str:
    """Choose the default objective: accuracy, agreement or SQNR.

    Args:
        first: The first output of the float model, of a batch.
        size: Samples in that batch.
        has_labels: There are labels.
    """
    if not has_classes(first, size):
        return "sqnr"
    return "accuracy" if has_labels else "agreement"


def has_classes(output: npt.NDArray[Any], size: int) -> bool:
    """Tell whether an output of a batch is ``[samples, classes]``."""
    return (
        output.dtype.kind == "f"
        and output.ndim == 2
        and output.shape[0] == size > 0
        and (output.shape[1] > 1)
    )


def are_probabilities(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Tell whether an output is softmaxed already: all in 0..1, with sums of 1 (within 1e-3)."""
    return all(
        bool(np.all((array >= 0) & (array <= 1)))
        and bool(np.all(np.abs(array.sum(axis=-1, dtype=np.float64) - 1.0) < 1e-3))
        for array in arrays
    )
