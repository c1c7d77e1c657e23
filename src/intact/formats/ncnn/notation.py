"""Names and shapes as ncnn reads them.

Names are words of printable ASCII that end at a space. ncnn computes one sample at a time: its
blobs lack the batch, which is axis 0 of the ONNX model. What is left has one to four axes, in the
order of ONNX.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.program import Shape, Tensor

Parameter: TypeAlias = int | float | tuple[int, ...] | tuple[float, ...]
Sample: TypeAlias = tuple[int, ...]
"""The shape of one sample: that of the value without its batch."""

_MOST_AXES = 4
_LONGEST = 200
"""ncnn reads at most 255 bytes of a name; what is added to make names unique must fit too."""


def word(name: str) -> str:
    """Turn a name into one word; what is no printable ASCII becomes an underscore.

    A leading ``#`` goes too: in a calibration table it starts a comment.

    >>> word("conv 1/é"), word("#1"), word("")
    ('conv_1/_', '_1', '_')
    """
    text = re.sub(r"[^!-~]", "_", name)[:_LONGEST]
    return "_" + text[1:] if not text or text[0] == "#" else text


def shape_in_model(tensor: Tensor) -> Shape:
    """Put the lengths of a tensor into the order of the model's axes, batch included."""
    if tensor.permutation is None:
        return tensor.shape
    return tuple(tensor.shape[axis] for axis in np.argsort(tensor.permutation))


def rank_of(tensor: Tensor) -> int:
    """Count the axes, batch included.

    Raises:
        Unsupported: They are not known.
    """
    if not tensor.shape and not tensor.is_constant:
        raise Unsupported(f"the shape of {tensor.value!r} is not known")
    return len(tensor.shape)


def sample(tensor: Tensor) -> Sample:
    """Find the shape of one sample of an activation.

    Raises:
        Unsupported: A length is not known, or as `known_lengths` says.
    """
    shape = known_lengths(tensor)
    known = tuple(size for size in shape if size is not None)
    if len(known) != len(shape):
        raise Unsupported(f"a length of {tensor.value!r} is not known")
    return known


def known_lengths(tensor: Tensor) -> tuple[int | None, ...]:
    """Find the shape of one sample of an activation, None for what the model leaves open.

    Raises:
        Unsupported: The batch is fixed at more than one sample, or there are more axes than a
            blob has.
    """
    rank, shape = rank_of(tensor), shape_in_model(tensor)
    if not 2 <= rank <= _MOST_AXES + 1:
        raise Unsupported(f"{tensor.value!r} has {rank} axes; a batch and 1 to 4 more can be held")
    if shape[0] not in (None, 1):
        raise Unsupported(
            f"{tensor.value!r} holds {shape[0]} samples, ncnn takes one; export with an open batch"
        )
    return shape[1:]


def lengths(shape: Sample) -> dict[int, Parameter]:
    """Make the parameters of a shape: ``w``, ``h``, ``d`` and ``c``, the last axis first.

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
