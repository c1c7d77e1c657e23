"""Tensors that a file does not have: inside of one of its nodes, of which ONNX needs several."""

from __future__ import annotations

import onnx_ir as ir

_KEY = "intact.inside"


def mark_inside(node: ir.Node) -> None:
    """Note that what a node computes is no tensor of the file; the node is changed."""
    node.metadata_props[_KEY] = "1"


def is_inside(value: ir.Value) -> bool:
    """Tell whether a value is no tensor of the file that the model was read from."""
    node = value.producer()
    return node is not None and _KEY in node.metadata_props
