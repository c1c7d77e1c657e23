"""Declares what a verification found: plain values, which become JSON as they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from intact._text import Figures, decibels, first_names
from intact.engines.cpu import Cpu
from intact.engines.integer.engine import IntegerEngine
from intact.errors import DataError
from intact.formats.base.comparison import Classes, LayerComparison, OutputComparison, Totals
from intact.formats.base.float_layers import FloatComparison
from intact.formats.base.format import CHANGED
from intact.formats.base.processor import ProcessorFinding
from intact.plan import QuantizedGraph, quantization_points

_MOST_ROWS = 10
NOT_SHOWN = "the runtime does not show it: it is made inside of a kernel, or with a later tensor"


@dataclass
class OverflowReport:
    """Sums of one step that left the target's accumulator.

    Attributes:
        step: Its name: that of the first node that it computes.
        overflows: How many sums left it.
        sums: How many sums were computed, in all runs of the integer engine.
        largest: The largest magnitude that a sum had.
        limit: The largest magnitude that the accumulator holds.
    """

    step: str
    overflows: int
    sums: int
    largest: int
    limit: int

    def join(self, more: OverflowReport) -> None:
        """Add what was counted in further runs."""
        self.overflows += more.overflows
        self.sums += more.sums
        self.largest = max(self.largest, more.largest)
        self.limit = max(self.limit, more.limit)


@dataclass
class Verification:
    """The outcome: what was deployed against the integer engine, which computes the plan's bits.

    Attributes:
        target: Name of the plan's target.
        runtime: Runtime, version and kernels, which need not be the target's own.
        cpu: The processor it ran on.
        samples: Samples run.
        layers: Each tensor alone: the engine computes it from the runtime's own integers, so a
            difference is that layer's and no other's. In the order of the steps.
        end_to_end: The same tensors, each side fed by its own layers; empty where the runtime
            computes layer by layer only.
        simulation: As ``layers``, against the float simulation instead of the engine; empty where
            there is none.
        float_layers: Layers that compute with floats from stored integers, each from the runtime's
            own inputs.
        outputs: The final outputs, end to end.
        outputs_sqnr_db: Deployed outputs against the engine's, dB; infinite when identical.
        float_nodes: Nodes planned for integers that the runtime runs in float, with op type.
        integer_nodes: Nodes planned in float that the runtime computes with codes, with op type.
        changed: Those of the latter that round otherwise than the floats do, and quantizers to
            which the runtime gave scales that the plan does not have.
        in_float: Nodes planned for integers that the engine computes in float, with the reason.
        not_compared: Tensors that the runtime does not show, with the reason.
        ends: How many quantized tensor ends the plan has: places where numbers become codes, of
            activations; those that only move codes count where they are compared.
        ends_compared: How many of these were compared, each alone.
        overflows: Steps of which sums left the accumulator, worst first. It is made with all steps,
            which `counted` keeps.
        format: What was deployed, by the name of its format; "" for files of others.
        classes: What the models decide for each sample; None where the first output has no
            classes.
        agreement: Share of samples, in percent, of which both decide alike, end to end; None
            without classes.
        top1: Accuracy in percent, (deployed, expected); None without labels.
        rules: Where there is no runtime to run it: each rule of the hardware that was checked
            instead, with the places that break it.
        refused: Why nothing was compared: the runtime is missing, or refuses the model; "" where
            something was.
        no_engine: Why the engine cannot compute the plan, "" if it can: the outputs are compared
            with those of the simulation then, and ``layers`` is empty.
        not_simulated: What the float32 simulation does not reproduce of the target's arithmetic.
        compiled: What the compiler of the accelerator makes of the file, in one line; "" where the
            target has none, or it is not installed.
        processor: What this processor computes otherwise; None where it is what the target
            describes.
    """

    target: str
    runtime: str
    cpu: Cpu
    samples: int
    layers: list[LayerComparison]
    end_to_end: list[LayerComparison] = field(default_factory=list)
    simulation: list[LayerComparison] = field(default_factory=list)
    float_layers: list[FloatComparison] = field(default_factory=list)
    outputs: list[OutputComparison] = field(default_factory=list)
    outputs_sqnr_db: dict[str, float] = field(default_factory=dict)
    float_nodes: dict[str, str] = field(default_factory=dict)
    integer_nodes: dict[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    in_float: dict[str, str] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    ends: int = 0
    ends_compared: int = 0
    overflows: list[OverflowReport] = field(default_factory=list)
    no_engine: str = ""
    not_simulated: tuple[str, ...] = ()
    format: str = ""
    classes: Classes | None = None
    agreement: float | None = None
    top1: tuple[float, float] | None = None
    rules: dict[str, list[str]] = field(default_factory=dict)
    refused: str = ""
    compiled: str = ""
    processor: ProcessorFinding | None = None

    def __repr__(self) -> str:
        """Count what was compared, and what differs."""
        if self.refused:
            return f"Verification({self.target}: not run, {self.refused})"
        found = Totals.of(self.layers or self.simulation)
        return (
            f"Verification({self.target} in {self.runtime}: {found.tensors} layers, "
            f"{found.differ:,} of {found.values:,} values differ, {self.samples} samples)"
        )

    def _repr_html_(self) -> str:
        """Write what was compared as a table for a notebook, the tensors that differ most first."""
        compared = self.layers or self.simulation
        wrong = sorted((each for each in compared if each.mismatches), key=lambda e: -e.mismatches)
        rows = [
            (each.end, f"{each.mismatches:,}", f"{each.values:,}", f"{each.largest:g}")
            for each in wrong[:_MOST_ROWS]
        ]
        lines = [f"output {name}: {decibels(db)}" for name, db in self.outputs_sqnr_db.items()]
        if self.top1 is not None:
            lines.append(f"top-1 {self.top1[0]:.2f} %, expected {self.top1[1]:.2f} %")
        headings = ("tensor", "differ", "of", "steps, at most")
        return Figures(repr(self), headings, rows, lines).to_html()

    def __post_init__(self) -> None:
        """Leave out steps of which no sums left the accumulator, and count agreement."""
        # All steps are kept beside: joining another machine's figures needs each, in the same
        # order.
        self.counted = self.overflows  # no field, which would be shown
        self._sum_up()

    def join(self, more: Verification) -> None:
        """Add what was found for further samples, behind these.

        Both are of one plan and runtime, before `count` and `score`.
        """
        self.samples += more.samples
        # In parallel lists: both sides have the same plan, so that each layer stands where it
        # stood.
        for own, others in (
            (self.layers, more.layers),
            (self.end_to_end, more.end_to_end),
            (self.simulation, more.simulation),
        ):
            for layer, other in zip(own, others, strict=True):
                layer.join(other)
        for floats, its in zip(self.float_layers, more.float_layers, strict=True):
            floats.join(its)
        for output, another in zip(self.summed, more.summed, strict=True):
            output.join(another)
        self.outputs_sqnr_db = sqnr_by_name(self.outputs)
        for step, counted in zip(self.counted, more.counted, strict=True):
            step.join(counted)
        if self.classes is not None and more.classes is not None:
            self.classes.join(more.classes)
        self._sum_up()

    def executed_otherwise(self) -> list[str]:
        """Say what the runtime computes otherwise than it was planned, a sentence each."""
        said = []
        for nodes, what in (
            (self.float_nodes, "planned for integers run in float, for want of an integer kernel"),
            (self.integer_nodes, "planned in float run with codes"),
        ):
            if nodes:
                named = [f"{name} ({op_type})" for name, op_type in nodes.items()]
                said.append(f"{len(nodes)} node(s) {what} in the runtime: {first_names(named)}")
        apart = [each for each in self.float_layers if each.differs]
        if apart:
            named = [f"{each.end} by {each.relative:.1e}" for each in apart]
            said.append(
                f"{len(apart)} layer(s) of floats compute something else in the runtime, relative "
                f"to their largest value: {first_names(named)}"
            )
        if self.changed:
            said.append(f"{CHANGED}: {first_names(self.changed)}")
        return said

    def with_all_steps(self) -> Verification:
        """Return it with all steps in ``overflows``, as it is made: to be sent."""
        # The receiver joins steps one by one, so that none may be missing.
        self.overflows = self.counted
        return self

    @property
    def summed(self) -> list[OutputComparison]:
        """All outputs that have sums."""
        return [*self.outputs, *([] if self.processor is None else self.processor.outputs)]

    def _sum_up(self) -> None:
        overflowed = [each for each in self.counted if each.overflows]
        self.overflows = sorted(overflowed, key=lambda each: -each.overflows)
        if self.classes is not None and self.classes.deployed:
            same = np.equal(self.classes.deployed, self.classes.expected)
            self.agreement = 100.0 * float(same.mean())

    def count(self, plan: QuantizedGraph) -> None:
        """Count how much of a plan was compared, and say why the rest was not."""
        compared = {each.end for each in self.layers or self.simulation}
        points = (p for p in quantization_points(plan) if not p.is_constant)
        # An end that only passes codes on adds no proof, and is not missed.
        ends = [str(p.end) for p in points if str(p.end) in compared or not p.is_passed_on]
        left = [end for end in ends if end not in compared]
        self.ends, self.ends_compared = len(ends), len(ends) - len(left)
        if compared:
            self.not_compared |= {end: NOT_SHOWN for end in left if end not in self.not_compared}

    @property
    def compared_nothing(self) -> bool:
        """Whether the plan has quantized tensors of which none was compared: no success."""
        # TFLite Micro shows outputs alone; where these are equal, so is what they are made from.
        is_equal = any(each.values for each in self.outputs) and not any(
            each.mismatches for each in self.outputs
        )
        by_other_means = bool(self.refused or self.rules or self.no_engine or is_equal)
        return self.ends > 0 and self.ends_compared == 0 and not by_other_means

    def score(self, labels: npt.NDArray[np.int64] | None) -> None:
        """Count how many decisions are right.

        Args:
            labels: The classes of the samples, [N]; None leaves the accuracies out.

        Raises:
            DataError: There are other numbers of labels than of decisions.
        """
        if labels is None or self.classes is None:
            return
        if len(labels) > len(self.classes.deployed):
            raise DataError(
                f"{len(labels)} labels for {len(self.classes.deployed)} outputs",
                remedy="give one for each sample",
            )
        deployed, expected = (  # a model of fixed batches also decides what fills up the last one
            100.0 * float(np.equal(decided[: len(labels)], labels).mean()) if len(labels) else 0.0
            for decided in (self.classes.deployed, self.classes.expected)
        )
        self.top1 = deployed, expected


def overflow_reports(*engines: IntegerEngine) -> list[OverflowReport]:
    """Return what was counted of each step's sums."""
    return [
        OverflowReport(step, each.overflows, each.sums, each.largest, each.limit)
        for engine in engines
        for step, each in engine.overflows.items()
    ]


def sqnr_by_name(outputs: list[OutputComparison]) -> dict[str, float]:
    """Return the SQNR of each output."""
    return {each.name: each.sqnr_db for each in outputs}
