"""Shapes of a program in which nothing is open: a microcontroller runs one sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from intact.program import Program, Step, Tensor
from intact.program.operations import Reshape

Lengths: TypeAlias = tuple[int, ...]

_MOST_ELEMENTS = 2**31 - 1
"""What an int32 index reaches."""


class OpenShapes(Exception):  # noqa: N818 - it never leaves the exporter
    """Some shapes cannot be told; ``tensors`` says which, and why."""

    def __init__(self, tensors: dict[str, str]) -> None:
        super().__init__()
        self.tensors = tensors


def static_shapes(program: Program) -> dict[str, Lengths]:
    """Return the shape of each tensor for one sample: an open first axis, the batch, is 1.

    Raises:
        OpenShapes: Another axis is open, or a tensor is empty or too large for an int32 index.
    """
    shapes: dict[str, Lengths] = {}
    faults: dict[str, str] = {}
    makers = {tensor.name: step for step in program.steps for tensor in step.outputs}
    for tensor in program.tensors():
        lengths = _lengths(tensor, makers.get(tensor.name), shapes)
        if lengths is None:
            faults[tensor.name] = f"the length of an axis is open ({_text(tensor.shape)})"
        elif not 0 < math.prod(lengths) <= _MOST_ELEMENTS:
            faults[tensor.name] = f"it has {math.prod(lengths)} elements"
        else:
            shapes[tensor.name] = lengths
    if faults:
        raise OpenShapes(faults)
    return shapes


def _lengths(tensor: Tensor, maker: Step | None, shapes: dict[str, Lengths]) -> Lengths | None:
    if tensor.data is not None:
        return tuple(tensor.data.shape)
    if maker is not None and isinstance(maker.operation, Reshape):
        return _reshaped(maker, shapes)
    known = tuple(1 if length is None and axis == 0 else length for axis, length in _axes(tensor))
    return None if None in known else tuple(int(length) for length in known if length is not None)


def _axes(tensor: Tensor) -> list[tuple[int, int | None]]:
    return list(enumerate(tensor.shape))


def _reshaped(step: Step, shapes: dict[str, Lengths]) -> Lengths | None:
    """Return the shape after a Reshape: it may fold the batch into another axis."""
    operation, source = step.operation, step.inputs[0]
    if not isinstance(operation, Reshape) or source is None or source.name not in shapes:
        return None
    size = math.prod(shapes[source.name])
    known = math.prod(length for length in operation.shape if length >= 0)
    rest = size // known if known else 0
    lengths = tuple(rest if length < 0 else length for length in operation.shape)
    return lengths if math.prod(lengths) == size else None


def _text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if length is None else str(length) for length in shape)


def shape_text(lengths: Sequence[int]) -> str:
    """Return a shape for a reader.

    >>> shape_text((1, 32, 32, 3)), shape_text(())
    ('[1, 32, 32, 3]', '[]')
    """
    return f"[{', '.join(map(str, lengths))}]"
