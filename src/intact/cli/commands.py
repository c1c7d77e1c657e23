"""The commands that read: each parses, calls one public function and prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from intact.cli.options import (
    ActivationBits,
    AnyModel,
    AsJson,
    Bits,
    Folder,
    KeepFloat,
    MaybeTarget,
    RequiredData,
    Threads,
    WeightBits,
    overrides_from,
)
from intact.cli.preprocess_options import (
    Labels,
    Mean,
    PreprocessFile,
    Scale,
    SkipBad,
    preprocess_from,
)

if TYPE_CHECKING:
    from intact.analyze.errors import GraphStatistic, QuantLoss


def inspect(
    model: AnyModel,
    target: MaybeTarget = None,
    keep_float: KeepFloat = None,
    bits: Bits = None,
    weight_bits: WeightBits = None,
    activation_bits: ActivationBits = None,
    as_json: AsJson = False,
) -> None:
    """List what will be integer and what float, with reasons; needs no data."""
    from intact import api
    from intact.cli import show

    overrides = overrides_from(keep_float, bits, weight_bits, activation_bits)
    show.inspection(api.inspect(model, target=target, overrides=overrides), as_json=as_json)


def evaluate(
    folder: Folder,
    data: RequiredData,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Scores a model: function(outputs, references) -> number, or numbers by name.",
        ),
    ] = None,
    quant_loss: Annotated[
        bool,
        typer.Option(
            "--quant-loss",
            help="Instead, how far each layer is from the float model's, by channel for "
            "convolutions and dense layers; 50 samples unless told otherwise.",
        ),
    ] = False,
    graph_statistic: Annotated[
        bool,
        typer.Option(
            "--graph-statistic",
            help="Instead, mean, deviation and extremes of each edge before and after quantizing, "
            "the most damaged first; 50 samples unless told otherwise.",
        ),
    ] = False,
    samples: Annotated[int | None, typer.Option(min=1, help="Use at most so many samples.")] = None,
    top_k: Annotated[
        int, typer.Option(min=1, help="Also count the right class among so many best ones.")
    ] = 5,
    batch: Annotated[
        int, typer.Option(min=1, help="Samples in one run, also for the latency.")
    ] = 100,
    threads: Threads = 0,
    as_json: AsJson = False,
    mean: Mean = "",
    scale: Scale = "",
    preprocess: PreprocessFile = None,
    labels: Labels = None,
    skip_bad: SkipBad = False,
) -> None:
    """Compare float and quantized model: accuracy, error, size, latency.

    The data is preprocessed as for the calibration unless told otherwise.

    Example: intact evaluate out/ --data test.npz
    """
    from intact import api
    from intact.analyze.errors import MOST_SAMPLES
    from intact.cli import show, show_layers
    from intact.cli.printing import progress as shown
    from intact.errors import UsageError

    result = api.load_result(folder)
    steps = preprocess_from(preprocess, mean, scale, kept=result.preprocess)
    if quant_loss or graph_statistic:
        name = "--quant-loss" if quant_loss else "--graph-statistic"
        if quant_loss and graph_statistic:
            raise UsageError("--quant-loss and --graph-statistic", remedy="choose one")
        if metric is not None or labels is not None:
            raise UsageError(
                f"{name} compares layers: --metric and --labels are for outputs",
                remedy="leave these out",
            )
        count = samples or MOST_SAMPLES
        with shown("comparing layers", quiet=as_json, at_most=count) as progress:
            compare: Callable[..., QuantLoss | GraphStatistic] = (
                api.quant_loss if quant_loss else api.inspect_graph_statistic
            )
            compared = compare(
                result,
                data,
                preprocess=steps,
                samples=count,
                skip_bad=skip_bad,
                threads=threads,
                progress=progress,
            )
        show_layers.layers(compared, as_json=as_json)
        return
    with shown("evaluating", quiet=as_json, at_most=samples) as progress:
        found = api.evaluate(
            result,
            data,
            preprocess=steps,
            labels=labels,
            metric=metric,
            samples=samples,
            skip_bad=skip_bad,
            top_k=top_k,
            batch=batch,
            threads=threads,
            progress=progress,
        )
    show.evaluation(found, as_json=as_json)


targets_app = typer.Typer(invoke_without_command=True, help="List the targets, or print one.")


@targets_app.callback()
def _targets(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        from intact.cli import show
        from intact.targets import load_target, target_names

        show.targets([load_target(name) for name in target_names()], as_json=as_json)


@targets_app.command("show")
def show_target(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE.toml", help="Which target.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Print a target: its file, or with --json all that it resolves to."""
    from intact.cli import show
    from intact.targets import load_target, target_source

    show.target(load_target(name), target_source(name), as_json=as_json)


def demo(threads: Threads = 0, as_json: AsJson = False) -> None:
    """Quantize the small model that ships with intact and compare both versions of it."""
    from intact import api
    from intact.cli import show
    from intact.demo import calibration_path, model_path, test_path

    result = api.quantize(model_path(), calibration_path(), threads=threads)
    show.evaluation(api.evaluate(result, test_path(), threads=threads), as_json=as_json)
