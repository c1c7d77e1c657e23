"""The program of a plan as it is realised: signed codes, axes as the model has them."""

from __future__ import annotations

from intact.errors import ExportError
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.program.operations import FloatNodes
from intact.program.passes.integer_io import integer_io
from intact.program.passes.signed import signed
from intact.program.program import Program
from intact.program.realize.realize import realize


def integer_program(plan: QuantizedGraph, *, float_ends: bool = False) -> Program:
    """Return the steps of a plan that integers alone compute.

    Args:
        plan: A calibrated plan; not changed.
        float_ends: Keep the quantise at inputs and the dequantise at outputs.

    Raises:
        ExportError: Nodes compute in float, or ends cannot be integers; all are listed.
        PlanError: See `lower`.
    """
    program = signed(lower(plan))
    if any(isinstance(step.operation, FloatNodes) for step in program.steps):
        decisions = plan.decisions.items()
        realize(program, {name: each.reason for name, each in decisions if not each.quantized})
    if float_ends:
        return program
    try:
        return integer_io(program)
    except ExportError:
        realize(program)  # which tells of every step that computes otherwise than with integers
        raise
