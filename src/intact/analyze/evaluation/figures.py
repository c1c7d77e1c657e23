"""Declares the figures of an evaluation, and writes the table that shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from intact._text import Figures, decibels, size_row, times
from intact.analyze.evaluation.by_length import ByLength
from intact.analyze.evaluation.text import TextFigures
from intact.analyze.verdict import Verdict
from intact.engines.exact_sums import EXACT, SATURATES
from intact.numerics.metrics import AccuracyDifference, EqualShare

_SHOWN = 12
"""Outputs that are listed; of more, caches of a decoder say, the worst stands for all."""
_TRAINED = (
    "float is the trained network without its quantizers; --float-model MODEL compares with the "
    "model before training"
)


@dataclass
class Accuracy:
    """Accuracy on labelled samples.

    Attributes:
        top1: In percent, (float, quantized).
        top_k: The same for the ``k`` best classes; None with so many classes or fewer.
        k: How many count as the best.
        difference: Quantized minus float top-1 in points, with its paired 95 % interval.
    """

    top1: tuple[float, float]
    top_k: tuple[float, float] | None
    k: int
    difference: AccuracyDifference


class OutputComparison(NamedTuple):
    """Error of one output; NaN of choices, and where both models give other shapes."""

    sqnr_db: float
    """Signal to quantization noise, dB."""
    cosine: float
    """Cosine of both outputs."""
    equal: EqualShare | None = None
    """Of an output of choices, such as classes or tokens: how many numbers are equal."""


@dataclass(repr=False)
class Evaluation:
    """Float against quantized.

    Attributes:
        samples: Samples run.
        output: Name of the output that is scored, the model's first.
        accuracy: None without labels, or with a metric for which they are no class numbers.
        agreement: Share of samples, in percent, for which both give the same best class; None
            where the output has no classes.
        sqnr_db: Signal to quantization noise of the output, dB; NaN where both models give arrays
            of different shapes (detections, say).
        cosine: Cosine of both outputs; NaN where shapes differ.
        equal: How many numbers of the scored output are equal, in percent with the ends of its 95 %
            interval, where they are choices (classes, tokens); both other figures are NaN then.
        bytes: File sizes, (float, quantized).
        latency_ms: Median time of one batch, (float, quantized); None where the quantized model
            was not run by the runtime that it is deployed to.
        latency_batch: Samples in that batch.
        why_no_latency: Why there is none, where it was asked for.
        latency_runs: How many runs of each the medians are of, (float, quantized); none where
            nothing was timed.
        speedup: Median over blocks run in turn of float time over quantized time; None without
            latency.
        runtime: What ran the quantized model, with the option that it needs to compute exactly on
            a processor that saturates pairs of 8-bit products.
        float_runtime: What ran the float model to be timed, where that is not ONNX Runtime.
        outputs: Errors of every output by name, where there are several.
        metrics: Figures of the user's metric by name, (float, quantized).
        intervals: Ends of the 95 % intervals of their changes, by name, where there are any.
        skipped: Files of a folder that were left out, with the reason.
        why_no_labels: Why a folder of images gives no labels.
        warnings: What makes the figures doubtful, a line each.
        remedy: How to quantize so that the runtime needs no slower exact arithmetic; empty where it
            needs none.
        why_no_float: Why the quantized model is not compared with a float one: it was read, and
            what remains of it without its codes computes something else. Figures of the float model
            and differences are then NaN, and the agreement is None.
        codes: Inputs whose data was taken as codes: both models got the numbers of these.
        float_is_trained: Whether the float model is not the one that was quantized, but has the
            weights that were trained since.
        verdict: What to do, in one sentence; None where there is nothing to judge by.
        text: Figures of a language model; None of others.
        lengths: What short and long samples lose, where that is asked for.
    """

    samples: int
    output: str
    accuracy: Accuracy | None
    agreement: float | None
    sqnr_db: float
    cosine: float
    bytes: tuple[int, int]
    latency_ms: tuple[float, float] | None
    latency_batch: int
    speedup: float | None
    runtime: str
    latency_runs: tuple[int, int] = (0, 0)
    outputs: dict[str, OutputComparison] = field(default_factory=dict)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    why_no_labels: str = ""
    warnings: tuple[str, ...] = ()
    remedy: str = ""
    why_no_float: str = ""
    codes: tuple[str, ...] = ()
    float_is_trained: bool = False
    why_no_latency: str = ""
    verdict: Verdict | None = None
    text: TextFigures | None = None
    float_runtime: str = ""
    equal: EqualShare | None = None
    lengths: ByLength | None = None

    def __repr__(self) -> str:
        """Name the figures that matter most."""
        figures = []
        if self.accuracy is not None:
            before, after = self.accuracy.top1
            figures.append(f"top-1 {after:.2f} %" if self.why_no_float else _change(before, after))
        if self.equal is not None:
            figures.append(f"{self.equal.percent:.2f} % equal")
        elif not self.why_no_float:
            figures.append(decibels(self.sqnr_db))
        return f"Evaluation({', '.join([f'{self.samples} samples', *figures])})"

    def __str__(self) -> str:
        """Write the verdict and the table that the command prints."""
        opening = "" if self.verdict is None else f"{self.verdict}\n"
        return opening + str(self.figures())

    def _repr_html_(self) -> str:
        """Write the table for a notebook."""
        figures = self.figures()
        opening = () if self.verdict is None else (str(self.verdict),)
        return replace(figures, lines=[*opening, *figures.lines, *self.warnings]).to_html()

    def figures(self) -> Figures:
        """Write all figures as texts."""
        title = f"{self.samples} samples, quantized model run by {self.runtime}"
        if self.latency_ms is not None:
            runs = " and ".join(map(str, dict.fromkeys(self.latency_runs)))
            word = "run" if set(self.latency_runs) == {1} else "runs"
            title += f"; latency of {self.latency_batch} at once, median of {runs} {word}"
        lines = [self.why_no_float] if self.why_no_float else list(self._errors())
        if self.text is not None:
            lines = [*self.text.lines(), *lines]
        lines += [] if self.lengths is None else self.lengths.lines()
        if self.float_is_trained:
            lines.append(_TRAINED)
        if EXACT in self.runtime:
            remedy = f": {self.remedy}" if self.remedy else ""
            lines.append(f"{SATURATES}; {EXACT} avoids that, and is slower{remedy}")
        in_its_own = self.float_runtime or "ONNX Runtime" in self.runtime
        if self.latency_ms is not None and not in_its_own:
            lines.append("latency: float in ONNX Runtime, quantized in what it is deployed to")
        if self.codes:
            lines.append(f"{', '.join(self.codes)}: taken as codes, both models got their numbers")
        rows = list(self.rows())
        if self.why_no_float:
            return Figures(title, ("", "quantized"), [(row[0], row[2]) for row in rows], lines)
        return Figures(title, ("", "float", "quantized", "change"), rows, lines)

    def _errors(self) -> Iterator[str]:
        """Write the error of each output, the scored one first."""
        agree = "" if self.agreement is None else f", agreement {self.agreement:.2f} %"
        error = OutputComparison(self.sqnr_db, self.cosine, self.equal)
        yield f"output {self.output}: {_error(error)}{agree}"
        others = {name: each for name, each in self.outputs.items() if name != self.output}
        if len(others) > _SHOWN:
            worst = min(others, key=lambda name: others[name].sqnr_db)
            yield f"{len(others)} other outputs, the worst {worst}: {_error(others[worst])}"
            return
        for name, error in others.items():
            yield f"output {name}: {_error(error)}"

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield each kind of figure that there is: name, float, quantized, change, as texts.

        Where there is no float model to compare with, only the quantized one's say something.
        """
        for name, before, after, change in self._rows():
            yield (name, "", after, "") if self.why_no_float else (name, before, after, change)

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Write what there is of each kind of figure."""
        if self.accuracy is not None:
            points = self.accuracy.difference
            interval = f"{points.difference:+.2f} [{points.low:+.2f}, {points.high:+.2f}]"
            before, after = self.accuracy.top1
            yield "top-1 %", f"{before:.2f}", f"{after:.2f}", interval
            if self.accuracy.top_k is not None:
                before, after = self.accuracy.top_k
                name = f"top-{self.accuracy.k} %"
                yield name, f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"
        if self.text is not None:
            yield from self.text.rows()
        yield size_row(*self.bytes)
        if self.latency_ms is not None:
            before, after = self.latency_ms
            faster = "" if self.speedup is None else times(self.speedup, "faster", "slower")
            yield "latency", f"{before:.2f} ms", f"{after:.2f} ms", faster
        for name, (before, after) in self.metrics.items():
            low, high = self.intervals.get(name, (math.nan, math.nan))
            interval = "" if math.isnan(low) else f" [{low:+.2f}, {high:+.2f}]"
            yield name, f"{before:.4g}", f"{after:.4g}", f"{after - before:+.4g}{interval}"


def _change(before: float, after: float) -> str:
    return f"top-1 {before:.2f} % -> {after:.2f} %"


def _error(error: OutputComparison) -> str:
    if error.equal is not None:
        return f"{error.equal.percent:.2f} % of its numbers are the float model's"
    return f"{decibels(error.sqnr_db)}, cosine {error.cosine:.5f}"
