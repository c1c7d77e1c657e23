"""The commands that read: each parses, calls one public function and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intact.cli.options import (
    DATA,
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
    from intact.cli import show

    result = api.load_result(folder)
    with show.progress("evaluating", quiet=as_json, at_most=samples) as progress:
        found = api.evaluate(
            result,
            data,
            preprocess=preprocess_from(preprocess, mean, scale, kept=result.preprocess),
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


def run(
    model: AnyModel,
    data: RequiredData,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.npz", help="Where the outputs go."),
    ],
    integer: Annotated[
        bool, typer.Option("--integer", help="On the integers of the target, bit for bit.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="In float32, on quantized values.")
    ] = False,
    in_float: Annotated[bool, typer.Option("--float", help="The float model.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every tensor between, too (integer engine).")
    ] = False,
    target: MaybeTarget = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use at most so many samples.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples in one run.")] = 16,
    threads: Threads = 0,
    as_json: AsJson = False,
    mean: Mean = "",
    scale: Scale = "",
    preprocess: PreprocessFile = None,
    skip_bad: SkipBad = False,
) -> None:
    """Run a model on data by one of its executors and write the outputs.

    The integer engine is taken unless told otherwise. Arrays are keyed by input and output names.
    Data in the integer type of an input is taken as codes; then the outputs are codes too.

    Example: intact run out/ --integer --data x.npz --output y.npz
    """
    from intact import api
    from intact.cli import show
    from intact.errors import UsageError
    from intact.execution import Executor, save_arrays

    flags = {"integer": integer, "simulate": simulate, "float": in_float}
    chosen = [name for name, given in flags.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]}", remedy="choose one")
    loaded = api.load_result(model) if (model / "plan.json").is_file() else None
    kept = None if loaded is None else loaded.preprocess
    with show.progress("running", quiet=as_json, at_most=samples) as progress:
        found = api.execute(
            model if loaded is None else loaded,
            data,
            executor=Executor(chosen[0]) if chosen else Executor.INTEGER,
            target=target,
            preprocess=preprocess_from(preprocess, mean, scale, kept=kept),
            samples=samples,
            skip_bad=skip_bad,
            batch=batch,
            observe=None if every else (),
            threads=threads,
            progress=progress,
        )
    save_arrays(output, {**found.tensors, **found.outputs})
    show.run(found, output, as_json=as_json)


def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|FILE.tflite",
            help="A folder that `intact quantize` wrote, or an int8 .tflite of others.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar=DATA,
            help="Samples; left out, inputs are drawn from the distribution that calibration saw.",
        ),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What runs a .tflite: LiteRT's ref, optimized or xnnpack, or micro for TensorFlow "
            "Lite Micro; the target's if left out.",
        ),
    ] = None,
    deployed: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="Which format, if the result has several."),
    ] = None,
    observed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Tensors recorded on a device, by name: compare these. --data are its inputs.",
        ),
    ] = None,
    target: MaybeTarget = None,
    samples: Annotated[int, typer.Option(min=1, help="Use at most so many samples.")] = 64,
    threads: Threads = 0,
    as_json: AsJson = False,
    mean: Mean = "",
    scale: Scale = "",
    preprocess: PreprocessFile = None,
    skip_bad: SkipBad = False,
) -> None:
    """Compare what was deployed with the integers that its plan says, layer by layer.

    Example: intact verify out/ --data test.npz
    """
    from intact import api
    from intact.cli import show

    loaded = api.load_result(folder) if folder.suffix != ".tflite" else None
    kept = None if loaded is None else loaded.preprocess
    with show.progress("verifying", quiet=as_json, at_most=samples) as progress:
        found = api.verify(
            folder if loaded is None else loaded,
            data,
            kernels=kernels,
            deployed=deployed,
            observed=observed,
            target=target,
            preprocess=preprocess_from(preprocess, mean, scale, kept=kept),
            samples=samples,
            skip_bad=skip_bad,
            threads=threads,
            progress=progress,
        )
    show.verification(found, as_json=as_json)


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
