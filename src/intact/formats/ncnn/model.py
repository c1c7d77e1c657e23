"""Declares a written model of ncnn, with names and shapes as ncnn reads them.

Names are words of printable ASCII that end at a space. ncnn computes one sample at a time: its
blobs lack the batch, which is axis 0 of the ONNX model. What is left has one to four axes, in the
order of ONNX.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import DataError, Unsupported
from intact.formats.base.comparison import in_int32
from intact.plan import Note, NoteKind
from intact.program import Shape, Tensor
from intact.program.operations import Bounds

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
    known_lengths(tensor)  # Asked for its refusal of more axes only.
    return all_lengths(tensor)


def known_lengths(tensor: Tensor) -> tuple[int | None, ...]:
    """Find the shape of one sample of an activation, None for what the model leaves open.

    Raises:
        Unsupported: The batch is fixed at more than one sample, or there are more axes than a
            blob has.
    """
    rank = rank_of(tensor)
    if not 2 <= rank <= _MOST_AXES + 1:
        raise Unsupported(f"{tensor.value!r} has {rank} axes; a batch and 1 to 4 more can be held")
    return _behind_batch(tensor)


def held(tensor: Tensor) -> Sample:
    """Find the shape in which a blob holds one sample that is only moved and given other shapes.

    What has more axes than a blob is a row of all its numbers.

    Raises:
        Unsupported: A length is not known, or the batch is fixed at more than one sample.
    """
    if rank_of(tensor) <= _MOST_AXES + 1:
        return sample(tensor)
    return (math.prod(all_lengths(tensor)),)


def all_lengths(tensor: Tensor) -> Sample:
    """Find the shape of one sample, of any number of axes.

    Raises:
        Unsupported: As `held` says.
    """
    rank_of(tensor)  # Asked for its refusal only.
    shape = _behind_batch(tensor)
    known = tuple(size for size in shape if size is not None)
    if len(known) != len(shape):
        raise Unsupported(f"a length of {tensor.value!r} is not known")
    return known


def _behind_batch(tensor: Tensor) -> tuple[int | None, ...]:
    shape = shape_in_model(tensor)
    # A batch has no place in a blob, and cannot be cut out of a model that mixes samples.
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
    # ncnn's numbers of these parameters; ``d`` came later than the others, and is 11.
    numbers = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}
    if len(shape) not in numbers:
        raise Unsupported(f"a sample with {len(shape)} axes cannot be held")
    return dict(sorted(zip(numbers[len(shape)], shape, strict=True)))


def same_size(first: Sample, second: Sample) -> bool:
    """Tell whether two samples hold as many elements."""
    return math.prod(first) == math.prod(second)


WINOGRAD_LIMIT = 2**31 // 576
"""No sum of ncnn's int8 Winograd convolution may be larger: it is held 576 times in 32 bits.

Measured with ncnn 1.0.20261020: sums of 3709543 are right, those of 3746881 are not. The factor is
that of F(4, 3), whose integer transforms scale weights by 24 along each axis."""

LARGEST_CODE = 127
MAGIC = "7767517"
"""First line of every ``.param``."""


@dataclass(frozen=True)
class WrittenProduct:
    """A convolution or dense layer as it stands in the file.

    Attributes:
        layer: Name of its layer.
        blob: Its output, behind the activation that is fused into it.
        bounds: What that activation clamps to.
        is_int8: Whether it computes with codes.
    """

    layer: str
    blob: str
    bounds: Bounds
    is_int8: bool


@dataclass(frozen=True)
class NcnnModel:
    """A written model.

    Attributes:
        param: The ``.param``: text.
        weights: The ``.bin``.
        table: The calibration table.
        blobs: Name of the blob of each value in the file, by the value's name.
        inputs: Blob of each input, by its name in the model.
        outputs: Blob of each output.
        products: By name of the node.
        notes: Renamed ends, and sums that may wrap.
        whole: Blobs of inputs that are int32, for layers that look up; the others are float32.
    """

    param: str
    weights: bytes
    table: str
    blobs: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    products: Mapping[str, WrittenProduct]
    notes: tuple[Note, ...] = ()
    whole: frozenset[str] = frozenset()

    def fed(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return a batch by blob, in the types that ncnn takes.

        Raises:
            DataError: An index is below 0, or no int32: ncnn would take the nearest row.
        """
        return {blob: self._typed(name, blob, feeds[name]) for name, blob in self.inputs.items()}

    def _typed(self, name: str, blob: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if blob not in self.whole:
            return np.asarray(array, np.float32)
        # ncnn clamps an index to the table's ends, and says nothing.
        if np.min(array, initial=0) < 0:
            raise DataError(
                f"input {name!r} has indices below 0, which ncnn does not count from the end",
                remedy="add the length of the table to them",
            )
        return in_int32(name, np.asarray(array))


def notes_of(ends: Mapping[str, str], wide: Sequence[str]) -> Iterator[Note]:
    """Yield notes on renamed ends and on sums that may wrap.

    Args:
        ends: Blob of each input and output, by name in the model.
        wide: Convolutions whose sums may exceed what Winograd's algorithm holds.
    """
    renamed = [f"{name!r} is {blob!r}" for name, blob in ends.items() if name != blob]
    if renamed:
        listed = ", ".join(renamed)
        message = f"names in ncnn are one word of printable ASCII, each of one blob: {listed}"
        yield Note(NoteKind.EXPORT, "", message)
    if wide:
        yield Note(
            NoteKind.EXPORT,
            wide[0],
            f"{len(wide)} convolution(s) can have sums beyond {WINOGRAD_LIMIT}, from where ncnn's "
            "int8 Winograd kernels wrap",
            "set opt.use_winograd_convolution = false, or quantize for --target ncnn-winograd",
        )
