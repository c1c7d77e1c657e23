"""Tensors named after the values that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from intact.program.program import Program, Tensor


def named_after_values(program: Program) -> Program:
    """Return the program with the first tensor of each value called as that value is.

    Others of it are called ``NAME_quantized`` or ``NAME_float``, with a number where those are
    taken too.
    """
    taken: set[str] = set()
    renamed: dict[str, Tensor] = {}
    for tensor in program.tensors():
        name = next(each for each in _candidates(tensor) if each not in taken)
        taken.add(name)
        renamed[tensor.name] = replace(tensor, name=name)
    steps = tuple(
        replace(
            step,
            inputs=tuple(None if t is None else renamed[t.name] for t in step.inputs),
            outputs=tuple(renamed[t.name] for t in step.outputs),
        )
        for step in program.steps
    )
    outputs = {name: renamed.get(t.name, t) for name, t in program.outputs.items()}
    inputs = {name: renamed[t.name] for name, t in program.inputs.items()}
    return replace(program, inputs=inputs, outputs=outputs, steps=steps)


def _candidates(tensor: Tensor) -> Iterator[str]:
    base = tensor.value or tensor.name
    yield base
    base = f"{base}_{'float' if tensor.encoding is None else 'quantized'}"
    yield base
    count = 2
    while True:
        yield f"{base}_{count}"
        count += 1
