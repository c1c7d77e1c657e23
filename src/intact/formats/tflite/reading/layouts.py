"""Channels last as in TFLite, or first as in the float graph, and who exists in which."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.formats.tflite.reading.file import FileTensor
from intact.formats.tflite.reading.parameters import Parameters


class Layout(enum.Enum):
    """Where the channels of a tensor of three or more dimensions lie; others have one layout."""

    FILE = "channels_last"
    FIRST = "channels_first"


def channels_first(rank: int) -> tuple[int, ...]:
    """Return the permutation that moves the last axis behind the first."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else tuple(range(rank))


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes one."""
    return tuple(int(axis) for axis in np.argsort(permutation))


def arranged(items: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Return what belongs to the axes of the file in the order of a layout's axes."""
    order = channels_first(len(items)) if layout is Layout.FIRST else range(len(items))
    return tuple(items[axis] for axis in order)


@dataclass(eq=False)
class Drawn:
    """An activation of the file in the graph.

    Attributes:
        values: What exists, by layout.
        sources: How to make a layout without a Transpose.
    """

    tensor: FileTensor
    parameters: Parameters | None
    values: dict[Layout, ir.Value] = field(default_factory=dict)
    sources: dict[Layout, Callable[[], ir.Value]] = field(default_factory=dict)

    @property
    def is_flat(self) -> bool:
        """Whether both layouts have their elements in the same order."""
        return self.tensor.rank <= 2 or all(length == 1 for length in self.tensor.shape[1:-1])

    def has(self, layout: Layout) -> bool:
        """Tell whether a layout costs no Transpose."""
        return self.is_flat or layout in self.values or layout in self.sources
