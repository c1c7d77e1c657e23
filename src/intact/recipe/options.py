"""Every option of every command: its name, type, default, help and check.

The command line, the signatures of the public functions, recipe files and what a result's
``recipe.toml`` records all follow from these declarations and those of `intact.recipe.groups`. The
recipe of a command inherits from the groups that it takes; ``XCommand`` adds what only the command
line has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from intact.recipe.declare import Options, option, required
from intact.recipe.groups import (
    PROGRESS,
    ArrayStepOptions,
    CalibrationOptions,
    ComparisonOptions,
    FormatOptions,
    GraphOptions,
    ImageStepOptions,
    LabelOptions,
    OutputOptions,
    RecipeOptions,
    TerminalOptions,
    ThreadOptions,
    WidthOptions,
    named,
)
from intact.recipe.kinds import (
    TARGET,
    Count,
    File,
    Flag,
    Given,
    Name,
    Names,
    NamesOrAll,
    Number,
    Numbers,
    Several,
    Text,
    TextOrNumber,
    Whole,
    target,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from intact.data.metric import Metric, MetricFunction
    from intact.recipe.groups import DataSource, ModelSource, ScaleSource, TargetSource
    from intact.search.goals import Budget


_MODEL = Given(
    "the path of a model, an onnx.ModelProto or an onnx_ir.Model",
    ["onnx.ModelProto", "onnx.onnx_ml_pb2.ModelProto", "onnx_ir.Model", "onnx_ir._core.Model"],
    "MODEL",
)
_RESULT = Given("a result, or the folder of one", ["intact.flow.result.Result"], "FOLDER")
_RUNNABLE = Given("a result or its folder, or a model", (), "FOLDER|MODEL")
_DATA = Given(
    "a folder of images, an .npz or .npy file, MODULE:FUNCTION, or arrays",
    (),
    "FOLDER|FILE|MODULE:FUNCTION",
)
_LOADED = "A loaded model will do too; it is not changed."
_ARRAYS = "An array, a dict of arrays or an iterable of such dicts will do too."
_SAMPLES = (
    "Samples: a folder of images, an .npz keyed by input name (and `labels`), an .npy, or "
    "MODULE:FUNCTION that yields dicts of arrays."
)


@dataclass(frozen=True, eq=False, repr=False)
class QuantizationOptions(
    ImageStepOptions, CalibrationOptions, GraphOptions, WidthOptions, FormatOptions
):
    """The options of `quantize` but for the target."""

    section: ClassVar[str] = "What is quantized"

    model: ModelSource = field(
        metadata=required(
            _MODEL,
            "The float model: an .onnx file, or a .tmfile of Tengine.",
            in_python=_LOADED,
        )
    )
    data: DataSource | None = option(
        _DATA,
        None,
        f"{_SAMPLES} Not needed where every scale is given.",
        short="-d",
        in_python=_ARRAYS,
    )
    _: KW_ONLY
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
    improve: Sequence[str] = option(
        Names("passes"),
        (),
        "A pass that changes weights to lose less: equalize (across layers, before calibration), "
        "weight-scales (the scale of the best cosine, after it). Several may be given.",
    )
    in_place: bool = option(
        Flag(),
        True,
        "Let operators pass the scale of their output to their input, on targets that do so.",
    )
    allow_empty: bool = option(
        Flag(), False, "Accept a model of which the target quantizes nothing."
    )


@dataclass(frozen=True, eq=False, repr=False)
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


@dataclass(frozen=True, eq=False, repr=False)
class QuantizeForOptions(QuantizationOptions):
    """The options of `quantize_for`."""

    section: ClassVar[str] = "What is quantized"

    _: KW_ONLY
    targets: Sequence[TargetSource] = field(
        metadata=required(
            Several(TARGET), "The hardware, at least one; no two of one name.", flag="--target"
        )
    )


@dataclass(frozen=True, eq=False, repr=False)
class QuantizeCommand(OutputOptions, RecipeOptions, QuantizationOptions):
    """The command `quantize`."""

    section: ClassVar[str] = "What is quantized"

    _: KW_ONLY
    target: TargetSource | Sequence[TargetSource] | None = option(
        Several(TARGET, unwrap=True),
        None,
        "The hardware (see `intact targets`); left out, tengine for a .tmfile, else onnxruntime. "
        "Several may be given: the samples are run once, and the output folder gets a folder for "
        "each.",
        short="-t",
    )


@dataclass(frozen=True, eq=False, repr=False)
class ImportOptions(CalibrationOptions, WidthOptions, FormatOptions):
    """The options of `read_quantized`."""

    section: ClassVar[str] = "What is read"

    model: ModelSource = field(
        metadata=required(
            _MODEL,
            "The quantized model: ONNX with QDQ, QOperator or FakeQuantize, or an int8 .tflite or "
            ".tmfile.",
            in_python=_LOADED,
        )
    )
    data: DataSource | None = option(
        _DATA,
        None,
        f"{_SAMPLES} What the model leaves float and the target can quantize is calibrated too.",
        short="-d",
        in_python=_ARRAYS,
    )
    _: KW_ONLY
    target: TargetSource | None = option(
        target(), None, "The hardware; left out, that of the file's format.", short="-t"
    )


@dataclass(frozen=True, eq=False, repr=False)
class ImportCommand(OutputOptions, RecipeOptions, ImportOptions):
    """The command `import`."""


@dataclass(frozen=True, eq=False, repr=False)
class ExportOptions(FormatOptions):
    """The options of `export`."""

    result: Any = field(
        metadata=required(_RESULT, "A folder that intact wrote.", in_python="A result will do too.")
    )


@dataclass(frozen=True, eq=False, repr=False)
class ExportCommand(OutputOptions, RecipeOptions, ExportOptions):
    """The command `export`."""


@dataclass(frozen=True, eq=False, repr=False)
class SearchOptions(
    LabelOptions, ImageStepOptions, CalibrationOptions, GraphOptions, WidthOptions, FormatOptions
):
    """The options of `search_strategy`."""

    section: ClassVar[str] = "What is looked for"

    model: ModelSource = field(
        metadata=required(
            _MODEL, "The float model: an .onnx file, or a .tmfile of Tengine.", in_python=_LOADED
        )
    )
    data: DataSource = field(
        metadata=required(_DATA, _SAMPLES, flag="--data", short="-d", in_python=_ARRAYS)
    )
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
            read=named,
        ),
        None,
        "What is scored: accuracy (needs labels), agreement, kl, sqnr, cosine, or a function of "
        "yours (docs/metrics.md); left out, accuracy where there are labels, else agreement.",
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
            ["intact.search.goals.Budget"],
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
    widths: Sequence[int] | None = option(
        Numbers("widths, for instance 4,8", "N[,N...]", whole=True),
        None,
        "The bit-widths to choose from; left out, 4 up to what the target has.",
    )
    allow_float: bool = option(Flag(), True, "Let parts of the model stay float.", flag="--float")
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
        Names("passes"), (), "A pass that changes weights to lose less: equalize."
    )
    report: Callable[[Any], None] | None = option(
        PROGRESS, None, "Called after every trial.", flag="", recorded=False
    )


@dataclass(frozen=True, eq=False, repr=False)
class ReplayOptions(ImageStepOptions, ArrayStepOptions, GraphOptions, FormatOptions):
    """The options of `replay_strategy`."""

    model: ModelSource = field(metadata=required(_MODEL, "The float model that was searched."))
    log: str | Path = field(
        metadata=required(File("LOG"), "The log that the search wrote.", flag="--replay")
    )
    _: KW_ONLY
    trial: str | int = option(
        TextOrNumber("best, or the number of a trial", "best|N"),
        "best",
        "The trial to realize: its number, or best.",
    )
    target: TargetSource | None = option(
        target(), None, "The hardware as in the search; left out, the one that the log names."
    )
    improve: Sequence[str] = option(Names("passes"), (), "The passes as in the search.")


@dataclass(frozen=True, eq=False, repr=False)
class SearchCommand(OutputOptions, RecipeOptions, SearchOptions):
    """The command `search`."""

    section: ClassVar[str] = "The log"

    data: DataSource | None = option(_DATA, None, _SAMPLES, short="-d", in_python=_ARRAYS)  # type: ignore[assignment]
    _: KW_ONLY
    replay: str | Path | None = option(
        File("LOG"), None, "No search: realize a strategy of this log; needs no data."
    )
    trial: str | int = option(
        TextOrNumber("best, or the number of a trial", "best|N"),
        "best",
        "The trial of the log to replay: its number, or best.",
    )


@dataclass(frozen=True, eq=False, repr=False)
class InspectOptions(WidthOptions):
    """The options of `inspect`."""

    model: ModelSource = field(
        metadata=required(
            _RUNNABLE, "A folder that intact wrote, or an .onnx, .tflite or .tmfile file."
        )
    )
    _: KW_ONLY
    target: TargetSource | None = option(
        target(),
        None,
        "The hardware; left out, what the file is for, else onnxruntime.",
        short="-t",
    )


@dataclass(frozen=True, eq=False, repr=False)
class InspectCommand(TerminalOptions, InspectOptions):
    """The command `inspect`."""


@dataclass(frozen=True, eq=False, repr=False)
class EvaluateOptions(LabelOptions, ComparisonOptions):
    """The options of `evaluate`."""

    result: Any = field(
        metadata=required(_RESULT, "A folder that intact wrote.", in_python="A result will do too.")
    )
    data: DataSource = field(
        metadata=required(_DATA, _SAMPLES, flag="--data", short="-d", in_python=_ARRAYS)
    )
    _: KW_ONLY
    metric: str | MetricFunction | Metric | None = option(
        Given("MODULE:FUNCTION, or a function", (), "MODULE:FUNCTION"),
        None,
        "Scores a model: function(outputs, references) -> number, or numbers by name.",
    )
    samples: int | None = option(Count(), None, "Use at most so many samples; left out, all.")
    top_k: int = option(
        Whole(least=1), 5, "Also count how often the right class is among so many best ones."
    )
    batch: int = option(Whole(least=1), 100, "Samples in one run, also for the latency.")


@dataclass(frozen=True, eq=False, repr=False)
class LayerOptions(ComparisonOptions):
    """The options of `quant_loss`."""

    result: Any = field(metadata=required(_RESULT, "A result, or its folder."))
    data: DataSource = field(
        metadata=required(_DATA, _SAMPLES, flag="--data", short="-d", in_python=_ARRAYS)
    )
    _: KW_ONLY
    integers: bool = option(Flag(), False, "Run the integer engine instead of the simulation.")
    samples: int = option(Whole(least=1), 50, "Use at most so many samples.")


@dataclass(frozen=True, eq=False, repr=False)
class EdgeOptions(LayerOptions):
    """The options of `inspect_graph_statistic`."""

    _: KW_ONLY
    topological: bool = option(
        Flag(), False, "Leave the edges in the order of the graph, not the most damaged first."
    )


@dataclass(frozen=True, eq=False, repr=False)
class EvaluateCommand(RecipeOptions, EvaluateOptions):
    """The command `evaluate`."""

    section: ClassVar[str] = "Layers instead of outputs"

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


@dataclass(frozen=True, eq=False, repr=False)
class RunOptions(ComparisonOptions):
    """What `execute` and the command `run` share."""

    model: Any = field(
        metadata=required(
            _RUNNABLE,
            "A folder that intact wrote, or an .onnx, .tflite or .tmfile file. A float model can "
            "be run in float only.",
        )
    )
    data: DataSource = field(
        metadata=required(
            _DATA,
            f"{_SAMPLES} What is in the integer type of an input is taken as its codes; then "
            "outputs are codes too.",
            flag="--data",
            short="-d",
            in_python=_ARRAYS,
        )
    )
    _: KW_ONLY
    target: TargetSource | None = option(
        target(), None, "The hardware of a quantized model that is no result.", short="-t"
    )
    samples: int | None = option(Count(), None, "Use at most so many samples; left out, all.")
    batch: int = option(Whole(least=1), 16, "Samples in one run.")


@dataclass(frozen=True, eq=False, repr=False)
class ExecuteOptions(RunOptions):
    """The options of `execute`."""

    _: KW_ONLY
    executor: str = option(
        Name("integer, simulate or float", ("integer", "simulate", "float")),
        "integer",
        "What computes: integer (the bits of the target), simulate (quantized values in float32) "
        "or float.",
    )
    observe: Sequence[str] | None = option(
        NamesOrAll("tensors", str),
        (),
        "Tensors between to return too, from the integer engine; None for all.",
    )


@dataclass(frozen=True, eq=False, repr=False)
class RunCommand(TerminalOptions, RunOptions):
    """The command `run`."""

    section: ClassVar[str] = "What computes"

    _: KW_ONLY
    output: str | Path = field(
        metadata=required(File("FILE.npz"), "Where the outputs go.", flag="--output", short="-o")
    )
    integer: bool = option(Flag(), False, "The integers of the target, bit for bit (the default).")
    simulate: bool = option(Flag(), False, "Quantized values in float32.")
    in_float: bool = option(Flag(), False, "The float model.", flag="--float")
    every: bool = option(
        Flag(), False, "Write every tensor between, too (integers only).", flag="--all"
    )


@dataclass(frozen=True, eq=False, repr=False)
class VerifyAllOptions(LabelOptions, ComparisonOptions):
    """The options of `verify_all`."""

    section: ClassVar[str] = "What is compared"

    result: Any = field(
        metadata=required(
            Given("a result or its folder", ["intact.flow.result.Result"], "FOLDER|FILE.tflite"),
            "A folder that intact wrote, or one with a result for each target.",
            in_python="A result will do too.",
        )
    )
    data: DataSource | None = option(
        _DATA,
        None,
        f"{_SAMPLES} Left out, inputs are drawn from the distribution that calibration observed.",
        short="-d",
        in_python=_ARRAYS,
    )
    _: KW_ONLY
    kernels: str | None = option(
        Name("ref, optimized, xnnpack or micro"),
        None,
        "The kernels that run a .tflite: ref, optimized or xnnpack of LiteRT, or micro for "
        "TensorFlow Lite Micro; left out, the target's.",
    )
    samples: int | None = option(
        Count(),
        None,
        "Use at most so many samples; left out, 64, or all that were recorded on a device.",
    )


@dataclass(frozen=True, eq=False, repr=False)
class VerifyOptions(VerifyAllOptions):
    """The options of `verify`."""

    section: ClassVar[str] = "What is compared"

    _: KW_ONLY
    deployed: str | None = option(
        Name("the name of a format"),
        None,
        "The format of the result to verify; left out, the first that can be run here (on the "
        "command line, all).",
        flag="--format",
    )
    observed: str | Path | Mapping[str, npt.ArrayLike] | None = option(
        Given("an .npz file, or arrays by name", (), "FILE.npz"),
        None,
        "Tensors recorded on a device, by name, which are compared instead of a runtime here; the "
        "data are its inputs, as many samples as were recorded.",
    )
    target: TargetSource | None = option(
        target(), None, "The hardware of a .tflite that is no result; left out, tflite.", short="-t"
    )


@dataclass(frozen=True, eq=False, repr=False)
class VerifyCommand(TerminalOptions, VerifyOptions):
    """The command `verify`."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConvertRangesOptions(Options):
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
    symmetric: bool = option(Flag(), False, "The zero point is 0.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConvertRangesCommand(TerminalOptions, ConvertRangesOptions):
    """The command `convert-ranges`."""


@dataclass(frozen=True, eq=False, repr=False)
class ShowTargetCommand(TerminalOptions):
    """The command `targets show`."""

    name: str = field(
        metadata=required(Text("the name of a target", "NAME|FILE.toml"), "The target.")
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DemoCommand(TerminalOptions, ThreadOptions):
    """The command `demo`."""


COMMANDS: dict[str, type[Options]] = {
    "quantize": QuantizeCommand,
    "import": ImportCommand,
    "export": ExportCommand,
    "search": SearchCommand,
    "evaluate": EvaluateCommand,
}
"""The commands that read recipes."""
