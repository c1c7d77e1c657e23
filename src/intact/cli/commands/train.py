"""The command that trains: ``train``."""

from __future__ import annotations

from intact.cli.commands import report as pages
from intact.cli.parameters import Command, Given
from intact.cli.phases import current
from intact.recipe.training import TrainCommand, TrainOptions


def _train(given: Given[TrainCommand]) -> None:
    """Train a result with the arithmetic of its target, so that less is lost; needs torch.

    The float model is the teacher: labels are not needed, and used where there are some. A training
    that was killed goes on with --resume.

    Example: intact train out/ --data train.npz --epochs 10 --output trained/
    """
    from intact.cli import show_training

    options = given.options
    pages.require(options)
    report = show_training.reporting(quiet=options.as_json)
    result = given.call("train", TrainOptions, "reading the result", report=report)
    show_training.trained(result, seconds=current().elapsed, as_json=options.as_json)
    pages.write(result, options, quiet=options.as_json)


TRAIN = Command("train", TrainCommand, _train, timed=True)
