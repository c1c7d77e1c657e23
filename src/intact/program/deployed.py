"""Plans lowered as formats for integer hardware write them, and as verification compares them."""

from __future__ import annotations

from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.program.passes.encodings import signed
from intact.program.passes.layout import IoLayout
from intact.program.program import Program


def deployed_program(plan: QuantizedGraph, *, float_operations: bool = False) -> Program:
    """Return the steps of a plan on signed codes, with images as the files have them.

    Channels are last, as integer kernels want them, but where the plan was read from a file that
    says how it takes its inputs.

    Args:
        plan: A calibrated plan; not changed.
        float_operations: As for `lower`.

    Raises:
        PlanError: See `lower`.
    """
    layout = IoLayout.MODEL if plan.provenance.read_from else IoLayout.CHANNELS_LAST
    return signed(lower(plan, float_operations=float_operations, layout=layout))
