"""Marks convolutions that cannot write their result over their residual."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from intact.program.arithmetic.ends import has_ends
from intact.program.operations import RESIDUAL_SLOT, Convolution
from intact.program.program import Program, Step, Tensor


def mark_kept_residuals(program: Program) -> Program:
    """Return a program whose convolutions say where their residual is needed after them.

    A runtime that adds in place cannot add there: it takes an operation of its own, with another
    arithmetic (see `Convolution`). Needed are the data of the convolution, an output of the model,
    and what a step reads that the sum does not depend on.

    >>> mark_kept_residuals(Program({}, {}, ())).steps
    ()
    """
    if not any(_residual(step) for step in program.steps):
        return program
    readers: dict[str, list[int]] = defaultdict(list)
    for place, step in enumerate(program.steps):
        for tensor in step.activations:
            readers[tensor.name].append(place)
    outputs = {tensor.name for tensor in program.outputs.values()}

    def mark(place: int, step: Step) -> Step:
        residual, operation = _residual(step), step.operation
        if residual is None or not isinstance(operation, Convolution):
            return step
        others = set(readers[residual.name]) - {place}
        kept = (
            residual.name in outputs
            or any(each is not None and each.name == residual.name for each in step.inputs[:1])
            # A reader that the sum depends on has run already; any other may still come.
            or bool(others - _ancestors(program, place, min(others, default=place)))
        )
        return replace(step, operation=replace(operation, keeps_residual=kept))

    return replace(program, steps=tuple(mark(*each) for each in enumerate(program.steps)))


def _residual(step: Step) -> Tensor | None:
    """Return what a step adds to its sums on a target whose arithmetic depends on how."""
    added = step.inputs[RESIDUAL_SLOT:] if isinstance(step.operation, Convolution) else ()
    return added[0] if added and has_ends(step.arithmetic) else None


def _ancestors(program: Program, place: int, first: int) -> set[int]:
    """Return the places from the first one on of steps that the one at a place depends on."""
    needed = {tensor.name for tensor in program.steps[place].activations}
    found = set()
    for earlier in range(place - 1, first - 1, -1):
        step = program.steps[earlier]
        if any(tensor.name in needed for tensor in step.outputs):
            found.add(earlier)
            needed |= {tensor.name for tensor in step.activations}
    return found
