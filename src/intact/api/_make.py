"""Declares the public functions that make results.

Each carries out the options that it is declared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact.recipe.declare import public
from intact.recipe.options import (
    ExportOptions,
    ImportOptions,
    QuantizeForOptions,
    QuantizeOptions,
    ReplayOptions,
    SearchOptions,
)
from intact.recipe.training import TrainOptions

if TYPE_CHECKING:
    from intact.flow.search import FoundStrategy
    from intact.results.result import Result, Results


@public(QuantizeOptions)
def quantize(options: QuantizeOptions) -> Result:
    """Quantize a float model: load, plan, calibrate, write.

    Raises:
        IntactError: One of its children, naming what is wrong and how to mend it.
    """
    # Each function imports its flow when it is called: quantizing loads neither torch nor the
    # search.
    from intact.flow.quantize import quantize as run

    return run(options)


@public(QuantizeForOptions)
def quantize_for(options: QuantizeForOptions) -> Results:
    """Quantize a float model for several targets, from one pass over the samples.

    Each result is what `quantize` gives for its target alone, byte for byte. Where some of the
    targets have an operator Gelu and the model writes it out, these calibrate a graph of their own,
    and the samples are read twice. The folder ``output`` gets one for each target, named like it;
    it is written whole, and results that it held before are replaced: one of an earlier run for a
    target that refuses the model now is gone, and not left beside the new ones.

    Returns:
        Results by the names of their targets, in the order of ``targets``. Where a target cannot
        take the model, the others are made; its error is in ``refused``, by its name.

    Raises:
        IntactError: As in `quantize`, or every target refuses; nothing is written then.
    """
    from intact.flow.quantize import quantize_for as run

    return run(options)


@public(ImportOptions)
def read_quantized(options: ImportOptions) -> Result:
    """Read a model that others quantized; its scales stay as they are.

    With data, what the model left float and the target computes with integers is calibrated too.

    Raises:
        IntactError: One of its children, naming what is wrong and how to mend it.
    """
    from intact.flow.quantize import read_quantized as run

    return run(options)


@public(ExportOptions)
def export(options: ExportOptions) -> Result:
    """Write the plan of a result in other formats; nothing is calibrated again.

    Raises:
        IntactError: The folder is wrong, or a format cannot express the plan.
    """
    from intact.flow.quantize import export as run

    return run(options)


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
    from intact.flow.train import train as run

    return run(options)


@public(SearchOptions)
def search_strategy(options: SearchOptions) -> FoundStrategy:
    """Find the best strategy: which tensors are quantized, with how many bits.

    With ``max_drop`` or ``min_score`` that is the cheapest strategy that keeps the score, with
    ``max_cost`` the one of the highest score that is not dearer, with neither the one of the
    highest score. The float model is observed once; a trial then costs a run of what differs.

    Raises:
        SearchError: Nothing holds the limits (it says how near the nearest came), or the log is
            not one of this search.
        IntactError: Another of its children, naming what is wrong and how to mend it.
    """
    from intact.flow.search import search as run

    return run(options)


@public(ReplayOptions)
def replay_strategy(options: ReplayOptions) -> Result:
    """Realize a strategy that a search wrote down; no data is needed.

    Raises:
        SearchError: The log is of another model or target.
        IntactError: The log is damaged, or has no such trial.
    """
    from intact.flow.search import replay as run

    return run(options)
