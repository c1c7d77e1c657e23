"""Which function makes the kernel of which operation."""

from __future__ import annotations

from intact.program import Step
from intact.program.operations import FloatNodes
from intact.run.integer import (
    accumulating,
    conversions,
    elementwise,
    functions,
    moves,
    pooling,
    resizing,
    softmax,
)
from intact.run.integer.islands import float_island
from intact.run.integer.kernel import Kernel, Overflows, Prepare

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
