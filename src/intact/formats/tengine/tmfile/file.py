"""What a ``.tmfile`` holds: the tensors and nodes of its one graph.

Reading makes it of bytes, writing makes bytes of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.formats.tengine.tmfile.layout import Element, Kind, Layout


@dataclass(frozen=True, eq=False)
class Quantization:
    """Scales and zero points of a tensor: one, or one for each index of its first axis.

    Attributes:
        scale: float32, ``[1]`` or ``[channels]``.
        zero_point: int32, like ``scale``.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int32]

    def equals(self, other: Quantization) -> bool:
        """Whether equal codes mean equal numbers."""
        return np.array_equal(self.scale, other.scale) and np.array_equal(
            self.zero_point, other.zero_point
        )


@dataclass(frozen=True, eq=False)
class FileTensor:
    """One tensor.

    Attributes:
        name: As in the file; may be empty.
        shape: Lengths, channels first; empty where the file does not say.
        kind: What it is for.
        element: Type of the elements.
        data: The elements of a constant; None for others.
        quantization: None for what is not quantized.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    element: Element
    data: npt.NDArray[Any] | None = None
    quantization: Quantization | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class FileNode:
    """One node.

    Attributes:
        name: As in the file; may be empty.
        operator: The name of its kind.
        inputs: Numbers of tensors.
        outputs: Numbers of tensors.
        options: By name; empty where its kind has none.
    """

    name: str
    operator: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, eq=False)
class TmFile:
    """The graph of a file.

    Attributes:
        source: How messages call the file.
        layout: Where the channels are, of the file or of the model that it was converted from.
        tensors: By number.
        nodes: In the order of execution; constants and inputs have nodes too.
        inputs: Numbers of the nodes whose outputs are the inputs of the model.
        outputs: Numbers of the nodes whose outputs are those of the model.
    """

    source: str
    layout: Layout
    tensors: tuple[FileTensor, ...]
    nodes: tuple[FileNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def is_quantized(self) -> bool:
        """Whether some tensor holds codes of 8 bits."""
        return any(each.element in (Element.INT8, Element.UINT8) for each in self.tensors)
