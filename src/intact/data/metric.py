"""Calls metrics of the user: functions that score outputs, for detection or text say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.data.functions import describe, import_function
from intact.data.labels import Reference, join_samples
from intact.errors import DataError, UsageError
from intact.graph import Graph

Outputs: TypeAlias = Mapping[str, npt.NDArray[Any] | list[npt.NDArray[Any]]]
"""By output name: an array ``[samples, ...]``, or a list of one array per sample if shapes differ.

An output without a sample axis is a list of one array per batch.
"""

MetricFunction: TypeAlias = Callable[
    [Outputs, Mapping[str, Reference]], float | Mapping[str, float]
]
"""Computes one figure, or several by name, from outputs and references."""

DETECTIONS = "detections"
"""The metric that compares what detectors find (`intact.data.detections`)."""
ADDED = "detections added %"
"""A figure of detectors that is to stay small: boxes that the float model has not."""
_BUILT_IN = "top-1 and top-5, agreement, SQNR and cosine are always reported"


class Compared(NamedTuple):
    """Figures of two models.

    Attributes:
        figures: By name, (float, quantized).
        intervals: Ends of the 95 % intervals of the changes, by name, of those that have one.
        warnings: What makes them doubtful.
    """

    figures: dict[str, tuple[float, float]]
    intervals: dict[str, tuple[float, float]]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A metric with its name.

    Attributes:
        name: ``module:function``, or the function's name.
        function: The metric; called once for each model, after the pass over the samples.
    """

    name: str
    function: MetricFunction

    needs_float: ClassVar[bool] = False
    """Whether a model is scored against the float model's outputs."""

    @staticmethod
    def of(source: str | MetricFunction | Metric) -> Metric:
        """Make a metric from ``module:function`` or from a function.

        Raises:
            UsageError: A text without a colon.
            DataError: There is no such module or function.
        """
        if isinstance(source, Metric):
            return source
        if not isinstance(source, str):
            return Metric(getattr(source, "__name__", type(source).__name__), source)
        if ":" not in source:
            raise UsageError(
                f"--metric {source}: is not module:function",
                remedy=f"write one, or detections; {_BUILT_IN}",
            )
        return Metric(source, import_function(source, "--metric"))

    def __call__(self, outputs: Outputs, references: Mapping[str, Reference]) -> dict[str, float]:
        """Compute the figures by name; a single one has the name of the function.

        NaN and infinity are allowed.

        Raises:
            DataError: The function raises, or does not return figures.
        """
        try:
            found = self.function(outputs, references)
        except (Exception, SystemExit) as error:  # whatever the user's function does
            raise DataError(f"metric {self.name}: raises {describe(error)}") from error
        if not isinstance(found, Mapping):
            return {self.name.rpartition(":")[2]: self._figure(found, "")}
        figures = {name: self._figure(value, f" for {name!r}") for name, value in found.items()}
        if not figures or not all(isinstance(name, str) for name in figures):
            raise self._wrong("no figures by name" if not figures else "names that are not strings")
        return figures

    def bound(self, graph: Graph) -> Metric:  # noqa: ARG002 - for those that ask the model
        """Return the metric for a model.

        Raises:
            UsageError: It does not fit the model.
        """
        return self

    def score(
        self,
        outputs: Outputs,
        references: Mapping[str, Reference],
        in_float: Outputs | None = None,  # noqa: ARG002 - for those that compare
    ) -> dict[str, float]:
        """Compute the figures of a model by name; see `__call__`.

        Args:
            outputs: Of the model.
            references: What comes along with the samples.
            in_float: The float model's outputs, where `needs_float`.
        """
        return self(outputs, references)

    def compare(
        self, in_float: Outputs, quantized: Outputs, references: Mapping[str, Reference]
    ) -> Compared:
        """Compute the figures of both models.

        Raises:
            DataError: As in `__call__`, or both have different names.
        """
        before, after = (self(outputs, references) for outputs in (in_float, quantized))
        if before.keys() != after.keys():
            odd = min(before.keys() ^ after.keys())
            raise DataError(
                f"metric {self.name}: gives {odd!r} for one of the two models only",
                remedy="return the same names for every model",
            )
        return Compared({name: (figure, after[name]) for name, figure in before.items()}, {})

    def pairs(self) -> PairedOutputs:
        """Return what keeps the outputs of both models over a pass."""
        return PairedOutputs()

    def _figure(self, value: object, where: str) -> float:
        plain = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
        # True is a Real in Python; a metric that returns it forgot to count.
        if not isinstance(plain, Real) or isinstance(plain, bool):
            raise self._wrong(f"{type(value).__name__}{where}")
        try:
            return float(plain)
        except OverflowError:
            raise self._wrong(f"a number that exceeds float64{where}") from None

    def _wrong(self, what: str) -> DataError:
        return DataError(
            f"metric {self.name}: returns {what}",
            remedy="return a number, or a dict of numbers by name",
        )


class OutputRecord:
    """All outputs of a model over a pass, for a metric."""

    def __init__(self) -> None:
        self._batches: dict[str, list[npt.NDArray[Any]]] = {}
        self._counts: list[int] = []
        self._without_samples: set[str] = set()

    def add(self, outputs: Mapping[str, npt.NDArray[Any]], size: int, count: int) -> None:
        """Add the outputs of a batch of ``size`` samples, of which ``count`` are not padding."""
        self._counts.append(count)
        for name, output in outputs.items():
            self._batches.setdefault(name, []).append(output)
            if not output.ndim or len(output) != size:
                self._without_samples.add(name)

    def join(self, more: OutputRecord) -> None:
        """Add all that another holds, behind."""
        self._counts += more._counts
        self._without_samples |= more._without_samples
        for name, arrays in more._batches.items():
            self._batches.setdefault(name, []).extend(arrays)

    def batches(self) -> Iterator[tuple[dict[str, npt.NDArray[Any]], int]]:
        """Yield the outputs of each batch, with the number of samples that are not padding."""
        for number, count in enumerate(self._counts):
            yield {name: arrays[number] for name, arrays in self._batches.items()}, count

    def outputs(self) -> Outputs:
        """Return all outputs, without those of padding."""
        return {
            name: arrays if name in self._without_samples else join_samples(self._real(arrays))
            for name, arrays in self._batches.items()
        }

    def _real(self, arrays: list[npt.NDArray[Any]]) -> list[Reference]:
        return [array[:count] for array, count in zip(arrays, self._counts, strict=True)]


class PairedOutputs:
    """All outputs of both models over a pass, for a metric.

    Attributes:
        records: Of the float model, and of the quantized one.
    """

    def __init__(self) -> None:
        self.records = OutputRecord(), OutputRecord()

    def add(
        self,
        want: Mapping[str, npt.NDArray[Any]],
        have: Mapping[str, npt.NDArray[Any]],
        size: int,
        count: int,
    ) -> None:
        """Add what both models gave for a batch of ``size`` samples, ``count`` of them real."""
        for record, outputs in zip(self.records, (want, have), strict=True):
            record.add(outputs, size, count)

    def join(self, more: PairedOutputs) -> None:
        """Add all that another holds, behind."""
        for record, other in zip(self.records, more.records, strict=True):
            record.join(other)

    def compared(self, metric: Metric, references: Mapping[str, Reference]) -> Compared:
        """Compare both models by a metric."""
        in_float, quantized = (record.outputs() for record in self.records)
        return metric.compare(in_float, quantized, references)
