"""The command line: parses, calls one public function, prints."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intact import __version__
from intact.errors import IntactError, UsageError

if TYPE_CHECKING:
    from intact.calibrate.preprocess import Preprocess
    from intact.plan import Overrides

_WRONG, _WRONG_USE, _STOPPED = 1, 2, 130  # exit codes

app = typer.Typer(
    name="intact",
    help="Turn float neural networks into low-precision ones, and prove their bits.",
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
        raise typer.Exit(_WRONG_USE)


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
    from intact import api, show

    start = time.perf_counter()
    with show.progress("calibrating", quiet=as_json, at_most=samples) as progress:
        result = api.quantize(
            model,
            data,
            target=target,
            output=output,
            method=method,
            weight_method=weight_method,
            method_options=_options(method_option),
            overrides=_overrides(keep_float, bits, weight_bits, activation_bits),
            preprocess=_preprocess(mean, scale),
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

    Example: intact evaluate out/ --data test.npz
    """
    from intact import api, show

    result = api.load_result(folder)
    with show.progress("evaluating", quiet=as_json, at_most=samples) as progress:
        found = api.evaluate(
            result,
            data,
            preprocess=_preprocess(mean, scale, result.preprocess),
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
    from intact import api, show

    result = api.load_result(folder)
    with show.progress("verifying", quiet=as_json, at_most=samples) as progress:
        found = api.verify(
            result,
            data,
            preprocess=_preprocess(mean, scale, result.preprocess),
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


def _options(items: list[str] | None) -> dict[str, float]:
    options = {}
    for item in items or ():
        name, mark, number = item.partition("=")
        try:
            if mark and name:
                options[name] = float(number)
                continue
        except ValueError:
            pass
        raise UsageError(
            f"--method-option {item!r}", remedy="write NAME=NUMBER, for instance percentile=99.9"
        )
    return options


def _preprocess(mean: str, scale: str, kept: Preprocess | None = None) -> Preprocess | None:
    """Return what the options say; what is left out stays as it was when calibrating."""
    from intact.calibrate.preprocess import Preprocess

    if not mean and not scale:
        return None
    kept = kept or Preprocess()
    return Preprocess(
        _numbers("--mean", mean) if mean else kept.mean,
        _numbers("--scale", scale) if scale else kept.scale,
    )


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text!r}", remedy="give numbers separated by commas") from None


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; whatever a user did wrong becomes one line on stderr.

    Args:
        arguments: What stands behind ``intact``; None takes the process's own.

    Returns:
        The exit code: 0 done; 1 a file, the data or a model is wrong; 2 the command line is; 130
        stopped by Ctrl-C.
    """
    try:
        code = app(args=arguments, prog_name="intact", standalone_mode=False)
        sys.stdout.flush()
    except IntactError as error:
        return _complain(str(error), _WRONG_USE if isinstance(error, UsageError) else _WRONG)
    except OSError as error:
        _give_up_stdout()
        if isinstance(error, BrokenPipeError):
            return _WRONG  # whoever read the output has seen enough
        place = f"{error.filename}: " if error.filename else ""
        return _complain(f"{place}{error.strerror or error}", _WRONG)
    except (KeyboardInterrupt, typer.Abort):
        code = _STOPPED
    except Exception as error:
        # The errors of typer's own, vendored or not, have this method and no public base class.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "intact"
        return _complain(f"{describe().rstrip('.')}; see `{command} --help`", _WRONG_USE)
    if code == _STOPPED:
        return _complain("stopped; nothing was written", _STOPPED)
    return code or 0


def _complain(message: str, code: int) -> int:
    typer.echo(f"intact: {' '.join(message.split())}", err=True)  # one line, whatever is in it
    return code


def _give_up_stdout() -> None:
    """Send what cannot be written to stdout nowhere, so that exiting does not fail on it again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the process's command line and exit."""
    sys.exit(run())


if __name__ == "__main__":
    main()
