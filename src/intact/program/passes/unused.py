"""Leave out steps whose results nobody reads."""

from __future__ import annotations

from intact.program.program import Program, Step


def without_unused(program: Program) -> Program:
    """Return the program without steps that lead to no output."""
    wanted = {tensor.name for tensor in program.outputs.values()}
    kept: list[Step] = []
    for step in reversed(program.steps):
        if any(tensor.name in wanted for tensor in step.outputs):
            kept.append(step)
            wanted |= {tensor.name for tensor in step.inputs if tensor is not None}
    return program.with_steps(tuple(reversed(kept)))
