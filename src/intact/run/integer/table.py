"""Which function makes the kernel of which operation."""

from __future__ import annotations

from intact.program import Step
from intact.program.operations import FloatNodes
from intact.run.integer import moves
from intact.run.integer.islands import float_island
from intact.run.integer.kernel import Kernel, Overflows, Prepare
from intact.run.integer.pointwise import conversions, elementwise, functions, softmax
from intact.run.integer.products import accumulating
from intact.run.integer.spatial import pooling, resizing

KERNELS: dict[type, Prepare] = {
    **accumulating.KERNELS,
    **conversions.KERNELS,
    **elementwise.KERNELS,
    **functions.KERNELS,
    **moves.KERNELS,
    **pooling.KERNELS,
    **resizing.KERNELS,
    **softmax.KERNELS,
}


def prepare(step: Step, overflows: Overflows, threads: int = 0) -> Kernel:
    """Make the kernel of a step."""
    if isinstance(step.operation, FloatNodes):
        return float_island(step, threads)
    return KERNELS[type(step.operation)](step, overflows)
