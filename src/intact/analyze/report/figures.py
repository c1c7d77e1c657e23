"""Declares the figures of a report, which become the JSON in its page and of ``--json``.

Numbers that are not finite become null in JSON. A signal to noise ratio of null is infinite: the
same bits. What is not known is left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from intact.analyze.report.network_figures import Network
from intact.analyze.verdict import Verdict

REPORT_VERSION = 1


class _Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Plain values; what has its default is left out of the JSON."""


class Summary(_Figures, frozen=True):
    """The result in a few figures.

    Attributes:
        model: What the model is called.
        target: The target.
        description: What the target is.
        formats: What was written, the best first.
        deployed: Name of the file to deploy.
        bytes: Sizes of the float and of the deployed model.
        nodes: Number of nodes.
        integer: How many of them compute with integers.
        weight_bits: Number of quantized weights by width.
        activation_bits: Number of quantized activations by width.
        samples: That the scales are of; 0 where none were observed.
        method: The threshold method of activations.
        weight_method: That of weights.
        source: Where the plan comes from, if it is no calibration: a quantized model, a search.
    """

    model: str
    target: str
    description: str
    formats: tuple[str, ...]
    deployed: str
    bytes: tuple[int, int]
    nodes: int
    integer: int
    weight_bits: dict[int, int] = {}
    activation_bits: dict[int, int] = {}
    samples: int = 0
    method: str = ""
    weight_method: str = ""
    source: str = ""


class Accuracy(_Figures, frozen=True):
    """Float against quantized on the samples of the user.

    Attributes:
        samples: That were run.
        runtime: What ran the quantized model.
        top1: Percent, (float, quantized).
        change: Points, with the ends of the paired 95 % interval.
        agreement: Percent of the samples for which both give the same best class.
        metrics: Further figures by name, (float, quantized).
        latency_ms: What a batch takes, (float, quantized).
        batch: Samples in that batch.
        speedup: Float time over quantized time.
        kernels_ms: What all kernels of the quantized model take of a batch, one after the other.
        remarks: What makes the figures doubtful, a line each.
    """

    samples: int
    runtime: str
    top1: tuple[float, float] | None = None
    change: tuple[float, float, float] | None = None
    agreement: float | None = None
    metrics: dict[str, tuple[float, float]] = {}
    latency_ms: tuple[float, float] | None = None
    batch: int = 0
    speedup: float | None = None
    kernels_ms: float | None = None
    remarks: tuple[str, ...] = ()


class Output(_Figures, frozen=True):
    """The error of an output of the model.

    Attributes:
        name: Its name.
        sqnr_db: Signal to quantization noise, dB.
        cosine: Cosine of both.
        agreement: Percent of samples with the same best class.
    """

    name: str
    sqnr_db: float | None
    cosine: float | None
    agreement: float | None = None


class Verified(_Figures, frozen=True):
    """One deployed model in its runtime against the integers of its plan.

    Attributes:
        format: What was deployed.
        runtime: What ran it.
        cpu: On which processor.
        samples: How many were run.
        tensors: Quantized tensors that were compared, each from the runtime's own inputs.
        ends: Quantized tensors that there are.
        values: Integers compared.
        differ: How many of these differ.
        largest: The largest difference, in steps.
        end_to_end: Percent of the samples that are decided alike.
        outputs: Signal to noise of each output against what is expected, dB.
        remarks: What stands out.
        refused: Why nothing was compared.
    """

    format: str
    runtime: str = ""
    cpu: str = ""
    samples: int = 0
    tensors: int = 0
    ends: int = 0
    values: int = 0
    differ: int = 0
    largest: float = 0.0
    end_to_end: float | None = None
    outputs: dict[str, float | None] = {}
    remarks: tuple[str, ...] = ()
    refused: str = ""


class Finding(_Figures, frozen=True):
    """What the diagnosis found.

    Attributes:
        cause: Name of the cause.
        meaning: What it means.
        evidence: What was measured.
        node: Where; "" for the whole model.
        remedy: What mends it.
        gain: Measured; None where it was not tried.
        unit: The gain's unit.
    """

    cause: str
    meaning: str
    evidence: str
    node: str = ""
    remedy: str = ""
    gain: float | None = None
    unit: str = "dB"


class Trial(_Figures, frozen=True, array_like=True):
    """A trial of a search: number, cost, score, whether it is complete, whether on the front."""

    number: int
    cost: float | None
    score: float | None
    is_complete: bool
    is_front: bool


class Search(_Figures, frozen=True):
    """How the plan was found.

    Attributes:
        found: What the provenance says of it.
        log: Name of the log; "" where it is not at hand.
        sampler: Who proposed candidates.
        objective: What was scored; higher is better.
        cost: What was minimized.
        samples: How many each complete trial has.
        min_score: The lowest score that was accepted.
        max_cost: The highest cost.
        best: Number of the trial that was taken.
        trials: All, or a part where there are thousands.
        count: How many there were.
    """

    found: str
    log: str = ""
    sampler: str = ""
    objective: str = ""
    cost: str = ""
    samples: int = 0
    min_score: float | None = None
    max_cost: float | None = None
    best: int | None = None
    trials: tuple[Trial, ...] = ()
    count: int = 0


class Epoch(_Figures, frozen=True, array_like=True):
    """An epoch of training: number, loss, loss on what is held out, percent right there."""

    number: int
    loss: float | None
    held_out: float | None
    accuracy: float | None


