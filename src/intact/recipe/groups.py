"""Declares the options that several commands share, in groups of one subject each.

A command's recipe inherits from the groups that it takes: one that inherits from `ThreadOptions`
has ``--threads`` on the command line, ``threads=`` in Python and ``threads`` in a recipe file.
Options of single commands are in `options`, `reports` and `training`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from intact.ops import EXPANDABLE
from intact.recipe.declare import Options, option, options_of, required
from intact.recipe.kinds import (
    File,
    Flag,
    Given,
    Instance,
    Name,
    Names,
    Text,
    overrides,
)
from intact.recipe.numbers import Constant, Number, Pairs, Shapes, Whole
from intact.recipe.samples import (
    ArrayStepOptions,
    FeedOptions,
    ImageStepOptions,
    ReadOptions,
    SampleOptions,
    SkipOptions,
)

if TYPE_CHECKING:
    # For type checkers alone: commands that read no model load none of these packages.
    import numpy.typing as npt
    import onnx
    import onnx_ir as ir

    from intact.plan import Overrides
    from intact.plan.given_scales import ScaleTable
    from intact.targets import Target

    class SupportsIndex(Protocol):
        """What gives any item by its number, as a dataset does."""

        def __getitem__(self, index: int, /) -> Any: ...

    ModelSource: TypeAlias = str | Path | onnx.ModelProto | ir.Model
    DataSource: TypeAlias = (
        str
        | Path
        | npt.ArrayLike
        | Mapping[str, Any]
        | Iterable[Any]
        | SupportsIndex
        | Callable[[], Iterable[Any]]
    )
    TargetSource: TypeAlias = str | Path | Target
    ScaleSource: TypeAlias = str | Path | ScaleTable

MODEL = Given(
    "the path of a model, an onnx.ModelProto, an onnx_ir.Model or a torch.nn.Module",
    [
        "onnx.ModelProto",
        "onnx.onnx_ml_pb2.ModelProto",
        "onnx_ir.Model",
        "onnx_ir._core.Model",
        "torch.nn.Module",
    ],
    "MODEL",
    text="the path of a model",
)
RESULT = Given(
    "a result, or the folder of one",
    ["intact.results.result.Result"],
    "FOLDER",
    text="the folder of a result",
)
RUNNABLE = Given(
    "a result or its folder, or a model",
    (),
    "FOLDER|MODEL",
    text="the folder of a result, or the path of a model",
)
DATA = Given(
    "a folder of images or sounds, a text, an .npz or .npy file, MODULE:FUNCTION, or arrays, "
    "tensors, a loader or a dataset",
    (),
    "FOLDER|FILE|MODULE:FUNCTION",
    text="a folder of images or sounds, a text, an .npz or .npy file, or MODULE:FUNCTION",
)
LOADED = "A loaded model, or a torch.nn.Module, will do too; it is not changed."
ARRAYS = (
    "Arrays, tensors and images will do too, alone, by input name in a dict, or with labels: "
    "a DataLoader or dataset, a list or an iterator of batches or of samples (see docs/data.md)."
)
SAMPLES = (
    "Samples: a folder of images or of .wav files, a .txt (with --tokenizer), an .npz keyed by "
    "input name (and `labels`), an .npy, or MODULE:FUNCTION that yields dicts of arrays."
)
PROGRESS: Instance[Any] = Instance("a function of the samples done and the samples in all")
EXAMPLE = Given("a tensor, a tuple of tensors or a dict of them")
INPUT_VALUES = Pairs(Constant(), "a number, true or false", "sr=16000", "NAME=VALUE")


def lower_name(text: str) -> str:
    """Return a name in lower case; ``MODULE:FUNCTION`` stays as it is."""
    return text if ":" in text else text.lower()


def _op_type(text: str) -> str:
    # An unknown type stays as it is: the pass that expands refuses it, with a better message.
    return next((name for name in EXPANDABLE if name.lower() == text.lower()), text)


class TerminalOptions(Options, kw_only=True):
    """Options that every command has on the command line, and no function in Python."""

    as_json: bool = option(
        Flag(), False, "Print JSON instead of a table.", flag="--json", recorded=False
    )


class RecipeOptions(TerminalOptions, kw_only=True):
    """Options that commands with recipe files have on the command line only."""

    recipe: str | Path | None = option(
        File("FILE.toml"),
        None,
        "A file of options (see docs/recipes.md); options given beside it win.",
        recorded=False,
    )


class ThreadOptions(Options, kw_only=True):
    """Options that say how much of the machine is used."""

    threads: int = option(
        Whole(least=0), 0, "Threads of the runtime; 0 takes all cores.", recorded=False
    )


class ClusterOptions(Options, kw_only=True):
    """Options that hand the runs over samples to workers of a cluster."""

    section: ClassVar[str] = "On a cluster (see docs/cluster.md)"

    cluster: str | None = option(
        Text("an address, or local", "ADDRESS|local"),
        None,
        "A Ray cluster whose workers run the model on shards of the samples, with the same result; "
        "local starts one on this machine.",
        recorded=False,
    )
    workers: int | None = option(
        Whole(least=1),
        None,
        "Workers of the cluster; left out, one for each of its processors. --threads are those of "
        "each worker.",
        recorded=False,
    )


class ProgressOptions(Options, kw_only=True):
    """The callback for progress, which only calls from Python have."""

    progress: Callable[[int, int | None], None] | None = option(
        PROGRESS,
        None,
        "Called with the samples done and, where known, the samples in all; a function `phase` of "
        "it is called with the name of each part of the work.",
        flag="",
        recorded=False,
    )


class LimitOptions(Options, kw_only=True):
    """The limits on what small files may unpack to."""

    raise_limits: int = option(
        Whole(least=1),
        1,
        "Let files that you trust unpack to so many times what is usual: 256 MiB and 64 times the "
        "file for sparse or compressed arrays, 250,000 nodes (also of functions written out), "
        "500,000 initializers, 50,000 functions, 10 million nodes run by loops.",
        recorded=False,
    )

    def in_force(self) -> AbstractContextManager[None]:
        """Raise the limits while the context is open."""
        from intact.graph.files.limits import raised_limits

        return raised_limits(self.raise_limits)


class FormatOptions(LimitOptions, kw_only=True):
    """Options that say which formats are written, how, and into which folder."""

    section: ClassVar[str] = "Output"

    output: str | Path | None = option(
        File("FOLDER", "the path of a folder"),
        None,
        "Folder for the result; left out, it is kept in memory.",
        short="-o",
        recorded=False,
    )
    formats: Sequence[str] | None = option(
        Names("formats"),
        None,
        "A format to write: onnx_qdq, onnx_integer, onnx_levels, openvino, tensorrt, tflite, c, "
        "ncnn, tengine, tengine_effective, tvm or encodings; left out, the best of the target. "
        "Several may be given.",
        flag="--format",
    )
    io: str = option(
        Name("int8 or float", ("int8", "float")),
        "int8",
        "Whether the inputs and outputs of a .tflite, an onnx_integer or a tvm file are int8 codes "
        "or float numbers.",
    )
    layout: str = option(
        Name("channels-last or model", ("channels-last", "model")),
        "channels-last",
        "How a .tflite or C takes and gives images: with their channels last, or as the model.",
    )


class OutputOptions(FormatOptions, kw_only=True):
    """`FormatOptions` for the command line, which needs a folder: it keeps no result in memory."""

    output: str | Path = required(
        File("FOLDER", "the path of a folder"),
        "Folder for the result.",
        flag="--output",
        short="-o",
        recorded=False,
    )
    with_report: bool = option(
        Flag(),
        False,
        "Also write report.html into the folder, as `intact report` does, which needs the extra "
        "`report`; accuracy and verification are left to that command.",
        flag="--report",
        recorded=False,
    )


class MethodOptions(Options, kw_only=True):
    """Options that say how scales follow from what calibration observes."""

    section: ClassVar[str] = "Calibration"

    method: str | None = option(
        Name("the name of a threshold method"),
        None,
        "Threshold method of activations; left out, the target's.",
    )
    weight_method: str | None = option(
        Name("the name of a threshold method"),
        None,
        "Threshold method of weights: minmax, mse, max_range or power2_range; left out, the "
        "target's.",
    )
    method_options: Mapping[str, float] | None = option(
        Pairs(Number(), "numbers", "percentile=99.9", "NAME=NUMBER"),
        None,
        "An option of the method of activations, e.g. percentile=99.9. Several may be given.",
        flag="--method-option",
    )


class CalibrationOptions(
    ThreadOptions,
    SkipOptions,
    ArrayStepOptions,
    FeedOptions,
    SampleOptions,
    MethodOptions,
    ProgressOptions,
    kw_only=True,
):
    """All options of calibration, from samples to scales."""


class WidthOptions(Options, kw_only=True):
    """Options that keep nodes in float and set bit-widths."""

    section: ClassVar[str] = "What is quantized"

    keep_float: Sequence[str] = option(
        Names("nodes or operator types", str, "NODE|TYPE"),
        (),
        "A node, operator type, scope (/a) or pattern ('/a/*') to keep in float; several may be.",
    )
    bits: Mapping[str, int] | None = option(
        Pairs(Whole(), "numbers", "conv1=4", "NODE=N"),
        None,
        "Bits of a node's weight (of its output if it has no weight); NODE.weight, NODE.input and "
        "NODE.output name one. Several may be given.",
    )
    node_block: Mapping[str, int] | None = option(
        Pairs(Whole(), "numbers", "conv1=64", "NODE=N"),
        None,
        "With --block: another size of blocks for a node's weight. Several may be given.",
    )
    weight_bits: int | None = option(
        Whole(), None, "Bits of all weights, 2 to 16; left out, the target's."
    )
    activation_bits: int | None = option(
        Whole(), None, "Bits of all activations, 2 to 16; left out, the target's."
    )
    overrides: Overrides | None = option(
        overrides(),
        None,
        "The five options above in one object; what is given beside it wins.",
        flag="",
    )


class ActivationOptions(Options, kw_only=True):
    """The choice of static, dynamic or float activations."""

    section: ClassVar[str] = "What is quantized"

    activations: str | None = option(
        Name("static, dynamic or float", ("static", "dynamic", "float")),
        None,
        "Where scales of activations come from. static: from calibration. dynamic: the runtime "
        "computes them from the values while it runs; dense layers compute with integers then, all "
        "else with floats, and no data is needed. float: they are not quantized, which is for "
        "--block, --cache-bits and --float float16. Left out, float with --block, else static.",
    )


class FloatOptions(Options, kw_only=True):
    """The type of what stays float."""

    section: ClassVar[str] = "What is quantized"

    float_type: str | None = option(
        Name("float32 or float16", ("float32", "float16")),
        None,
        "The type of what stays float. float16: Casts stand where it begins and ends, and nodes "
        "whose values leave its range on the samples stay float32 (see docs/float16.md). With "
        "--activations float there are no integers. Left out, float32.",
        flag="--float",
    )


class BlockSizeOptions(WidthOptions, kw_only=True):
    """Options of weights in blocks."""

    section: ClassVar[str] = "What is quantized"

    block: int | None = option(
        Whole(),
        None,
        "Store the weights of products of matrices, and tables, in blocks of so many neighbours "
        "with a scale each, and compute with floats: needs no data (see docs/blocks.md). "
        "--weight-bits says how wide.",
    )
    zero_points: bool = option(
        Flag(), False, "With --block: give each block a zero point beside its scale."
    )


class BlockOptions(FloatOptions, ActivationOptions, BlockSizeOptions, kw_only=True):
    """Options of weights in blocks and of quantized caches, as language models use them."""

    section: ClassVar[str] = "What is quantized"

    cache_bits: int | None = option(
        Whole(),
        None,
        "Keep keys and values of earlier tokens in 8 or 4 bits, with scales from --data (see "
        "docs/language-models.md). Left out, they are floats.",
    )
    cache_scales: str | None = option(
        Name("channel or tensor", ("channel", "tensor")),
        None,
        "With --cache-bits: one scale for each channel of a cache's heads, or for all of it. Left "
        "out, channel.",
    )


class LengthOptions(Options, kw_only=True):
    """Figures by the length of samples."""

    by: str | None = option(
        Name("length", ("length",)),
        None,
        "Also show what short and long samples lose (length), and name the state or tensor that "
        "overflows in the longest.",
    )


class GraphOptions(Options, kw_only=True):
    """Options that change the float model before it is quantized."""

    section: ClassVar[str] = "What is quantized"

    expand: Sequence[str] = option(
        Names("operator types", _op_type, "TYPE"),
        (),
        "An operator type to expand into simpler operators that can be integers: "
        f"{', '.join(EXPANDABLE[:-1])} or {EXPANDABLE[-1]}. Several may be given.",
    )
    input_shape: Mapping[str, Sequence[int | None]] | None = option(
        Shapes(),
        None,
        "The shape of an input that leaves it open, with ? for what stays open; its name may be "
        "left out where there is one input. Left out, formats of fixed sizes get that of the "
        "samples, if there are any. Several may be given.",
        in_python="None is any size, and an empty name that of the only input.",
    )
    example: Any = option(
        EXAMPLE,
        None,
        "Of a torch.nn.Module: a batch of its inputs, for its export; a tensor, a tuple or a dict. "
        "Left out, the first batch of the data.",
        flag="",
        recorded=False,
    )
    input_value: Mapping[str, bool | int | float] | None = option(
        INPUT_VALUES,
        None,
        "Replace an input of one number by a constant. Branches of If that depend on it are "
        "resolved. Several may be given.",
    )


class SpeedOptions(Options, kw_only=True):
    """Options that keep in float what is faster there."""

    section: ClassVar[str] = "Speed"

    # None of these is recorded: the recipe has the nodes that were found, as keep_float, because
    # the times of another machine may find others.
    fastest: bool = option(
        Flag(),
        False,
        "Keep in float what is faster in float: the target's runtime is timed on this machine, "
        "with --threads threads (see docs/speed.md).",
        recorded=False,
    )
    fastest_batch: int = option(
        Whole(least=1), 1, "Samples at once, when a model is timed for --fastest.", recorded=False
    )
    min_sqnr: float | None = option(
        Number(),
        None,
        "For --fastest: the least signal to quantization noise of an output, in dB; more stays "
        "float until every output has it.",
        recorded=False,
    )
    timings: str | Path | None = option(
        File(),
        None,
        "The file that keeps measured times; left out, intact/timings.json in the cache folder of "
        "the user.",
        recorded=False,
    )


class ComparisonOptions(
    ImageStepOptions,
    ThreadOptions,
    SkipOptions,
    ArrayStepOptions,
    FeedOptions,
    LimitOptions,
    ProgressOptions,
    kw_only=True,
):
    """The options of commands that run a result on samples."""

    headings: ClassVar[Mapping[str, str]] = {
        group.section: f"{group.section} (left out, as for the calibration)"
        for group in (ArrayStepOptions, FeedOptions, ReadOptions)
    }


# Read now: an error names an option by its flag, perhaps before any recipe is made.
for _group in (FormatOptions, MethodOptions):  # flags that are not called like their options
    options_of(_group)
