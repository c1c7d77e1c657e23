"""What a ``.tflite`` file holds: tensors, operators and buffers of its main graph, checked.

Only the structure is judged here; whether an operator can be read is for `operators` to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.formats.tflite.reading.schema import Element


@dataclass(frozen=True, eq=False)
class Quantization:
    """What stands beside a tensor, unchecked: scales, zero points and the axis they lie along."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int
    is_custom: bool


@dataclass(frozen=True, eq=False)
class FileTensor:
    """One tensor.

    Attributes:
        index: Its number in the graph.
        name: As in the file; may be empty.
        shape: Lengths, positive, with a batch of one as a rule.
        signature: Lengths with -1 where they are open; as ``shape`` where the file has none.
        element: Type of the elements.
        quantization: None for what is not quantized.
        data: Bytes of a constant, of the length that type and shape ask for; None for others.
        odd: Why it cannot be used, "" where it can.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    element: Element
    quantization: Quantization | None
    data: memoryview | None
    odd: str = ""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    Attributes:
        index: Its position.
        name: Of its kind.
        inputs: Numbers of tensors; -1 for an optional one that is absent.
        outputs: Numbers of tensors.
        options: By name; defaults where the file has none.
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    """Names that callers use, which may differ from those of the tensors.

    Attributes:
        inputs: Numbers of tensors by name.
        outputs: Likewise.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TfliteFile:
    """The main graph of a file.

    Attributes:
        source: How messages call the file.
        size: Bytes.
        description: What the converter wrote.
        tensors: By number.
        operators: In the order of execution.
        inputs: Numbers of tensors.
        outputs: Numbers of tensors.
        signature: What callers of the graph's signature call its inputs and outputs, if it has one.
    """

    source: str
    size: int
    description: str
    tensors: tuple[FileTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signature: Signature
