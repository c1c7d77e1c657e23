"""What is verified: a result, or a file that others made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from intact.calibrate.synthetic import evenly_drawn_samples
from intact.exporting import FormatName
from intact.formats.exported import Exported
from intact.formats.tflite.read import TfliteModel, read_tflite_model
from intact.plan import QuantizedGraph
from intact.result import Result
from intact.samples.batching import Batch
from intact.samples.preprocess import Preprocess
from intact.samples.stream import Samples
from intact.targets import Target

_BATCH = 16
"""Samples at once: every activation of a batch is held, several times."""


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        plan: What it should compute.
        exports: What was deployed, by format; none for a file of others.
        read: A file of others, as it was read, with its content.
        preprocess: What was done to the samples of the calibration.
        result: Where it came from, if it is a result.
    """

    plan: QuantizedGraph
    exports: Mapping[FormatName, Exported] = field(default_factory=dict)
    read: tuple[TfliteModel, bytes] | None = None
    preprocess: Preprocess = field(default_factory=Preprocess)
    result: Result | None = None

    @staticmethod
    def of_result(result: Result) -> Subject:
        """Take a result."""
        return Subject(result.plan, result.exports, None, result.preprocess, result)

    @staticmethod
    def of_tflite(path: Path, target: Target) -> Subject:
        """Take a ``.tflite`` that others made.

        Raises:
            ModelError: It cannot be read.
        """
        model = read_tflite_model(path, target)
        return Subject(model.plan, read=(model, path.read_bytes()))

    @property
    def unread(self) -> frozenset[str]:
        """The array that only calibration reads, which the same data holds again."""
        mask = self.plan.provenance.get("mask")
        return frozenset() if mask is None else frozenset({mask})

    def draw_samples(self, count: int) -> Samples:
        """Draw inputs as calibration saw them, or else evenly from the ranges of the plan."""
        if self.result is not None:
            return self.result.draw_samples(count)
        return evenly_drawn_samples(self.plan, count)


def batches_of(samples: Samples) -> Iterator[Batch]:
    """Yield samples as the verifications take them."""
    size = samples.batch_size(_BATCH)
    whole = samples.fixed_batch is not None  # such a model cannot run fewer
    for batch, count in samples.batches(size):
        yield batch if whole else {name: array[:count] for name, array in batch.items()}
