"""The commands that run plans: by an executor, and beside what was deployed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intact.cli.options import DATA, AnyModel, AsJson, MaybeTarget, RequiredData, Threads
from intact.cli.preprocess_options import (
    Labels,
    Mean,
    PreprocessFile,
    Scale,
    SkipBad,
    preprocess_from,
)

if TYPE_CHECKING:
    from intact.formats.base.report import Verification


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
    from intact.cli import show_runs
    from intact.cli.printing import progress as shown
    from intact.errors import UsageError
    from intact.flow.execution import Executor, save_arrays

    flags = {"integer": integer, "simulate": simulate, "float": in_float}
    chosen = [name for name, given in flags.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]}", remedy="choose one")
    _refuse_output(output)
    loaded = api.load_result(model) if (model / "plan.json").is_file() else None
    kept = None if loaded is None else loaded.preprocess
    with shown("running", quiet=as_json, at_most=samples) as progress:
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
    show_runs.run(found, output, as_json=as_json)


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
        typer.Option("--format", metavar="NAME", help="Only this format of the result."),
    ] = None,
    observed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Tensors recorded on a device, by name: compare these. --data are its inputs, "
            "as many samples as were recorded.",
        ),
    ] = None,
    target: MaybeTarget = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Use at most so many samples; left out, 64, or all beside --observed."
        ),
    ] = None,
    labels: Labels = None,
    threads: Threads = 0,
    as_json: AsJson = False,
    mean: Mean = "",
    scale: Scale = "",
    preprocess: PreprocessFile = None,
    skip_bad: SkipBad = False,
) -> None:
    """Compare what was deployed with the integers that its plan says, layer by layer.

    Every format of every target in the folder is compared, in its own runtime, and gets a row.
    Differences end with 0. What cannot be run (a runtime is missing or refuses the model), and a
    rule of the hardware that is broken, ends with 1.

    Example: intact verify out/ --data test.npz
    """
    from intact import api
    from intact.cli import show_verification
    from intact.cli.printing import progress as shown

    is_file = _is_tflite_file(folder)
    loaded = None if is_file or _holds_several(folder) else api.load_result(folder)
    kept = None if loaded is None else loaded.preprocess
    subject = folder if loaded is None else loaded
    alone = is_file or deployed is not None or observed is not None or target is not None
    compare: Callable[..., Verification | list[Verification]] = (
        functools.partial(api.verify, deployed=deployed, observed=observed, target=target)
        if alone
        else api.verify_all
    )
    with shown("verifying", quiet=as_json, at_most=samples) as progress:
        outcome = compare(
            subject,
            data,
            kernels=kernels,
            preprocess=preprocess_from(preprocess, mean, scale, kept=kept),
            labels=labels,
            samples=samples,
            skip_bad=skip_bad,
            threads=threads,
            progress=progress,
        )
    found = outcome if isinstance(outcome, list) else [outcome]
    show_verification.verifications(found, as_json=as_json)
    if any(each.refused or any(each.rules.values()) for each in found):
        raise typer.Exit(1)


def _holds_several(folder: Path) -> bool:
    """Tell a folder with a result for each target from a result."""
    return not (folder / "plan.json").is_file() and any(folder.glob("*/plan.json"))


def _refuse_output(path: Path) -> None:
    """Refuse, before anything is computed, what cannot or should not be written."""
    from intact.errors import OutputError

    if path.suffix != ".npz":
        raise OutputError(
            f"{path}: outputs are written as .npz", remedy="name a file that ends in .npz"
        )
    if not path.parent.is_dir():
        raise OutputError(
            f"{path}: there is no folder {path.parent}", remedy="make it first, or name another"
        )


def _is_tflite_file(path: Path) -> bool:
    """Tell a ``.tflite`` from the folder of a result; a file of another kind is refused."""
    from intact.errors import ModelError
    from intact.formats.tflite.read import is_tflite

    if not path.exists():
        raise ModelError(f"{path} does not exist", remedy="check the path")
    if path.is_dir():
        return False
    if path.suffix == ".tflite":
        return True
    if not is_tflite(path):
        raise ModelError(
            f"{path} is a file: the folder of a result is verified, or a .tflite of others",
            remedy="make a folder with `intact quantize`, or `intact import` if it is quantized",
        )
    return True
