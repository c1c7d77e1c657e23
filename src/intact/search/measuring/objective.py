"""Scores candidates: an objective gives one number, higher is better."""

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
from intact.search.measuring.stopping import margins

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

Rows: TypeAlias = npt.NDArray[np.float64]

_LEAST_PROBABILITY = 1e-12

"""Smaller probabilities are raised to this, so that a divergence is at most 27.6 nats."""


@dataclass(frozen=True)
class OutputPair:
    """The outputs of the float and the quantized model for the same samples.

    Attributes:
        want: The float model's outputs by name, without those of padding.
        have: The quantized model's outputs.
        count: Number of samples.
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
        """The first output of both models."""
        name = next(iter(self.want))
        return self.want[name], self.have[name]


@dataclass(frozen=True)
class ObjectiveKind:
    """A kind of objective.

    Attributes:
        name: The name on the command line.
        unit: Unit of the score.
        digits: Decimal places in output.
        summary: One line of help.
        rows: Computes the contribution of each sample, float64 ``[samples]``; the score is their
            mean. None where the score is not a mean.
        highest: The largest contribution of a sample.
        is_count: Whether every contribution is 0 or ``highest``.
    """

    name: str
    unit: str
    digits: int
    summary: str
    rows: Callable[[OutputPair], Rows] | None = None
    highest: float = 0.0
    is_count: bool = False


def _correct(seen: OutputPair) -> Rows:
    if seen.labels is None:
        raise DataError("there are no labels", remedy="give labels, or another objective")
    return np.where(in_top_k(seen.first[1], seen.labels), 100.0, 0.0)


def _same_class(seen: OutputPair) -> Rows:
    want, have = seen.first
    return np.where(want.argmax(axis=1) == have.argmax(axis=1), 100.0, 0.0)


def margins_of(seen: OutputPair) -> Rows:
    """Compute the margin of each sample's right class: its label, else the float model's class."""
    want, have = seen.first
    right = want.argmax(axis=1) if seen.labels is None else seen.labels
    # Margins are normal in logits, not in probabilities, which crowd at 0 and 1.
    scores = _log_probabilities(have, is_probability=True) if seen.is_probability else have
    return margins(scores, right)


def _divergence(seen: OutputPair) -> Rows:
    """Compute ``-sum(p log(p / q))`` over the last axis, in nats, averaged over the other axes.

    Source: S. Kullback, R. Leibler, Annals of Mathematical Statistics 22, 1951.
    """
    want, have = (
        _log_probabilities(array, seen.is_probability).reshape(len(array), -1, array.shape[-1])
        for array in seen.first
    )
    each = (np.exp(want) * (want - have)).sum(axis=-1)
    # A divergence is never negative; rounding makes it so.
    return np.asarray(-np.maximum(each.mean(axis=1), 0.0))


def _log_probabilities(array: npt.NDArray[Any], is_probability: bool) -> Rows:
    scores = np.asarray(array, np.float64)
    if is_probability:
        scores = np.log(np.maximum(scores, _LEAST_PROBABILITY))
    else:
        # The largest is 0: `exp` cannot overflow.
        scores = scores - scores.max(axis=-1, keepdims=True)
        scores = np.maximum(scores, math.log(_LEAST_PROBABILITY))
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True)))


def _cosines(seen: OutputPair) -> Rows:
    found = [_row_cosine(*pair) for pair in float_pairs(seen)]
    return np.asarray(np.mean(found, axis=0))


def _row_cosine(want: Rows, have: Rows) -> Rows:
    """Compute the cosine of each pair of rows; as `intact.numerics.metrics.cosine`."""
    largest = np.abs(want).max(axis=1, initial=0.0), np.abs(have).max(axis=1, initial=0.0)
    empty = (largest[0] == 0.0) | (largest[1] == 0.0)
    first, second = (
        rows / np.where(scale == 0.0, 1.0, scale)[:, None]
        for rows, scale in zip((want, have), largest, strict=True)
    )
    lengths = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    cosines = (first * second).sum(axis=1) / np.where(lengths == 0.0, 1.0, lengths)
    # Two rows of zeros agree, one of them alone does not.
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

"""The kinds by name."""


def float_pairs(seen: OutputPair) -> list[tuple[Rows, Rows]]:
    """Pair the float outputs of both models as float64 arrays with one row per sample.

    Integer outputs (class numbers, positions) have no power and are left out, unless the model has
    no float output.

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
                remedy="use a metric that can compare them",
            )
    return [(_as_rows(want[n], seen.count), _as_rows(have[n], seen.count)) for n in names]


