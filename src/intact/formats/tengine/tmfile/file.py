"""Declares what a ``.tmfile`` of version 2 holds: the tensors and nodes of its one graph.

`codec` makes these classes of bytes, and bytes of them, by the tables of structs here.

A file is a header, then structs and lists in any order, each led to by an offset from the start of
the file; offset 0 stands for nothing. Numbers are little-endian, structs lie on multiples of four
bytes. A list is its length, then its elements; text is a length, which counts the final NUL, and
an offset. Operators are numbered, and their options are structs without a version: later versions
only appended to them.
Source: Tengine's public header ``tm2_format.h``; meanings and enumerations from its loaders and
operator prototypes.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

VERSION = 2
NOTHING = 0
"""The offset of what is not there."""
ALIGNMENT = 4
MOST_NODES = 2**15 - 1
"""Tengine numbers the nodes of a graph in 16 bits with sign."""
MOST_DIMENSIONS = 8
OPERATOR_VERSION = 1

_FORMS = {"u16": "H", "u32": "I", "i32": "i", "f32": "f", "u8": "B", "list": "I", "pad2": "2x"}


@dataclass(frozen=True)
class Record:
    """A struct of the file.

    Attributes:
        fields: Name and kind of each field in order; ``list`` is the offset of a list of int32.
    """

    fields: tuple[tuple[str, str], ...]
    packed: struct.Struct = field(init=False, repr=False)

    def __post_init__(self) -> None:
        forms = "".join(_FORMS[kind] for _, kind in self.fields)
        object.__setattr__(self, "packed", struct.Struct(f"<{forms}"))

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that hold something."""
        return tuple(name for name, kind in self.fields if kind != "pad2")

    @property
    def lists(self) -> tuple[str, ...]:
        """The fields that lead to a list of int32, in the order in which their lists are written.

        >>> record("begins:list end sizes:list").lists
        ('begins', 'sizes')
        """
        return tuple(name for name, kind in self.fields if kind == "list")


def record(text: str, default: str = "i32") -> Record:
    """Return a struct from ``name:kind`` words.

    >>> record("kernel_h scale:f32").packed.format
    '<if'
    """
    words = (word.partition(":") for word in text.split())
    return Record(tuple((name, kind or default) for name, _, kind in words))


HEADER = record("main:u16 sub:u16 compile:u16 _:pad2 root:u32")
MODEL = record("original_format:i32 sub_format:i32 subgraphs name", "u32")
SUBGRAPH = record(
    "id graph_layout:i32 model_layout:i32 input_nodes output_nodes nodes tensors buffers name info",
    "u32",
)
NODE = record("id inputs outputs operator name attributes dynamic_shape:u8", "u32")
OPERATOR = record("version number options", "u32")
TENSOR = record(
    "id buffer shape name quantization layout:i32 kind:i32 element:i32",
    "u32",
)
QUANTIZATION = record("zero_point:i32 scale:f32 width:i32")
BUFFER = record("size data", "u32")
TEXT = record("size data", "u32")


class Element(enum.IntEnum):
    """Types of elements."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2
    UINT8 = 3
    INT32 = 4
    INT16 = 5


NUMPY: Mapping[Element, str] = MappingProxyType(
    {
        Element.FLOAT32: "<f4",
        Element.FLOAT16: "<f2",
        Element.INT8: "i1",
        Element.UINT8: "u1",
        Element.INT32: "<i4",
        Element.INT16: "<i2",
    }
)


class Kind(enum.IntEnum):
    """What a tensor is for."""

    UNKNOWN = 0
    VARIABLE = 1
    CONSTANT = 2
    INPUT = 3
    DEPENDENT = 4


class Layout(enum.IntEnum):
    """Where the channels of images are."""

    CHANNELS_FIRST = 0
    CHANNELS_LAST = 1


ORIGIN_ONNX = 3
"""``original_format`` of a model that was converted from ONNX."""


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
        nodes: The nodes, in the order of execution; constants and inputs have nodes too.
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


_KEY = "intact.inside"


def mark_inside(node: ir.Node) -> None:
    """Mark a node of the ONNX graph as added by the reader: the file has no tensor for its result.

    A Flatten before a dense layer, for example. The node is changed.
    """
    node.metadata_props[_KEY] = "1"


def is_inside(value: ir.Value) -> bool:
    """Tell whether a value comes from a node that `mark_inside` marked."""
    node = value.producer()
    return node is not None and _KEY in node.metadata_props
