"""Raising a model's opset, only when a type needs it."""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import ExportError

_IR_VERSIONS = {13: 7, 21: 10}
"""The IR version that each opset appeared with (ONNX Versioning document)."""


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model at ``opset`` or newer; the same object where it is new enough.

    Raises:
        ExportError: The model cannot be converted.
    """
    if model.opset_imports[""] >= opset:
        return model
    import onnx
    from onnx import version_converter

    try:
        proto = version_converter.convert_version(ir.to_proto(model), opset)
    except Exception as error:  # the converter raises RuntimeError and others
        reason = str(error).strip().splitlines()[0]
        raise ExportError(
            f"the plan's types need opset {opset}; the model cannot be converted: {reason}",
            remedy="export the float model with a newer opset",
        ) from error
    converted = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    converted.ir_version = max(model.ir_version, _IR_VERSIONS.get(opset, 10))
    return converted
