"""Declares the options of the commands that report on models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from intact.limits import EVALUATED_AT_ONCE
from intact.recipe.declare import Options, option, required
from intact.recipe.groups import (
    ARRAYS,
    DATA,
    RESULT,
    RUNNABLE,
    SAMPLES,
    BlockOptions,
    ClusterOptions,
    ComparisonOptions,
    GraphOptions,
    LengthOptions,
    LimitOptions,
    ProgressOptions,
    RecipeOptions,
    TerminalOptions,
    ThreadOptions,
)
from intact.recipe.kinds import (
    File,
    Flag,
    Given,
    NamedValues,
    Names,
    Text,
    target,
)
from intact.recipe.numbers import Count, Number, Whole
from intact.recipe.samples import DetectionOptions, LabelOptions

if TYPE_CHECKING:
    from intact.data.metric import Metric, MetricFunction
    from intact.recipe.groups import DataSource, TargetSource


class InspectOptions(GraphOptions, BlockOptions, LimitOptions, ProgressOptions):
    """The options of `inspect`."""

    model: Any = required(
        RUNNABLE,
        "A folder that intact wrote, or an .onnx, .tflite or .tmfile file.",
        in_python="A result will do too.",
    )
    _: KW_ONLY
    target: TargetSource | None = option(
        target(),
        None,
        "The hardware; left out, what the file is for, else onnxruntime.",
        short="-t",
    )


class InspectCommand(TerminalOptions, InspectOptions):
    """The command `inspect`."""


class EvaluateOptions(
    DetectionOptions, LabelOptions, LengthOptions, ClusterOptions, ComparisonOptions
):
    """The options of `evaluate`."""

    result: Any = required(RESULT, "A folder that intact wrote.", in_python="A result will do too.")
    data: DataSource = required(DATA, SAMPLES, flag="--data", short="-d", in_python=ARRAYS)
    _: KW_ONLY
    float_model: Any = option(
        RUNNABLE,
        None,
        "The float model to compare with, or a folder that has it; left out, that of FOLDER, which "
        "after training is the trained one.",
        in_python="A result will do too.",
    )
    metric: str | MetricFunction | Metric | None = option(
        Given(
            "MODULE:FUNCTION, detections, perplexity, cosine, or a function",
            (),
            "MODULE:FUNCTION|detections|perplexity|cosine",
            text="MODULE:FUNCTION, detections, perplexity or cosine",
        ),
        None,
        "Scores a model: function(outputs, references) -> number, or numbers by name. Of language "
        "models perplexity or cosine are measured, whichever fits; a name demands it. detections: "
        "boxes of a detector that are found again, and mAP with --labels (docs/detectors.md).",
    )
    samples: int | None = option(Count(), None, "Use at most so many samples; left out, all.")
    top_k: int = option(
        Whole(least=1), 5, "Also count how often the right class is among so many best ones."
    )
    batch: int | None = option(
        Whole(least=1),
        None,
        f"Samples in one run; left out, {EVALUATED_AT_ONCE}, and fewer where tensors are large. "
        "The latency is of one sample, where the model takes one.",
    )


class DiagnoseOptions(LabelOptions, ComparisonOptions):
    """The options of `diagnose`."""

    result: Any = required(RESULT, "A folder that intact wrote.", in_python="A result will do too.")
    data: DataSource | None = option(
        DATA,
        None,
        f"{SAMPLES} Left out, inputs are drawn from the distribution that calibration observed.",
        short="-d",
        in_python=ARRAYS,
    )
    _: KW_ONLY
    samples: int | None = option(
        Count(),
        256,
        "Use at most so many samples, and four times as many to judge answers that become wrong; "
        "`all` for no limit.",
    )
    seconds: float | None = option(
        Number(),
        None,
        "Try the remedies for at most so many seconds in all: what does not help is not offered, "
        "and the gain is shown.",
        flag="--try",
    )
    layers: bool = option(
        Flag(),
        True,
        "Measure the errors of each layer: accumulated, by itself, and what it alone costs the "
        "outputs.",
        flag="--layers/--no-layers",
    )


class DiagnoseCommand(TerminalOptions, DiagnoseOptions):
    """The command `diagnose`."""

    first: ClassVar[Sequence[str]] = (
        "data",
        "labels",
        "samples",
        "seconds",
        "layers",
        "as_json",
    )


REPORT_PARTS = ("errors", "diagnosis", "accuracy", "verification", "pictures")
"""What is measured or shown for a report."""


class ReportOptions(LabelOptions, ComparisonOptions):
    """The options of `report`."""

    result: Any = required(RESULT, "A folder that intact wrote.", in_python="A result will do too.")
    data: DataSource | None = option(
        DATA,
        None,
        f"{SAMPLES} Left out, inputs are drawn from the distribution that calibration observed, "
        "and there is no accuracy.",
        short="-d",
        in_python=ARRAYS,
    )
    _: KW_ONLY
    output: str | Path | None = option(
        File("FILE.html", "the path of a file"),
        None,
        "Where the page goes; left out, report.html in the folder of the result.",
        short="-o",
        recorded=False,
    )
    samples: int | None = option(
        Count(), None, "Use at most so many samples for the accuracy; left out, all."
    )
    leave_out: Sequence[str] = option(
        Names("parts", metavar="PART"),
        (),
        f"A part that is left out: {', '.join(REPORT_PARTS[:-1])} or {REPORT_PARTS[-1]}. "
        "Several may be given.",
    )
    csv: str | Path | None = option(
        File("FILE.csv", "the path of a file"),
        None,
        "Also write the figures of each node as a table.",
        recorded=False,
    )
    model_explorer: str | Path | None = option(
        File("FILE.json", "the path of a file"),
        None,
        "Also write the error of each layer as node data for Model Explorer; further figures go "
        "into files beside it.",
        recorded=False,
    )
    log: str | Path | None = option(
        File("LOG"), None, "The log of the search that found the result; left out, that beside it."
    )


class ReportCommand(TerminalOptions, ReportOptions):
    """The command `report`."""

    first: ClassVar[Sequence[str]] = (
        "data",
        "labels",
        "output",
        "samples",
        "leave_out",
        "csv",
        "model_explorer",
        "as_json",
    )


class CompareOptions(LabelOptions, ComparisonOptions):
    """The options of `compare`."""

    results: Any = required(
        NamedValues(RESULT),
        "Folders that intact wrote, two or more; one with a result for each target stands for all "
        "of these.",
        in_python="Results will do too, and a dict gives them names.",
    )
    data: DataSource | None = option(
        DATA,
        None,
        f"{SAMPLES} Left out, errors are of inputs that are drawn from the distribution that "
        "calibration observed, and there is no accuracy.",
        short="-d",
        in_python=ARRAYS,
    )
    _: KW_ONLY
    output: str | Path | None = option(
        File("FILE.html", "the path of a file"),
        None,
        "Write a page with the graphs side by side.",
        short="-o",
        recorded=False,
    )
    errors: bool = option(
        Flag(), True, "Measure the errors of layers and outputs, on 64 samples at most."
    )
    latency: bool = option(
        Flag(), False, "Time the results that are deployed to ONNX Runtime; takes some seconds."
    )
    samples: int | None = option(
        Count(), None, "Use at most so many samples for the accuracy; left out, all."
    )
    batch: int | None = option(
        Whole(least=1),
        None,
        f"Samples in one run for accuracy and latency; left out, {EVALUATED_AT_ONCE}, and fewer "
        "where tensors are large.",
    )


class CompareCommand(TerminalOptions, CompareOptions):
    """The command `compare`."""

    first: ClassVar[Sequence[str]] = (
        "data",
        "labels",
        "samples",
        "errors",
        "latency",
        "output",
        "every",
        "as_json",
    )

    _: KW_ONLY
    every: bool = option(
        Flag(), False, "List all that differs, not what matters most.", flag="--all"
    )


class LayerOptions(ComparisonOptions):
    """The options of `quant_loss`."""

    result: Any = required(RESULT, "A result, or its folder.")
    data: DataSource = required(DATA, SAMPLES, flag="--data", short="-d", in_python=ARRAYS)
    _: KW_ONLY
    integers: bool = option(Flag(), False, "Run the integer engine instead of the simulation.")
    samples: int = option(Whole(least=1), 50, "Use at most so many samples.")


class EdgeOptions(LayerOptions):
    """The options of `inspect_graph_statistic`."""

    _: KW_ONLY
    topological: bool = option(
        Flag(), False, "Leave the edges in the order of the graph, not the most damaged first."
    )


class EvaluateCommand(RecipeOptions, EvaluateOptions):
    """The command `evaluate`."""

    section: ClassVar[str] = "Layers instead of outputs"
    first: ClassVar[Sequence[str]] = (
        "data",
        "labels",
        "float_model",
        "metric",
        "samples",
        "batch",
        "quant_loss",
        "graph_statistic",
        "as_json",
    )

    _: KW_ONLY
    quant_loss: bool = option(
        Flag(),
        False,
        "Compare each layer with the float model's, by channel for convolutions and dense layers; "
        "50 samples unless --samples is given.",
    )
    graph_statistic: bool = option(
        Flag(),
        False,
        "Compare mean, deviation and extremes of each edge before and after quantizing, the most "
        "damaged first; 50 samples unless --samples is given.",
    )


class ConvertRangesOptions(Options, kw_only=True):
    """The options of `convert_ranges`."""

    scale: float | None = option(Number(), None, "Difference of the values of adjacent codes.")
    zero_point: int = option(Whole(), 0, "The code of 0.")
    low: float | None = option(Number(), None, "The value of the smallest code.")
    high: float | None = option(Number(), None, "The value of the largest code.")
    bits: int = option(Whole(2, 16), 8, "Width of the codes.")
    signed: bool = option(
        Flag(), True, "Codes of both signs; else from 0.", flag="--signed/--unsigned"
    )
    narrow: bool = option(Flag(), False, "Leave out the lowest signed code: -127 to 127.")
    symmetric: bool = option(
        Flag(),
        False,
        "The zero point is 0; the scale is the smallest with which the codes hold the range.",
    )


class ConvertRangesCommand(TerminalOptions, ConvertRangesOptions, kw_only=True):
    """The command `convert-ranges`."""


class ShowTargetCommand(TerminalOptions):
    """The command `targets show`."""

    name: str = required(Text("the name of a target", "NAME|FILE.toml"), "The target.")


class DemoCommand(TerminalOptions, ThreadOptions, kw_only=True):
    """The command `demo`."""
