"""Signed codes that convolutions read as unsigned ones, for hardware that multiplies only those."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from intact.program.operations import (
    MOVING,
    Convolution,
    Pool,
    PoolKind,
    Resize,
    ResizeMode,
)
from intact.program.program import Encoding, Program, Step, Tensor


def unsigned_inputs(program: Program) -> Program:
    """Return a program whose convolutions read unsigned codes, where their arithmetic says so.

    Codes and zero point become larger by the same number, so that every real number stays what it
    is, and so does the rounding of whatever is made and read elsewhere.

    >>> unsigned_inputs(Program({}, {}, ())).steps
    ()
    """
    moved = _moved(program.steps)
    if not moved:
        return program

    def held(tensor: Tensor) -> Tensor:
        return _unsigned(tensor) if tensor.name in moved else tensor

    steps = tuple(
        replace(
            step,
            inputs=tuple(None if each is None else held(each) for each in step.inputs),
            outputs=tuple(held(each) for each in step.outputs),
        )
        for step in program.steps
    )
    outputs = {name: held(tensor) for name, tensor in program.outputs.items()}
    return replace(program, outputs=outputs, steps=steps)


def _moved(steps: Iterable[Step]) -> set[str]:
    """Return the names of the tensors that become unsigned."""
    steps = tuple(steps)
    found = {
        step.activations[0].name
        for step in steps
        if isinstance(step.operation, Convolution)
        and step.arithmetic.unsigned_inputs
        and step.activations
        and _is_signed(step.activations[0])
    }
    before = -1
    while len(found) > before:
        before = len(found)
        for step in steps:
            around = [each for each in (*step.activations, *step.outputs) if _is_signed(each)]
            if _only_moves(step) and any(each.name in found for each in around):
                found |= {each.name for each in around}
    return found


def _only_moves(step: Step) -> bool:
    operation = step.operation
    if isinstance(operation, Pool):
        return operation.kind is PoolKind.MAX
    if isinstance(operation, Resize):
        return operation.mode is ResizeMode.NEAREST
    return isinstance(operation, MOVING)


def _is_signed(tensor: Tensor) -> bool:
    encoding = tensor.encoding
    return encoding is not None and not tensor.is_constant and encoding.dtype == np.int8


def _unsigned(tensor: Tensor) -> Tensor:
    encoding = tensor.encoding
    if encoding is None:
        return tensor
    up = -encoding.quant_min
    higher = np.asarray(encoding.zero_point + up, np.int64)
    codes: Encoding = replace(
        encoding, zero_point=higher, quant_min=0, quant_max=encoding.quant_max + up
    )
    return replace(tensor, encoding=codes)
