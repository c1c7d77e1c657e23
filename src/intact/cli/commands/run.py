"""The commands that run plans: ``run`` and ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intact.cli.parameters import Command, Given
from intact.errors import ModelError, OutputError, UsageError
from intact.recipe.reports import (
    ExecuteOptions,
    RunCommand,
    VerifyAllOptions,
    VerifyCommand,
    VerifyOptions,
)

if TYPE_CHECKING:
    from intact.formats.base.report import Verification


def _run(given: Given[RunCommand]) -> None:
    """Run a model on data by one of its executors and write the outputs.

    Arrays are keyed by input and output names. Data in the integer type of an input is taken as
    codes; then the outputs are codes too. Without --output, the likeliest classes are printed.

    Example: intact run out/ --data cat.jpg

    Example: intact run out/ --integer --data x.npz --output y.npz
    """
    from intact.cli import show_runs
    from intact.results.execution import save_arrays

    options = given.options
    flags = {
        "integer": options.integer,
        "simulate": options.simulate,
        "float": options.in_float,
    }
    chosen = [name for name, wanted in flags.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]}", remedy="choose one")
    output = None if options.output is None else Path(options.output)
    executor = chosen[0] if chosen else "integer"
    others: dict[str, Any] = {}
    if output is None:
        others["samples"] = min(options.samples or show_runs.SHOWN, show_runs.SHOWN)
        if executor != "float":
            in_float = given.call("execute", ExecuteOptions, "running", executor="float", **others)
    else:
        _refuse_output(output, options.data)
    others["observe"] = None if options.every else ()
    found = given.call("execute", ExecuteOptions, "running", executor=executor, **others)
    if output is None:
        both = {executor: found} if executor == "float" else {"float": in_float, executor: found}
        show_runs.classes(both, as_json=options.as_json)
        return
    save_arrays(output, {**found.tensors, **found.outputs})
    show_runs.run(found, output, as_json=options.as_json)


def _verify(given: Given[VerifyCommand]) -> None:
    """Compare what was deployed with the integers of its plan, layer by layer.

    Every format of every target in the folder is compared, in its own runtime, and gets a row.
    Differences end with 0. What cannot be run (a runtime is missing or refuses the model), a broken
    rule of the hardware, and nothing that could be compared end with 1.

    Example: intact verify out/ --data test.npz
    """
    options = given.options
    alone = (options.deployed, options.observed, options.target) != (None, None, None)
    found: list[Verification]
    if _is_tflite_file(Path(options.result)) or alone:
        found = [given.call("verify", VerifyOptions)]
    else:
        found = given.call("verify_all", VerifyAllOptions)
    from intact.cli import show_verification

    show_verification.verifications(found, as_json=options.as_json)
    if any(each.refused or each.compared_nothing or any(each.rules.values()) for each in found):
        raise click.exceptions.Exit(1)


def _refuse_output(path: Path, data: object) -> None:
    """Refuse, before anything is computed, what cannot or should not be written."""
    if path.suffix != ".npz":
        raise OutputError(
            f"{path}: outputs are written as .npz", remedy="name a file that ends in .npz"
        )
    if not path.parent.is_dir():
        raise OutputError(
            f"{path}: there is no folder {path.parent}", remedy="make it first, or name another"
        )
    names_files = isinstance(data, str | Path) and Path(data).exists() and path.exists()
    if names_files and path.samefile(str(data)):
        raise OutputError(f"{path}: is the data of this run", remedy="name another file")


def _is_tflite_file(path: Path) -> bool:
    """Tell a ``.tflite`` from the folder of a result; a file of another kind is refused."""
    from intact.graph.files.regular import remedy_for_absent
    from intact.results.sources import names_deployed

    if not path.exists():
        raise ModelError(f"{path} does not exist", remedy=remedy_for_absent(path, "check the path"))
    if path.is_dir():
        return False
    if path.suffix == ".tflite":
        return True
    if not names_deployed(path):
        raise ModelError(
            f"{path} is a file: the folder of a result is verified, or a .tflite of others",
            remedy="make a folder with `intact quantize`, or `intact import` if it is quantized, "
            "and the model's preprocessing (--normalize, or --mean and --std)",
        )
    return True


RUN = Command("run", RunCommand, _run)
VERIFY = Command("verify", VerifyCommand, _verify, timed=True)
