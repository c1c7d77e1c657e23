"""The commands: each parses, calls one public function and prints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from intact import __version__
from intact.cli.options import (
    ActivationBits,
    AsJson,
    Bits,
    Data,
    Folder,
    KeepFloat,
    Mean,
    ModelPath,
    Scale,
    TargetName,
    Threads,
    WeightBits,
    method_options_from,
    overrides_from,
    preprocess_from,
)

WRONG_USE = 2
"""Exit code of a command line that cannot be carried out as written."""

app = typer.Typer(
    name="intact",
    help="Turn float neural networks into low-precision ones, and prove their bits.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"intact {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  its callback has printed it
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Turn float neural networks into low-precision ones, and prove their bits."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_USE)


@app.command()
def quantize(
    model: ModelPath,
    data: Data,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where the result goes.", show_default=False
        ),
    ],
    target: TargetName = "onnxruntime",
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="Threshold method; the target's if left out.")
    ] = None,
    weight_method: Annotated[
        str | None, typer.Option(metavar="NAME", help="minmax or mse.")
    ] = None,
    method_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Option of the method, e.g. percentile=99.9. Repeatable."
        ),
    ] = None,
    mean: Mean = "",
    scale: Scale = "",
    samples: Annotated[
        int, typer.Option(min=1, help="Calibrate on at most so many samples.")
    ] = 512,
    threads: Threads = 0,
    keep_float: KeepFloat = None,
    bits: Bits = None,
    weight_bits: WeightBits = None,
    activation_bits: ActivationBits = None,
    as_json: AsJson = False,
) -> None:
    """Quantize a float ONNX model for a target.

    Example: intact quantize model.onnx --data calib.npz --output out/
    """
    from intact import api
    from intact.cli import show

    start = time.perf_counter()
    with show.progress("calibrating", quiet=as_json, at_most=samples) as progress:
        result = api.quantize(
            model,
            data,
            target=target,
            output=output,
            method=method,
            weight_method=weight_method,
            method_options=method_options_from(method_option),
            overrides=overrides_from(keep_float, bits, weight_bits, activation_bits),
            preprocess=preprocess_from(mean, scale),
            samples=samples,
            threads=threads,
            progress=progress,
        )
    show.result(result, seconds=time.perf_counter() - start, as_json=as_json)


@app.command()
def inspect(
    model: ModelPath,
    target: TargetName = "onnxruntime",
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


@app.command()
def evaluate(
    folder: Folder,
    data: Data,
    mean: Mean = "",
    scale: Scale = "",
    samples: Annotated[int | None, typer.Option(min=1, help="Use at most so many samples.")] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Samples in one run, also for the latency.")
    ] = 100,
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Compare float and quantized model: accuracy, error, size, latency.

    Mean and scale are those of the calibration unless given.

    Example: intact evaluate out/ --data test.npz
    """
    from intact import api
    from intact.cli import show

    result = api.load_result(folder)
    with show.progress("evaluating", quiet=as_json, at_most=samples) as progress:
        found = api.evaluate(
            result,
            data,
            preprocess=preprocess_from(mean, scale, result.preprocess),
            samples=samples,
            batch=batch,
            threads=threads,
            progress=progress,
        )
    show.evaluation(found, as_json=as_json)


@app.command()
def verify(
    folder: Folder,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="FILE|MODULE:FUNCTION",
            help="Samples; left out, inputs are drawn from the distribution that calibration saw.",
        ),
    ] = None,
    mean: Mean = "",
    scale: Scale = "",
    samples: Annotated[int, typer.Option(min=1, help="Use at most so many samples.")] = 64,
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Compare the deployed model with the simulation of its plan, layer by layer."""
    from intact import api
    from intact.cli import show

    result = api.load_result(folder)
    with show.progress("verifying", quiet=as_json, at_most=samples) as progress:
        found = api.verify(
            result,
            data,
            preprocess=preprocess_from(mean, scale, result.preprocess),
            samples=samples,
            threads=threads,
            progress=progress,
        )
    show.verification(found, as_json=as_json)


targets_app = typer.Typer(invoke_without_command=True, help="List the targets, or print one.")
app.add_typer(targets_app, name="targets")


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


@app.command()
def demo(threads: Threads = 0, as_json: AsJson = False) -> None:
    """Quantize the small model that ships with intact and compare both versions of it."""
    from intact import api
    from intact.cli import show
    from intact.demo import calibration_path, model_path, test_path

    result = api.quantize(model_path(), calibration_path(), threads=threads)
    show.evaluation(api.evaluate(result, test_path(), threads=threads), as_json=as_json)
