"""What a search scores: one number for a candidate, higher is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError, UsageError, nearest
from intact.samples.labels import Reference
from intact.samples.metric import Metric, OutputRecord
from intact.search.measuring.kinds import KINDS, Kind


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
    def row(self) -> Kind:
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
    """Return what is scored where the user does not say: accuracy, agreement or SQNR.

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
