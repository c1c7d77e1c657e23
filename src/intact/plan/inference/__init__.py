"""What every edge of a plan carries: scales and data types, inferred by functions of operators.

Source: [tvm], "Scale Inference" and "Data Type Assignment". An operator that is
not known here gets a function with `infers_scale` and `infers_dtype`.
"""

from intact.plan.inference.edges import EdgeTypes, infer_edges
from intact.plan.inference.rules import (
    DTYPE_INFERENCES,
    SCALE_INFERENCES,
    DTypeInference,
    ScaleInference,
    declared_signatures,
    factor_slots,
    infer_dtype,
    infer_scale,
    infer_signature,
    infers_dtype,
    infers_scale,
)

__all__ = [
    "DTYPE_INFERENCES",
    "SCALE_INFERENCES",
    "DTypeInference",
    "EdgeTypes",
    "ScaleInference",
    "declared_signatures",
    "factor_slots",
    "infer_dtype",
    "infer_edges",
    "infer_scale",
    "infer_signature",
    "infers_dtype",
    "infers_scale",
]
