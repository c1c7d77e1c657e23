"""Lowers plans as integer formats write them, and as verification compares them."""

from __future__ import annotations

from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.program.passes.encodings import signed
from intact.program.passes.layout import IoLayout
from intact.program.program import Program


def deployed_program(plan: QuantizedGraph, *, float_operations: bool = False) -> Program:
    """Return the steps of a plan on signed codes, with images as the files have them.

    Images have their channels last, as integer kernels want them (`IoLayout.CHANNELS_LAST`), but
    where the user asked for the model's layout, or the plan was read from a file that has its own.

    Args:
        plan: A calibrated plan; not changed.
        float_operations: The same as for `lower`.

    Raises:
        PlanError: See `lower`.
    """
    as_it_is = plan.provenance.read_from or plan.provenance.layout
    layout = IoLayout.MODEL if as_it_is else IoLayout.CHANNELS_LAST
    return signed(lower(plan, float_operations=float_operations, layout=layout))
