"""Computes the constants of a written model: the integers of a quantized one, or their floats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.large_constants import computed
from intact.plan import QuantPoint


def stored_codes(
    point: QuantPoint, kind: npt.DTypeLike, data_type: ir.DataType
) -> ir.TensorProtocol:
    """Return the integers of a constant, of NumPy's type and of ONNX's."""

    def codes() -> ir.TensorProtocol:
        return ir.Tensor(point.constant_codes().astype(kind))

    return computed(point.value.const_value, codes, data_type)


def stored_on_grid(point: QuantPoint) -> ir.TensorProtocol:
    """Return the floats that the integers of a constant stand for.

    Dividing them by the scale and rounding gives the integers back, as float32 rounds by much
    less than half a step.
    """

    def floats() -> ir.TensorProtocol:
        return ir.Tensor(np.asarray(point.config.dequantize(point.constant_codes()), np.float32))

    return computed(point.value.const_value, floats, ir.DataType.FLOAT)
