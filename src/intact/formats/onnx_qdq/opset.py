"""Raising a model's opset, only when a type needs it."""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import ExportError, ModelError
from intact.graph.files.opset import convert_opset


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model at ``opset`` or newer; the same object where it is new enough.

    Raises:
        ExportError: The model cannot be converted.
    """
    if model.opset_imports[""] >= opset:
        return model
    try:
        return convert_opset(model, opset)
    except ModelError as error:
        raise ExportError(
            f"the plan's types need opset {opset}; the model {error}",
            remedy="export the float model with a newer opset",
        ) from error
