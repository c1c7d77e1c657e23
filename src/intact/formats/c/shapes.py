"""Shapes of a program in which nothing is open: a microcontroller runs one sample."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from intact.program import Program, Shape, Step, Tensor
from intact.program.passes.inference import Lengths, output_shapes

_MOST_ELEMENTS = 2**31 - 1
"""What an int32 index reaches."""


class OpenShapes(Exception):  # noqa: N818 - it never leaves the exporter
    """Some shapes cannot be told; ``tensors`` says which, and why."""

    def __init__(self, tensors: dict[str, str]) -> None:
        super().__init__()
        self.tensors = tensors


def static_shapes(program: Program) -> dict[str, Lengths]:
    """Return the shape of each tensor for one sample: an open first axis of an input is 1.

    Raises:
        OpenShapes: Another axis is open, or a tensor is empty or too large for an int32 index.
    """
    shapes: dict[str, Lengths] = {}
    faults: dict[str, str] = {}
    for tensor in (*program.inputs.values(), *_constants(program)):
        _note(tensor, _as_declared(tensor.shape), shapes, faults)
    for step in program.steps:
        for tensor, lengths in zip(step.outputs, _made(step, shapes), strict=True):
            _note(tensor, lengths, shapes, faults)
    if faults:
        raise OpenShapes(faults)
    return shapes


def _constants(program: Program) -> list[Tensor]:
    candidates = itertools.chain(program.tensors(), program.outputs.values())
    return [tensor for tensor in candidates if tensor.is_constant]


def _made(step: Step, shapes: Mapping[str, Lengths]) -> list[Shape]:
    """Return the shapes of a step's results: computed, or as declared where they cannot be."""
    inputs = [None if tensor is None else shapes.get(tensor.name) for tensor in step.inputs]
    present = [tensor is None or tensor.name in shapes for tensor in step.inputs]
    computed = output_shapes(step, inputs) if all(present) else None
    if computed is not None and len(computed) == len(step.outputs):
        return list(computed)
    return [_as_declared(tensor.shape) for tensor in step.outputs]


def _as_declared(shape: Shape) -> Shape:
    return tuple(1 if length is None and axis == 0 else length for axis, length in enumerate(shape))


def _note(
    tensor: Tensor, lengths: Shape, shapes: dict[str, Lengths], faults: dict[str, str]
) -> None:
    known = tuple(length for length in lengths if length is not None)
    if len(known) < len(lengths):
        faults[tensor.name] = f"the length of an axis is open ({_text(tensor.shape)})"
    elif not 0 < math.prod(known) <= _MOST_ELEMENTS:
        faults[tensor.name] = f"it has {math.prod(known)} elements"
    elif not _agree(known, tensor.shape):
        faults[tensor.name] = f"it is {_text(known)}, not {_text(tensor.shape)}"
    else:
        shapes[tensor.name] = known


def _agree(lengths: Lengths, declared: Shape) -> bool:
    return len(lengths) == len(declared) and all(
        wanted is None or wanted == length for length, wanted in zip(lengths, declared, strict=True)
    )


def _text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if length is None else str(length) for length in shape)


def shape_text(lengths: Sequence[int]) -> str:
    """Return a shape for a reader.

    >>> shape_text((1, 32, 32, 3)), shape_text(())
    ('[1, 32, 32, 3]', '[]')
    """
    return f"[{', '.join(map(str, lengths))}]"
