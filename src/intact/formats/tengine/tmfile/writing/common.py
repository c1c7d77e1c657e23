"""What the functions of several operators share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.writing.forms import constant_of
from intact.formats.tengine.tmfile.writing.shapes import Shape
from intact.formats.tengine.tmfile.writing.sheet import Sheet

Write = Callable[[Sheet, ir.Node], None]
"""Adds what stands for a node of the graph."""


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return an attribute; lists as lists, text as ``str``."""
    found = node.attributes.get(name)
    if found is None or found.value is None:
        return default
    value = found.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if isinstance(value, tuple) else value


def given(node: ir.Node, slot: int) -> ir.Value:
    """Return an input.

    Raises:
        Unsupported: It is left out.
    """
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is None:
        raise Unsupported(f"input {slot} is left out")
    return value


def has(node: ir.Node, slot: int) -> bool:
    """Tell whether a node has an input."""
    return slot < len(node.inputs) and node.inputs[slot] is not None


def activation(sheet: Sheet, node: ir.Node, slot: int = 0) -> ir.Value:
    """Return an input that is fed or computed.

    Raises:
        Unsupported: It is a constant.
    """
    value = given(node, slot)
    if sheet.graph.constant(value) is not None:
        raise Unsupported(f"its input {value.name!r} is a constant")
    return value


def image_shape(sheet: Sheet, node: ir.Node) -> Shape:
    """Return the lengths of the first input, which must be images.

    Raises:
        Unsupported: It has no four dimensions.
    """
    shape = sheet.shape(activation(sheet, node))
    if len(shape) != 4:
        raise Unsupported(f"its input has {len(shape)} dimensions; Tengine's has 4")
    return shape


def integers(sheet: Sheet, node: ir.Node, slot: int) -> list[int]:
    """Return a constant list of integers."""
    return [int(each) for each in constant_of(sheet.graph, node, slot).reshape(-1)]


def scalar(sheet: Sheet, node: ir.Node, slot: int, default: float) -> float:
    """Return a constant number; the default where it is left out."""
    if not has(node, slot):
        return default
    array = constant_of(sheet.graph, node, slot)
    if array.size != 1:
        raise Unsupported(f"input {slot} holds {array.size} numbers")
    return float(np.float32(array.reshape(-1)[0]))


def bias(sheet: Sheet, node: ir.Node, slot: int, channels: int) -> list[int]:
    """Add a bias, if there is one; return its number in the file.

    Raises:
        Unsupported: It is not one number for each channel.
    """
    if not has(node, slot):
        return []
    array = constant_of(sheet.graph, node, slot)
    if array.size != channels:
        raise Unsupported(f"its bias has {array.size} numbers for {channels} channels")
    stored = sheet.form.constant(node, slot, array.ndim - 1 if array.ndim else None)
    flat = replace(stored, array=stored.array.reshape(-1))
    return [sheet.constant(given(node, slot), flat)]


def refuse_rescaling(sheet: Sheet, node: ir.Node) -> None:
    """Refuse to move codes from one scale to another: Tengine copies them as they are.

    Raises:
        Unsupported: An output has another scale than the first input.
    """
    source = given(node, 0)
    _, before = sheet.form.activation(source)
    for value in node.outputs:
        _, after = sheet.form.activation(value)
        if before is not None and after is not None and not before.equals(after):
            raise Unsupported(
                f"{value.name!r} has another scale than {source.name!r},"
                " and Tengine copies codes there"
            )


def refuse_integers(sheet: Sheet, *elements: int) -> None:
    """Refuse what Tengine's kernels do not compute with codes of a type.

    Raises:
        Unsupported: The model is written in such codes.
    """
    element = sheet.form.element
    if element in elements:
        raise Unsupported(f"Tengine has no kernel for it in {element.name}")
