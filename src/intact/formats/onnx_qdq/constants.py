"""Constants as a written model holds them: integers, or floats that lie on their grid."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from intact.formats.onnx_qdq.containers import Container
from intact.plan import QuantPoint

_COMPUTED_AT_ONCE = 1 << 24
"""Bytes of a float constant beyond which it is computed when it is written, one at a time."""


def stored_codes(point: QuantPoint, container: Container) -> ir.TensorProtocol:
    """Return the integers of a constant."""

    def codes() -> ir.TensorProtocol:
        return ir.tensor(point.constant_codes().astype(container.numpy))

    return _computed(point, codes, container.data_type)


def stored_on_grid(point: QuantPoint) -> ir.TensorProtocol:
    """Return the floats that the integers of a constant stand for.

    Dividing them by the scale and rounding gives the integers back, as float32 rounds by much
    less than half a step.
    """

    def floats() -> ir.TensorProtocol:
        return ir.tensor(point.config.dequantize(point.constant_codes()).astype(np.float32))

    return _computed(point, floats, ir.DataType.FLOAT)


def _computed(
    point: QuantPoint, compute: Callable[[], ir.TensorProtocol], data_type: ir.DataType
) -> ir.TensorProtocol:
    """Return what is computed of a constant; of a large one only when it is written."""
    source = point.value.const_value
    if source is None or source.nbytes <= _COMPUTED_AT_ONCE:
        return compute()
    return ir.LazyTensor(compute, data_type, ir.Shape(source.shape.numpy()))
