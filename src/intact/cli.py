"""The command line: parses, calls one public function, prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intact import __version__
from intact.errors import IntactError, UsageError

if TYPE_CHECKING:
    from intact.calibrate.preprocess import Preprocess
    from intact.plan import Overrides

app = typer.Typer(
    name="intact",
    help="Turn float neural networks into low-precision ones, and prove their bits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An .onnx file.", show_default=False)
]
Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A folder that `intact quantize` wrote.", show_default=False
    ),
]
TargetName = Annotated[
    str,
    typer.Option(
        "--target", "-t", metavar="NAME|FILE.toml", help="The hardware: see `intact targets`."
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        "-d",
        metavar="FILE|MODULE:FUNCTION",
        help="Samples: .npz keyed by input name (and `labels`), .npy, or a function of dicts.",
        show_default=False,
    ),
]
Mean = Annotated[
    str,
    typer.Option(
        metavar="M[,M...]", help="Subtracted from the samples, one number or one a channel."
    ),
]
Scale = Annotated[str, typer.Option(metavar="S[,S...]", help="Multiplied after that.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of the runtime; 0 takes all cores.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
KeepFloat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE|TYPE", help="Leave a node, or all of an op type, in float. Repeatable."
    ),
]
Bits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE=N",
        help="Bits of a node's weight (of its output if it has none); NODE.weight, NODE.input "
        "and NODE.output name one. Repeatable.",
    ),
]
WeightBits = Annotated[int | None, typer.Option(help="Bits of all weights.")]
ActivationBits = Annotated[int | None, typer.Option(help="Bits of all activations.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"intact {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Turn float neural networks into low-precision ones, and prove their bits."""


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
    from intact import api, show

    with show.progress("calibrating", quiet=as_json) as progress:
        result = api.quantize(
            model,
            data,
            target=target,
            output=output,
            method=method,
            weight_method=weight_method,
            overrides=_overrides(keep_float, bits, weight_bits, activation_bits),
            preprocess=_preprocess(mean, scale),
            samples=samples,
            threads=threads,
            progress=progress,
        )
    show.result(result, as_json=as_json)


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
    from intact import api, show

    overrides = _overrides(keep_float, bits, weight_bits, activation_bits)
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
    """
    from intact import api, show

    found = api.evaluate(
        folder,
        data,
        preprocess=_preprocess(mean, scale),
        samples=samples,
        batch=batch,
        threads=threads,
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
    from intact import api, show

    found = api.verify(
        folder, data, preprocess=_preprocess(mean, scale), samples=samples, threads=threads
    )
    show.verification(found, as_json=as_json)


targets_app = typer.Typer(invoke_without_command=True, help="List the targets, or print one.")
app.add_typer(targets_app, name="targets")


@targets_app.callback()
def _targets(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        from intact import show
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
    from intact import show
    from intact.targets import load_target, target_source

    show.target(load_target(name), target_source(name), as_json=as_json)


@app.command()
def demo(threads: Threads = 0, as_json: AsJson = False) -> None:
    """Quantize the small model that ships with intact and compare both versions of it."""
    from intact import api, show
    from intact.demo import calibration_path, model_path, test_path

    result = api.quantize(model_path(), calibration_path(), threads=threads)
    show.evaluation(api.evaluate(result, test_path(), threads=threads), as_json=as_json)


def _overrides(
    keep_float: list[str] | None,
    bits: list[str] | None,
    weight_bits: int | None,
    activation_bits: int | None,
) -> Overrides:
    from intact.plan import Overrides

    widths = {}
    for item in bits or ():
        place, mark, number = item.rpartition("=")
        if not mark or not number.isdecimal():
            raise UsageError(f"--bits {item!r}", remedy="write NODE=N, for instance conv1=4")
        widths[place] = int(number)
    return Overrides(tuple(keep_float or ()), widths, weight_bits, activation_bits)


def _preprocess(mean: str, scale: str) -> Preprocess | None:
    from intact.calibrate.preprocess import Preprocess

    if not mean and not scale:
        return None
    return Preprocess(_numbers("--mean", mean), _numbers("--scale", scale))


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise UsageError(f"{option} {text!r}", remedy="give numbers separated by commas") from None


def main() -> None:
    """Run the command line; a deliberate error is one line on stderr and exit code 1."""
    try:
        app()
    except IntactError as error:
        message = " ".join(str(error).split())  # one line, whatever a library put into it
        typer.echo(f"intact: {message}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("intact: stopped; nothing was written", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
