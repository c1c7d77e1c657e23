"""Quantize a float model."""

from __future__ import annotations

from intact.flow import quantize as flow
from intact.recipe.declare import public
from intact.recipe.options import QuantizeForOptions, QuantizeOptions
from intact.results.result import Result, Results


@public(QuantizeOptions)
def quantize(options: QuantizeOptions) -> Result:
    """Quantize a float model: load, plan, calibrate, write.

    Raises:
        IntactError: One of its children, naming what is wrong and how to mend it.
    """
    return flow.quantize(options)


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
        IntactError: As of `quantize`, or every target refuses; nothing is written then.
    """
    return flow.quantize_for(options)
