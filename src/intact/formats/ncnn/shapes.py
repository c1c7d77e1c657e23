"""The shapes of one sample, as ncnn holds them.

ncnn computes one sample at a time: its blobs lack the batch, which is axis 0 of the ONNX model.
What is left has one to four axes, in the order of ONNX.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import onnx_ir as ir

from intact.errors import Unsupported

Parameter: TypeAlias = int | float | tuple[int, ...] | tuple[float, ...]
Sample: TypeAlias = tuple[int, ...]
"""The shape of one sample: that of the value without its batch."""

_MOST_AXES = 4


def present(node: ir.Node, slot: int) -> ir.Value:
    """Return an input.

    Raises:
        Unsupported: It is absent.
    """
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is None:
        raise Unsupported(f"its input {slot} is absent")
    return value


def rank_of(value: ir.Value) -> int:
    """Return the number of axes, batch included.

    Raises:
        Unsupported: It is not known.
    """
    if value.shape is None:
        raise Unsupported(f"the shape of {value.name!r} is not known")
    return len(value.shape)


def sample(value: ir.Value) -> Sample:
    """Return the shape of one sample of an activation.

    Raises:
        Unsupported: A length is not known, or as `known_lengths` says.
    """
    shape = known_lengths(value)
    known = tuple(size for size in shape if size is not None)
    if len(known) != len(shape):
        raise Unsupported(f"a length of {value.name!r} is not known")
    return known


def known_lengths(value: ir.Value) -> tuple[int | None, ...]:
    """Return the shape of one sample of an activation, None for what the model leaves open.

    Raises:
        Unsupported: The batch is fixed at more than one sample, or there are more axes than a
            blob has.
    """
    rank = rank_of(value)
    shape = [size if isinstance(size, int) else None for size in value.shape or ()]
    if not 2 <= rank <= _MOST_AXES + 1:
        raise Unsupported(f"{value.name!r} has {rank} axes; a batch and 1 to 4 more can be held")
    if shape[0] not in (None, 1):
        raise Unsupported(
            f"{value.name!r} holds {shape[0]} samples, ncnn takes one; export with an open batch"
        )
    return tuple(shape[1:])


def lengths(shape: Sample) -> dict[int, Parameter]:
    """Return the parameters that say a shape: ``w``, ``h``, ``d`` and ``c``, the last axis first.

    Raises:
        Unsupported: There are more than four axes, or none.
    """
    numbers = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}
    if len(shape) not in numbers:
        raise Unsupported(f"a sample with {len(shape)} axes cannot be held")
    return dict(sorted(zip(numbers[len(shape)], shape, strict=True)))


def same_size(first: Sample, second: Sample) -> bool:
    """Tell whether two samples hold as many elements."""
    return math.prod(first) == math.prod(second)
