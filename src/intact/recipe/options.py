"""Declares every option of every command: its name, type, default, help and check.

The command line, the signatures of the public functions, recipe files and what a result's
``recipe.toml`` records all follow from these declarations and those of `intact.recipe.groups`. The
recipe of a command inherits from the groups that it takes; ``XCommand`` adds what only the command
line has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from intact.recipe.declare import Options, option, required
from intact.recipe.groups import (
    ARRAYS,
    DATA,
    LOADED,
    MODEL,
    PROGRESS,
    RESULT,
    SAMPLES,
    BlockOptions,
    BlockSizeOptions,
    CalibrationOptions,
    ClusterOptions,
    FormatOptions,
    GraphOptions,
    LengthOptions,
    OutputOptions,
    RecipeOptions,
    SpeedOptions,
    WidthOptions,
    lower_name,
)
from intact.recipe.kinds import (
    TARGET,
    File,
    Flag,
    Given,
    Name,
    Passes,
    Several,
    Text,
    target,
)
from intact.recipe.numbers import Count, Number, Numbers, TextOrNumber, Whole
from intact.recipe.samples import ArrayStepOptions, DetectionOptions, ImageStepOptions, LabelOptions
from intact.recipe.training import TrainCommand

if TYPE_CHECKING:
    from intact.data.metric import MetricFunction
    from intact.recipe.groups import DataSource, ModelSource, ScaleSource, TargetSource
    from intact.recipe.kinds import Budget


class QuantizationOptions(
    ImageStepOptions,
    ClusterOptions,
    CalibrationOptions,
    GraphOptions,
    BlockOptions,
    SpeedOptions,
    LengthOptions,
    FormatOptions,
):
    """The options of `quantize` but for the target."""

    section: ClassVar[str] = "What is quantized"

    model: ModelSource = required(
        MODEL,
        "The float model: an .onnx file, or a .tmfile of Tengine.",
        in_python=LOADED,
    )
    data: DataSource | None = option(
        DATA,
        None,
        f"{SAMPLES} Not needed where every scale is given, or with --activations dynamic.",
        short="-d",
        in_python=ARRAYS,
    )
    _: KW_ONLY
    data_free: bool = option(
        Flag(),
        False,
        "Calibrate without data, on images that are drawn from the model's BatchNormalizations "
        "(see docs/accuracy.md); better with torch.",
    )
    scales: ScaleSource | Sequence[ScaleSource] | None = option(
        Several(
            Given(
                "a file of scales",
                ["intact.plan.given_scales.ScaleTable"],
                "FILE|none",
            ),
            nothing="none",
        ),
        None,
        "Scales to take as they are: encodings (JSON), a table of Tengine or ncnn, TensorRT's "
        "calibration cache, MQBench's ranges; the data calibrates the rest. `none` ignores those "
        "that the model carries. Several may be given.",
        in_python="A ScaleTable will do too; an empty list is none.",
    )
    preset: str | None = option(
        Name("fast, balanced or best", ("fast", "balanced", "best")),
        None,
        "How much is done to lose less: fast calibrates, balanced also improves what the bits and "
        "scales of the target make lose, best does all that helps and may take minutes; left out, "
        "the target's.",
    )
    improve: Sequence[str] = option(
        Passes(),
        (),
        "Passes to run instead of the preset's, each NAME or NAME{key=value,...}: "
        "equalize, absorb, smooth, rotate, widths, ranges, weight-scales, rounding, bias, "
        "expected-bias, adaround, reconstruct (see docs/accuracy.md). What does not help is rolled "
        "back. Several may be given.",
    )
    in_place: bool = option(
        Flag(),
        True,
        "Let operators pass the scale of their output to their input, on targets that do so.",
    )
    quantize_heads: bool = option(
        Flag(),
        False,
        "Compute with integers behind the last layers too, as far as the target does: the decoding "
        "of boxes, joins of unlike ranges, and states that are joined in one input, which stay "
        "float where that loses less; and the spectra that logarithms and roots read (see "
        "docs/detectors.md).",
    )
    allow_empty: bool = option(
        Flag(), False, "Accept a model of which the target quantizes nothing."
    )


class QuantizeOptions(QuantizationOptions):
    """The options of `quantize`."""

    section: ClassVar[str] = "What is quantized"

    _: KW_ONLY
    target: TargetSource | None = option(
        target(),
        None,
        "The hardware (see `intact targets`); left out, tengine for a .tmfile, else onnxruntime.",
        short="-t",
    )


class QuantizeForOptions(QuantizationOptions):
    """The options of `quantize_for`."""

    section: ClassVar[str] = "What is quantized"

    _: KW_ONLY
    targets: Sequence[TargetSource] = required(
        Several(TARGET), "The hardware, at least one; no two of one name.", flag="--target"
    )


class QuantizeCommand(OutputOptions, RecipeOptions, QuantizationOptions):
    """The command `quantize`."""

    section: ClassVar[str] = "What is quantized"
    first: ClassVar[Sequence[str]] = (
        "data",
        "output",
        "target",
        "normalize",
        "mean",
        "std",
        "shorter_side",
        "samples",
        "method",
        "keep_float",
        "preset",
        "fastest",
        "with_report",
        "as_json",
    )

    _: KW_ONLY
    # One name stays one, whose folder is the result; several make a folder of results.
    target: TargetSource | Sequence[TargetSource] | None = option(
        Several(TARGET, unwrap=True),
        None,
        "The hardware (see `intact targets`); left out, tengine for a .tmfile, else onnxruntime. "
        "Several may be given: the samples are run once, and the output folder gets a folder for "
        "each.",
        short="-t",
    )
    explain: bool = option(
        Flag(),
        False,
        "Print what each improvement pass gained, layer by layer, and what it cost.",
        recorded=False,
    )


class ImportOptions(ImageStepOptions, CalibrationOptions, WidthOptions, FormatOptions):
    """The options of `read_quantized`."""

    section: ClassVar[str] = "What is read"

    model: ModelSource = required(
        MODEL,
        "The quantized model: ONNX with QDQ, QOperator or FakeQuantize, or with the quantizers of "
        "MQBench, PyTorch or Brevitas, or an int8 .tflite or .tmfile.",
        in_python=LOADED,
    )
    data: DataSource | None = option(
        DATA,
        None,
        f"{SAMPLES} What the model leaves float and the target can quantize is calibrated too.",
        short="-d",
        in_python=ARRAYS,
    )
    _: KW_ONLY
    target: TargetSource | None = option(
        target(), None, "The hardware; left out, that of the file's format.", short="-t"
    )


class ImportCommand(OutputOptions, RecipeOptions, ImportOptions):
    """The command `import`."""

    first: ClassVar[Sequence[str]] = (
        "data",
        "output",
        "target",
        "normalize",
        "mean",
        "std",
        "samples",
        "keep_float",
        "formats",
        "with_report",
        "as_json",
    )


class ExportOptions(FormatOptions):
    """The options of `export`."""

    result: Any = required(RESULT, "A folder that intact wrote.", in_python="A result will do too.")


class ExportCommand(OutputOptions, RecipeOptions, ExportOptions):
    """The command `export`."""


class SearchOptions(
    DetectionOptions,
    LabelOptions,
    ImageStepOptions,
    CalibrationOptions,
    GraphOptions,
    BlockSizeOptions,
    FormatOptions,
):
    """The options of `search_strategy`."""

    section: ClassVar[str] = "What is looked for"

    model: ModelSource = required(
        MODEL, "The float model: an .onnx file, or a .tmfile of Tengine.", in_python=LOADED
    )
    data: DataSource = required(DATA, SAMPLES, flag="--data", short="-d", in_python=ARRAYS)
    _: KW_ONLY
    target: TargetSource | None = option(
        target(),
        None,
        "The hardware; left out, tengine for a .tmfile, else onnxruntime.",
        short="-t",
    )
    samples: int | None = option(Count(), 512, "Calibrate and score on at most so many samples.")
    max_drop: float | None = option(
        Number(),
        None,
        "Keep the score within so much of the float model's (points of accuracy, or the "
        "objective's unit), and take the cheapest strategy.",
    )
    min_score: float | None = option(Number(), None, "The lowest score to accept.")
    max_cost: float | str | None = option(
        TextOrNumber("a number, or a part like 60%", "NUMBER|N%"),
        None,
        "The highest cost to accept, a number or a part of what the widest integers cost; take the "
        "strategy of the highest score.",
    )
    minimize: str = option(
        Name("the name of a cost", metavar="COST"),
        "bits",
        "The cost: bits, bytes, bitops, target (per operator and data type, from the target's "
        "file) or latency (measured in ONNX Runtime).",
    )
    objective: str | MetricFunction | None = option(
        Given(
            "the name of an objective, MODULE:FUNCTION or a function",
            metavar="NAME|MODULE:FUNCTION",
            read=lower_name,
        ),
        None,
        "What is scored: accuracy (needs labels), agreement, kl, sqnr, cosine, detections, or a "
        "function of yours (docs/metrics.md); left out, accuracy where there are labels, else "
        "agreement.",
    )
    figure: str = option(
        Text("the name of a figure", "NAME"),
        "",
        "Which figure of a function that gives several; left out, the first.",
    )
    lower_is_better: bool = option(
        Flag(),
        False,
        "The function counts mistakes: --max-drop says how many more, --min-score how many at "
        "most.",
    )
    budget: str | Budget = option(
        TextOrNumber(
            "trials or a time, for instance 200trials, 10min or 2h",
            "N trials|T min",
            ["intact.recipe.kinds.Budget"],
        ),
        "200trials",
        "Trials, a time, or both: 200trials, 10min, 500,1h.",
    )
    sampler: str = option(
        Name("the name of a sampler"),
        "sensitivity",
        "Who proposes candidates: sensitivity, greedy, batched-greedy, annealing, random, tpe or "
        "nsga2.",
    )
    seed: int = option(Whole(least=0), 0, "Seed of samplers that draw at random.")
    preset: str | None = option(
        Name("fast, balanced or best", ("fast", "balanced", "best")),
        None,
        "Whether weights of 6 bits or fewer get refined rounding, once for each layer and width "
        "before the first trial: fast leaves it out; left out, the target's.",
    )
    widths: Sequence[int] | None = option(
        Numbers("widths, for instance 4,8", "N[,N...]", whole=True),
        None,
        "The bit-widths to choose from; left out, 4 up to what the target has.",
    )
    allow_float: bool = option(Flag(), True, "Let parts of the model stay float.", flag="--float")
    # How many there are changes no result, so that the recipe does without.
    workers: int = option(Whole(least=1), 1, "Processes that try side by side.", recorded=False)
    cluster: str | None = option(
        Text("an address, or local", "ADDRESS|local"),
        None,
        "A Ray cluster for the trials, as many at a time as there are workers.",
        recorded=False,
    )
    log: str | Path | None = option(
        File(),
        None,
        "Where every trial is written; left out, OUTPUT.search.jsonl.",
        recorded=False,
    )
    resume: bool = option(Flag(), False, "Continue the search of that log.", recorded=False)
    improve: Sequence[str] = option(
        Passes(), (), "A pass that changes weights to lose less: equalize."
    )
    report: Callable[[Any], None] | None = option(
        PROGRESS, None, "Called after every trial.", flag="", recorded=False
    )


class ReplayOptions(ImageStepOptions, ArrayStepOptions, GraphOptions, FormatOptions):
    """The options of `replay_strategy`."""

    model: ModelSource = required(MODEL, "The float model that was searched.")
    log: str | Path = required(File("LOG"), "The log that the search wrote.", flag="--replay")
    _: KW_ONLY
    trial: str | int = option(
        TextOrNumber("best, or the number of a trial", "best|N"),
        "best",
        "The trial to realize: its number, or best.",
    )
    target: TargetSource | None = option(
        target(), None, "The hardware as in the search; left out, the one that the log names."
    )
    improve: Sequence[str] = option(Passes(), (), "The passes as in the search.")


class SearchCommand(OutputOptions, RecipeOptions, SearchOptions):
    """The command `search`."""

    section: ClassVar[str] = "The log"
    first: ClassVar[Sequence[str]] = (
        "data",
        "output",
        "target",
        "normalize",
        "mean",
        "std",
        "shorter_side",
        "max_drop",
        "minimize",
        "objective",
        "widths",
        "budget",
        "as_json",
    )

    # Not required here: a replay needs none, and the command refuses a search without.
    data: DataSource | None = option(DATA, None, SAMPLES, short="-d", in_python=ARRAYS)  # type: ignore[assignment]
    _: KW_ONLY
    replay: str | Path | None = option(
        File("LOG"), None, "No search: realize a strategy of this log; needs no data."
    )
    trial: str | int = option(
        TextOrNumber("best, or the number of a trial", "best|N"),
        "best",
        "The trial of the log to replay: its number, or best.",
    )


COMMANDS: dict[str, type[Options]] = {
    "quantize": QuantizeCommand,
    "import": ImportCommand,
    "export": ExportCommand,
    "search": SearchCommand,
    "train": TrainCommand,
}
"""The commands whose results hold recipes."""
