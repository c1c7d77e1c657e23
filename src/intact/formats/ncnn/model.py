"""A written model of ncnn, and notes on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.formats.base.comparison import in_int32
from intact.plan import Note, NoteKind
from intact.program.operations import Bounds

WINOGRAD_LIMIT = 2**31 // 576
"""No sum of ncnn's int8 Winograd convolution may be larger: it is held 576 times in 32 bits.

Measured with ncnn 1.0.20261020: sums of 3709543 are right, those of 3746881 are not. The factor is
that of F(4, 3), whose integer transforms scale weights by 24 along each axis."""

LARGEST_CODE = 127


@dataclass(frozen=True)
class WrittenProduct:
    """A convolution or dense layer as it stands in the file.

    Attributes:
        layer: Name of its layer.
        blob: Its output, behind the activation that is fused into it.
        bounds: Of that activation.
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
