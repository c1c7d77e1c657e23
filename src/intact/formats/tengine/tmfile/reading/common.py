"""What the functions of several operators share."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.reading.constants import Shape
from intact.formats.tengine.tmfile.reading.draft import Draft

Read = Callable[[Draft, FileNode], None]
"""Adds what stands for a node of the file."""


def slot(node: FileNode, number: int) -> int:
    """Return the tensor of an input.

    Raises:
        Unsupported: The node has fewer inputs.
    """
    if number >= len(node.inputs):
        raise Unsupported(f"it has {len(node.inputs)} inputs")
    return node.inputs[number]


def axis_in(axis: int, rank: int) -> int:
    """Return an axis counted from the start.

    Raises:
        Unsupported: There is no such axis.
    """
    if not -rank <= axis < rank:
        raise Unsupported(f"it has no axis {axis} of {rank}")
    return axis % rank


def image(draft: Draft, node: FileNode) -> tuple[ir.Value, Shape]:
    """Return the first input, which must be images, and its lengths.

    Raises:
        Unsupported: It has no four dimensions.
    """
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    if len(shape) != 4:
        raise Unsupported(f"its input has the shape {list(shape)}, not that of images")
    return value, shape
