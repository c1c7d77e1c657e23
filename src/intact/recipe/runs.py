"""Declares the options of the commands that run deployed models and verify them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from intact.limits import RUN_AT_ONCE
from intact.recipe.declare import option, required
from intact.recipe.groups import (
    ARRAYS,
    DATA,
    RUNNABLE,
    SAMPLES,
    ClusterOptions,
    ComparisonOptions,
    TerminalOptions,
)
from intact.recipe.kinds import (
    File,
    Flag,
    Given,
    Name,
    NamesOrAll,
    target,
)
from intact.recipe.numbers import Count, Whole
from intact.recipe.samples import LabelOptions

if TYPE_CHECKING:
    import numpy.typing as npt

    from intact.recipe.groups import DataSource, TargetSource


class RunOptions(ComparisonOptions):
    """What `execute` and the command `run` share."""

    model: Any = required(
        RUNNABLE,
        "A folder that intact wrote, or an .onnx, .tflite or .tmfile file. A float model can "
        "be run in float only.",
    )
    data: DataSource = required(
        DATA,
        f"{SAMPLES} What is in the integer type of an input is taken as its codes; then "
        "outputs are codes too.",
        flag="--data",
        short="-d",
        in_python=ARRAYS,
    )
    _: KW_ONLY
    target: TargetSource | None = option(
        target(), None, "The hardware of a quantized model that is no result.", short="-t"
    )
    samples: int | None = option(Count(), None, "Use at most so many samples; left out, all.")
    batch: int = option(Whole(least=1), RUN_AT_ONCE, "Samples in one run.")


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


class RunCommand(TerminalOptions, RunOptions):
    """The command `run`."""

    section: ClassVar[str] = "What computes"
    first: ClassVar[Sequence[str]] = (
        "data",
        "output",
        "integer",
        "simulate",
        "in_float",
        "every",
        "samples",
        "as_json",
    )

    _: KW_ONLY
    output: str | Path | None = option(
        File("FILE.npz"),
        None,
        "Where the outputs go; left out, the likeliest classes of both models are printed for the "
        "first samples, and nothing is written.",
        short="-o",
    )
    integer: bool = option(Flag(), False, "The integers of the target, bit for bit (the default).")
    simulate: bool = option(Flag(), False, "Quantized values in float32.")
    in_float: bool = option(Flag(), False, "The float model.", flag="--float")
    every: bool = option(
        Flag(), False, "Write every tensor between, too (integers only).", flag="--all"
    )


class VerifyAllOptions(LabelOptions, ClusterOptions, ComparisonOptions):
    """The options of `verify_all`."""

    section: ClassVar[str] = "What is compared"

    result: Any = required(
        Given(
            "a result or its folder",
            ["intact.results.result.Result"],
            "FOLDER|FILE.tflite",
            text="the folder of a result, or a .tflite file",
        ),
        "A folder that intact wrote, or one with a result for each target.",
        in_python="A result will do too.",
    )
    data: DataSource | None = option(
        DATA,
        None,
        f"{SAMPLES} Left out, inputs are drawn from the distribution that calibration observed.",
        short="-d",
        in_python=ARRAYS,
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


class VerifyCommand(TerminalOptions, VerifyOptions):
    """The command `verify`."""

    first: ClassVar[Sequence[str]] = (
        "data",
        "samples",
        "deployed",
        "kernels",
        "observed",
        "target",
        "as_json",
    )