def _as_rows(array: npt.NDArray[Any], samples: int) -> Rows:
    """Reshape to one row per sample; an array without a sample axis is repeated for each."""
    numbers = np.asarray(array, np.float64)
    if numbers.ndim and len(numbers) == samples:
        return numbers.reshape(samples, -1)
    return np.broadcast_to(numbers.reshape(1, -1), (samples, numbers.size))


@dataclass(frozen=True)
class Objective:
    """An objective: its kind and, for kind ``metric``, the user's metric.

    Attributes:
        kind: Name in ``KINDS``.
        metric: For kind ``metric``.
        figure: Name of the metric's figure; empty for the first one.
        lower_is_better: The metric is an error: the score is its negative.
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
        """Make an objective; kind ``metric`` without a metric is the accuracy.

        Raises:
            UsageError: The kind is unknown, or does not fit the metric.
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
                f"objective {kind!r} has no named figures, and higher is always better",
                remedy="use these options with a metric of your own",
            )
        return Objective(kind, metric, figure, lower_is_better)

    @property
    def row(self) -> ObjectiveKind:
        """The entry of the table of kinds."""
        return KINDS[self.kind]

    @property
    def unit(self) -> str:
        """Unit of the score; may be empty."""
        return self.row.unit

    @property
    def name(self) -> str:
        """The kind, or the name of the user's metric."""
        return self.kind if self.metric is None else self.figure or self.metric.name

    @property
    def needs_float(self) -> bool:
        """Whether that needs the outputs of the float model too."""
        return self.metric is not None and self.metric.needs_float

    @property
    def needs_outputs(self) -> bool:
        """Whether the score needs the outputs of all samples together."""
        return self.metric is not None

    def shown(self, score: float) -> float:
        """Convert a score to the user's figure: the sign is undone where lower is better."""
        return -score if self.lower_is_better else score

    def format(self, score: float) -> str:
        """Format a score with its unit."""
        text = f"{self.shown(score):.{self.row.digits}f}"
        return f"{text} {self.unit}" if self.unit else text

    def of_metric(
        self,
        record: OutputRecord,
        references: Mapping[str, Reference],
        in_float: OutputRecord | None = None,
    ) -> float:
        """Compute the user's metric as a score.

        Args:
            record: The outputs of the model.
            references: What comes along with the samples.
            in_float: Those of the float model, where the metric needs them.

        Raises:
            DataError: The metric raises, gives no number or NaN, or has no such figure.
        """
        if self.metric is None:
            raise UsageError(f"objective {self.kind!r} has no metric")
        reference = None if in_float is None else in_float.outputs()
        figures = self.metric.score(record.outputs(), references, reference)
        name = self.figure or next(iter(figures))
        if name not in figures:
            raise DataError(
                f"metric {self.metric.name}: has no figure {name!r}", remedy=nearest(name, figures)
            )
        # NaN would lose each comparison and look like a bad score.
        if math.isnan(figures[name]):
            raise DataError(f"metric {self.metric.name}: {name!r} is NaN")
        return -figures[name] if self.lower_is_better else figures[name]


def default_kind(first: npt.NDArray[Any], size: int, *, has_labels: bool) -> str:
    """Choose the default objective: accuracy, agreement or SQNR.

    Args:
        first: The first output of the float model for a batch.
        size: Samples in the batch.
        has_labels: Whether there are labels.
    """
    if not has_classes(first, size):
        return "sqnr"
    return "accuracy" if has_labels else "agreement"


def has_classes(output: npt.NDArray[Any], size: int) -> bool:
    """Tell whether an output has shape ``[samples, classes]``."""
    return (
        output.dtype.kind == "f"
        and output.ndim == 2
        and output.shape[0] == size > 0
        and (output.shape[1] > 1)
    )


def are_probabilities(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Tell whether an output holds probabilities: all in 0..1, with sums of 1 (within 1e-3)."""
    return all(
        bool(np.all((array >= 0) & (array <= 1)))
        and bool(np.all(np.abs(array.sum(axis=-1, dtype=np.float64) - 1.0) < 1e-3))
        for array in arrays
    )
