"""Cutting programs into programs of one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from intact.program.program import Program, Step


def one_op_programs(program: Program) -> Iterator[tuple[Step, Program]]:
    """Yield each step with a program of only that step, in order.

    The small program's inputs and outputs are the step's own, by the names of its tensors and with
    their encodings, so that it computes from codes to codes. A runtime that hides what lies
    between fused operators can be asked for every one of them this way.
    """
    for step in program.steps:
        inputs = {tensor.name: tensor for tensor in step.activations}
        outputs = {tensor.name: tensor for tensor in step.outputs}
        yield step, replace(program, inputs=inputs, outputs=outputs, steps=(step,), in_float={})
