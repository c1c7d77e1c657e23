"""Opens what ``intact verify`` is given: a result, or a file that others made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx_ir as ir

from intact.calibrate.synthetic import evenly_drawn_samples
from intact.data.batching import Batch, within
from intact.data.preprocess import Preprocess
from intact.data.progress import begin
from intact.data.stream import Samples
from intact.errors import UsageError
from intact.formats.base.format import Deployed, Exported
from intact.formats.base.report import Verification
from intact.formats.registry import model_reader, runnable, runtime_of
from intact.graph import Graph
from intact.limits import RUN_AT_ONCE
from intact.plan import QuantizedGraph
from intact.results.result import Result
from intact.targets import Target

_Verify: TypeAlias = Callable[[Deployed, Iterable[Batch]], Verification]

_VALUES = 1 << 25
"""Activations of a batch, at most: all are held at once, in 20 to 30 bytes each (measured)."""


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        plan: What it should compute.
        exports: What was deployed, by format.
        preprocess: What was done to the samples of the calibration.
        result: Where it came from; None for a file of others.
        file: That file; None for a result.
    """

    plan: QuantizedGraph
    exports: Mapping[str, Exported]
    preprocess: Preprocess = field(default_factory=Preprocess)
    result: Result | None = None
    file: Path | None = None

    @staticmethod
    def of_result(result: Result) -> Subject:
        """Take a result."""
        return Subject(result.plan, result.exports, result.preprocess, result)

    @staticmethod
    def of_file(path: Path, target: Target) -> Subject:
        """Take a quantized model file that others made.

        Raises:
            ModelError: It cannot be read.
            UsageError: It is of a format of which only results are verified.
        """
        found = model_reader(path)
        if found is not None and found[1].opens_deployed:
            plan, exported = found[1].open_deployed(path, target)
            return Subject(plan, {found[0]: exported}, file=path)
        raise UsageError(f"{path}: no model file that can be verified", remedy="give a result")

    @property
    def unread(self) -> frozenset[str]:
        """The array that only calibration reads, which the same data holds again."""
        mask = self.plan.provenance.mask
        return frozenset({mask} if mask else ())

    def draw_samples(self, count: int) -> Samples:
        """Draw inputs as calibration saw them, or else evenly from the ranges of the plan."""
        if self.result is not None:
            return self.result.draw_samples(count)
        return evenly_drawn_samples(self.plan, count)


def batch_size_of(samples: Samples, graph: Graph) -> int:
    """Return how many samples are compared at once: as many as memory is meant for."""
    return samples.batch_size(within(RUN_AT_ONCE, _VALUES, values_of(graph)))


def batches_of(samples: Samples, size: int, place: str = "") -> Iterator[Batch]:
    """Yield samples as the verifications take them, so many at once."""
    begin(samples.progress, f"reading samples{place}")
    for number, (batch, _) in enumerate(samples.real_batches(size)):
        if not number:
            begin(samples.progress, f"comparing{place}")
        yield batch
    begin(samples.progress, f"summing up{place}")


def values_of(graph: Graph) -> int:
    """Estimate how many activations one sample has.

    Those of which the model does not tell the shape are taken to be as large as the largest.
    """
    sizes = [_length(value) for node in graph.nodes for value in node.outputs]
    known = [size for size in sizes if size is not None]
    # Too many rather than too few: a smaller batch only takes longer.
    return sum(known) + (len(sizes) - len(known)) * max(known, default=0)


def _length(value: ir.Value) -> int | None:
    """Count the elements of a value in one sample; None if they are not known."""
    lengths = () if value.shape is None else tuple(value.shape)[1:]
    known = [each for each in lengths if isinstance(each, int)]
    return None if value.shape is None or len(known) < len(lengths) else math.prod(known)


def choose_format(exports: Mapping[str, Exported], deployed: str | None) -> tuple[str, _Verify]:
    """Return a format by its name, or the first that can be run, and what verifies it.

    Raises:
        UsageError: There is none of that name, or nothing to run in it.
    """
    # Names of formats are written in any case on the command line.
    by_case = {name.lower(): name for name in exports}
    if deployed is None:
        deployed = next(iter((*runnable(exports), *exports)))
    if deployed.lower() not in by_case:
        raise UsageError(
            f"--format {deployed!r}: the result has {', '.join(exports)}", remedy="choose of these"
        )
    name = by_case[deployed.lower()]
    return name, runtime_of(name).verify
