"""Declares the options of the command that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any, ClassVar

from intact.recipe.declare import option, required
from intact.recipe.groups import (
    ARRAYS,
    DATA,
    PROGRESS,
    RESULT,
    SAMPLES,
    ComparisonOptions,
    FormatOptions,
    OutputOptions,
    RecipeOptions,
)
from intact.recipe.kinds import Flag, Name, Names
from intact.recipe.numbers import Count, Number, Whole
from intact.recipe.samples import LabelOptions

if TYPE_CHECKING:
    from intact.recipe.groups import DataSource


class TrainOptions(LabelOptions, ComparisonOptions, FormatOptions):
    """The options of `train`."""

    section: ClassVar[str] = "Training"

    result: Any = required(RESULT, "A folder that intact wrote.", in_python="A result will do too.")
    data: DataSource = required(DATA, SAMPLES, flag="--data", short="-d", in_python=ARRAYS)
    _: KW_ONLY
    samples: int | None = option(Count(), None, "Train on at most so many samples; left out, all.")
    epochs: int = option(Whole(least=1), 10, "Passes over the samples at most.")
    batch: int = option(Whole(least=1), 64, "Samples of a step.")
    quantizers: str = option(
        Name("a way to learn scales"),
        "lsq",
        "What quantizers learn beside the weights: lsq (scales), lsq+ (and zero points), pact "
        "(thresholds) or fixed (nothing).",
    )
    batch_norm: str = option(
        Name("a strategy"),
        "folded",
        "What becomes of folded BatchNormalizations: folded, frozen, batch, corrected or live "
        "(docs/training.md).",
    )
    rate: float = option(
        Number(),
        0.01,
        "Learning rate: by how many steps of its quantizer an update moves a weight, about.",
    )
    label_weight: float | None = option(
        Number(),
        None,
        "Share of the labels in the loss, 0 to 1; the rest is the float model's. Left out, a half "
        "where there are labels.",
    )
    augment: Sequence[str] = option(
        Names("changes of images"),
        (),
        "A change of images that leaves what they show: flip (left to right) or shift. Several may "
        "be given.",
    )
    patience: int = option(Whole(least=1), 5, "Epochs without gain after which training ends.")
    seed: int = option(Whole(least=0), 0, "Decides orders, changes, and what is held out.")
    # A result is trained again on whatever machine the recipe is run on.
    device: str = option(
        Name("cpu, cuda or auto"),
        "auto",
        "Where torch computes: cpu, cuda, cuda:1 ...; auto is a GPU where there is one.",
        recorded=False,
    )
    resume: bool = option(
        Flag(), False, "Continue a training that was killed, from OUTPUT.train.pt.", recorded=False
    )
    report: Callable[[Any], None] | None = option(
        PROGRESS, None, "Called after every epoch.", flag="", recorded=False
    )


class TrainCommand(OutputOptions, RecipeOptions, TrainOptions):
    """The command `train`."""

    first: ClassVar[Sequence[str]] = (
        "data",
        "output",
        "epochs",
        "batch",
        "rate",
        "quantizers",
        "label_weight",
        "device",
        "resume",
        "as_json",
    )