class Training(_Figures, frozen=True):
    """How weights and scales were trained.

    Attributes:
        how: What the provenance says of it.
        best: The epoch that was taken.
        epochs: The curve; empty where the log is not at hand.
    """

    how: str
    best: int | None = None
    epochs: tuple[Epoch, ...] = ()


class Improvement(_Figures, frozen=True):
    """What an improvement pass did: signal to noise of the outputs before and after, dB."""

    name: str
    before: float | None
    after: float | None
    kept: bool


class FloatNodes(_Figures, frozen=True):
    """Nodes that stay float for one reason."""

    reason: str
    nodes: tuple[int, ...]


class FoundBox(_Figures, frozen=True, array_like=True):
    """What a detector finds in a picture; ends are shares of its width and height.

    Attributes:
        is_float: Whether the float model finds it, and not the quantized one.
        kind: Number of its class.
        score: Its score.
        left: Of its left end.
        top: Of its upper end.
        right: Of its right end.
        bottom: Of its lower end.
    """

    is_float: bool
    kind: int
    score: float
    left: float
    top: float
    right: float
    bottom: float


class Picture(_Figures, frozen=True):
    """A sample as the model gets it.

    Attributes:
        source: The picture, as a ``data:`` address.
        sample: Its number, from 0.
        label: Its class, where there are labels.
        before: The class that the float model answers, where that is of interest.
        after: The class that the quantized model answers.
        is_lost: Whether it was right, and is wrong now.
        boxes: What both models of a detector find in it, the best.
        lost: How many of float's boxes the quantized model does not find again.
        added: How many of the quantized model's float has not.
    """

    source: str
    sample: int
    label: str | None = None
    before: str | None = None
    after: str | None = None
    is_lost: bool = False
    boxes: tuple[FoundBox, ...] = ()
    lost: int = 0
    added: int = 0


class Sheet(_Figures, frozen=True):
    """Some samples side by side.

    Attributes:
        title: Which samples.
        told: Their size, and how numbers became pixels.
        pictures: The samples.
    """

    title: str
    told: str
    pictures: tuple[Picture, ...]


class ClassChange(_Figures, frozen=True, array_like=True):
    """A class: its name, its samples, and how many both models answer with it."""

    name: str
    samples: int
    before: int
    after: int


class Pictures(_Figures, frozen=True):
    """Pictures of the data.

    Attributes:
        sheets: Samples as the model gets them.
        changed: How many samples the quantized model answers otherwise.
        examples: Some of these, first those that become wrong.
        classes: The classes that lose most.
        is_labelled: Whether classes are those of labels, and not the float model's answers.
        found: Pictures with what both models of a detector find, first where that differs.
    """

    sheets: tuple[Sheet, ...] = ()
    changed: int = 0
    examples: tuple[Picture, ...] = ()
    classes: tuple[ClassChange, ...] = ()
    is_labelled: bool = False
    found: tuple[Picture, ...] = ()


class Box(_Figures, frozen=True, array_like=True):
    """A figure as texts: its name, its value, and what it is to be compared with."""

    name: str
    value: str
    note: str


class Report(_Figures, frozen=True):
    """A result, as its report shows it; its page has all that `repr` leaves out.

    Attributes:
        version: This structure's version.
        intact: Version of the package that wrote it.
        summary: The result in a few figures.
        network: The graph with all that is known of its nodes.
        floats: What is float, and why.
        notes: What the plan says of the whole model.
        caption: What the boxes were measured on.
        boxes: The figures that matter most, with which the page opens.
        samples: How many the errors of layers are of; 0 where none were measured.
        verdict: What to do, in one sentence; None where nothing was measured.
        drawn: Whether those samples were drawn from the statistics.
        outputs: Errors of the model's outputs.
        accuracy: On samples of the user.
        verified: Deployed models in their runtimes.
        pictures: What the data shows; None where the model takes none.
        findings: What the diagnosis found, worst first; None where it was not asked.
        improvements: What improvement passes did.
        search: If there was one.
        training: If there was one.
        provenance: Where the plan comes from.
        command: What makes the result again.
        recipe: The options, as TOML.
        left_out: What the report lacks, with the reason.
        written: What is in the files beside the page, by path; empty on the page itself.
    """

    summary: Summary
    network: Network
    version: int = REPORT_VERSION
    intact: str = ""
    floats: tuple[FloatNodes, ...] = ()
    notes: tuple[str, ...] = ()
    samples: int = 0
    caption: str = ""
    boxes: tuple[Box, ...] = ()
    verdict: Verdict | None = None
    drawn: bool = False
    outputs: tuple[Output, ...] = ()
    accuracy: Accuracy | None = None
    verified: tuple[Verified, ...] = ()
    pictures: Pictures | None = None
    findings: tuple[Finding, ...] | None = None
    improvements: tuple[Improvement, ...] = ()
    search: Search | None = None
    training: Training | None = None
    provenance: dict[str, Any] = {}
    command: str = ""
    recipe: str = ""
    left_out: dict[str, str] = {}
    written: dict[str, str] = {}

    def __repr__(self) -> str:
        """Name the model and its verdict: all figures are a quarter of a million characters."""
        told = "" if self.verdict is None else f": {self.verdict}"
        return f"Report({self.summary.model} for {self.summary.target}{told})"

    def encode(self) -> bytes:
        """Return the JSON; equal reports give equal bytes."""
        return msgspec.json.encode(self)
