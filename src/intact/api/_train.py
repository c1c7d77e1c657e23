"""Train a result with the arithmetic of its target."""

from __future__ import annotations

from intact.flow import train as flow
from intact.recipe.declare import public
from intact.recipe.training import TrainOptions
from intact.results.result import Result


@public(TrainOptions)
def train(options: TrainOptions) -> Result:
    """Train the weights and scales of a result, so that less is lost; needs torch.

    The float model is the teacher, so that labels are not needed; where there are some, both count.
    A tenth of the samples is held out, and the epoch that loses least on them is kept: the result
    before training is one of those to choose from. Nothing depends on the clock: the same data and
    options give the same bytes on the same machine.

    Returns:
        A result like any other; ``trained`` has the loss curve.

    Raises:
        MissingExtraError: torch is not installed.
        IntactError: Another of its children, naming what is wrong and how to mend it.
    """
    return flow.train(options)
